"""Collection of the checkpoints that an experiment's policy does not keep: at its end, and when the policy changes.

That a collection is due is kept with what made it due, in one transaction (`Experiment.gc_due`), and struck out when it is
done. A master that was killed in between begins it anew: the rules (core/retention.py) say the same of what is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from detlab_master.core.errors import Invalid, NotFound
from detlab_master.core.metrics import VALIDATION, SearcherMetric
from detlab_master.core.records import Checkpoint, Experiment, Json, MetricReport
from detlab_master.core.retention import WITH_FILES, Policy, needed_to_go_on, superfluous
from detlab_master.engine.allocations import STORE_RETRY_SECONDS
from detlab_master.engine.checkpoints import CheckpointService
from detlab_master.engine.storage import StorageUnreachable, StorageUnsupported
from detlab_master.store.base import Page, Store, StoreUnavailable
from detlab_master.store.writes import CollectionDone

logger = logging.getLogger(__name__)
_AT_ONCE = 4  # experiments whose files are being removed
_STORAGE_RETRY_SECONDS = 600.0
_TRIALS_AT_ONCE = 200  # whose validations are read together


@dataclass(frozen=True)
class Superfluous:
    """A checkpoint that a policy does not keep, and the metrics of its validation."""

    checkpoint: Checkpoint
    metrics: Json | None


class CheckpointCollector:
    def __init__(self, *, store: Store, checkpoints: CheckpointService) -> None:
        self._store = store
        self._checkpoints = checkpoints
        self._working: dict[int, asyncio.Task[None]] = {}
        self._again: set[int] = set()
        self._left_alone: set[int] = set()
        self._room = asyncio.Semaphore(_AT_ONCE)

    def request(self, experiment_id: int) -> None:
        """Look through an experiment's checkpoints, in the background; it is kept already that this is due."""
        if experiment_id in self._working or experiment_id in self._left_alone:
            self._again.add(experiment_id)
            return
        task = asyncio.create_task(
            self._work(experiment_id), name=f"collection of experiment {experiment_id}"
        )
        self._working[experiment_id] = task

    async def restore(self) -> None:
        """Go on with what the last master has left."""
        for experiment_id in await asyncio.to_thread(self._store.experiments.collections_due):
            self.request(experiment_id)

    async def forget(self, experiment_id: int) -> None:
        """Leave an experiment alone: it is being deleted."""
        await _ended(self._working.pop(experiment_id, None))

    @asynccontextmanager
    async def leaving_alone(self, experiment_id: int) -> AsyncIterator[None]:
        """While an experiment that has ended is taken up again, which trials need which checkpoint is not settled.

        What was requested meanwhile is done afterwards; and what was under way, unless the experiment goes on.
        """
        self._left_alone.add(experiment_id)
        working = self._working.pop(experiment_id, None)
        try:
            await _ended(working)
            yield
        except BaseException:
            if working is not None:
                self._again.add(experiment_id)
            raise
        finally:
            self._left_alone.discard(experiment_id)
            if experiment_id in self._again:
                self.request(experiment_id)

    async def close(self) -> None:
        for task in list(self._working.values()):
            await _ended(task)

    async def preview(self, experiment: Experiment, policy: Policy) -> list[Superfluous]:
        """What would be removed at this moment if this were its policy."""
        return await asyncio.to_thread(self._decide, experiment, policy)

    async def _work(self, experiment_id: int) -> None:
        while True:
            self._again.discard(experiment_id)
            try:
                async with self._room:
                    await self._collect(experiment_id)
            except StoreUnavailable:
                await asyncio.sleep(STORE_RETRY_SECONDS)
                continue
            except StorageUnsupported as error:
                logger.warning("experiment %d keeps its checkpoints: %s", experiment_id, error)
            except StorageUnreachable as error:
                logger.warning("experiment %d keeps its checkpoints for now: %s", experiment_id, error)
                await asyncio.sleep(_STORAGE_RETRY_SECONDS)
                continue
            except Exception:
                logger.exception(
                    "the checkpoints of experiment %d could not be looked through", experiment_id
                )
            if experiment_id not in self._again:
                self._working.pop(experiment_id, None)
                return

    async def _collect(self, experiment_id: int) -> None:
        experiment = await asyncio.to_thread(self._store.experiments.get, experiment_id)
        if experiment is None or experiment.gc_due is None:
            return
        policy = Policy.of(experiment.config["checkpoint_storage"])
        found = await self.preview(experiment, policy)
        for one in found:
            try:
                await self._checkpoints.delete([one.checkpoint.uuid])
            except StorageUnreachable:
                raise
            except (Invalid, NotFound) as error:  # it was registered in the meantime, or deleted
                logger.info("experiment %d: %s", experiment_id, error)
        if found:
            logger.info("experiment %d: %d checkpoints were removed", experiment_id, len(found))
        await asyncio.wrap_future(self._store.commit([CollectionDone(experiment_id, experiment.gc_due)]))

    def _decide(self, experiment: Experiment, policy: Policy) -> list[Superfluous]:
        store = self._store
        saved = store.checkpoints.find(experiment_id=experiment.id, states=WITH_FILES)
        if not saved:
            return []
        trials, _ = store.trials.find(experiment.id, None, Page())
        registered = store.models.registered(experiment_id=experiment.id)
        protected = {version.checkpoint_uuid for version in registered}
        protected |= store.checkpoints.warm_starts(experiment.id)
        protected |= needed_to_go_on(trials, saved, ended=experiment.state.terminal)
        searcher = experiment.config["searcher"]
        metric = SearcherMetric(searcher["metric"], searcher["smaller_is_better"])
        reports = self._validations(saved)
        gone = superfluous(saved, reports.values(), metric, policy, protected)
        found = []
        for checkpoint in gone:
            report = reports.get((checkpoint.trial_id, checkpoint.steps_completed))
            found.append(Superfluous(checkpoint, report.metrics if report else None))
        return found

    def _validations(self, saved: list[Checkpoint]) -> dict[tuple[int, int], MetricReport]:
        """Those at the steps of checkpoints, by trial and step."""
        places = {(checkpoint.trial_id, checkpoint.steps_completed) for checkpoint in saved}
        trial_ids = sorted({trial_id for trial_id, _ in places})
        found = {}
        for first in range(0, len(trial_ids), _TRIALS_AT_ONCE):
            some = trial_ids[first : first + _TRIALS_AT_ONCE]
            for report in self._store.metrics.reports(some, VALIDATION):
                if (report.trial_id, report.steps_completed) in places:
                    found[report.trial_id, report.steps_completed] = report
        return found


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
