"""Reads of trials, their tasks and their allocations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy.sql.elements import ColumnElement

from detlab_master.core.states import TrialState
from detlab_master.store import records
from detlab_master.store.base import Page
from detlab_master.store.reading import Reader, ordering
from detlab_master.store.rows import ALLOCATIONS, TASKS, TRIALS

_t = TRIALS.c
_a = ALLOCATIONS.c
_BY_ID = TRIALS.where_equal(_t.id)
_TASK = TASKS.where_equal(TASKS.c.id)
_ALLOCATION = ALLOCATIONS.where_equal(_a.id)
_OF_TASK = ALLOCATIONS.where_equal(_a.task_id).order_by(_a.run_id, _a.queue_order)
_OPEN = ALLOCATIONS.select().where(_a.ended_at.is_(None)).order_by(_a.queue_order, _a.id)

_ORDERS: Final[dict[str, ColumnElement[Any]]] = {
    name: _t[name]
    for name in ("id", "start_time", "end_time", "state", "searcher_metric", "total_batches", "restarts")
}


class SqlTrials:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def get(self, trial_id: int) -> records.Trial | None:
        return self._reader.one(TRIALS, _BY_ID, key=trial_id)

    def find(
        self, experiment_id: int, states: Sequence[TrialState] | None, page: Page
    ) -> tuple[list[records.Trial], int]:
        where: list[ColumnElement[bool]] = [_t.experiment_id == experiment_id]
        if states is not None:
            where.append(_t.state.in_(states))
        return self._reader.page(TRIALS, where, page, ordering(_ORDERS, page))

    def task(self, task_id: str) -> records.Task | None:
        return self._reader.one(TASKS, _TASK, key=task_id)

    def allocation(self, allocation_id: str) -> records.Allocation | None:
        return self._reader.one(ALLOCATIONS, _ALLOCATION, key=allocation_id)

    def allocations(self, task_id: str) -> list[records.Allocation]:
        return self._reader.all(ALLOCATIONS, _OF_TASK, key=task_id)

    def allocations_of(self, task_ids: Sequence[str]) -> list[records.Allocation]:
        statement = ALLOCATIONS.select().where(_a.task_id.in_(task_ids))
        return self._reader.all(ALLOCATIONS, statement.order_by(_a.task_id, _a.run_id, _a.queue_order))

    def open_allocations(self) -> list[records.Allocation]:
        return self._reader.all(ALLOCATIONS, _OPEN)
