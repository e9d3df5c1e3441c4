"""Trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from detlab_master.api.encode import checkpoints
from detlab_master.api.encode.metrics import validation
from detlab_master.api.encode.wire import Object, timestamp
from detlab_master.core.records import Allocation, Checkpoint, Trial
from detlab_master.core.states import CheckpointState

_WITH_FILES = (CheckpointState.COMPLETED, CheckpointState.PARTIALLY_DELETED)


@dataclass(frozen=True)
class TrialView:
    """A trial with what is shown beside it."""

    trial: Trial
    checkpoints: Sequence[Checkpoint]
    allocations: Sequence[Allocation]
    max_restarts: int

    @property
    def kept(self) -> list[Checkpoint]:
        """The checkpoints whose files are there."""
        return [c for c in self.checkpoints if c.state in _WITH_FILES]

    @property
    def checkpoint_bytes(self) -> int:
        return sum(c.size for c in self.kept)

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """The COMPLETED one of the step of the best validation."""
        best = self.trial.best_validation
        found = [
            c
            for c in self.checkpoints
            if best and c.state is CheckpointState.COMPLETED and c.steps_completed == best["total_batches"]
        ]
        return max(found, key=lambda c: c.reported_at, default=None)

    def wall_clock(self, now: float) -> float:
        """Seconds that its runs took in all; one in which the clock was put back counts as 0 at least.

        Of a detached trial: from its first start to when it was last heard of.
        """
        if self.trial.last_activity is not None:
            return max(0.0, self.trial.last_activity - self.trial.start_time)
        return sum(
            max(0.0, (now if a.ended_at is None else a.ended_at) - a.started_at)
            for a in self.allocations
            if a.started_at is not None
        )


def trial(view: TrialView, state: str, now: float) -> Object:
    """trialv1Trial.

    Args:
        state: as shown, an ACTIVE one refined.
        now: Unix seconds; the end of a run that still goes on.
    """
    record, best_checkpoint = view.trial, view.best_checkpoint
    return {
        "id": record.id,
        "experimentId": record.experiment_id,
        "state": f"STATE_{state}",
        "hparams": record.hparams,
        "startTime": timestamp(record.start_time),
        "endTime": timestamp(record.end_time),
        "restarts": min(record.restarts, view.max_restarts),
        "totalBatchesProcessed": record.total_batches,
        "latestValidation": validation(record.latest_validation),
        "bestValidation": validation(record.best_validation),
        "bestCheckpoint": checkpoints.workload(best_checkpoint) if best_checkpoint else None,
        "searcherMetricValue": record.searcher_metric,
        "summaryMetrics": record.summary_metrics,
        "checkpointCount": len(view.kept),
        "totalCheckpointSize": str(view.checkpoint_bytes),
        "warmStartCheckpointUuid": record.warm_start_checkpoint or "",
        "runnerState": record.runner_state,
        "taskId": record.task_id,
        "taskIds": [record.task_id],
        "wallClockTime": view.wall_clock(now),
        "metadata": record.metadata,
        "logRetentionDays": record.log_retention_days,
        "logPolicyMatched": record.log_policy_matched,
    }
