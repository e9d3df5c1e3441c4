"""Reads of workloads: a trial's reports and checkpoints as one list, of which only the page that is asked for is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

from detlab_master.core.metrics import PROFILING_GROUPS, VALIDATION
from detlab_master.store.base import Page, Workload, WorkloadFilter
from detlab_master.store.reading import Reader, first_of
from detlab_master.store.rows import CHECKPOINTS, REPORTS, R, Select, Shape

_m = REPORTS.c
_c = CHECKPOINTS.c
_CHECKPOINT: Final = 2  # kinds: 0 a report, 1 a validation
_CHUNK: Final = 5000  # values in one statement
_ORDERS: Final = {
    "steps_completed": ("steps", "kind", "reported_at", "report_id", "uuid"),
    "reported_at": ("reported_at", "steps", "kind", "report_id", "uuid"),
}


def workload_order(page: Page) -> Sequence[str]:
    """The columns by which ``page`` wants workloads ordered; ValueError where it cannot be had."""
    if page.order_by not in _ORDERS:
        raise ValueError(
            f"workloads cannot be ordered by {page.order_by!r}: it is one of {', '.join(_ORDERS)}"
        )
    return _ORDERS[page.order_by]


class SqlWorkloads:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def find(self, trial_id: int, where: WorkloadFilter, page: Page) -> tuple[list[Workload], int]:
        columns = workload_order(page)
        total = sum(self._reader.rows(statement)[0][0] for statement in _counts(trial_id, where))
        skip = first_of(page, total)
        count = total - skip if page.limit is None else min(page.limit, total - skip)
        if count <= 0:
            return [], total
        # From the end that is nearer: what lies before the page has to be walked over.
        backwards = skip + count > total - skip
        if backwards:
            skip = total - skip - count
        statement = _page(trial_id, where, columns, page.descending != backwards, skip, count)
        found = list(self._reader.rows(statement))
        if backwards:
            found.reverse()
        reports = self._by_key(REPORTS, _m.id, [row[1] for row in found if row[0] != _CHECKPOINT])
        checkpoints = self._by_key(CHECKPOINTS, _c.uuid, [row[2] for row in found if row[0] == _CHECKPOINT])
        rows = (checkpoints.get(row[2]) if row[0] == _CHECKPOINT else reports.get(row[1]) for row in found)
        return [row for row in rows if row is not None], total  # None: deleted in between

    def _by_key(self, shape: Shape[R], key: sa.Column[Any], values: Sequence[Any]) -> dict[Any, R]:
        found = {}
        for start in range(0, len(values), _CHUNK):
            statement = shape.select().where(key.in_(values[start : start + _CHUNK]))
            for record in self._reader.all(shape, statement):
                found[getattr(record, key.name)] = record
        return found


def _page(
    trial_id: int, where: WorkloadFilter, columns: Sequence[str], descending: bool, skip: int, count: int
) -> Select:
    """Kind, report id and uuid of a page's rows. Of each table no more is sorted than the page can need."""

    def order(of: Any) -> list[ColumnElement[Any]]:
        return [of[name].desc() if descending else of[name].asc() for name in columns]

    parts = []
    for table in _places(trial_id, where):
        part = table.order_by(*order(table.selected_columns)).limit(skip + count).subquery()
        parts.append(sa.select(*part.c))
    places = sa.union_all(*parts).subquery()
    page = sa.select(places.c.kind, places.c.report_id, places.c.uuid)
    return page.order_by(*order(places.c)).offset(skip).limit(count)


def _places(trial_id: int, where: WorkloadFilter) -> Iterator[Select]:
    """Where each row stands in the orders, and by what it is found again."""
    kind = sa.case((_m.group == VALIDATION, 1), else_=0).label("kind")
    steps, at = _m.steps_completed.label("steps"), _m.reported_at.label("reported_at")
    yield sa.select(kind, steps, at, _m.id.label("report_id"), sa.literal("", sa.Text).label("uuid")).where(
        *_reports(trial_id, where)
    )
    yield sa.select(
        sa.literal(_CHECKPOINT, sa.Integer).label("kind"),
        _c.steps_completed.label("steps"),
        _c.reported_at.label("reported_at"),
        sa.literal(0, sa.Integer).label("report_id"),
        _c.uuid.label("uuid"),
    ).where(*_checkpoints(trial_id, where))


def _counts(trial_id: int, where: WorkloadFilter) -> Iterator[Select]:
    yield sa.select(sa.func.count()).select_from(REPORTS.table).where(*_reports(trial_id, where))
    yield sa.select(sa.func.count()).select_from(CHECKPOINTS.table).where(*_checkpoints(trial_id, where))


def _reports(trial_id: int, where: WorkloadFilter) -> list[ColumnElement[bool]]:
    wanted = where.groups
    groups = _m.group.not_in(sorted(PROFILING_GROUPS)) if wanted is None else _m.group.in_(wanted)
    return [_m.trial_id == trial_id, _m.archived == sa.false(), groups]


def _checkpoints(trial_id: int, where: WorkloadFilter) -> list[ColumnElement[bool]]:
    of_trial = _c.trial_id == trial_id
    states = where.checkpoint_states
    return [of_trial] if states is None else [of_trial, _c.state.in_(states)]
