"""Deletion of experiments: marked at once, carried out in the background, taken up again by the next master.

Files go first and records last, so that what a killed master leaves behind is still known to be there. Every step may be
repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from detlab_master.core.errors import Invalid, RequestError
from detlab_master.core.records import Experiment
from detlab_master.core.retention import WITH_FILES
from detlab_master.core.states import ExperimentState as S
from detlab_master.engine.allocations import STORE_RETRY_SECONDS
from detlab_master.engine.checkpoint_files import CheckpointFiles
from detlab_master.engine.checkpoint_holds import CheckpointHolds
from detlab_master.engine.collector import CheckpointCollector
from detlab_master.engine.contexts import Contexts
from detlab_master.engine.experiments import how_to_end
from detlab_master.engine.experiments_at_work import ExperimentsAtWork
from detlab_master.engine.storage import StorageUnreachable, StorageUnsupported
from detlab_master.store.base import ExperimentFilter, Page, Store, StoreUnavailable
from detlab_master.store.writes import DeleteExperiment, DeleteTrial, Write

logger = logging.getLogger(__name__)
_TRIALS_AT_ONCE = 10  # whose records go in one transaction, for which others wait


class ExperimentDeletion:
    def __init__(
        self,
        *,
        store: Store,
        files: CheckpointFiles,
        contexts: Contexts,
        holds: CheckpointHolds,
        collector: CheckpointCollector,
        at_work: ExperimentsAtWork,
        shown_state: Callable[[Experiment], str],
    ) -> None:
        """``shown_state``: the state by which a person knows an experiment."""
        self._store = store
        self._files = files
        self._contexts = contexts
        self._holds = holds
        self._collector = collector
        self._at_work = at_work
        self._shown_state = shown_state
        self._background: set[asyncio.Task[None]] = set()

    async def delete(self, experiment_id: int) -> None:
        """Mark it DELETING; all that belongs to it goes in the background. Repeating it tries again what has failed.

        Raises:
            NotFound: no such experiment.
            Invalid: it has not ended, or a checkpoint of it is in the model registry, or what a trial starts from.
        """
        begun = False

        def mark(experiment: Experiment) -> Experiment:
            nonlocal begun
            if not experiment.state.terminal:
                raise Invalid(
                    f"experiment {experiment_id} is {self._shown_state(experiment)}: only one that has ended"
                    f" can be deleted; {how_to_end(experiment, 'kill')}"
                )
            begun = experiment.state is not S.DELETING
            return replace(experiment, state=S.DELETING, error="") if begun else experiment

        async with self._holds.deleting(experiment_id):
            experiment = await self._at_work.change(experiment_id, mark)
        if begun:
            self._start(experiment)

    async def delete_tensorboard_files(self, experiment: Experiment) -> None:
        """Remove what its trials have written for TensorBoard.

        Raises:
            Invalid: a trial may still be writing.
            StorageUnreachable: the storage does not let us.
        """
        if not experiment.state.terminal:
            raise Invalid(
                f"experiment {experiment.id} is {self._shown_state(experiment)}: its TensorBoard files can be"
                " deleted once it has ended"
            )
        await self._files.remove_tensorboard(experiment)

    async def restore(self) -> None:
        """Go on with what the last master has begun, and remove contexts that it has left behind."""
        begun = ExperimentFilter(states=[S.DELETING])
        for experiment in (await asyncio.to_thread(self._store.experiments.find, begun, Page()))[0]:
            self._start(experiment)
        needed = await asyncio.to_thread(self._store.experiments.contexts)
        await asyncio.to_thread(self._contexts.sweep, needed)

    async def close(self) -> None:
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def _start(self, experiment: Experiment) -> None:
        deleting = asyncio.create_task(self._until_deleted(experiment))
        self._background.add(deleting)
        deleting.add_done_callback(self._background.discard)

    async def _until_deleted(self, experiment: Experiment) -> None:
        while True:
            try:
                try:
                    await self._delete_all(experiment)
                except RequestError as error:
                    await self._fail(experiment, str(error))
                except StoreUnavailable:
                    raise
                except Exception as error:
                    logger.exception("experiment %d could not be deleted", experiment.id)
                    await self._fail(experiment, f"{type(error).__name__}: the master's log says more")
                return
            except StoreUnavailable:
                await asyncio.sleep(STORE_RETRY_SECONDS)

    async def _fail(self, experiment: Experiment, why: str) -> None:
        logger.warning("experiment %d could not be deleted: %s", experiment.id, why)
        error = f"it could not be deleted: {why}"
        await self._at_work.change(
            experiment.id, lambda now: replace(now, state=S.DELETE_FAILED, error=error)
        )

    async def _delete_all(self, experiment: Experiment) -> None:
        await self._collector.forget(experiment.id)
        find = self._store.checkpoints.find
        for checkpoint in await asyncio.to_thread(find, experiment_id=experiment.id, states=WITH_FILES):
            try:
                await self._files.remove(experiment, checkpoint)
            except StorageUnreachable as error:
                if not experiment.unmanaged:
                    raise
                # Its script chose where they are; that the master has no way there must not keep the record for ever.
                logger.info("experiment %d is deleted, files of it are not: %s", experiment.id, error)
        trials, _ = await asyncio.to_thread(self._store.trials.find, experiment.id, None, Page())
        try:
            await self._files.remove_rest(experiment, {trial.task_id for trial in trials})
        except StorageUnreachable as error:
            if not (experiment.unmanaged or isinstance(error, StorageUnsupported)):
                raise
            logger.warning("TensorBoard files of experiment %d may be left: %s", experiment.id, error)
        for first in range(0, len(trials), _TRIALS_AT_ONCE):
            await self._commit(*(DeleteTrial(trial.id) for trial in trials[first : first + _TRIALS_AT_ONCE]))
        await self._commit(DeleteExperiment(experiment.id))
        await self._remove_context(experiment.context_sha256)
        logger.info("experiment %d was deleted", experiment.id)

    async def _remove_context(self, sha256: str) -> None:
        """A fork has the same one as its parent."""
        if not sha256:
            return
        self._contexts.doom(sha256)
        if sha256 in await asyncio.to_thread(self._store.experiments.contexts):
            self._contexts.spare(sha256)
        self._contexts.remove(sha256)

    async def _commit(self, *writes: Write) -> None:
        await asyncio.wrap_future(self._store.commit(writes))
