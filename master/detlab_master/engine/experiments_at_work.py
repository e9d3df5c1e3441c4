"""The experiments that have not ended: each behind its inbox, taken up again when the master starts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakValueDictionary

from detlab_master.core import experiment_events as core
from detlab_master.core import log_policies, unmanaged
from detlab_master.core import trial as trials
from detlab_master.core.allocation import KillRequested, PreemptionRequested
from detlab_master.core.errors import Invalid, NotFound
from detlab_master.core.records import Allocation, Experiment, Task, Trial
from detlab_master.core.states import TrialState
from detlab_master.engine import clock
from detlab_master.engine.allocations import STORE_RETRY_SECONDS, AllocationService
from detlab_master.engine.experiment_inbox import (
    Continued,
    Created,
    Event,
    ExperimentAtWork,
    LogsMatched,
    Pools,
)
from detlab_master.engine.inbox import Closed, Inbox
from detlab_master.engine.logs import LogService
from detlab_master.resources.base import ResourceManager
from detlab_master.store.base import Store, StoreUnavailable
from detlab_master.store.writes import SaveExperiment

logger = logging.getLogger(__name__)
_LISTEN_TRIES = 10  # an unmanaged experiment may end while it is spoken to


class ExperimentsAtWork:
    def __init__(
        self,
        *,
        store: Store,
        ids: clock.Ids,
        allocations: AllocationService,
        resources: ResourceManager,
        pools: Pools,
        logs: LogService,
        collect: Callable[[int], None],
    ) -> None:
        """``collect``: called with an experiment's id when its checkpoints have to be looked through."""
        self._store = store
        self._ids = ids
        self._allocations = allocations
        self._resources = resources
        self._pools = pools
        self._logs = logs
        self._collect = collect
        self._at_work: dict[int, ExperimentAtWork] = {}
        self._inboxes: dict[int, Inbox[Event]] = {}
        self._of_trial: dict[int, int] = {}  # trial id -> experiment id, as far as looked up
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._background: set[asyncio.Task[None]] = set()
        self._closing = False

    # Asking

    async def get(self, experiment_id: int) -> Experiment:
        """The record, at work or not.

        Raises:
            NotFound: no such experiment.
        """
        at_work = self._at_work.get(experiment_id)
        if at_work is not None:
            return at_work.experiment
        experiment = await asyncio.to_thread(self._store.experiments.get, experiment_id)
        if experiment is None:
            raise NotFound(f"experiment '{experiment_id}' not found")
        return experiment

    async def ask(self, experiment_id: int, event: Event) -> None:
        """Hand an event to an experiment, and wait until its result is kept.

        Raises:
            NotFound: no such experiment.
            Closed: it has ended.
            IllegalMove: its state does not allow it.
        """
        inbox = self._inboxes.get(experiment_id)
        if inbox is None:
            experiment = await self.get(experiment_id)
            raise Closed(
                f"experiment {experiment_id} has ended ({experiment.state}): it cannot be changed like this any more"
            )
        await inbox.ask(event)

    async def trial(self, trial_id: int) -> Trial:
        """The record of a trial, at work or not.

        Raises:
            NotFound: no such trial.
        """
        experiment_id = self._of_trial.get(trial_id)
        if experiment_id in self._at_work:
            known = self._at_work[experiment_id].trials.get(trial_id)
            if known is not None:
                return known
        kept = await asyncio.to_thread(self._store.trials.get, trial_id)
        if kept is None:
            raise NotFound(f"trial '{trial_id}' not found")
        self._of_trial[trial_id] = kept.experiment_id
        return kept

    async def report(self, trial_id: int, *events: Event) -> None:
        """Hand a trial's reports to its experiment, in this order, and to be kept together if they can be.

        Raises:
            NotFound: no such trial.
            Invalid: its experiment has ended.
        """
        experiment_id = (await self.trial(trial_id)).experiment_id
        inbox = self._inboxes.get(experiment_id)
        if inbox is None and (await self.get(experiment_id)).unmanaged:
            await self.ask_unmanaged(experiment_id, *events)
            return
        if inbox is None:
            raise Invalid(
                f"trial {trial_id} belongs to experiment {experiment_id}, which has ended: it takes no reports"
            )
        await inbox.ask_all(events)

    async def ask_unmanaged(self, experiment_id: int, *events: Event) -> list[Any]:
        """Hand events to an unmanaged experiment, also to one that has ended: it listens again for as long as that takes,
        and stays if they let it go on.

        Returns:
            The answer to each.

        Raises:
            NotFound: no such experiment.
            IllegalMove: its state does not allow it.
        """
        for _ in range(_LISTEN_TRIES):
            async with self.alone(experiment_id):
                inbox = self._inboxes.get(experiment_id) or await self._listen_again(experiment_id)
            try:
                return await inbox.ask_all(events)
            except Closed:
                continue
            finally:
                at_work = self._at_work.get(experiment_id)
                if at_work is not None and at_work.experiment.state.terminal:
                    await self._drop(experiment_id, inbox)
        raise Closed(f"experiment {experiment_id} has ended: it takes no changes any more")

    async def _listen_again(self, experiment_id: int) -> Inbox[Event]:
        """Within `alone`."""
        if self._closing:
            raise Closed("the master is shutting down")
        experiment = await self.get(experiment_id)
        at_work = self._made(experiment)
        await at_work.load(experiment)  # before anybody else can speak to it
        return self._open(at_work)

    def signs(self) -> dict[tuple[int, int | None], float]:
        """Of whom something should be heard: (experiment, trial or None) -> when that was last. Unmanaged ones only."""
        return {
            (number, trial_id): last
            for number, at_work in self._at_work.items()
            if at_work.experiment.unmanaged
            for trial_id, last in at_work.signs().items()
        }

    async def fallen_silent(self, experiment_id: int, found: unmanaged.SilenceFound) -> None:
        """Done when that is kept; who was heard of in the meantime has not fallen silent."""
        inbox = self._inboxes.get(experiment_id)
        if inbox is not None:
            await inbox.ask(found)

    def log_policies(self, experiment_id: int) -> tuple[log_policies.Policy, ...]:
        """None of an experiment that has ended."""
        at_work = self._at_work.get(experiment_id)
        return log_policies.effective(at_work.experiment.config) if at_work else ()

    async def logs_matched(self, experiment_id: int, found: LogsMatched) -> None:
        """Done when the trial has heard of it."""
        at_work, inbox = self._at_work.get(experiment_id), self._inboxes.get(experiment_id)
        if at_work is not None and inbox is not None and at_work.is_news(found):
            await inbox.ask(found)

    # Changing

    @asynccontextmanager
    async def alone(self, experiment_id: int) -> AsyncIterator[None]:
        """Whoever changes the record of an experiment that has ended, or takes it up again, does so alone."""
        lock = self._locks.setdefault(experiment_id, asyncio.Lock())
        async with lock:
            yield

    async def change(self, experiment_id: int, change: Callable[[Experiment], Experiment]) -> Experiment:
        """Change the record, at work or not. Two that do so at once both take effect.

        Args:
            change: from the record as it is to the one to be kept; what it raises is raised, and nothing kept.
        """
        async with self.alone(experiment_id):
            while (inbox := self._inboxes.get(experiment_id)) is not None:
                try:
                    changed: Experiment = await inbox.ask(core.Edited(change))
                    return changed
                except Closed:  # it ended this moment
                    continue
            changed = change(await self.get(experiment_id))
            await asyncio.wrap_future(self._store.commit([SaveExperiment(changed)]))
            return changed

    # Coming and going

    async def create(self, experiment: Experiment) -> Experiment:
        """Keep a new experiment and start it."""
        at_work = self._take_up(experiment)
        try:
            await self._inboxes[experiment.id].ask(Created())
        except Exception:
            await self._drop(experiment.id)
            raise
        return at_work.experiment

    async def take_up_again(self, experiment: Experiment) -> Experiment:
        """Let an experiment that has ended go on, with this record; within `alone`.

        Raises:
            IllegalMove: its state does not allow it, or there is nothing to go on with.
        """
        await self._drop(experiment.id)  # it may have ended only just now
        at_work = self._take_up(experiment)
        try:
            await at_work.load(experiment)
            await self._inboxes[experiment.id].ask(Continued())
        except Exception:
            await self._drop(experiment.id)
            raise
        return at_work.experiment

    def allocation_ended(self, task: Task, allocation: Allocation) -> None:
        """The allocation service says that a trial's run is over."""
        assert task.experiment_id is not None  # a trial's task
        assert task.trial_id is not None
        self._insist(task.experiment_id, core.AllocationEnded(task.trial_id, allocation))

    def _insist(self, experiment_id: int, event: core.Event) -> None:
        """Hand in what has happened; where the database is away, until it is back."""
        insisting = asyncio.create_task(self._until_kept(experiment_id, event))
        self._background.add(insisting)
        insisting.add_done_callback(self._background.discard)

    async def _until_kept(self, experiment_id: int, event: core.Event) -> None:
        while (inbox := self._inboxes.get(experiment_id)) is not None:
            try:
                await inbox.ask(event)
                return
            except Closed:  # gone, or continued and taken up anew
                await asyncio.sleep(0)
            except StoreUnavailable:
                await asyncio.sleep(STORE_RETRY_SECONDS)

    # Restart of the master

    async def restore(self) -> None:
        """Take up every experiment that has not ended, with its allocations."""
        for experiment in await asyncio.to_thread(self._store.experiments.unfinished):
            at_work = self._take_up(experiment)
            await at_work.reload()
        for allocation in await asyncio.to_thread(self._store.trials.open_allocations):
            task = await asyncio.to_thread(self._store.trials.task, allocation.task_id)
            if task is None or task.experiment_id not in self._at_work:
                continue
            at_work = self._at_work[task.experiment_id]
            self._allocations.adopt(task, allocation, at_work.request(task, allocation))
        for at_work in list(self._at_work.values()):
            for waiting in list(at_work.trials.values()):
                await self._take_up_trial(waiting)

    async def _take_up_trial(self, waiting: Trial) -> None:
        """Effects that the last master may not have carried out any more."""
        if waiting.allocation_id is None:
            return
        open_ = self._allocations.get(waiting.allocation_id)
        if open_ is None:
            ended = await asyncio.to_thread(self._store.trials.allocation, waiting.allocation_id)
            if ended is not None:
                self._insist(waiting.experiment_id, core.AllocationEnded(waiting.id, ended))
        elif waiting.state is TrialState.STOPPING_KILLED:
            self._allocations.insist(open_.id, KillRequested("killed by the user"))
        elif waiting.early_exit_reason is not None:
            self._allocations.kill_later(open_.id, trials.EXIT_GRACE_SECONDS, "it reported an early exit")
        elif waiting.state is not TrialState.ACTIVE:
            self._allocations.insist(open_.id, PreemptionRequested(f"the trial is {waiting.state}"))

    async def close(self) -> None:
        self._closing = True
        inboxes = list(self._inboxes.values())
        self._inboxes.clear()
        for inbox in inboxes:
            await inbox.close()
        for task in list(self._background):
            task.cancel()

    # Inboxes

    def _take_up(self, experiment: Experiment) -> ExperimentAtWork:
        at_work = self._made(experiment)
        self._open(at_work)
        return at_work

    def _made(self, experiment: Experiment) -> ExperimentAtWork:
        return ExperimentAtWork(
            experiment,
            store=self._store,
            ids=self._ids,
            allocations=self._allocations,
            resources=self._resources,
            pools=self._pools,
            logs=self._logs,
            finished=self._finished,
        )

    def _open(self, at_work: ExperimentAtWork) -> Inbox[Event]:
        number = at_work.experiment.id
        self._at_work[number] = at_work
        self._inboxes[number] = Inbox(f"experiment {number}", at_work, self._store)
        return self._inboxes[number]

    def _finished(self, experiment: Experiment) -> None:
        logger.info("experiment %d is %s", experiment.id, experiment.state)
        self._collect(experiment.id)
        # The inbox itself calls this: it is closed once its present batch is answered.
        ended = self._inboxes[experiment.id]
        dropping = asyncio.create_task(self._drop(experiment.id, ended))
        self._background.add(dropping)
        dropping.add_done_callback(self._background.discard)

    async def _drop(self, experiment_id: int, ended: Inbox[Event] | None = None) -> None:
        """``ended``: only if it is still this one; the experiment may have been continued meanwhile."""
        inbox = self._inboxes.get(experiment_id)
        if inbox is None or ended not in (None, inbox):
            return
        del self._at_work[experiment_id], self._inboxes[experiment_id]
        await inbox.close()
