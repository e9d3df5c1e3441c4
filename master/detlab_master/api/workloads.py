"""The workloads of a trial: its reports and checkpoints as rows of one table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from detlab_master.api.body import Query
from detlab_master.api.encode import checkpoints, metrics
from detlab_master.api.encode.wire import Object
from detlab_master.api.paging import Paging
from detlab_master.core.metrics import TRAINING, VALIDATION, as_number
from detlab_master.core.records import Checkpoint, MetricReport
from detlab_master.core.states import CheckpointState
from detlab_master.store.base import Page, Store, Workload, WorkloadFilter

_FILTERS = ("CHECKPOINT", "VALIDATION", "CHECKPOINT_OR_VALIDATION")
_TYPES = {"TRAINING": TRAINING, "VALIDATION": VALIDATION}
_DELETED = (CheckpointState.DELETED, CheckpointState.PARTIALLY_DELETED)
_ORDERS = {
    **dict.fromkeys(("", "batches", "totalBatches", "total_batches"), "steps_completed"),
    **dict.fromkeys(("endTime", "end_time"), "reported_at"),
}


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

    @property
    def where(self) -> WorkloadFilter:
        """What of it the store can tell by itself."""
        groups: tuple[str, ...] | None = (self.group,) if self.group else None
        if self.only:  # not checkpoints alone: validations, unless another group is asked for
            groups = (VALIDATION,) if "VALIDATION" in self.only and self.group in ("", VALIDATION) else ()
        states: tuple[CheckpointState, ...] | None = None
        if self.only == "VALIDATION":
            states = ()
        elif self.without_deleted:
            states = tuple(state for state in CheckpointState if state not in _DELETED)
        return WorkloadFilter(groups, states)


def _metric(row: Workload, name: str) -> float:
    value = as_number(row.metrics.get(name)) if isinstance(row, MetricReport) else None
    return -math.inf if value is None or math.isnan(value) else value


def workloads(
    store: Store, trial_id: int, asked: Workloads, paging: Paging
) -> tuple[Sequence[Workload], Object]:
    """The page of rows, and its v1Pagination.

    Sorted by a metric, rows without it come first, as they have the least of it; for that order all rows are read.

    Raises:
        Invalid: the offset lies behind the end.
    """
    order = _ORDERS.get(asked.sort)
    if order is None:
        rows, _ = store.workloads.find(trial_id, asked.where, Page(order_by="steps_completed"))
        rows.sort(key=lambda row: _metric(row, asked.sort))
        return paging.cut(rows[::-1] if paging.descending else rows)
    page = Page(paging.offset, paging.limit, order, paging.descending)
    rows, total = store.workloads.find(trial_id, asked.where, page)
    paging.within(total)
    return rows, paging.shown(len(rows), total)


def encode(row: Workload, *, batch_metrics: bool) -> Object:
    """v1WorkloadContainer."""
    shown: Object = {"training": None, "validation": None, "checkpoint": None}
    if isinstance(row, Checkpoint):
        shown["checkpoint"] = checkpoints.workload(row)
    else:
        shown["validation" if row.group == VALIDATION else "training"] = metrics.workload(
            row, batch_metrics=batch_metrics
        )
    return shown
