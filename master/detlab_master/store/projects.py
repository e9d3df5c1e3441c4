"""Reads of workspaces and projects."""

from __future__ import annotations

from detlab_master.store import records
from detlab_master.store.reading import Reader
from detlab_master.store.rows import PROJECTS, WORKSPACES

_PROJECT = PROJECTS.where_equal(PROJECTS.c.id)
_WORKSPACE = WORKSPACES.where_equal(WORKSPACES.c.id)
_WORKSPACE_BY_NAME = WORKSPACES.where_equal(WORKSPACES.c.name)


class SqlProjects:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def project(self, project_id: int) -> records.Project | None:
        return self._reader.one(PROJECTS, _PROJECT, key=project_id)

    def workspace(self, workspace_id: int) -> records.Workspace | None:
        return self._reader.one(WORKSPACES, _WORKSPACE, key=workspace_id)

    def workspace_by_name(self, name: str) -> records.Workspace | None:
        return self._reader.one(WORKSPACES, _WORKSPACE_BY_NAME, key=name)

    def find(self, workspace_name: str, project_name: str) -> records.Project | None:
        statement = (
            PROJECTS.select()
            .join(WORKSPACES.table, WORKSPACES.c.id == PROJECTS.c.workspace_id)
            .where(WORKSPACES.c.name == workspace_name, PROJECTS.c.name == project_name)
        )
        return self._reader.one(PROJECTS, statement)
