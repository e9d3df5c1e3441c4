"""What trials reported."""

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from determined.common.api import Session
from determined.experimental import _wire


@dataclass(frozen=True)
class TrialMetrics:
    """One report of one trial: a group of metrics at a number of completed steps (batches)."""

    trial_id: int
    trial_run_id: int  # counts the trial's starts: a restart has a higher one
    steps_completed: int
    end_time: datetime.datetime | None
    metrics: dict[str, Any]
    group: str  # "training", "validation", or a name of the user's own
    batch_metrics: list[dict[str, Any]] | None = None

    @property
    def total_batches(self) -> int:
        """The older name of steps_completed."""
        return self.steps_completed

    @classmethod
    def from_json(cls, report: dict[str, Any]) -> "TrialMetrics":
        content = report["metrics"]
        values = content.get("validation_metrics")
        if values is None:
            values = content.get("avg_metrics")
        return cls(
            trial_id=report["trialId"],
            trial_run_id=report["trialRunId"],
            steps_completed=report["totalBatches"],
            end_time=_wire.time(report["endTime"]),
            metrics=values or {},
            group=report["group"],
            batch_metrics=content.get("batch_metrics"),
        )


def iter_metrics_of(session: Session, path: str, group: str | None) -> Iterator[TrialMetrics]:
    """The reports that a route answers at once, of one group or (None) of all."""
    for report in session.get_json(path, {"metricGroup": group})["metrics"]:
        yield TrialMetrics.from_json(report)


def iter_trials_metrics(session: Session, trial_ids: Sequence[int], group: str) -> Iterator[TrialMetrics]:
    """The reports of these trials in a group ("" means every group), by trial and steps."""
    params = {"trialIds": list(trial_ids), "group": group}
    for batch in session.stream("/api/v1/trials/metrics/trial_metrics", params):
        for report in batch["metrics"]:
            yield TrialMetrics.from_json(report)
