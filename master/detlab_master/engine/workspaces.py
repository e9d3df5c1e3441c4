"""Workspaces and the projects in them: create, edit, archive. (How they are deleted is in place_deletion.)

Changes take turns, since each looks at what is there and then rewrites a whole record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from detlab_master.core.errors import Conflict, Invalid, NotFound
from detlab_master.core.expconf import check_storage
from detlab_master.core.names import LONGEST_WORKSPACE, check_key, check_name, make_key, there_are
from detlab_master.core.permissions import Principal
from detlab_master.core.records import Json, Note, Project, Workspace
from detlab_master.core.states import PlaceState
from detlab_master.engine import clock
from detlab_master.engine.place_deletion import PlaceDeletion
from detlab_master.store.base import Store
from detlab_master.store.writes import SaveProject, SaveWorkspace, Write


class WorkspaceService:
    """Args: ``pools``: the names of all resource pools."""

    def __init__(
        self, store: Store, ids: clock.Ids, *, pools: Callable[[], Sequence[str]], deletion: PlaceDeletion
    ) -> None:
        self._store = store
        self._ids = ids
        self._pools = pools
        self._deletion = deletion
        self._lock = asyncio.Lock()

    # Workspaces

    async def create_workspace(
        self,
        principal: Principal,
        name: str,
        *,
        checkpoint_storage: Json | None = None,
        default_compute_pool: str = "",
        default_aux_pool: str = "",
    ) -> Workspace:
        """A workspace of the principal.

        Raises:
            Invalid: no such name is possible, or there is no such pool.
            ConfigErrors: what is wrong with the storage.
            Conflict: the name is taken.
        """
        check_name("workspace", name, LONGEST_WORKSPACE)
        settings = self._checked(
            {
                "checkpoint_storage": checkpoint_storage,
                "default_compute_pool": default_compute_pool,
                "default_aux_pool": default_aux_pool,
            }
        )
        async with self._lock:
            await self._refuse_workspace(name)
            workspace = Workspace(self._ids.workspace(), name, principal.user_id, **settings)
            await self._commit(SaveWorkspace(workspace))
        return workspace

    async def edit_workspace(self, workspace_id: int, **changes: Any) -> Workspace:
        """Change any of name, checkpoint_storage, default_compute_pool and default_aux_pool.

        Raises: as `create_workspace`; Invalid for the name of an immutable one, NotFound.
        """
        changes = self._checked(changes)
        async with self._lock:
            workspace = await self._workspace(workspace_id)
            name = changes.get("name", workspace.name)
            if name != workspace.name:
                if workspace.immutable:
                    raise Invalid(f"the workspace {workspace.name!r} keeps its name")
                check_name("workspace", name, LONGEST_WORKSPACE)
                await self._refuse_workspace(name)
            workspace = replace(workspace, **changes)
            await self._commit(SaveWorkspace(workspace))
        return workspace

    async def archive_workspace(self, workspace_id: int, archived: bool) -> None:
        """Repeating it succeeds. An archived workspace takes no experiments, nor does any project in it."""
        async with self._lock:
            workspace = await self._workspace(workspace_id)
            if workspace.immutable:
                raise Invalid(
                    f"the workspace {workspace.name!r} cannot be archived: it is there for everybody"
                )
            await self._commit(SaveWorkspace(replace(workspace, archived=archived)))

    async def delete_workspace(self, principal: Principal, workspace_id: int) -> bool:
        """See `PlaceDeletion.workspace`."""
        async with self._lock:
            return await self._deletion.workspace(principal, workspace_id)

    # Projects

    async def create_project(
        self, principal: Principal, workspace_id: int, name: str, *, description: str = "", key: str = ""
    ) -> Project:
        """A project of the principal, in anybody's workspace.

        Args:
            key: "": one is made of the name.

        Raises:
            NotFound: there is no such workspace.
            Invalid: no such name or key is possible, or the workspace is archived.
            Conflict: the name or the key is taken.
        """
        check_name("project", name)
        key = check_key(key) if key else ""
        async with self._lock:
            workspace = await self._workspace(workspace_id)
            if workspace.archived:
                raise Invalid(f"the workspace {workspace.name!r} is archived and takes no projects")
            await self._refuse_project(workspace, name)
            project = Project(
                id=self._ids.project(),
                workspace_id=workspace.id,
                name=name,
                owner_id=principal.user_id,
                key=await self._key(key, name),
                description=description,
            )
            await self._commit(SaveProject(project))
        return project

    async def edit_project(self, project_id: int, **changes: Any) -> Project:
        """Change any of name, description, key and notes.

        Raises: as `create_project`; Invalid for the name of an immutable one.
        """
        async with self._lock:
            project = await self._project(project_id)
            name = changes.get("name", project.name)
            if name != project.name:
                if project.immutable:
                    raise Invalid(f"the project {project.name!r} keeps its name")
                check_name("project", name)
                await self._refuse_project(await self._workspace(project.workspace_id), name)
            if "key" in changes:
                key = check_key(changes["key"])
                changes["key"] = key if key == project.key else await self._key(key, name)
            project = replace(project, **changes)
            await self._commit(SaveProject(project))
        return project

    async def set_notes(self, project_id: int, notes: Sequence[Note]) -> Project:
        """Put these in place of the old ones."""
        return await self.edit_project(project_id, notes=tuple(notes))

    async def archive_project(self, project_id: int, archived: bool) -> None:
        """Repeating it succeeds. An archived project takes no experiments.

        Raises:
            Invalid: it is immutable, or lies in an archived workspace and should be unarchived.
        """
        async with self._lock:
            project = await self._project(project_id)
            if project.immutable:
                raise Invalid(f"the project {project.name!r} cannot be archived: it is there for everybody")
            workspace = await self._workspace(project.workspace_id)
            if not archived and workspace.archived:
                raise Invalid(
                    f"the project {project.name!r} lies in the archived workspace {workspace.name!r}: unarchive that"
                    " first"
                )
            await self._commit(SaveProject(replace(project, archived=archived)))

    async def delete_project(self, principal: Principal, project_id: int) -> bool:
        """See `PlaceDeletion.project`."""
        async with self._lock:
            return await self._deletion.project(principal, project_id)

    # What is there

    async def _workspace(self, workspace_id: int) -> Workspace:
        workspace = await asyncio.to_thread(self._store.projects.workspace, workspace_id)
        if workspace is None:
            raise NotFound(f"workspace '{workspace_id}' not found")
        if workspace.state is PlaceState.DELETING:
            raise Invalid(f"the workspace {workspace.name!r} is being deleted")
        return workspace

    async def _project(self, project_id: int) -> Project:
        project = await asyncio.to_thread(self._store.projects.project, project_id)
        if project is None:
            raise NotFound(f"project '{project_id}' not found")
        if project.state is PlaceState.DELETING:
            raise Invalid(f"the project {project.name!r} is being deleted")
        return project

    async def _refuse_workspace(self, name: str) -> None:
        if await asyncio.to_thread(self._store.projects.workspace_by_name, name) is not None:
            raise Conflict(f"there is a workspace {name!r} already: choose another name")

    async def _refuse_project(self, workspace: Workspace, name: str) -> None:
        if await asyncio.to_thread(self._store.projects.find, workspace.name, name) is not None:
            raise Conflict(
                f"there is a project {name!r} in the workspace {workspace.name!r} already: choose another name"
            )

    async def _key(self, key: str, name: str) -> str:
        """The key, or one for that name; Conflict when it is taken."""
        by_key = {project.key: project for project in await asyncio.to_thread(self._store.projects.projects)}
        if key in by_key:
            raise Conflict(
                f"the project {by_key[key].name!r} has the key {key!r} already: choose another key"
            )
        return key or make_key(name, by_key)

    def _checked(self, settings: dict[str, Any]) -> dict[str, Any]:
        for what in ("default_compute_pool", "default_aux_pool"):
            pool, pools = settings.get(what), self._pools()
            if pool and pool not in pools:
                raise Invalid(
                    f"there is no resource pool {pool!r} to be the {what.replace('_', ' ')} of a workspace: "
                    + there_are(pools, pool, "there is none")
                )
        if settings.get("checkpoint_storage"):
            settings = {**settings, "checkpoint_storage": check_storage(settings["checkpoint_storage"])}
        return settings

    async def _commit(self, *writes: Write) -> None:
        await asyncio.wrap_future(self._store.commit(writes))
