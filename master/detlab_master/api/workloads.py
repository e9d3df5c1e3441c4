"""The workloads of a trial: its reports and checkpoints as rows of one table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from detlab_master.api.body import Query
from detlab_master.api.encode import checkpoints, metrics
from detlab_master.api.encode.wire import Object
from detlab_master.core.metrics import PROFILING_GROUPS, TRAINING, VALIDATION, as_number
from detlab_master.core.records import Checkpoint, MetricReport
from detlab_master.core.states import CheckpointState
from detlab_master.store.base import Store

_FILTERS = ("CHECKPOINT", "VALIDATION", "CHECKPOINT_OR_VALIDATION")
_TYPES = {"TRAINING": TRAINING, "VALIDATION": VALIDATION}
_DELETED = (CheckpointState.DELETED, CheckpointState.PARTIALLY_DELETED)
Row = MetricReport | Checkpoint


@dataclass(frozen=True)
class Workloads:
    """What a query for workloads asks for."""

    only: str  # one of the filters, or ""
    group: str  # metric group, or "" for training and validation
    batch_metrics: bool
    without_deleted: bool
    sort: str  # "", batches, endTime, or the name of a metric

    @classmethod
    def of(cls, query: Query) -> Workloads:
        metric_type = query.enum("metricType", ["TRAINING", "VALIDATION", "PROFILING"], "METRIC_TYPE_")
        if metric_type == "PROFILING":
            raise query.refuse(
                "metricType", "workloads are of training, of validation or of a group by its name"
            )
        group = query.text("group", "")
        return cls(
            only=query.enum("filter", _FILTERS, "FILTER_OPTION_") or "",
            group=group or (_TYPES[metric_type] if metric_type else ""),
            batch_metrics=query.flag("includeBatchMetrics"),
            without_deleted=query.flag("removeDeletedCheckpoints"),
            sort=query.text("sortKey", ""),
        )

    def takes(self, row: Row) -> bool:
        if isinstance(row, Checkpoint):
            return self.only != "VALIDATION" and not (self.without_deleted and row.state in _DELETED)
        wanted = row.group == self.group if self.group else row.group not in PROFILING_GROUPS
        return wanted and (self.only == "" or (row.group == VALIDATION and "VALIDATION" in self.only))

    @property
    def key(self) -> Callable[[Row], Any]:
        """Rows without the metric come first, as they have the least of it."""
        if self.sort in ("", "batches", "totalBatches", "total_batches"):
            return _by_step
        if self.sort in ("endTime", "end_time"):
            return lambda row: row.reported_at
        return lambda row: _metric(row, self.sort)


def _by_step(row: Row) -> tuple[int, int, float]:
    kind = 2 if isinstance(row, Checkpoint) else int(row.group == VALIDATION)
    return row.steps_completed, kind, row.reported_at


def _metric(row: Row, name: str) -> float:
    value = as_number(row.metrics.get(name)) if isinstance(row, MetricReport) else None
    return -math.inf if value is None or math.isnan(value) else value


def workloads(store: Store, trial_id: int, asked: Workloads) -> list[Row]:
    """The rows in ascending order."""
    rows: list[Row] = [*store.metrics.reports([trial_id]), *store.checkpoints.find(trial_id=trial_id)]
    return sorted(filter(asked.takes, rows), key=asked.key)


def encode(row: Row, *, batch_metrics: bool) -> Object:
    """v1WorkloadContainer."""
    shown: Object = {"training": None, "validation": None, "checkpoint": None}
    if isinstance(row, Checkpoint):
        shown["checkpoint"] = checkpoints.workload(row)
    else:
        shown["validation" if row.group == VALIDATION else "training"] = metrics.workload(
            row, batch_metrics=batch_metrics
        )
    return shown
