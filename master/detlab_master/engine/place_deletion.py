"""Deletion of projects and workspaces: at once when nothing is in them, else in the background.

What is refused is refused before anything is touched. What has begun is taken up again by the next master.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from detlab_master.core.errors import Invalid, NotFound, RequestError
from detlab_master.core.permissions import Principal, may_see
from detlab_master.core.records import Experiment, Project, Workspace
from detlab_master.core.states import ExperimentState, PlaceState
from detlab_master.engine.allocations import STORE_RETRY_SECONDS
from detlab_master.engine.deletion import ExperimentDeletion
from detlab_master.store.base import ExperimentFilter, ModelFilter, Page, Store, StoreUnavailable
from detlab_master.store.writes import DeleteProject, DeleteWorkspace, SaveProject, SaveWorkspace, Write

logger = logging.getLogger(__name__)
P = TypeVar("P", Project, Workspace)
_LOOK_SECONDS = 0.2  # between two looks at experiments that are being deleted


class PlaceDeletion:
    def __init__(self, store: Store, experiments: ExperimentDeletion) -> None:
        self._store = store
        self._experiments = experiments
        self._background: set[asyncio.Task[None]] = set()

    async def project(self, principal: Principal, project_id: int) -> bool:
        """Delete a project with its experiments; True when that is done, False when it goes on in the background.

        Raises:
            NotFound: there is none.
            Invalid: it is immutable, or holds experiments that have not ended, are of other users, or have a
                checkpoint in the model registry.
        """
        project = await asyncio.to_thread(self._store.projects.project, project_id)
        if project is None:
            raise NotFound(f"project '{project_id}' not found")
        if project.immutable:
            raise _immutable("project", project)
        if project.state is PlaceState.DELETING:
            return False
        inside = await asyncio.to_thread(self._deletable, principal, project)
        if not inside:
            await self._commit(DeleteProject(project.id))
            return True
        await self._commit(SaveProject(_deleting(project)))
        self._start(None, [project.id])
        return False

    async def workspace(self, principal: Principal, workspace_id: int) -> bool:
        """Delete a workspace with its projects; as `project`.

        Raises:
            NotFound: there is none.
            Invalid: as `project`; or it holds models or templates.
        """
        workspace = await asyncio.to_thread(self._store.projects.workspace, workspace_id)
        if workspace is None:
            raise NotFound(f"workspace '{workspace_id}' not found")
        if workspace.immutable:
            raise _immutable("workspace", workspace)
        if workspace.state is PlaceState.DELETING:
            return False
        await asyncio.to_thread(self._refuse_filled, workspace)
        projects = await asyncio.to_thread(self._store.projects.projects, workspace.id)
        full = [project for project in projects if await self._is_full(principal, project)]
        empty = [DeleteProject(project.id) for project in projects if project not in full]
        if not full:
            await self._commit(*empty, DeleteWorkspace(workspace.id))
            return True
        marked: list[Write] = [SaveProject(_deleting(project)) for project in full]
        await self._commit(SaveWorkspace(_deleting(workspace)), *marked, *empty)
        self._start(workspace.id, [project.id for project in full])
        return False

    async def restore(self) -> None:
        """Go on with what the last master has begun."""
        projects = await asyncio.to_thread(self._store.projects.projects)
        begun = [project for project in projects if project.state is PlaceState.DELETING]
        for workspace in await asyncio.to_thread(self._store.projects.workspaces):
            if workspace.state is PlaceState.DELETING:
                inside = [project for project in begun if project.workspace_id == workspace.id]
                begun = [project for project in begun if project not in inside]
                self._start(workspace.id, [project.id for project in inside])
        for project in begun:
            self._start(None, [project.id])

    async def close(self) -> None:
        for task in list(self._background):
            task.cancel()

    # What may be deleted

    async def _is_full(self, principal: Principal, project: Project) -> bool:
        return bool(await asyncio.to_thread(self._deletable, principal, project))

    def _deletable(self, principal: Principal, project: Project) -> list[Experiment]:
        """The experiments that go with a project; Invalid when one may not."""
        inside = self._inside(project.id)
        if not all(may_see(principal, experiment.owner_id) for experiment in inside):
            raise Invalid(
                f"the project {project.name!r} holds experiments of other users, which only they or an administrator"
                " may delete: let them move those (det experiment move), or archive the project"
            )
        running = [experiment.id for experiment in inside if not experiment.state.terminal]
        if running:
            raise Invalid(
                f"the project {project.name!r} holds experiments that have not ended ({_listed(running)}): end them"
                f" first (det experiment kill {running[0]})"
            )
        for experiment in inside:
            versions = self._store.models.registered(experiment_id=experiment.id)
            if versions:
                raise Invalid(
                    f"the project {project.name!r} holds experiment {experiment.id}, whose checkpoint"
                    f" '{versions[0].checkpoint_uuid}' is in the model registry: delete it there, or move the"
                    " experiment first"
                )
            waiting = self._store.checkpoints.starting_from(experiment_id=experiment.id)
            if waiting:
                raise Invalid(
                    f"the project {project.name!r} holds experiment {experiment.id}, from whose checkpoint"
                    f" '{waiting[0].warm_start_checkpoint}' trial {waiting[0].id} of experiment"
                    f" {waiting[0].experiment_id} starts: wait for its end, or move the experiment first"
                )
        return inside

    def _refuse_filled(self, workspace: Workspace) -> None:
        models, _ = self._store.models.find(ModelFilter(workspace_ids=[workspace.id]), Page(limit=1))
        templates = [one.name for one in self._store.templates.all() if one.workspace_id == workspace.id]
        if models:
            raise Invalid(
                f"the workspace {workspace.name!r} holds models of the registry: move them first (det model move)"
            )
        if templates:
            raise Invalid(
                f"the workspace {workspace.name!r} holds templates ({_listed(templates)}): remove them first"
                " (det template remove)"
            )

    # In the background

    def _start(self, workspace_id: int | None, project_ids: Sequence[int]) -> None:
        deleting = asyncio.create_task(self._delete(workspace_id, project_ids))
        self._background.add(deleting)
        deleting.add_done_callback(self._background.discard)

    async def _delete(self, workspace_id: int | None, project_ids: Sequence[int]) -> None:
        tried: set[int] = set()
        while True:
            try:
                for project_id in project_ids:
                    await self._empty(project_id, tried)
                    await self._commit(DeleteProject(project_id))
                if workspace_id is not None:
                    await self._commit(DeleteWorkspace(workspace_id))
                return
            except StoreUnavailable:
                await asyncio.sleep(STORE_RETRY_SECONDS)
            except Exception as error:
                if not isinstance(error, RequestError):
                    logger.exception("workspace %s, projects %s not deleted", workspace_id, project_ids)
                await self._failed(workspace_id, project_ids, str(error))
                return

    async def _empty(self, project_id: int, tried: set[int]) -> None:
        """Delete the experiments of a project, and wait until they are gone.

        Raises:
            Invalid: one of them cannot be deleted.
        """
        while inside := await asyncio.to_thread(self._inside, project_id):
            for experiment in inside:
                if experiment.state is ExperimentState.DELETING:
                    continue
                if experiment.id in tried:
                    raise Invalid(f"experiment {experiment.id} in it could not be deleted")
                await self._experiments.delete(experiment.id)
                tried.add(experiment.id)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _failed(self, workspace_id: int | None, project_ids: Sequence[int], why: str) -> None:
        """Keep what went wrong. Where the database is away, the next master tries again."""
        projects = [await asyncio.to_thread(self._store.projects.project, id) for id in project_ids]
        failed: list[Write] = [
            SaveProject(replace(project, state=PlaceState.DELETE_FAILED, error_message=why))
            for project in projects
            if project is not None
        ]
        if workspace_id is not None:
            workspace = await asyncio.to_thread(self._store.projects.workspace, workspace_id)
            if workspace is not None:
                state = PlaceState.DELETE_FAILED
                failed.append(SaveWorkspace(replace(workspace, state=state, error_message=why)))
        try:
            await self._commit(*failed)
        except StoreUnavailable:
            logger.exception("workspace %s, projects %s stay as they are", workspace_id, project_ids)

    def _inside(self, project_id: int) -> list[Experiment]:
        return self._store.experiments.find(ExperimentFilter(project_id=project_id), Page())[0]

    async def _commit(self, *writes: Write) -> None:
        await asyncio.wrap_future(self._store.commit(writes))


def _deleting(place: P) -> P:
    return replace(place, state=PlaceState.DELETING, error_message="")


def _immutable(what: str, place: Project | Workspace) -> Invalid:
    return Invalid(f"the {what} {place.name!r} cannot be deleted: it is there for everybody")


def _listed(items: Sequence[object]) -> str:
    more = f" and {len(items) - 5} more" if len(items) > 5 else ""
    return ", ".join(map(str, items[:5])) + more
