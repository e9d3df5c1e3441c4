import datetime
import decimal
import json
import logging
import math
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import determined as det
from determined import core
from determined.common.api import errors
from determined.core._encode import metrics_to_json
from determined.errors import CheckpointNotFound, StorageError
from harness.core_stub_master import DEADLINE, Request, StubMaster


def test_reports_arrive_in_order_with_the_trials_ids(trial: StubMaster) -> None:
    with core.init() as context:
        for step in range(1, 51):
            context.train.report_training_metrics(step, {"loss": 1 / step})
        context.train.report_validation_metrics(50, {"accuracy": 0.5, "picture": b"..."})
        context.train.report_metrics("inference", 50, {"n": 3})
        context.train.set_status("done")
        context.train.report_progress(1)
    reports = trial.sent("/trials/2/metrics")
    assert [r["metrics"]["stepsCompleted"] for r in reports] == [*range(1, 51), 50, 50]
    assert [r["group"] for r in reports[-3:]] == ["training", "validation", "inference"]
    assert reports[50]["metrics"]["metrics"] == {"avgMetrics": {"accuracy": 0.5}}
    assert (reports[0]["metrics"]["trialId"], reports[0]["metrics"]["trialRunId"]) == (2, 1)
    assert trial.sent("/runner/metadata") == [{"state": "done"}]
    assert trial.sent("/progress") == [{"progress": 1.0, "is_raw": True}]
    [start] = trial.sent("/runs/start")
    assert start["runId"] == 2
    assert start["checkpointStorage"]["type"] == "shared_fs"


def test_reports_wait_for_a_master_that_restarts(trial: StubMaster) -> None:
    with core.init() as context:
        context.train.report_training_metrics(1, {"loss": 1})
        trial.wait_for(lambda: len(trial.sent("/metrics")) == 1)
        trial.stop()
        for step in range(2, 6):
            context.train.report_training_metrics(step, {"loss": 1})
        threading.Timer(0.3, trial.start).start()
    steps = [r["metrics"]["stepsCompleted"] for r in trial.sent("/metrics")]
    assert sorted(set(steps)) == [1, 2, 3, 4, 5]
    assert steps == sorted(steps)


def test_a_refused_report_is_raised_at_the_next_one_and_at_close(trial: StubMaster) -> None:
    trial.statuses["/metrics"] = 400
    with pytest.raises(errors.APIException, match="refused /metrics"), core.init() as context:
        context.train.report_training_metrics(1, {"loss": 1})
        trial.wait_for(lambda: len(trial.sent("/metrics")) == 1)
        for step in range(2, 1000):
            context.train.report_training_metrics(step, {"loss": 1})
    assert [r["metrics"]["stepsCompleted"] for r in trial.sent("/metrics")] == [1]

    with pytest.raises(errors.APIException, match="refused /metrics"), core.init() as context:
        context.train.report_training_metrics(1, {"loss": 1})


def test_the_users_own_error_is_not_hidden_by_that_of_a_report(trial: StubMaster) -> None:
    trial.statuses["/metrics"] = 400
    with pytest.raises(ZeroDivisionError), core.init() as context:
        context.train.report_training_metrics(1, {"loss": 1})
        raise ZeroDivisionError


def test_a_checkpoint_is_reported_after_the_metrics_before_it_and_when_it_is_complete(
    trial: StubMaster, tmp_path: Path
) -> None:
    seen: list[list[str]] = []

    def look(request: Request) -> None:
        if request.path == "/api/v1/checkpoints" and request.method == "POST":
            folder = tmp_path / "checkpoints" / request.body["uuid"]
            seen.append(sorted(p.name for p in folder.iterdir()))

    trial.on_request = look
    with core.init() as context:
        for step in range(1, 30):
            context.train.report_training_metrics(step, {"loss": 1})
        with context.checkpoint.store_path({"steps_completed": 29}) as (path, uuid):
            (path / "sub").mkdir()
            (path / "sub" / "weights").write_text("12345")
            assert not (tmp_path / "checkpoints" / uuid).exists()
        paths = [r.path for r in trial.requests]
        metrics = [i for i, path in enumerate(paths) if path.endswith("/metrics")]
        assert len(trial.sent("/metrics")) == 29
        assert paths.index("/api/v1/checkpoints") > metrics[-1]
        assert seen == [[".detlab-manifest.json", "metadata.json", "sub"]]
        [report] = trial.sent("/checkpoints")
        assert report["uuid"] == uuid
        assert report["state"] == "STATE_COMPLETED"
        assert report["metadata"] == {"steps_completed": 29}
        assert report["resources"] == {"metadata.json": "27", "sub/": "0", "sub/weights": "5"}
        assert (report["taskId"], report["allocationId"], report["storageId"]) == ("1.task", "1.task.1", 7)
        with context.checkpoint.restore_path(uuid) as restored:
            assert (restored / "sub" / "weights").read_text() == "12345"
        assert context.checkpoint.get_metadata(uuid) == {"steps_completed": 29}
        context.checkpoint.delete(uuid)
        assert trial.sent("/checkpoints")[-1] == {
            "checkpoints": [{"uuid": uuid, "resources": {"resources": {}}}]
        }
        with pytest.raises(CheckpointNotFound):
            context.checkpoint.download(uuid, tmp_path / "out")


def test_upload_and_download_choose_files(trial: StubMaster, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a").mkdir(parents=True)
    for name in ("a/one.txt", "a/two.bin", "three.txt"):
        (source / name).write_text(name)
    with core.init() as context:
        uuid = context.checkpoint.upload(
            source, {"steps_completed": 1}, selector=lambda path: path.endswith((".txt", "/"))
        )
        context.checkpoint.download(uuid, tmp_path / "out", selector=lambda path: path == "a/one.txt")
    stored = {
        p.relative_to(tmp_path / "checkpoints" / uuid).as_posix()
        for p in (tmp_path / "checkpoints" / uuid).rglob("*")
    }
    assert stored == {"a", "a/one.txt", "three.txt", "metadata.json", ".detlab-manifest.json"}
    assert [p.name for p in (tmp_path / "out").rglob("*") if p.is_file()] == ["one.txt"]
    assert not (source / "metadata.json").exists()


@pytest.mark.parametrize("metadata", [None, {}, {"steps_completed": "3"}, {"steps_completed": True}])
def test_a_checkpoint_without_steps_is_refused_before_it_is_written(
    trial: StubMaster, tmp_path: Path, metadata: dict[str, object] | None
) -> None:
    with core.init() as context:
        with pytest.raises(ValueError, match="steps_completed"), context.checkpoint.store_path(metadata):
            pass
        assert trial.sent("/checkpoints") == []
    assert not list((tmp_path / "checkpoints").glob("*"))


def test_a_run_cleans_up_what_a_killed_run_left(trial: StubMaster, tmp_path: Path) -> None:
    storage = tmp_path / "checkpoints"
    mine, other = storage / ".incomplete-1.task-abc", storage / ".incomplete-2.task-abc"
    for folder in (mine, other):
        folder.mkdir(parents=True)
        (folder / "half").write_text("x")
    with core.init():
        pass
    assert not mine.exists()
    assert other.exists()


def test_preemption_is_seen_while_training_and_acknowledged_once(trial: StubMaster) -> None:
    with core.init() as context:
        assert context.preempt.should_preempt() is False
        trial.preempt.set()
        preempted = threading.Event()
        for _ in range(int(DEADLINE / 0.01)):
            if context.preempt.should_preempt():
                preempted.set()
                break
            threading.Event().wait(0.01)
        assert preempted.is_set()
        assert context.preempt.should_preempt() is True
    assert len([r for r in trial.requests if r.path.endswith("/ack_preemption")]) == 1
    polls = [r.query["timeout_seconds"] for r in trial.requests if r.path.endswith("/preemption")]
    assert polls[:2] == [["0"], ["60"]]


@pytest.mark.parametrize("mode", list(core.PreemptMode))
def test_without_auto_ack_the_signal_is_acknowledged_by_hand(
    trial: StubMaster, mode: core.PreemptMode
) -> None:
    trial.preempt.set()
    with core.init(preempt_mode=mode) as context:
        assert context.preempt.should_preempt(auto_ack=False) is True
        assert not [r for r in trial.requests if r.path.endswith("/ack_preemption")]
        context.preempt.acknowledge_preemption_signal()
        assert len([r for r in trial.requests if r.path.endswith("/ack_preemption")]) == 1


def test_a_master_that_refuses_the_poll_is_an_error_not_a_hang(trial: StubMaster) -> None:
    trial.statuses["/signals/preemption"] = 404
    with core.init() as context, pytest.raises(errors.NotFoundException):
        context.preempt.should_preempt()


def test_invalid_hyperparameters_end_the_trial_without_an_error(trial: StubMaster) -> None:
    with pytest.raises(SystemExit) as exit_, core.init() as context:
        context.train.report_training_metrics(1, {"loss": 1})
        raise det.InvalidHP("batch size too large")
    assert exit_.value.code == 0
    assert trial.sent("/early_exit") == [{"reason": "EXITED_REASON_INVALID_HP"}]
    assert len(trial.sent("/metrics")) == 1


def test_best_validation_counts_what_was_reported_before(trial: StubMaster) -> None:
    with core.init() as context:
        assert context.train.get_experiment_best_validation() is None
        trial.best_metric = 0.25
        context.train.report_validation_metrics(1, {"validation_loss": 0.25})
        assert context.train.get_experiment_best_validation() == 0.25
        paths = [r.path for r in trial.requests if not r.path.endswith("/preemption")]
        assert paths[-2].endswith("/metrics")
        assert context.train.get_metadata() == {"a": 1}
        context.train.set_metadata({"b": 2})
    assert trial.sent("/runs/2/metadata") == [{"metadata": {"b": 2}}]


def test_an_alert_goes_to_the_master_and_off_the_cluster_to_the_log(
    trial: StubMaster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with core.init() as context:
        context.alert("loss is NaN", level="warn")
        for wrong in ({"level": "loud", "title": "x"}, {"level": "info"}):
            with pytest.raises(ValueError, match="alert"):
                context.alert(**wrong)
    data = {"title": "loss is NaN", "description": None, "level": "LOG_LEVEL_WARNING"}
    assert trial.sent("/webhooks/custom") == [{"experimentId": 1, "trialId": 2, "data": data}]
    monkeypatch.delenv("DET_ALLOCATION_ID")
    with core.init() as context:
        context.alert("look", "here", level="error")
    assert ("determined.core", logging.ERROR, "alert: look: here") in caplog.record_tuples


def test_searcher_operations(trial: StubMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with core.init() as context, pytest.raises(ValueError, match=r"searcher\.max_length"):
        context.searcher.get_configured_units()
    config = {
        "checkpoint_storage": {"type": "directory", "container_path": str(tmp_path / "c")},
        "searcher": {"max_length": {"batches": 200}},
    }
    monkeypatch.setenv("DET_EXPERIMENT_CONFIG", json.dumps(config))
    with core.init() as context:
        assert context.searcher.get_configured_units() is core.Unit.BATCHES
        with pytest.warns(FutureWarning, match="deprecated"):
            operations = list_operations(context)
        assert operations == [200]
        with pytest.warns(FutureWarning), pytest.raises(RuntimeError, match="report_completed"):
            for _ in context.searcher.operations():
                pass
    assert [p["progress"] for p in trial.sent("/progress")] == [0.5]


def list_operations(context: core.Context) -> list[int]:
    lengths = []
    for operation in context.searcher.operations():
        lengths.append(operation.length)
        operation.report_progress(100)
        operation.report_completed(0.5)
    return lengths


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda t: t.report_validation_metrics(1, {"loss": None}), ValueError),
        (lambda t: t.report_training_metrics(1, {"loss": object()}), TypeError),
        (lambda t: t.report_training_metrics(1, {"loss": 1j}), TypeError),
        (lambda t: t.report_training_metrics(1, {"loss": _endless()}), TypeError),
        (lambda t: t.report_training_metrics(1, {1: 1}), TypeError),
        (lambda t: t.report_training_metrics(1, [1]), TypeError),
        (lambda t: t.report_training_metrics(1.5, {"loss": 1}), TypeError),
        (lambda t: t.report_metrics("a.b", 1, {"loss": 1}), ValueError),
        (lambda t: t.report_metrics("", 1, {"loss": 1}), ValueError),
        (lambda t: t.report_progress(1.5), ValueError),
        (lambda t: t.report_progress(math.nan), ValueError),
        (lambda t: t.report_early_exit("tired"), ValueError),
    ],
)
def test_wrong_reports_are_refused_at_once(trial: StubMaster, call, kind: type[Exception]) -> None:  # type: ignore[no-untyped-def]
    with core.init() as context, pytest.raises(kind):
        call(context.train)
    assert trial.sent("/metrics") == []


def _endless() -> list[object]:
    endless: list[object] = []
    endless.append(endless)
    return endless


def test_metrics_become_json() -> None:
    import numpy as np
    import torch

    metrics = {
        "nan": math.nan,
        "up": math.inf,
        "down": np.float32(-math.inf),
        "torch": torch.tensor(2.5),
        "array": np.array([1, 2]),
        "half": torch.tensor([0.5, math.inf], dtype=torch.bfloat16),
        "table": np.array([["a", None]], dtype=object),
        "day": datetime.date(2026, 1, 31),
        "money": decimal.Decimal("1.5"),
        "days": np.array(["2026-01-31"], dtype="datetime64[D]"),
        "nested": {"deep": [torch.tensor(math.nan)]},
        "flag": True,
        "text": "x",
        "none": None,
    }
    assert json.loads(json.dumps(metrics_to_json(metrics), allow_nan=False)) == {
        "nan": "NaN",
        "up": "Infinity",
        "down": "-Infinity",
        "torch": 2.5,
        "array": [1, 2],
        "half": [0.5, "Infinity"],
        "table": [["a", None]],
        "day": "2026-01-31",
        "money": 1.5,
        "days": ["2026-01-31"],
        "nested": {"deep": ["NaN"]},
        "flag": True,
        "text": "x",
        "none": None,
    }


def test_a_report_is_of_the_moment_of_its_call(trial: StubMaster) -> None:
    import numpy as np
    import torch

    confusion, weights, nested = np.zeros((2, 2), dtype=int), torch.zeros(2), {"list": [1]}
    metrics = {"confusion": confusion, "weights": weights, "nested": nested}
    with core.init() as context:
        context.train.report_training_metrics(1, metrics, [metrics])
        confusion += 1
        weights += 1
        nested["list"].append(2)
        metrics["late"] = 1
    expected = {"confusion": [[0, 0], [0, 0]], "weights": [0.0, 0.0], "nested": {"list": [1]}}
    [report] = trial.sent("/metrics")
    assert report["metrics"]["metrics"] == {"avgMetrics": expected, "batchMetrics": [expected]}


def test_of_progress_and_status_the_newest_arrives(trial: StubMaster) -> None:
    with core.init() as context:
        for step in range(1, 101):
            context.train.report_training_metrics(step, {"loss": 1})
            context.train.report_progress(step / 100)
            context.train.set_status(f"step {step}")
    assert [r["metrics"]["stepsCompleted"] for r in trial.sent("/metrics")] == list(range(1, 101))
    assert trial.sent("/progress")[-1]["progress"] == 1
    assert trial.sent("/runner/metadata")[-1] == {"state": "step 100"}
    assert len(trial.requests) < 40


PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3))
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner)
)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4))
def test_any_metrics_become_json_with_nothing_lost_but_the_kind_of_a_special_number(metrics: Any) -> None:
    def expected(value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        if isinstance(value, dict):
            return {key: expected(item) for key, item in value.items()}
        return [expected(item) for item in value] if isinstance(value, list) else value

    assert json.loads(json.dumps(metrics_to_json(metrics), allow_nan=False)) == expected(metrics)


def test_off_cluster_the_same_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("DET_ALLOCATION_ID", raising=False)
    caplog.set_level(logging.INFO, "determined")
    with core.init(checkpoint_storage=tmp_path / "local") as context:
        context.train.report_training_metrics(1, {"loss": 0.5})
        context.train.report_progress(0.5)
        context.train.set_metadata({"a": 1})
        assert context.train.get_metadata() == {"a": 1}
        assert context.train.get_experiment_best_validation() is None
        assert context.preempt.should_preempt() is False
        assert context.info is None
        with pytest.warns(FutureWarning):
            assert [operation.length for operation in _completed(context)] == [1]
        with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
            (path / "f").write_text("f")
        assert context.checkpoint.get_metadata(uuid) == {"steps_completed": 1}
        context.checkpoint.delete(uuid)
        with pytest.raises(CheckpointNotFound), context.checkpoint.restore_path(uuid):
            pass
    assert "training metrics after 1 steps: {'loss': 0.5}" in caplog.text


def _completed(context: core.Context) -> list[core.SearcherOperation]:
    operations = []
    for operation in context.searcher.operations():
        operation.report_completed(1)
        operations.append(operation)
    return operations


def test_in_a_task_that_is_no_trial_the_same_code_runs(
    trial: StubMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DET_TASK_TYPE", "NOTEBOOK")
    caplog.set_level(logging.INFO, "determined")
    with core.init(checkpoint_storage=tmp_path / "notebook") as context:
        assert context.info is not None
        assert context.info.task_type == "NOTEBOOK"
        context.train.report_validation_metrics(3, {"loss": math.nan})
        context.train.report_early_exit(core.EarlyExitReason.USER_REQUESTED_STOP)
        context.alert("look")
        with context.checkpoint.store_path() as (path, uuid):
            (path / "f").write_text("f")
        context.checkpoint.delete(uuid)
        assert context.preempt.should_preempt() is False
    with pytest.raises(det.InvalidHP), core.init(checkpoint_storage=tmp_path / "notebook"):
        raise det.InvalidHP
    assert trial.requests == []
    assert "validation metrics after 3 steps: {'loss': 'NaN'}" in caplog.text


def test_without_a_place_checkpoints_go_to_the_users_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DET_ALLOCATION_ID", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with core.init() as context, context.checkpoint.store_path() as (path, uuid):
        (path / "f").write_text("f")
    assert (tmp_path / "determined" / "checkpoints" / uuid / "f").exists()


def test_a_url_of_a_storage_that_is_not_known_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DET_ALLOCATION_ID", raising=False)
    with pytest.raises(StorageError, match="hdfs://bucket"):
        core.init(checkpoint_storage="hdfs://bucket")


def test_several_slots_want_to_know_of_the_others(trial: StubMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_SLOT_IDS", "[0, 1]")
    with pytest.raises(ValueError, match="slots_per_trial"):
        core.init()


def test_a_script_that_never_closes_its_context_loses_no_reports(trial: StubMaster) -> None:
    script = """
import os
from determined import core
core_context = core.init()
core_context.start()
if os.fork() == 0:
    raise SystemExit  # a child has no threads to wait for
os.wait()
core_context.train.report_validation_metrics(7, {"loss": 1.0})
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    assert [body["metrics"]["stepsCompleted"] for body in trial.sent("/metrics")] == [7]
