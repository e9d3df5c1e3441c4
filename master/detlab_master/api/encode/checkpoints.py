"""Checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from detlab_master.api.encode.metrics import metrics
from detlab_master.api.encode.wire import Object, sizes, timestamp
from detlab_master.core.metrics import as_number
from detlab_master.core.records import Checkpoint, Experiment, Json, Trial


@dataclass(frozen=True)
class CheckpointView:
    """A checkpoint with what was reported at its step. Metrics and checkpoints may arrive in any order."""

    checkpoint: Checkpoint
    experiment: Experiment
    trial: Trial | None
    training: Json | None = None  # average metrics
    validation: Json | None = None

    @property
    def searcher_metric(self) -> float | None:
        """The validation's value of the metric that the search looks at."""
        name = self.experiment.config.get("searcher", {}).get("metric")
        return as_number(self.validation.get(name)) if self.validation and name else None


def checkpoint(view: CheckpointView) -> Object:
    """v1Checkpoint. The configuration names the storage unmasked: its owner downloads from there."""
    record = view.checkpoint
    return {
        "uuid": record.uuid,
        "taskId": record.task_id,
        "allocationId": record.allocation_id,
        "reportTime": timestamp(record.reported_at),
        "state": f"STATE_{record.state}",
        "resources": sizes(record.resources),
        "metadata": record.metadata,
        "storageId": record.storage_id,
        "training": {
            "trialId": record.trial_id,
            "experimentId": record.experiment_id,
            "experimentConfig": view.experiment.config,
            "hparams": view.trial.hparams if view.trial else {},
            "trainingMetrics": metrics(view.training or {}),
            "validationMetrics": metrics(view.validation or {}),
            "searcherMetric": view.searcher_metric,
        },
    }


def superfluous(record: Checkpoint, validation: Json | None, metric: str) -> Object:
    """A row of preview_gc, whose keys are those of a route that is older than the others.

    The official client shows those whose ``step`` has a validation, with the value of ``metric`` in ValidationMetrics.
    """
    validated = validation if validation and validation.get(metric) is not None else None
    return {
        "ID": record.uuid,
        "UUID": record.uuid,
        "TrialID": record.trial_id,
        "ExperimentID": record.experiment_id,
        "StepsCompleted": record.steps_completed,
        "State": str(record.state),
        "ReportTime": timestamp(record.reported_at),
        "Resources": dict(record.resources),
        "Metadata": record.metadata,
        "ValidationMetrics": validated or {},
        "step": {"validation": {"metrics": {"validation_metrics": validated}} if validated else None},
    }


def workload(record: Checkpoint) -> Object:
    """v1CheckpointWorkload."""
    return {
        "uuid": record.uuid,
        "state": f"STATE_{record.state}",
        "totalBatches": record.steps_completed,
        "endTime": timestamp(record.reported_at),
        "resources": sizes(record.resources),
        "metadata": record.metadata,
    }
