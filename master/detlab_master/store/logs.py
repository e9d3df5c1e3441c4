"""Reads of task logs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

from detlab_master.core.log_policies import compiled
from detlab_master.store import records, tables
from detlab_master.store.base import KeptLog, LogFields, LogFilter
from detlab_master.store.reading import Reader
from detlab_master.store.rows import LOGS

_l = LOGS.c
_CHUNK = 2000  # lines that a search by regular expression takes from the database at a time


def line_test(where: LogFilter) -> Callable[[str], bool]:
    """Whether a line passes ``search_text``; ValueError when that is no regular expression though it should be.

    The expression is RE2's, whose time grows with the line only: a user's pattern must not stop the master.
    """
    if where.search_text is None:
        return lambda log: True
    if not where.search_regex:
        text = where.search_text
        return lambda log: text in log
    try:
        pattern = compiled(where.search_text)
    except ValueError as error:
        raise ValueError(f"{where.search_text!r} is no regular expression in RE2's syntax: {error}") from None
    return lambda log: pattern.search(log) is not None


class SqlLogs:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def find(
        self, where: LogFilter, *, after_id: int = 0, limit: int | None = None, descending: bool = False
    ) -> list[records.LogLine]:
        conditions = self._conditions(where)
        if not where.search_regex:
            return self._chunk(conditions, after_id, None, limit, descending)
        passes = line_test(where)
        found: list[records.LogLine] = []
        before_id: int | None = None
        while limit is None or len(found) < limit:
            lines = self._chunk(conditions, after_id, before_id, _CHUNK, descending)
            found.extend(line for line in lines if passes(line.log))
            if len(lines) < _CHUNK:
                break
            if descending:
                before_id = lines[-1].id
            else:
                after_id = lines[-1].id
        return found[:limit]

    def fields(self, task_id: str) -> list[LogFields]:
        columns = (_l.allocation_id, _l.agent_id, _l.container_id, _l.rank_id, _l.source, _l.stdtype)
        statement = sa.select(*columns).where(_l.task_id == task_id).distinct()
        return [LogFields(*row) for row in self._reader.rows(statement)]

    def of_ended_tasks(self) -> list[KeptLog]:
        tasks, trials = tables.tasks.c, tables.trials.c
        statement = (
            sa.select(tasks.id, tasks.end_time, trials.log_retention_days)
            .select_from(tables.tasks.outerjoin(tables.trials, tasks.trial_id == trials.id))
            .where(tasks.end_time.is_not(None), sa.exists().where(_l.task_id == tasks.id))
            .order_by(tasks.end_time, tasks.id)
        )
        return [KeptLog(*row) for row in self._reader.rows(statement)]

    def first(self, task_id: str, count: int) -> tuple[int, int]:
        ids = sa.select(_l.id).where(_l.task_id == task_id).order_by(_l.id).limit(count).subquery()
        statement = sa.select(sa.func.count(), sa.func.max(ids.c.id)).select_from(ids)
        found, last_id = self._reader.rows(statement)[0]
        return found, last_id or 0

    def last_offsets(self, container_ids: Sequence[str]) -> dict[str, int]:
        statement = (
            sa.select(_l.container_id, sa.func.max(_l.offset))
            .where(_l.container_id.in_(container_ids), _l.offset.is_not(None))
            .group_by(_l.container_id)
        )
        return {container_id: offset for container_id, offset in self._reader.rows(statement)}

    def _chunk(
        self,
        conditions: list[ColumnElement[bool]],
        after_id: int,
        before_id: int | None,
        limit: int | None,
        descending: bool,
    ) -> list[records.LogLine]:
        statement = LOGS.select().where(*conditions, _l.id > after_id)
        if before_id is not None:
            statement = statement.where(_l.id < before_id)
        statement = statement.order_by(_l.id.desc() if descending else _l.id)
        if limit is not None:
            statement = statement.limit(limit)
        return self._reader.all(LOGS, statement)

    def _conditions(self, where: LogFilter) -> list[ColumnElement[bool]]:
        found: list[ColumnElement[bool]] = [_l.task_id.in_(where.task_ids)]
        for column, allowed in (
            (_l.allocation_id, where.allocation_ids),
            (_l.agent_id, where.agent_ids),
            (_l.container_id, where.container_ids),
            (_l.level, where.levels),
            (_l.source, where.sources),
            (_l.stdtype, where.stdtypes),
        ):
            if allowed is not None:
                found.append(column.in_(allowed))
        if where.rank_ids is not None:
            ranked = _l.rank_id.in_(where.rank_ids)
            found.append(sa.or_(ranked, _l.rank_id.is_(None)) if -1 in where.rank_ids else ranked)
        if where.search_text is not None and not where.search_regex:
            found.append(self._reader.contains(_l.log, where.search_text))
        if where.after is not None:
            found.append(_l.timestamp > where.after)
        if where.before is not None:
            found.append(_l.timestamp <= where.before)
        return found
