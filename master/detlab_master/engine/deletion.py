"""Deletion of experiments: marked at once, carried out in the background, taken up again by the next master."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from detlab_master.core.errors import Invalid, NotFound
from detlab_master.core.records import Experiment
from detlab_master.core.states import ExperimentState as S
from detlab_master.engine.checkpoint_files import CheckpointFiles
from detlab_master.engine.registry import ModelRegistry
from detlab_master.store.base import ExperimentFilter, Page, Store
from detlab_master.store.writes import DeleteExperiment, SaveExperiment

logger = logging.getLogger(__name__)


class ExperimentDeletion:
    """Args: ``shown_state``: the state by which a person knows an experiment."""

    def __init__(
        self,
        *,
        store: Store,
        files: CheckpointFiles,
        registry: ModelRegistry,
        shown_state: Callable[[Experiment], str],
    ) -> None:
        self._store = store
        self._files = files
        self._registry = registry
        self._shown_state = shown_state
        self._background: set[asyncio.Task[None]] = set()

    async def delete(self, experiment_id: int) -> None:
        """Mark it DELETING; checkpoints and records go in the background.

        Raises:
            Invalid: it has not ended, or a checkpoint of it is in the model registry.
        """
        experiment = await asyncio.to_thread(self._store.experiments.get, experiment_id)
        if experiment is None:
            raise NotFound(f"experiment '{experiment_id}' not found")
        if experiment.state is S.DELETING:
            return
        if not experiment.state.terminal:
            raise Invalid(
                f"experiment {experiment_id} is {self._shown_state(experiment)}: only one that has ended can be deleted;"
                f" end it first (det experiment kill {experiment_id})"
            )
        async with self._registry.deleting(experiment_id):
            await self._save(replace(experiment, state=S.DELETING))
        self._start(replace(experiment, state=S.DELETING))

    async def restore(self) -> None:
        """Go on with what the last master has begun."""
        begun = ExperimentFilter(states=[S.DELETING])
        for experiment in (await asyncio.to_thread(self._store.experiments.find, begun, Page()))[0]:
            self._start(experiment)

    async def close(self) -> None:
        for task in list(self._background):
            task.cancel()

    def _start(self, experiment: Experiment) -> None:
        deleting = asyncio.create_task(self._delete_all(experiment))
        self._background.add(deleting)
        deleting.add_done_callback(self._background.discard)

    async def _delete_all(self, experiment: Experiment) -> None:
        try:
            kept = await asyncio.to_thread(self._store.checkpoints.find, experiment_id=experiment.id)
            for checkpoint in kept:
                await asyncio.to_thread(self._files.remove, experiment, checkpoint)
            await asyncio.wrap_future(self._store.commit([DeleteExperiment(experiment.id)]))
        except Exception:
            logger.exception("experiment %d could not be deleted", experiment.id)
            await self._save(replace(experiment, state=S.DELETE_FAILED))

    async def _save(self, experiment: Experiment) -> None:
        await asyncio.wrap_future(self._store.commit([SaveExperiment(experiment)]))
