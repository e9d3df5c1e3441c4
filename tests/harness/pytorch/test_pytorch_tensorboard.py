"""What a PyTorchTrial shows in TensorBoard, and profiles."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from determined import pytorch
from determined.pytorch import Batch
from harness.core_stub_master import StubMaster
from harness.pytorch.digits_trial import SmallTrial

# Of the protocol buffers that TensorBoard brings.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:google.*", "ignore::DeprecationWarning:tensorboard.*"
)


def scalars(folder: Path) -> dict[str, list[int]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: dict[str, list[int]] = {}
    for file in sorted(folder.rglob("*tfevents*")):
        events = EventAccumulator(str(file)).Reload()
        for tag in events.Tags()["scalars"]:
            found.setdefault(tag, []).extend(event.step for event in events.Scalars(tag))
    return found


class Writes(SmallTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        assert context.get_tensorboard_writer() is context.get_tensorboard_writer()

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        self.context.get_tensorboard_writer().add_scalar("mine/batch", batch_idx, batch_idx)
        return super().train_batch(batch, epoch_idx, batch_idx)


def fit(trial_class: Any, *, logging: bool = True, **arguments: Any) -> Any:
    with pytorch.init(enable_tensorboard_logging=logging) as context:
        assert context.get_enable_tensorboard_logging() == logging
        trial = trial_class(context)
        pytorch.Trainer(trial, context).fit(max_length=Batch(4), reporting_period=Batch(2), **arguments)
    return trial


def test_metrics_and_what_the_trial_writes_get_to_the_storage(trial: StubMaster, tmp_path: Path) -> None:
    fit(Writes)
    [folder] = (tmp_path / "checkpoints").rglob("tensorboard/experiment/1/trial/2")
    found = scalars(folder)
    assert found["mine/batch"] == [0, 1, 2, 3]
    assert found["Determined/loss"] == [2, 4]
    assert found["Determined/validation_loss"] == [4]


def test_without_logging_nothing_is_stored(trial: StubMaster, tmp_path: Path) -> None:
    fit(Writes, logging=False)
    assert list((tmp_path / "checkpoints").rglob("*tfevents*")) == []

    class TurnsOn(Writes):
        def build_callbacks(self) -> Any:
            with pytest.raises(TypeError, match="True or False"):
                self.context.set_enable_tensorboard_logging("yes")  # type: ignore[arg-type]
            self.context.set_enable_tensorboard_logging(True)
            return {}

    fit(TurnsOn, logging=False)
    assert list((tmp_path / "checkpoints").rglob("*tfevents*"))


def test_off_cluster_there_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DET_ALLOCATION_ID", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder = fit(Writes).context.get_tensorboard_path()
    assert scalars(folder)["mine/batch"] == [0, 1, 2, 3]


def test_the_profiler_of_torch_is_stepped_with_the_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DET_ALLOCATION_ID", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    class Profiled(SmallTrial):
        def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
            super().__init__(context)
            context.set_profiler(
                activities=[torch.profiler.ProfilerActivity.CPU],
                schedule=torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1),
            )

    folder = fit(Profiled).context.get_tensorboard_path()
    [trace] = folder.glob("*.pt.trace.json")
    names = {event.get("name") for event in json.loads(trace.read_text())["traceEvents"]}
    assert "ProfilerStep#2" in names
    assert "ProfilerStep#3" not in names


def test_profiling_of_the_machine(trial: StubMaster) -> None:
    def groups() -> set[str]:
        found = {r["group"] for r in trial.sent("/metrics")} - {"training", "validation"}
        trial.requests.clear()
        return found

    fit(SmallTrial)
    assert groups() == set()
    fit(SmallTrial, profiling_enabled=True)
    assert {"cpu", "memory"} <= groups()
    with pytorch.init() as context:
        trainer = pytorch.Trainer(SmallTrial(context), context)
        with pytest.warns(FutureWarning, match="profiling_enabled=True"):
            trainer.configure_profiler(enabled=True)
        trainer.fit(max_length=Batch(1))
    assert {"cpu", "memory"} <= groups()
