"""Checkpoints that were reported: what people note about them, and the removal of their files.

The state says PARTIALLY_DELETED before the first file goes, so that a checkpoint that is COMPLETED is whole, whenever the
master may be killed. Then the files go, and what is left of them becomes the record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from detlab_master.core.errors import Invalid, NotFound
from detlab_master.core.records import Checkpoint, Experiment, Json, TrialSource
from detlab_master.core.states import CheckpointState as S
from detlab_master.engine.checkpoint_files import ALL_FILES, CheckpointFiles
from detlab_master.engine.checkpoint_holds import CheckpointHolds
from detlab_master.engine.storage import StorageUnreachable, check_glob
from detlab_master.store.base import Store, StoreConflict
from detlab_master.store.writes import SaveCheckpoint, SaveTrialSource

_METADATA = "metadata.json"  # written beside the files, and not always reported with them


class CheckpointService:
    def __init__(self, *, store: Store, files: CheckpointFiles, holds: CheckpointHolds) -> None:
        self._store = store
        self._files = files
        self._holds = holds
        self._lock = asyncio.Lock()  # every change rewrites a whole record

    async def patch(self, resources: Mapping[str, Mapping[str, int]]) -> None:
        """Somebody has removed files of checkpoints, and says what is left. It is looked up where that is possible.

        Raises:
            NotFound: no such checkpoint.
            Invalid: it names files that are not of the checkpoint, or says that some are gone which are there, or were
                of a checkpoint in the model registry as far as anybody can tell.
        """
        left = {}
        for uuid, claimed in resources.items():
            checkpoint, experiment = await self._find(uuid)
            left[uuid] = await self._verified(checkpoint, experiment, claimed)
        for uuid, there in left.items():
            await self._save_left(uuid, there)

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
        async with self._lock:
            changed = replace(await self._get(checkpoint.uuid), metadata=metadata)
            await self._commit(changed)
        return changed

    async def used_by(self, source: TrialSource) -> None:
        """A trial works with a checkpoint."""
        await asyncio.wrap_future(self._store.commit([SaveTrialSource(source)]))

    async def delete(self, uuids: Sequence[str]) -> None:
        """Remove all files of checkpoints; their records stay, as DELETED. Raises what `remove_files` raises."""
        await self.remove_files(uuids, ALL_FILES)

    async def remove_files(self, uuids: Sequence[str], globs: Sequence[str]) -> None:
        """Remove the files that match; without globs only look what is left.

        Raises:
            NotFound: no such checkpoint; then nothing was removed.
            Invalid: a glob that leads out, or files of a checkpoint that is needed.
            StorageUnreachable: the storage is away, or of a kind that the master cannot reach.
        """
        for glob in globs:
            check_glob(glob)
        async with self._holds.removing(uuids if globs else []):
            for checkpoint, experiment in [await self._find(uuid) for uuid in uuids]:
                left = await self._files.look(experiment, checkpoint)
                if globs and left:
                    await self._mark(checkpoint.uuid)
                    left = await self._files.remove(experiment, checkpoint, globs)
                await self._save_left(checkpoint.uuid, left, checkpoint.state)

    async def _verified(
        self, checkpoint: Checkpoint, experiment: Experiment, claimed: Mapping[str, int]
    ) -> Mapping[str, int]:
        known = checkpoint.resources
        for path, size in claimed.items():
            if not path.endswith("/") and path != _METADATA and not 0 <= size <= known.get(path, -1):
                what = f"has {known[path]} bytes" if path in known else "is no file of it"
                raise Invalid(
                    f"checkpoint '{checkpoint.uuid}' cannot have {path!r} with {size} bytes left: it {what}"
                )
        gone = [path for path in known if path not in claimed and not path.endswith("/")]
        try:
            there = await self._files.look(experiment, checkpoint)
        except StorageUnreachable:
            if not gone:
                return claimed
            async with self._holds.removing([checkpoint.uuid]):
                return claimed
        still = [path for path in gone if path in there]
        if still:
            raise Invalid(
                f"checkpoint '{checkpoint.uuid}' still has {still[0]!r} in its storage: remove it first, or let the"
                f" master do so (det checkpoint rm {checkpoint.uuid} --glob ...)"
            )
        return there

    async def _mark(self, uuid: str) -> None:
        async with self._lock:
            checkpoint = await self._get(uuid)
            if checkpoint.state is S.COMPLETED:
                await self._commit(replace(checkpoint, state=S.PARTIALLY_DELETED))

    async def _save_left(self, uuid: str, left: Mapping[str, int], before: S | None = None) -> None:
        """``before``: the state before it was marked."""
        async with self._lock:
            checkpoint = await self._get(uuid)
            await self._commit(_with_files(replace(checkpoint, state=before or checkpoint.state), left))

    async def _find(self, uuid: str) -> tuple[Checkpoint, Experiment]:
        checkpoint = await self._get(uuid)
        experiment = await asyncio.to_thread(self._store.experiments.get, checkpoint.experiment_id)
        if experiment is None:
            raise _not_found(uuid)
        return checkpoint, experiment

    async def _get(self, uuid: str) -> Checkpoint:
        checkpoint = await asyncio.to_thread(self._store.checkpoints.get, uuid)
        if checkpoint is None:
            raise _not_found(uuid)
        return checkpoint

    async def _commit(self, checkpoint: Checkpoint) -> None:
        try:
            await asyncio.wrap_future(self._store.commit([SaveCheckpoint(checkpoint)]))
        except StoreConflict:
            raise _not_found(checkpoint.uuid) from None  # its experiment was deleted under our hands


def _not_found(uuid: str) -> NotFound:
    return NotFound(f"checkpoint '{uuid}' not found")


def _with_files(checkpoint: Checkpoint, left: Mapping[str, int]) -> Checkpoint:
    """The record of a checkpoint of which this is there; PARTIALLY_DELETED once a file that was reported is missing."""
    if not left:
        return replace(checkpoint, resources={}, state=S.DELETED)
    whole = all(path in left for path in checkpoint.resources if not path.endswith("/"))
    state = checkpoint.state if whole and checkpoint.state is not S.DELETED else S.PARTIALLY_DELETED
    return replace(checkpoint, resources=dict(left), state=state)
