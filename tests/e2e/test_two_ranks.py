"""A trial of two processes on a real cluster: preempted, gone on with, charted and profiled."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from determined.experimental import Determined
from e2e.conftest import Place
from e2e.trials import script_config
from support.cluster import PASSWORD, wait_for

SCRIPT = """
import os, time
import determined as det
from determined import core

info = det.get_cluster_info()
distributed = core.DistributedContext.from_torch_distributed()
rank = distributed.rank
with core.init(distributed=distributed) as context:
    context.profiler.on(sampling_interval=0.1, samples_per_report=2)
    board = context.train.get_tensorboard_path()
    (board / f"own-{rank}-{info.trial._trial_run_id}").write_text("x")
    step, end = 0, None
    if info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(info.latest_checkpoint) as path:
            parts = [int((path / f"part-{i}").read_text()) for i in range(distributed.size)]
        assert parts == [parts[0]] * 2, parts
        step, end = parts[rank], parts[rank] + 3
    while step != end:
        step += 1
        if rank == 0:
            context.train.report_training_metrics(step, {"loss": 1 / step})
        if context.preempt.should_preempt():
            break
        time.sleep(0.05)
    with context.checkpoint.store_path({"steps_completed": step}, shard=True) as (path, _):
        (path / f"part-{rank}").write_text(str(step))
"""


def test_two_ranks_are_paused_and_go_on_and_leave_charts_and_series(place: Place) -> None:
    ours = place.cluster
    config = script_config(place.side)
    launch = "-m torch.distributed.run --standalone --nproc_per_node 2 train.py"
    config["entrypoint"] = f"{sys.executable} {launch}"
    config["resources"] = {"slots_per_trial": 2}
    experiment = ours.create(config, {"train.py": SCRIPT})
    [trial] = wait_for(lambda: ours.trials(experiment), "the trial")
    summary = wait_for(
        lambda: ours.get(f"/api/v1/trials/{trial['id']}")["trial"].get("summaryMetrics"), "its first report"
    )
    assert "loss" in summary["avg_metrics"]
    ours.post(f"/api/v1/experiments/{experiment}/pause")
    wait_for(lambda: "Ended with exit code 0" in ours.logs(trial["id"]), "both ranks have left")
    ours.post(f"/api/v1/experiments/{experiment}/activate")
    assert ours.wait_for_end(experiment) == "COMPLETED", ours.logs(trial["id"])

    [ended] = ours.trials(experiment)
    assert ended["restarts"] == 0
    found = Determined(ours.url, "determined", PASSWORD).get_trial(trial["id"])
    steps = [report.steps_completed for report in found.iter_metrics("training")]
    assert steps == list(range(1, len(steps) + 1)), "no step is missing, and none was trained twice"
    for group in ("cpu", "memory", "network", "disk"):
        series = list(found.iter_metrics(group))
        assert series, group
        assert all(list(report.metrics) == ["agent-1"] for report in series)

    store = ours.master_folder / "checkpoints"
    [folder] = store.glob(f"*/tensorboard/experiment/{experiment}")
    names = {path.name for path in folder.glob(f"trial/{trial['id']}/*")}
    assert {f"own-{rank}-{run}" for rank in (0, 1) for run in (1, 2)} <= names
    assert len([name for name in names if "tfevents" in name]) == 2, "of the chief, one of each run"
    if os.geteuid() == 0:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert folder.stat().st_uid != 0
    said = place.det("experiment", "delete-tb-files", str(experiment))
    assert said.returncode == 0, said.stderr
    assert not Path(folder).exists()
    assert folder.parent.exists()


def test_the_charts_of_each_user_are_closed_to_the_others(place: Place) -> None:
    script = (
        "from determined import core\n"
        "with core.init() as context:\n"
        "    context.train.report_training_metrics(1, {'loss': 1})\n"
    )
    owners = []
    for user in ("bob", "eve"):
        place.cluster.add_user(user)
        experiment = place.cluster.create(script_config(place.side), {"train.py": script}, user=user)
        path = f"/api/v1/experiments/{experiment}"

        def completed(path: str = path, user: str = user) -> bool:
            return bool(place.cluster.get(path, user=user)["experiment"]["state"] == "STATE_COMPLETED")

        wait_for(completed, f"the experiment of {user}")
        store = place.cluster.master_folder / "checkpoints"
        [folder] = store.glob(f"*/tensorboard/experiment/{experiment}")
        assert len(list(folder.rglob("*tfevents*"))) == 1
        owners.append(folder.stat().st_uid)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    if os.geteuid() == 0:
        assert len(set(owners)) == 2
