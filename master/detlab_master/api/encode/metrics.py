"""Metric reports, alone and as the workloads of a trial."""

from __future__ import annotations

from typing import Any

from detlab_master.api.encode.wire import Object, timestamp
from detlab_master.core.metrics import VALIDATION
from detlab_master.core.records import Json, MetricReport


def report(record: MetricReport) -> Object:
    """v1MetricsReport; the keys inside ``metrics`` are read by clients as they are."""
    if record.group == VALIDATION:
        metrics: Object = {"validation_metrics": record.metrics}
    else:
        metrics = {"avg_metrics": record.metrics, "batch_metrics": record.batch_metrics}
    return {
        "id": record.id,
        "trialId": record.trial_id,
        "trialRunId": record.run_id,
        "group": record.group,
        "totalBatches": record.steps_completed,
        "endTime": timestamp(record.reported_at, digits=3),
        "archived": record.archived,
        "metrics": metrics,
    }


def metrics(avg: Json, batch: Any = ()) -> Object:
    """v1Metrics."""
    return {"avgMetrics": avg, "batchMetrics": list(batch or ())}


def workload(record: MetricReport, *, batch_metrics: bool) -> Object:
    """v1MetricsWorkload of a report."""
    return {
        "endTime": timestamp(record.reported_at),
        "totalBatches": record.steps_completed,
        "numInputs": 0,
        "metrics": metrics(record.metrics, record.batch_metrics if batch_metrics else ()),
    }


def validation(kept: Json | None) -> Object | None:
    """v1MetricsWorkload of the validation that a trial's record carries."""
    if kept is None:
        return None
    return {
        "endTime": timestamp(kept["end_time"]),
        "totalBatches": kept["total_batches"],
        "numInputs": 0,
        "metrics": metrics(kept["metrics"]),
    }
