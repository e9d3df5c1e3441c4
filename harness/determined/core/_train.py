"""Reporting a trial's metrics, progress and state."""

import contextlib
import enum
import logging
import operator
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from determined.common import api
from determined.common.api import errors
from determined.core._encode import encode, snapshot
from determined.core._reports import MetricsReport, ProgressReport, Report, StatusReport
from determined.core._sender import ReportSender
from determined.core._tensorboard import FileMangler, FileSelector, TensorboardFiles

logger = logging.getLogger("determined.core")


class EarlyExitReason(enum.Enum):
    """Why a trial ends before its training is done."""

    INVALID_HP = "EXITED_REASON_INVALID_HP"
    USER_REQUESTED_STOP = "EXITED_REASON_USER_REQUESTED_STOP"


class TrainContext:
    """Tells the master how a trial is doing. Get it as `core_context.train`.

    Metrics, progress and status are sent by a thread in the background, in the order of the calls; a call takes
    a snapshot of its values and returns. When the master refuses one of them, the next call raises the error.
    While the master is away (a restart takes up to minutes) they wait; a call blocks only when 1,000 of them wait.
    """

    def __init__(
        self,
        session: api.Session,
        sender: ReportSender[Report],
        tensorboard: TensorboardFiles,
        *,
        trial_id: int,
        experiment_id: int,
    ) -> None:
        self._session = session
        self._sender = sender
        self._tensorboard = tensorboard
        self._trial_id = trial_id
        self._experiment_id = experiment_id

    def report_training_metrics(
        self,
        steps_completed: int,
        metrics: Mapping[str, Any],
        batch_metrics: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Report metrics of the training up to `steps_completed`, optionally with those of each batch."""
        self._report("training", steps_completed, metrics, batch_metrics)

    def report_validation_metrics(self, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Report the metrics of a validation after `steps_completed`; the search decides by them.

        Values of type bytes are left out. Raises ValueError for None: a missing value would mislead the search.
        """
        self._report("validation", steps_completed, _validation_metrics(metrics))

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Report metrics of any group: a name without dots, such as `inference`."""
        if group == "validation":
            metrics = _validation_metrics(metrics)
        self._report(group, steps_completed, metrics)

    def _report(
        self,
        group: str,
        steps_completed: int,
        metrics: Mapping[str, Any],
        batch_metrics: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        _check_group(group)
        report = MetricsReport(
            group,
            operator.index(steps_completed),
            snapshot(metrics),
            None if batch_metrics is None else [snapshot(batch) for batch in batch_metrics],
            time.time(),
        )
        self._tensorboard.report(report)
        self._send(report)

    def _send(self, report: MetricsReport) -> None:
        # The search decides by validations, and other trials may wait for that.
        self._sender.put(report, urgent=report.group == "validation")

    def report_progress(self, progress: float) -> None:
        """Report how much of the training is done, from 0 to 1. Raises ValueError outside of that."""
        self._sender.put(ProgressReport(_checked_progress(progress)))

    def set_status(self, status: str) -> None:
        """Show what the trial is doing, in a word or two: `training`, `validating`."""
        self._sender.put(StatusReport(str(status)))

    def report_early_exit(self, reason: EarlyExitReason) -> None:
        """Say that the trial is about to end early, and why. Returns when the master knows."""
        with contextlib.suppress(
            errors.RequestFailed
        ):  # a lost metric must not hide the reason; close() tells
            self._sender.drain()
        self._session.post(self._path("early_exit"), json={"reason": EarlyExitReason(reason).value})

    def get_experiment_best_validation(self) -> float | None:
        """The best searcher metric of all the experiment's trials, counting all that was reported here."""
        self._sender.drain()
        path = f"/api/v1/experiments/{self._experiment_id}/searcher/best_searcher_validation_metric"
        try:
            return float(self._session.get(path).json()["metric"])
        except errors.NotFoundException:
            return None

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Replace the run's metadata: any JSON object that describes it."""
        self._session.post(f"/api/v1/runs/{self._trial_id}/metadata", json={"metadata": dict(metadata)})

    def get_metadata(self) -> dict[str, Any]:
        """The run's metadata; empty when none was set."""
        answer = self._session.get(f"/api/v1/runs/{self._trial_id}/metadata").json()
        return dict(answer.get("metadata") or {})

    def get_tensorboard_path(self) -> Path:
        """A folder to write files for TensorBoard to.

        In a trial they get to the checkpoint storage, by themselves or by `upload_tensorboard_files`. Elsewhere
        they stay in it; it is a new one for each run.
        """
        return self._tensorboard.path

    def upload_tensorboard_files(
        self,
        selector: FileSelector = lambda path: True,
        mangler: FileMangler = lambda path, rank: path,
    ) -> None:
        """Begin to copy the files that were written to `get_tensorboard_path()` to the storage, in mode MANUAL.

        `selector` gets each file's path and says whether to copy it; `mangler` gets its path relative to that
        folder, and the rank of this process, and gives the name for it. The copies are made in the
        background; the end of `core.init()` waits for them.
        """
        self._tensorboard.upload(selector, mangler)

    def _path(self, end: str) -> str:
        return f"/api/v1/trials/{self._trial_id}/{end}"


class DummyTrainContext(TrainContext):
    """Where no trial runs: what is reported goes to the log."""

    def __init__(self, tensorboard: TensorboardFiles) -> None:
        self._tensorboard = tensorboard
        self._metadata: dict[str, Any] = {}

    def _send(self, report: MetricsReport) -> None:
        logger.info(
            "%s metrics after %d steps: %s", report.group, report.steps_completed, encode(report.metrics)
        )

    def report_progress(self, progress: float) -> None:
        logger.info("progress: %.1f %%", 100 * _checked_progress(progress))

    def set_status(self, status: str) -> None:
        logger.info("status: %s", status)

    def report_early_exit(self, reason: EarlyExitReason) -> None:
        logger.info("early exit: %s", EarlyExitReason(reason).name)

    def get_experiment_best_validation(self) -> float | None:
        return None

    def set_metadata(self, metadata: Mapping[str, Any]) -> None:
        logger.info("metadata: %s", metadata)
        self._metadata = dict(metadata)

    def get_metadata(self) -> dict[str, Any]:
        return dict(self._metadata)


def _check_group(group: str) -> None:
    if not group or "." in group:
        raise ValueError(f"the metric group {group!r} must be a name without dots")


def _checked_progress(progress: float) -> float:
    if not 0 <= progress <= 1:
        raise ValueError(f"progress is {progress}: it must lie between 0 and 1")
    return float(progress)


def _validation_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    missing = [name for name, value in metrics.items() if value is None]
    if missing:
        raise ValueError(f"the validation metrics {missing} are None: leave them out, or report a number")
    return {name: value for name, value in metrics.items() if not isinstance(value, bytes)}
