"""Batch inference: each item once, whatever interrupts it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data

from determined.pytorch.experimental import (
    TorchBatchProcessor,
    TorchBatchProcessorContext,
    torch_batch_process,
)
from harness.core.rank_processes import ranks
from harness.core_stub_master import StubMaster

ITEMS = 23


class Squares(TorchBatchProcessor):
    """Stores the squares of the items, a file for each checkpoint."""

    calls: list[Any]
    fail_at: int | None = None

    def __init__(self, context: TorchBatchProcessorContext) -> None:
        self.context = context
        self.model = context.prepare_model_for_inference(torch.nn.Dropout())
        assert not self.model.training
        self.found: list[int] = []

    def process_batch(self, batch: Any, batch_idx: int) -> None:
        assert not torch.is_grad_enabled()
        if batch_idx == self.fail_at:
            raise KeyError("a bad batch")
        self.calls.append(batch_idx)
        [items] = self.context.to_device(batch)
        self.found += (self.model(items.float()) ** 2).int().tolist()

    def on_checkpoint_start(self) -> None:
        if self.found:
            with self.context.upload_path() as path:
                (path / "squares").mkdir()
                (path / "squares" / f"{self.found[0]}.json").write_text(json.dumps(self.found))
        self.calls.append("checkpoint")
        self.found = []

    def on_finish(self) -> None:
        self.calls.append("finish")
        self.context.report_metrics("inference", len(self.calls), {"items": ITEMS})


@pytest.fixture(autouse=True)
def calls() -> list[Any]:
    Squares.calls = []
    Squares.fail_at = None
    return Squares.calls


def process(**arguments: Any) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(ITEMS))
    torch_batch_process(Squares, data, **{"batch_size": 4, "checkpoint_interval": 2} | arguments)


def stored(tmp_path: Path) -> list[int]:
    files = (tmp_path / "checkpoints").glob("*/squares/*.json")
    return sorted(square for file in files for square in json.loads(file.read_text()))


def go_on(trial: StubMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run of the trial, from its newest checkpoint."""
    newest = trial.sent("/checkpoints")[-1]
    monkeypatch.setenv("DET_LATEST_CHECKPOINT", newest["uuid"])
    monkeypatch.setenv("DET_STEPS_COMPLETED", str(newest["metadata"]["steps_completed"]))


def test_each_batch_is_processed_and_stored(trial: StubMaster, tmp_path: Path, calls: list[Any]) -> None:
    process()
    assert calls == [0, 1, "checkpoint", 2, 3, "checkpoint", 4, 5, "checkpoint", "finish"]
    assert stored(tmp_path) == [i**2 for i in range(ITEMS)]
    saved = [r["metadata"] for r in trial.sent("/checkpoints")]
    assert [m["steps_completed"] for m in saved] == [2, 4, 6]
    assert len({m["default_output_uuid"] for m in saved}) == 1
    assert trial.sent("/progress")[-1]["progress"] == 1.0
    assert [r["group"] for r in trial.sent("/metrics")] == ["inference"]


def test_a_preempted_run_goes_on_where_it_was(
    trial: StubMaster, tmp_path: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trial.preempt.set()
    process()
    assert calls == [0, 1, "checkpoint"]
    go_on(trial, monkeypatch)
    process()
    assert calls[3:] == [2, 3, "checkpoint"]
    trial.preempt.clear()
    go_on(trial, monkeypatch)
    process()
    assert calls[6:] == [4, 5, "checkpoint", "finish"]
    assert stored(tmp_path) == [i**2 for i in range(ITEMS)]
    go_on(trial, monkeypatch)
    process()
    assert calls[10:] == ["finish"]


def test_what_came_after_the_newest_checkpoint_is_done_again(
    trial: StubMaster, tmp_path: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Squares.fail_at = 3
    with pytest.raises(KeyError):
        process()
    Squares.fail_at = None
    go_on(trial, monkeypatch)
    process(max_batches=5)
    assert calls == [0, 1, "checkpoint", 2, 2, 3, "checkpoint", 4, "checkpoint", "finish"]
    assert stored(tmp_path) == [i**2 for i in range(20)]
    monkeypatch.setenv("DET_STEPS_COMPLETED", "0")  # a trial that starts with another one's checkpoint
    calls.clear()
    process()
    assert calls[0] == 0


TWO = """
import torch
from harness.pytorch.test_pytorch_batch_process import Squares, process
Squares.calls = []
process(distributed_context=core.DistributedContext.from_torch_distributed())
out.write_text(str(Squares.calls))
"""


def test_processes_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "determined"))
    with ranks(tmp_path, TWO, 2, extra={"PYTHONPATH": str(Path(__file__).parents[2])}) as running:
        first, second = running.results()
    assert first == "[0, 1, 'checkpoint', 2, 'checkpoint', 'finish']"
    assert second == "[0, 1, 'checkpoint', 2, 'checkpoint', 'finish']"
    files = (tmp_path / "determined").rglob("squares/*.json")
    assert sorted(s for file in files for s in json.loads(file.read_text())) == [i**2 for i in range(ITEMS)]


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ({"batch_processor_cls": torch.nn.Linear}, TypeError, "must be a TorchBatchProcessor"),
        ({"dataset": iter(())}, TypeError, "has no length"),
        ({"batch_size": 0}, ValueError, "batch_size is 0"),
        ({"checkpoint_interval": 0}, ValueError, "checkpoint_interval is 0"),
        ({"dataloader_kwargs": {"shuffle": True}}, ValueError, "dataset's order"),
        ({"dataloader_kwargs": {"batch_size": 3}}, ValueError, "give one of them"),
    ],
)
def test_wrong_calls_say_what_to_do(arguments: dict[str, Any], kind: type[Exception], said: str) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(ITEMS))
    fine: dict[str, Any] = {"batch_processor_cls": Squares, "dataset": data, "batch_size": 4}
    with pytest.raises(kind, match=said):
        torch_batch_process(**fine | arguments)
