"""Reads of experiments, what lists show beside them, and the events of their searchers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

from detlab_master.core.states import CheckpointState, ExperimentState
from detlab_master.store import records
from detlab_master.store.base import ExperimentFilter, ExperimentTotals, Page
from detlab_master.store.reading import Reader, ordering
from detlab_master.store.rows import CHECKPOINTS, EXPERIMENTS, SEARCHER_EVENTS, TRIALS

KEPT_CHECKPOINTS: Final = (CheckpointState.COMPLETED, CheckpointState.PARTIALLY_DELETED)

_e = EXPERIMENTS.c
_BY_ID = EXPERIMENTS.where_equal(_e.id)
_EVENTS = SEARCHER_EVENTS.where_equal(SEARCHER_EVENTS.c.experiment_id).order_by(SEARCHER_EVENTS.c.seq)


def _over_checkpoints(value: ColumnElement[Any]) -> ColumnElement[Any]:
    return (
        sa.select(value)
        .where(CHECKPOINTS.c.experiment_id == _e.id, CHECKPOINTS.c.state.in_(KEPT_CHECKPOINTS))
        .scalar_subquery()
    )


_ORDERS: Final[dict[str, ColumnElement[Any]]] = {
    **{
        name: _e[name]
        for name in (
            "id",
            "name",
            "description",
            "start_time",
            "end_time",
            "state",
            "progress",
            "owner_id",
            "project_id",
            "forked_from",
        )
    },
    "num_trials": sa.select(sa.func.count()).where(TRIALS.c.experiment_id == _e.id).scalar_subquery(),
    "checkpoint_count": _over_checkpoints(sa.func.count()),
    "checkpoint_bytes": _over_checkpoints(sa.func.coalesce(sa.func.sum(CHECKPOINTS.c.size), 0)),
}


def by_use(labels: Iterable[str]) -> list[str]:
    """Each label once, the most used first, equals by name."""
    used = Counter(labels)
    return sorted(used, key=lambda label: (-used[label], label))


class SqlExperiments:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def get(self, experiment_id: int) -> records.Experiment | None:
        return self._reader.one(EXPERIMENTS, _BY_ID, key=experiment_id)

    def find(self, where: ExperimentFilter, page: Page) -> tuple[list[records.Experiment], int]:
        return self._reader.page(EXPERIMENTS, self._conditions(where), page, ordering(_ORDERS, page))

    def unfinished(self) -> list[records.Experiment]:
        states = [state for state in ExperimentState if not state.terminal]
        return self._reader.all(EXPERIMENTS, EXPERIMENTS.select().where(_e.state.in_(states)).order_by(_e.id))

    def collections_due(self) -> list[int]:
        due = sa.select(_e.id).where(_e.gc_due.is_not(None)).order_by(_e.gc_due, _e.id)
        return [row[0] for row in self._reader.rows(due)]

    def labels(self, where: ExperimentFilter) -> list[str]:
        found = self._reader.rows(sa.select(_e.labels).where(*self._conditions(where)))
        return by_use(label for (labels,) in found for label in labels)

    def contexts(self) -> set[str]:
        return {row[0] for row in self._reader.rows(sa.select(_e.context_sha256).distinct())}

    def totals(self, experiment_ids: Sequence[int]) -> dict[int, ExperimentTotals]:
        trial_ids: dict[int, list[int]] = {}
        t = TRIALS.c
        for experiment_id, trial_id in self._reader.rows(
            sa.select(t.experiment_id, t.id).where(t.experiment_id.in_(experiment_ids)).order_by(t.id)
        ):
            trial_ids.setdefault(experiment_id, []).append(trial_id)
        c = CHECKPOINTS.c
        kept = {
            row[0]: (row[1], int(row[2]))
            for row in self._reader.rows(
                sa.select(c.experiment_id, sa.func.count(), sa.func.sum(c.size))
                .where(c.experiment_id.in_(experiment_ids), c.state.in_(KEPT_CHECKPOINTS))
                .group_by(c.experiment_id)
            )
        }
        existing = self._reader.rows(sa.select(_e.id).where(_e.id.in_(experiment_ids)))
        return {
            id: ExperimentTotals(
                id, len(trial_ids.get(id, ())), tuple(trial_ids.get(id, ())), *kept.get(id, ())
            )
            for (id,) in existing
        }

    def searcher_events(self, experiment_id: int) -> list[records.SearcherEvent]:
        return self._reader.all(SEARCHER_EVENTS, _EVENTS, key=experiment_id)

    def _conditions(self, where: ExperimentFilter) -> list[ColumnElement[bool]]:
        found: list[ColumnElement[bool]] = []
        if where.owner_ids is not None:
            found.append(_e.owner_id.in_(where.owner_ids))
        if where.states is not None:
            found.append(_e.state.in_(where.states))
        if where.archived is not None:
            found.append(_e.archived == where.archived)
        if where.project_id is not None:
            found.append(_e.project_id == where.project_id)
        if where.external_id is not None:
            found.append(_e.external_id == where.external_id)
        if where.ids is not None:
            found.append(_e.id.in_(where.ids))
        if where.above_id is not None:
            found.append(_e.id > where.above_id)
        if where.below_id is not None:
            found.append(_e.id < where.below_id)
        if where.without_ids:
            found.append(_e.id.not_in(where.without_ids))
        if where.name is not None:
            found.append(self._reader.contains(_e.folded_name, where.name.casefold()))
        if where.description is not None:
            found.append(self._reader.contains(_e.folded_description, where.description.casefold()))
        if where.labels is not None:
            found.extend(self._reader.has_item(_e.labels, label) for label in where.labels)
        return found
