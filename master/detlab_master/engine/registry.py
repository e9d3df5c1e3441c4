"""The model registry: checkpoints that are kept under a name, as numbered versions.

A checkpoint that is a version of some model keeps its files (engine/checkpoint_holds.py). Changes take turns, since each
rewrites a whole record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from detlab_master.core.errors import Conflict, Invalid, NotFound
from detlab_master.core.permissions import Principal
from detlab_master.core.records import Json, Model, ModelVersion
from detlab_master.engine import clock
from detlab_master.engine.checkpoint_holds import CheckpointHolds
from detlab_master.store.base import Store
from detlab_master.store.writes import DeleteModel, DeleteModelVersion, SaveModel, SaveModelVersion, Write

DEFAULT_WORKSPACE = 1


class ModelRegistry:
    def __init__(self, store: Store, ids: clock.Ids, holds: CheckpointHolds) -> None:
        self._store = store
        self._ids = ids
        self._holds = holds
        self._lock = asyncio.Lock()

    # Models

    async def create(
        self,
        principal: Principal,
        name: str,
        *,
        description: str = "",
        notes: str = "",
        labels: Sequence[str] = (),
        metadata: Json | None = None,
        workspace_id: int = DEFAULT_WORKSPACE,
    ) -> Model:
        """Add a model, which belongs to the principal.

        Raises:
            Invalid: no such name is possible, see `check_name`.
            Conflict: they have a model of that name.
        """
        check_name(name)
        async with self._lock:
            await self._refuse_taken(name, principal.user_id)
            now = clock.now()
            model = Model(
                id=self._ids.model(),
                name=name,
                owner_id=principal.user_id,
                workspace_id=workspace_id,
                created_at=now,
                updated_at=now,
                description=description,
                notes=notes,
                labels=_distinct(labels),
                metadata=metadata or {},
            )
            await self._commit(SaveModel(model))
        return model

    async def edit(self, model_id: int, **changes: Any) -> Model:
        """Change a model: any of name, description, notes, labels, metadata, archived and workspace_id.

        Raises:
            NotFound: no such model.
            Invalid, Conflict: as `create`.
        """
        if "name" in changes:
            check_name(changes["name"])
        if "labels" in changes:
            changes["labels"] = _distinct(changes["labels"])
        async with self._lock:
            model = await self._get(model_id)
            if changes.get("name", model.name) != model.name:
                await self._refuse_taken(changes["name"], model.owner_id)
            model = replace(model, **changes, updated_at=clock.now())
            await self._commit(SaveModel(model))
        return model

    async def delete(self, model_id: int) -> None:
        """Remove a model and its versions. Their checkpoints stay, and can be removed from then on."""
        async with self._lock:
            await self._commit(DeleteModel(model_id))

    async def workspace(self, workspace_id: int | None, name: str | None) -> int | None:
        """The id of the workspace that is asked for; None where none is.

        Raises:
            NotFound: there is none.
            Invalid: id and name are of different ones, or it is archived.
        """
        projects, found = self._store.projects, None
        if workspace_id is not None:
            found = await asyncio.to_thread(projects.workspace, workspace_id)
        elif name is not None:
            found = await asyncio.to_thread(projects.workspace_by_name, name)
        else:
            return None
        if found is None:
            raise NotFound(f"workspace '{name if workspace_id is None else workspace_id}' not found")
        if name not in (None, found.name):
            raise Invalid(
                f"workspaceId is {workspace_id} and workspaceName {name!r}: these are two workspaces"
            )
        if found.archived:
            raise Invalid(f"the workspace {found.name!r} is archived and takes no models: choose another one")
        return found.id

    # Versions

    async def register(
        self,
        principal: Principal,
        model_id: int,
        checkpoint_uuid: str,
        *,
        name: str = "",
        comment: str = "",
        notes: str = "",
        labels: Sequence[str] = (),
        metadata: Json | None = None,
    ) -> ModelVersion:
        """Make a checkpoint the next version of a model. The principal may have both: the caller has looked.

        Raises:
            NotFound: no such model or checkpoint.
            Invalid: the checkpoint is not complete, or its owner is not that of another user's model.
        """
        async with self._lock, self._holds.needing(checkpoint_uuid, "registered"):
            model = await self._get(model_id)
            await self._check_owner(principal, model, checkpoint_uuid)
            now = clock.now()
            version = ModelVersion(
                id=self._ids.model_version(),
                model_id=model.id,
                version=model.last_version + 1,
                checkpoint_uuid=checkpoint_uuid,
                owner_id=principal.user_id,
                created_at=now,
                updated_at=now,
                name=name,
                comment=comment,
                notes=notes,
                labels=_distinct(labels),
                metadata=metadata or {},
            )
            counted = replace(model, last_version=version.version, updated_at=now)
            await self._commit(SaveModel(counted), SaveModelVersion(version))
        return version

    async def edit_version(self, model_id: int, number: int, **changes: Any) -> ModelVersion:
        """Change a version: any of name, comment, notes, labels and metadata.

        Raises:
            NotFound: no such version.
        """
        if "labels" in changes:
            changes["labels"] = _distinct(changes["labels"])
        async with self._lock:
            version = await asyncio.to_thread(self._store.models.version, model_id, number)
            if version is None:
                raise NotFound(f"model '{model_id}' has no version {number}")
            version = replace(version, **changes, updated_at=clock.now())
            await self._commit(SaveModelVersion(version))
        return version

    async def delete_version(self, model_id: int, number: int) -> None:
        """Remove a version; its number is not used again, and its checkpoint stays."""
        async with self._lock:
            await self._commit(DeleteModelVersion(model_id, number))

    async def _check_owner(self, principal: Principal, model: Model, checkpoint_uuid: str) -> None:
        checkpoint = await asyncio.to_thread(self._store.checkpoints.get, checkpoint_uuid)
        experiment = (
            await asyncio.to_thread(self._store.experiments.get, checkpoint.experiment_id)
            if checkpoint
            else None
        )
        if checkpoint is None or experiment is None:
            raise NotFound(f"checkpoint '{checkpoint_uuid}' not found")
        if model.owner_id not in (principal.user_id, experiment.owner_id):
            raise Invalid(
                f"checkpoint '{checkpoint_uuid}' is not of the user whose model {model.name!r} is:"
                " they could not download it"
            )

    # The store

    async def _get(self, model_id: int) -> Model:
        model = await asyncio.to_thread(self._store.models.get, model_id)
        if model is None:
            raise NotFound(f"model '{model_id}' not found")
        return model

    async def _refuse_taken(self, name: str, owner_id: int) -> None:
        namesakes = await asyncio.to_thread(self._store.models.by_name, name)
        if any(model.owner_id == owner_id for model in namesakes):
            raise Conflict(f"there is a model {name!r} already: choose another name, or add a version to it")

    async def _commit(self, *writes: Write) -> None:
        await asyncio.wrap_future(self._store.commit(writes))


def check_name(name: str) -> None:
    """Whether a model can have this name: it stands in paths, and what is all digits is an id.

    Raises:
        Invalid: it cannot.
    """
    if not name.strip():
        why = "it is blank"
    elif name != name.strip() or "  " in name:
        why = "it begins or ends with a space, or has several in a row"
    elif "/" in name or "\\" in name or name in (".", ".."):
        why = "it has a slash, or is a folder's"
    elif name.isdigit():
        why = "it has digits only, and so is an id"
    elif not name.isprintable():
        why = "it has characters that cannot be printed"
    else:
        return
    raise Invalid(f"{name!r} cannot be the name of a model: {why}")


def _distinct(labels: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(labels))
