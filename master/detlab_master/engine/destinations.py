"""Where an experiment can go: a project that is there and takes experiments."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from detlab_master.core.errors import Invalid, NotFound
from detlab_master.core.names import there_are
from detlab_master.core.records import Project, Workspace
from detlab_master.core.states import PlaceState
from detlab_master.store.base import Store

UNCATEGORIZED = 1  # the id of the workspace and of the project that are there from the start


@dataclass(frozen=True)
class Destination:
    workspace: Workspace
    project: Project


class Destinations:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def numbered(self, project_id: int) -> Destination:
        """The project of that id.

        Raises:
            NotFound: there is none.
            Invalid: it takes no experiments.
        """
        return await asyncio.to_thread(self._numbered, project_id)

    async def named(self, workspace: str, project: str) -> Destination:
        """The project of that name in the workspace of that name.

        Raises:
            NotFound: there is none; says which there are.
            Invalid: it takes no experiments.
        """
        return await asyncio.to_thread(self._named, workspace, project)

    def _numbered(self, project_id: int) -> Destination:
        project = self._store.projects.project(project_id)
        workspace = self._store.projects.workspace(project.workspace_id) if project else None
        if project is None or workspace is None:
            raise NotFound(f"project '{project_id}' not found")
        return _open(Destination(workspace, project))

    def _named(self, workspace_name: str, project_name: str) -> Destination:
        projects = self._store.projects
        workspace = projects.workspace_by_name(workspace_name)
        if workspace is None:
            names = [one.name for one in projects.workspaces()]
            raise NotFound(
                f"workspace {workspace_name!r} not found: {there_are(names, workspace_name, 'there is none')}"
            )
        inside = projects.projects(workspace.id)
        found = [project for project in inside if project.name == project_name]
        if not found:
            none = f"it is empty (det project create {workspace_name!r} {project_name!r})"
            others = there_are([one.name for one in inside], project_name, none)
            raise NotFound(f"project {project_name!r} not found in workspace {workspace_name!r}: {others}")
        return _open(Destination(workspace, found[0]))


def _open(destination: Destination) -> Destination:
    for kind, place in (("project", destination.project), ("workspace", destination.workspace)):
        if place.state is PlaceState.DELETING:
            raise Invalid(f"the {kind} {place.name!r} is being deleted: choose another one")
        if place.archived:
            raise Invalid(
                f"the {kind} {place.name!r} is archived and takes no experiments: choose another one, or let its"
                f" owner unarchive it"
            )
    return destination
