"""How long logs are kept; removes what need not be, at the times that the schedule says, or when asked to."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from detlab_master.core import experiment_events
from detlab_master.core import log_retention as core
from detlab_master.core.errors import Invalid
from detlab_master.engine import clock
from detlab_master.engine.experiments_at_work import ExperimentsAtWork
from detlab_master.engine.inbox import Closed
from detlab_master.engine.schedules import Schedule
from detlab_master.store.base import Page, Store, StoreUnavailable
from detlab_master.store.writes import DeleteLogs, SaveExperiment, SaveTrial, Write

logger = logging.getLogger(__name__)
_BATCH = 2000  # lines that one transaction removes, so that those who write do not wait long


class LogRetention:
    """
    Args:
        default_days: for tasks that say nothing themselves; None or -1: for ever.
        schedule: when logs are removed without being asked to.
    """

    def __init__(
        self, store: Store, at_work: ExperimentsAtWork, default_days: int | None, schedule: Schedule
    ) -> None:
        self._store = store
        self._at_work = at_work
        self._default_days = default_days
        self._schedule = schedule
        self._cleaning = asyncio.Lock()
        self._running: asyncio.Task[None] | None = None

    def days(self, own: int | None) -> int:
        """How long a log is kept whose trial says ``own``."""
        return core.days(own, self._default_days)

    async def retain(self, experiment_id: int, days: int, trial_id: int | None = None) -> None:
        """Keep the log of one trial, or of all and those to come, for so many days after its end; -1: for ever.

        Raises:
            Invalid: no such number of days.
        """
        if problem := core.check(days):
            raise Invalid(f"numDays is {days}: {problem}")
        async with self._at_work.alone(experiment_id):
            try:
                await self._at_work.ask(experiment_id, experiment_events.LogsRetained(days, trial_id))
            except Closed:
                await self._retain_ended(experiment_id, days, trial_id)

    async def _retain_ended(self, experiment_id: int, days: int, trial_id: int | None) -> None:
        kept, _ = await asyncio.to_thread(self._store.trials.find, experiment_id, None, Page())
        changes: list[Write] = [
            SaveTrial(replace(trial, log_retention_days=days))
            for trial in kept
            if trial_id is None or trial.id == trial_id
        ]
        if trial_id is None:
            experiment = await self._at_work.get(experiment_id)
            config = {**experiment.config, "retention_policy": {"log_retention_days": days}}
            changes.append(SaveExperiment(replace(experiment, config=config)))
        await asyncio.wrap_future(self._store.commit(changes))

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            now = clock.now()
            await asyncio.sleep(self._schedule(now) - now)
            try:
                await self.clean()
            except StoreUnavailable as error:
                logger.warning("logs could not be cleaned up, the next time will do it: %s", error)
            except Exception:
                logger.exception("logs could not be cleaned up")

    async def clean(self) -> int:
        """Remove what is due now; returns the number of lines. What is interrupted goes on the next time."""
        async with self._cleaning:
            removed = 0
            for kept in await asyncio.to_thread(self._store.logs.of_ended_tasks):
                if core.due(kept.ended_at, self.days(kept.retention_days), clock.now()):
                    removed += await self._remove(kept.task_id)
            if removed:
                logger.info("removed %d log lines whose time was over", removed)
            return removed

    async def _remove(self, task_id: str) -> int:
        removed = 0
        while True:
            count, last_id = await asyncio.to_thread(self._store.logs.first, task_id, _BATCH)
            if not count:
                return removed
            await asyncio.wrap_future(self._store.commit([DeleteLogs(task_id, last_id)]))
            removed += count
