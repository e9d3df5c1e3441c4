"""One Core API script under the official package and under ours: the same charts, series and messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from determined.experimental import Determined
from interop.harness import config, first_trial, needs_namespaces
from interop.official import ENVIRONMENT, need_official_client
from support.cluster import PASSWORD, Cluster, cluster

pytestmark = [pytest.mark.full, needs_namespaces]

SCRIPT = """
import json, math, time
from determined import core

d = core.DistributedContext.from_torch_distributed()
with core.init(distributed=d) as context:
    said = {"rank": d.rank}
    said["about"] = [d.get_rank(), d.get_size(), d.get_local_rank(), d.get_num_agents()]
    for name in ("gather", "gather_local", "allgather", "allgather_local", "broadcast", "broadcast_local"):
        said[name] = getattr(d, name)({"from": d.rank})
    said["preempt"] = [context.preempt.should_preempt(), context.preempt.should_preempt(auto_ack=False)]
    try:
        context.train.upload_tensorboard_files()
    except RuntimeError:
        said["upload"] = "refused"
    for seconds in (0, -1, 0.05):
        try:
            context.profiler.on(sampling_interval=seconds)
        except ValueError:
            said[f"interval {seconds}"] = "refused"
    context.profiler.on(sampling_interval=0.2, samples_per_report=2)
    context.profiler.on()
    if d.rank == 0:
        train = context.train
        train.report_training_metrics(1, {"loss": 0.5, "text": "x", "flag": True, "list": [1], "nan": math.nan})
        train.report_training_metrics(4, {"loss": 2}, batch_metrics=[{"loss": 1}, {"loss": 2}, {"loss": 3}])
        train.report_validation_metrics(4, {"loss": 0.25, "val_accuracy": 1, "validation_error": 0})
    time.sleep(1)
    context.profiler.off()
    context.profiler.off()
print("SAID", json.dumps(said))
"""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need_official_client()
    if not (ENVIRONMENT / ".torch").exists():
        pytest.skip("the official environment has no PyTorch; type: make .venv-official/.torch")
    environments = {"official": str(ENVIRONMENT)}
    with cluster(tmp_path_factory.mktemp("cluster"), slots=2, environments=environments) as running:
        yield running


def test_charts_series_and_messages_are_the_same(ours: Cluster) -> None:
    command = "python3 -m torch.distributed.run --standalone --nproc_per_node 2 train.py"
    found = []
    for environment in ({"image": "official"}, {}):
        experiment = ours.create(config(command, environment=environment), {"train.py": SCRIPT})
        trial = first_trial(ours, experiment)
        assert ours.wait_for_end(experiment) == "COMPLETED", ours.logs(trial)
        found.append((said(ours, trial), charts(ours, experiment), series(ours, trial)))
    theirs, mine = found
    assert mine[0] == theirs[0]
    assert mine[1] == theirs[1]
    assert len(mine[1]) == 9
    assert mine[2] == theirs[2]
    assert set(mine[2]) == {"cpu", "memory", "disk", "network"}


def said(ours: Cluster, trial_id: int) -> list[Any]:
    lines = [line for line in ours.logs(trial_id).splitlines() if "SAID" in line]
    return sorted(
        (json.loads(line.partition("SAID ")[2]) for line in lines), key=lambda one: int(one["rank"])
    )


def charts(ours: Cluster, experiment_id: int) -> list[tuple[int, str, str]]:
    """Step, tag and value of all that TensorBoard reads in the experiment's files."""
    [folder] = Path(ours.master_folder, "checkpoints").glob(f"*/tensorboard/experiment/{experiment_id}")
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    return sorted(
        (event.step, value.tag, str(value.simple_value))  # NaN is not equal to itself
        for path in folder.rglob("*tfevents*")
        for event in loader.LegacyEventFileLoader(str(path)).Load()
        for value in event.summary.value
    )


def series(ours: Cluster, trial_id: int) -> dict[str, set[str]]:
    """The names of what the profiler has reported, by group. Which folders it looks at is each one's own."""
    trial = Determined(ours.url, "determined", PASSWORD).get_trial(trial_id)
    found: dict[str, set[str]] = {}
    for group in ("gpu", "cpu", "memory", "disk", "network"):
        for report in trial.iter_metrics(group):
            [(agent, values)] = report.metrics.items()
            assert agent == "agent-1"
            names = found.setdefault(group, set())
            for name, value in values.items():
                names |= {f"/…/{inner}" for inner in value} if isinstance(value, dict) else {name}
    return found
