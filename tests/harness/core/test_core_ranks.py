"""`core.init()` on several ranks: real processes, one trial."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from determined.core import PreemptMode
from harness.core.rank_processes import Ranks, ranks
from harness.core_stub_master import StubMaster, trial_environment

LOOP = """
mode = core.PreemptMode[os.environ["MODE"]]
auto_ack = os.environ["AUTO_ACK"] == "yes"
distributed = core.DistributedContext.from_torch_distributed()
with core.init(distributed=distributed, preempt_mode=mode) as context:
    step, preempted = 0, False
    while not preempted:
        step += 1
        if mode is core.PreemptMode.ChiefOnly:
            try:
                preempted = context.preempt.should_preempt(auto_ack)
            except RuntimeError as e:
                assert distributed.rank == 1 and "ChiefOnly" in str(e), e
            preempted = distributed.broadcast(preempted)
        else:
            preempted = context.preempt.should_preempt(auto_ack)
        if step == 1:
            out.with_name(f"began-{distributed.rank}").touch()
        time.sleep(0.01)
    out.write_text(str(step))
    distributed.allgather("all have left the loop")
    if not auto_ack:
        out.with_name(f"waits-{distributed.rank}").touch()
        while not out.with_name("go").exists():
            time.sleep(0.01)
        context.preempt.acknowledge_preemption_signal()
        context.preempt.acknowledge_preemption_signal()
"""


@contextmanager
def training(trial: StubMaster, folder: Path, mode: PreemptMode, *, auto_ack: bool) -> Iterator[Ranks]:
    """Two ranks that train until they are preempted; they have begun."""
    extra = trial_environment(trial, folder) | {"MODE": mode.name, "AUTO_ACK": "yes" if auto_ack else "no"}
    with ranks(folder, LOOP, 2, extra=extra) as running:
        running.wait_for("began-0", "began-1")
        yield running


def count(trial: StubMaster, end: str) -> int:
    return sum(request.path.endswith(end) for request in trial.requests)


@pytest.mark.parametrize("mode", list(PreemptMode))
def test_every_rank_learns_of_preemption_and_the_chief_acknowledges_once(
    trial: StubMaster, tmp_path: Path, mode: PreemptMode
) -> None:
    with training(trial, tmp_path, mode, auto_ack=True) as running:
        assert count(trial, "/ack_preemption") == 0
        trial.preempt.set()
        steps = running.results()
    assert count(trial, "/ack_preemption") == 1
    first_polls = [r for r in trial.requests if r.query.get("timeout_seconds") == ["0"]]
    if mode is PreemptMode.WorkersAskMaster:
        assert len(first_polls) == 2
    else:
        assert len(first_polls) == 1, "only the chief asks the master"
        assert steps[0] == steps[1], "all leave at the same step"


@pytest.mark.parametrize("mode", [PreemptMode.WorkersAskChief, PreemptMode.WorkersAskMaster])
def test_without_auto_ack_nothing_is_acknowledged_until_the_code_does_it(
    trial: StubMaster, tmp_path: Path, mode: PreemptMode
) -> None:
    with training(trial, tmp_path, mode, auto_ack=False) as running:
        trial.preempt.set()
        running.wait_for("waits-0", "waits-1")
        assert count(trial, "/ack_preemption") == 0
        (tmp_path / "go").touch()
        running.results()
    assert count(trial, "/ack_preemption") == 1


def test_when_the_master_refuses_the_poll_no_rank_waits(trial: StubMaster, tmp_path: Path) -> None:
    trial.statuses["/signals/preemption"] = 404
    extra = trial_environment(trial, tmp_path) | {"MODE": "WorkersAskChief", "AUTO_ACK": "yes"}
    with ranks(tmp_path, LOOP, 2, extra=extra) as running:
        assert running.codes() == [1, 1]
    assert "refused /signals/preemption" in running.said(0)
    assert "rank 0 cannot ask the master" in running.said(1)
    assert "refused /signals/preemption" in running.said(1)


SHARDS = """
import json
distributed = core.DistributedContext.from_torch_distributed()
rank = distributed.rank
store = os.environ.get("STORE")
with core.init(
    distributed=distributed, tensorboard_mode=core.TensorboardMode.MANUAL, checkpoint_storage=store
) as context:
    with context.checkpoint.store_path({"steps_completed": 3}, shard=True) as (path, uuid):
        (path / f"part-{rank}").write_text(str(rank))
    with context.checkpoint.restore_path(uuid) as path:
        restored = sorted(file.name for file in path.iterdir() if file.name[0] != ".")
    target = out.with_name("download")
    context.checkpoint.download(uuid, target)
    downloaded = (target / "part-0").read_text() + (target / "part-1").read_text()
    try:
        with context.checkpoint.store_path({"steps_completed": 4}, shard=True) as (path, _):
            (path / "same").write_text(str(rank))
        conflict = ""
    except Exception as e:
        conflict = str(e)
    board = context.train.get_tensorboard_path()
    (board / "events").write_text(str(rank))
    context.train.upload_tensorboard_files(mangler=lambda path, rank: path.with_name(f"{path.name}-{rank}"))
out.write_text(json.dumps([uuid, restored, downloaded, conflict]))
"""


@pytest.mark.parametrize("on_cluster", [True, False])
def test_ranks_save_and_load_one_checkpoint(trial: StubMaster, tmp_path: Path, on_cluster: bool) -> None:
    extra = trial_environment(trial, tmp_path)
    if not on_cluster:
        extra = {
            "STORE": str(tmp_path / "checkpoints"),
            "DET_ALLOCATION_ID": "",
            "XDG_DATA_HOME": str(tmp_path),
        }
    with ranks(tmp_path, SHARDS, 2, extra=extra) as running:
        found = [json.loads(text) for text in running.results()]
    [uuid] = {one[0] for one in found}
    for _, restored, downloaded, conflict in found:
        assert restored == ["metadata.json", "part-0", "part-1"]
        assert downloaded == "01"
        assert "same" in conflict
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} - {"cluster"} == {uuid}
    if on_cluster:
        [report] = trial.sent("/checkpoints")
        assert set(report["resources"]) >= {"metadata.json", "part-0", "part-1"}
        board = tmp_path / "checkpoints" / "cluster" / "tensorboard" / "experiment" / "1" / "trial" / "2"
        assert {path.name: path.read_text() for path in board.iterdir()} == {"events-0": "0", "events-1": "1"}
