"""Reads of metric reports."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from detlab_master.store import records
from detlab_master.store.reading import Reader
from detlab_master.store.rows import REPORTS

_m = REPORTS.c
_LIVE = REPORTS.select().where(
    _m.trial_id == sa.bindparam("trial"),
    _m.group == sa.bindparam("in_group"),
    _m.steps_completed == sa.bindparam("steps"),
    _m.archived == sa.false(),
)


class SqlMetrics:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def report(self, trial_id: int, group: str, steps_completed: int) -> records.MetricReport | None:
        return self._reader.one(REPORTS, _LIVE, trial=trial_id, in_group=group, steps=steps_completed)

    def reports(
        self,
        trial_ids: Sequence[int],
        group: str | None = None,
        *,
        include_archived: bool = False,
        after: tuple[int, int, int] | None = None,
        limit: int | None = None,
    ) -> list[records.MetricReport]:
        statement = REPORTS.select().where(_m.trial_id.in_(trial_ids))
        if group is not None:
            statement = statement.where(_m.group == group)
        if not include_archived:
            statement = statement.where(_m.archived == sa.false())
        place = sa.tuple_(_m.trial_id, _m.steps_completed, _m.id)
        if after is not None:
            statement = statement.where(place > sa.tuple_(*after))
        statement = statement.order_by(_m.trial_id, _m.steps_completed, _m.id)
        if limit is not None:
            statement = statement.limit(limit)
        return self._reader.all(REPORTS, statement)
