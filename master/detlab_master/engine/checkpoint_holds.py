"""Who needs the files of a checkpoint, and who removes them: they take turns, so that nobody starts from what vanishes.

A checkpoint keeps its files while it is a version of some model, and while a trial that has not ended starts from it. What
needs one from now on is kept within `needing`; from then on a removal is refused. One that was faster has marked the
checkpoint before its first file goes, or is listed here, and so whoever comes second is told.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from detlab_master.core.errors import Invalid, NotFound
from detlab_master.core.records import Checkpoint
from detlab_master.core.states import CheckpointState, ExperimentState
from detlab_master.store.base import Store

STARTED_FROM = "started from"  # a use of a checkpoint, as `refuse_unfit` wants it
_DELETE_STATES = (ExperimentState.DELETING, ExperimentState.DELETE_FAILED, ExperimentState.DELETED)


class CheckpointHolds:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = asyncio.Lock()
        self._removing: Counter[str] = Counter()  # checkpoints whose files are just being removed

    @asynccontextmanager
    async def needing(self, uuid: str, use: str) -> AsyncIterator[None]:
        """Within, keep what needs a checkpoint's files; nobody begins to remove them meanwhile.

        Raises what `refuse_unfit` raises.
        """
        async with self._lock:
            await self.refuse_unfit(uuid, use)
            yield

    async def refuse_unfit(self, uuid: str, use: str) -> None:
        """Whether a checkpoint can be needed, at this moment.

        Args:
            use: what it is to be, for the message: "registered".

        Raises:
            NotFound: no such checkpoint.
            Invalid: not all of its files are there, or they will not be for long.
        """
        checkpoint = await asyncio.to_thread(self._store.checkpoints.get, uuid)
        if checkpoint is None:
            raise NotFound(f"checkpoint '{uuid}' not found")
        if checkpoint.state is not CheckpointState.COMPLETED:
            raise Invalid(f"checkpoint '{uuid}' is {checkpoint.state}: only a COMPLETED one can be {use}")
        if uuid in self._removing or await self._goes_with_its_experiment(checkpoint):
            raise Invalid(f"checkpoint '{uuid}' is being deleted: it cannot be {use}")

    @asynccontextmanager
    async def removing(self, uuids: Sequence[str]) -> AsyncIterator[None]:
        """While files of these checkpoints are removed, nobody comes to need them.

        Raises:
            Invalid: one of them is needed.
        """
        async with self._lock:
            await self._refuse_needed(checkpoint_uuids=uuids)
            self._removing.update(uuids)
        try:
            yield
        finally:
            self._removing.subtract(uuids)
            self._removing += Counter()  # drops those at 0

    @asynccontextmanager
    async def deleting(self, experiment_id: int) -> AsyncIterator[None]:
        """While an experiment is being marked as DELETING, nobody comes to need its checkpoints.

        Raises:
            Invalid: one of them is needed.
        """
        async with self._lock:
            await self._refuse_needed(experiment_id=experiment_id)
            yield

    async def _goes_with_its_experiment(self, checkpoint: Checkpoint) -> bool:
        experiment = await asyncio.to_thread(self._store.experiments.get, checkpoint.experiment_id)
        return experiment is None or experiment.state in _DELETE_STATES

    async def _refuse_needed(self, **which: Any) -> None:
        models = self._store.models
        versions = await asyncio.to_thread(models.registered, **which)
        if versions:
            model = await asyncio.to_thread(models.get, versions[0].model_id)
            assert model is not None  # a version has a model
            more = f" ({len(versions) - 1} more are registered)" if len(versions) > 1 else ""
            raise Invalid(
                f"checkpoint '{versions[0].checkpoint_uuid}' is version {versions[0].version} of the model"
                f" {model.name!r}{more}: delete it from the model registry first"
            )
        trials = await asyncio.to_thread(self._store.checkpoints.starting_from, **which)
        if trials:
            raise Invalid(
                f"trial {trials[0].id} of experiment {trials[0].experiment_id} starts from checkpoint"
                f" '{trials[0].warm_start_checkpoint}', and has not ended: wait for its end, or end it first"
                f" (det experiment kill {trials[0].experiment_id})"
            )
