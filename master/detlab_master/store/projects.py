"""Reads of workspaces, projects and templates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from detlab_master.core.states import ExperimentState
from detlab_master.store import records
from detlab_master.store.base import ProjectCounts
from detlab_master.store.reading import Reader
from detlab_master.store.rows import EXPERIMENTS, PROJECTS, TEMPLATES, TRIALS, WORKSPACES

UNFINISHED: Final = [state for state in ExperimentState if not state.terminal]

_PROJECT = PROJECTS.where_equal(PROJECTS.c.id)
_WORKSPACE = WORKSPACES.where_equal(WORKSPACES.c.id)
_WORKSPACE_BY_NAME = WORKSPACES.where_equal(WORKSPACES.c.name)
_TEMPLATE = TEMPLATES.where_equal(TEMPLATES.c.name)


class SqlProjects:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def project(self, project_id: int) -> records.Project | None:
        return self._reader.one(PROJECTS, _PROJECT, key=project_id)

    def projects(self, workspace_id: int | None = None) -> list[records.Project]:
        statement = PROJECTS.select().order_by(PROJECTS.c.id)
        if workspace_id is not None:
            statement = statement.where(PROJECTS.c.workspace_id == workspace_id)
        return self._reader.all(PROJECTS, statement)

    def workspace(self, workspace_id: int) -> records.Workspace | None:
        return self._reader.one(WORKSPACES, _WORKSPACE, key=workspace_id)

    def workspace_by_name(self, name: str) -> records.Workspace | None:
        return self._reader.one(WORKSPACES, _WORKSPACE_BY_NAME, key=name)

    def workspaces(self) -> list[records.Workspace]:
        return self._reader.all(WORKSPACES, WORKSPACES.select().order_by(WORKSPACES.c.id))

    def counts(self, owner_ids: Sequence[int] | None = None) -> dict[int, ProjectCounts]:
        e = EXPERIMENTS.c
        trials = (
            sa.select(TRIALS.c.experiment_id, sa.func.count().label("count"))
            .group_by(TRIALS.c.experiment_id)
            .subquery()
        )
        statement = (
            sa.select(
                e.project_id,
                sa.func.count(),
                sa.func.count(sa.case((e.state.in_(UNFINISHED), 1))),
                sa.func.coalesce(sa.func.sum(trials.c.count), 0),
                sa.func.max(e.start_time),
            )
            .outerjoin_from(EXPERIMENTS.table, trials, trials.c.experiment_id == e.id)
            .group_by(e.project_id)
        )
        if owner_ids is not None:
            statement = statement.where(e.owner_id.in_(owner_ids))
        return {
            row[0]: ProjectCounts(row[1], row[2], int(row[3]), row[4]) for row in self._reader.rows(statement)
        }

    def find(self, workspace_name: str, project_name: str) -> records.Project | None:
        statement = (
            PROJECTS.select()
            .join(WORKSPACES.table, WORKSPACES.c.id == PROJECTS.c.workspace_id)
            .where(WORKSPACES.c.name == workspace_name, PROJECTS.c.name == project_name)
        )
        return self._reader.one(PROJECTS, statement)


class SqlTemplates:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def get(self, name: str) -> records.Template | None:
        return self._reader.one(TEMPLATES, _TEMPLATE, key=name)

    def all(self) -> list[records.Template]:
        return self._reader.all(TEMPLATES, TEMPLATES.select().order_by(TEMPLATES.c.name))
