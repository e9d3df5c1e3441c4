"""Checkpoints that were reported: what people note about them, and the removal of their files."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from detlab_master.core.errors import Invalid, NotFound
from detlab_master.core.records import Checkpoint, Experiment, Json
from detlab_master.core.states import CheckpointState
from detlab_master.engine.checkpoint_files import CheckpointFiles
from detlab_master.engine.registry import ModelRegistry
from detlab_master.store.base import Store
from detlab_master.store.writes import SaveCheckpoint


class CheckpointService:
    def __init__(self, *, store: Store, files: CheckpointFiles, registry: ModelRegistry) -> None:
        self._store = store
        self._files = files
        self._registry = registry

    async def patch(self, resources: Mapping[str, Mapping[str, int]]) -> None:
        """What is left of checkpoints' files: nothing makes them DELETED, less than before PARTIALLY_DELETED."""
        changed = [
            SaveCheckpoint(_with_files(await self._get(uuid), left)) for uuid, left in resources.items()
        ]
        await asyncio.wrap_future(self._store.commit(changed))

    async def describe(self, checkpoint: Checkpoint, metadata: Json) -> Checkpoint:
        """Put a person's metadata in place of the old.

        Raises:
            Invalid: steps_completed is missing or changed; validations are found by it.
        """
        if metadata.get("steps_completed") != checkpoint.steps_completed:
            raise Invalid(
                f"the new metadata of checkpoint '{checkpoint.uuid}' has steps_completed ="
                f" {metadata.get('steps_completed')!r}: it must stay {checkpoint.steps_completed}"
            )
        changed = replace(checkpoint, metadata=metadata)
        await asyncio.wrap_future(self._store.commit([SaveCheckpoint(changed)]))
        return changed

    async def delete(self, uuids: Sequence[str]) -> None:
        """Remove all files of checkpoints; their records stay, as DELETED. Raises what `remove_files` raises."""
        await self.remove_files(uuids, ["**/*"])

    async def remove_files(self, uuids: Sequence[str], globs: Sequence[str]) -> None:
        """Remove the files that match; without globs only look what is left.

        Raises:
            Invalid: files of a checkpoint that is in the model registry.
        """
        async with self._registry.removing(uuids if globs else []):
            for uuid in uuids:
                checkpoint = await self._get(uuid)
                experiment = await self._experiment(checkpoint)
                left = await asyncio.to_thread(self._files.remove, experiment, checkpoint, globs)
                await self.patch({uuid: left})

    async def _get(self, uuid: str) -> Checkpoint:
        checkpoint = await asyncio.to_thread(self._store.checkpoints.get, uuid)
        if checkpoint is None:
            raise NotFound(f"checkpoint '{uuid}' not found")
        return checkpoint

    async def _experiment(self, checkpoint: Checkpoint) -> Experiment:
        experiment = await asyncio.to_thread(self._store.experiments.get, checkpoint.experiment_id)
        if experiment is None:
            raise NotFound(f"checkpoint '{checkpoint.uuid}' not found")
        return experiment


def _with_files(checkpoint: Checkpoint, left: Mapping[str, int]) -> Checkpoint:
    if not left:
        return replace(checkpoint, resources={}, state=CheckpointState.DELETED)
    if set(left) != set(checkpoint.resources):
        return replace(checkpoint, resources=dict(left), state=CheckpointState.PARTIALLY_DELETED)
    return replace(checkpoint, resources=dict(left))
