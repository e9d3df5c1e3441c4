"""Experiments, for the API: create them, carry out their users' verbs, take their trials' reports."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from detlab_master.core import experiment_events as core
from detlab_master.core import log_policies
from detlab_master.core import trial as trials
from detlab_master.core.allocation import KillRequested, PreemptionRequested
from detlab_master.core.errors import Conflict, Invalid, NotFound
from detlab_master.core.metrics import PROFILING_GROUPS
from detlab_master.core.permissions import Principal
from detlab_master.core.records import Allocation, Checkpoint, Experiment, Json, MetricReport, Task, Trial
from detlab_master.core.states import ExperimentState as S
from detlab_master.core.states import TrialState
from detlab_master.engine import clock
from detlab_master.engine.allocations import STORE_RETRY_SECONDS, AllocationService
from detlab_master.engine.experiment_inbox import (
    CheckpointReported,
    Created,
    Event,
    ExperimentAtWork,
    LogsMatched,
    MetricsReported,
    Pools,
)
from detlab_master.engine.inbox import Inbox
from detlab_master.engine.logs import LogService
from detlab_master.engine.submissions import CreatedExperiment, CreateExperiment, Submissions
from detlab_master.resources.base import ResourceManager
from detlab_master.store.base import Store, StoreUnavailable
from detlab_master.store.writes import SaveExperiment

logger = logging.getLogger(__name__)


class ExperimentService:
    def __init__(
        self,
        *,
        store: Store,
        ids: clock.Ids,
        allocations: AllocationService,
        resources: ResourceManager,
        pools: Pools,
        logs: LogService,
        submissions: Submissions,
    ) -> None:
        self._store = store
        self._ids = ids
        self._allocations = allocations
        self._resources = resources
        self._pools = pools
        self._logs = logs
        self._submissions = submissions
        self._at_work: dict[int, ExperimentAtWork] = {}
        self._inboxes: dict[int, Inbox[Event]] = {}
        self._of_trial: dict[int, int] = {}  # trial id -> experiment id, as far as looked up
        self._loading: dict[int, asyncio.Lock] = {}
        self._background: set[asyncio.Task[None]] = set()

    # Creation

    async def create(self, principal: Principal, asked: CreateExperiment) -> CreatedExperiment:
        """Validate, keep and start an experiment. Raises what `Submissions.draft` raises."""
        created = await self._submissions.draft(principal, asked)
        if asked.validate_only:
            return created
        experiment = replace(created.experiment, id=self._ids.experiment(), job_id=self._ids.unique())
        at_work = self._take_up(experiment)
        try:
            await self._inboxes[experiment.id].ask(Created())
        except Exception:
            await self._drop(experiment.id)
            raise
        return replace(created, experiment=at_work.experiment)

    # Verbs

    async def activate(self, experiment_id: int) -> None:
        await self._ask(experiment_id, core.Activated())

    async def pause(self, experiment_id: int) -> None:
        await self._ask(experiment_id, core.Paused())

    async def cancel(self, experiment_id: int) -> None:
        await self._stop(experiment_id, core.Canceled())

    async def kill(self, experiment_id: int) -> None:
        await self._stop(experiment_id, core.Killed())

    async def kill_trial(self, trial_id: int) -> None:
        experiment_id, kept = await self._experiment_of(trial_id)
        if not kept.state.terminal:
            await self._ask(experiment_id, core.TrialKilled(trial_id))

    async def _stop(self, experiment_id: int, event: core.Event) -> None:
        """Repeating a stop, or stopping what has ended, succeeds."""
        if not (await self._get(experiment_id)).state.terminal:
            await self._ask(experiment_id, event)

    async def archive(self, experiment_id: int, archived: bool) -> None:
        experiment = await self._get(experiment_id)
        if not experiment.state.terminal:
            raise Invalid(
                f"experiment {experiment_id} is {self.shown_state(experiment)}: only one that has ended can be archived;"
                f" end it first (det experiment cancel {experiment_id})"
            )
        await self._save(replace(experiment, archived=archived))

    async def edit(
        self,
        experiment_id: int,
        *,
        name: str | None = None,
        description: str | None = None,
        notes: str | None = None,
        labels: Sequence[str] | None = None,
        resources: Mapping[str, int | float | None] | None = None,
        keep_checkpoints: Mapping[str, int] | None = None,
    ) -> Experiment:
        """Change what a person may change at any time; what is None stays.

        Args:
            resources: any of max_slots (None: no limit), priority (1..99), weight.
            keep_checkpoints: any of save_experiment_best, save_trial_best, save_trial_latest.
        """
        if name is not None and not name.strip():
            raise Invalid("the name of an experiment must not be empty")
        experiment = await self._get(experiment_id)
        experiment = replace(
            experiment,
            name=experiment.name if name is None else name,
            description=experiment.description if description is None else description,
            notes=experiment.notes if notes is None else notes,
            labels=experiment.labels if labels is None else tuple(sorted(set(labels))),
            config=_with_settings(experiment.config, resources or {}, keep_checkpoints or {}),
        )
        if experiment_id in self._inboxes:
            await self._inboxes[experiment_id].ask(core.Edited(experiment))
        else:
            await self._save(experiment)
        self._reschedule(experiment, resources or {})
        return await self._get(experiment_id)

    def _reschedule(self, experiment: Experiment, resources: Mapping[str, int | float | None]) -> None:
        if "max_slots" in resources:
            self._resources.set_max_slots(experiment.job_id, experiment.config["resources"]["max_slots"])
        priority = resources.get("priority")
        if priority is not None:
            self._resources.set_priority(experiment.job_id, int(priority))

    # Reports of trials

    async def report_metrics(
        self,
        trial_id: int,
        run_id: int,
        group: str,
        steps_completed: int | None,
        metrics: Json,
        batch_metrics: Sequence[Json] | None,
        reported_at: float | None,
    ) -> None:
        """Keep a report; a validation goes to the search in the same transaction.

        Raises:
            NotFound: no such trial.
            Invalid: the report comes from a run that was replaced, or contradicts an earlier one.
        """
        if steps_completed is None and group not in PROFILING_GROUPS:
            raise Invalid(f"a report of metric group {group!r} must say its stepsCompleted")
        report = MetricReport(
            trial_id=trial_id,
            run_id=run_id,
            group=group,
            steps_completed=steps_completed or 0,
            reported_at=clock.now() if reported_at is None else reported_at,
            metrics=metrics,
            batch_metrics=None if batch_metrics is None else tuple(batch_metrics),
        )
        await self._of(trial_id, MetricsReported(report))

    async def report_progress(self, trial_id: int, progress: float) -> None:
        await self._of(trial_id, core.TrialProgressed(trial_id, min(1.0, max(0.0, progress))))

    async def report_early_exit(self, trial_id: int, reason: str) -> None:
        if reason == "EXITED_REASON_INIT_INVALID_HP":
            reason = trials.INVALID_HP
        await self._of(trial_id, core.EarlyExitReported(trial_id, reason))

    async def report_runner_state(self, trial_id: int, state: str) -> None:
        await self._of(trial_id, core.RunnerStateReported(trial_id, state))

    def log_policies(self, experiment_id: int) -> tuple[log_policies.Policy, ...]:
        """None of an experiment that has ended."""
        at_work = self._at_work.get(experiment_id)
        return log_policies.effective(at_work.experiment.config) if at_work else ()

    async def logs_matched(self, experiment_id: int, found: LogsMatched) -> None:
        """Done when the trial has heard of it."""
        at_work, inbox = self._at_work.get(experiment_id), self._inboxes.get(experiment_id)
        if at_work is not None and inbox is not None and at_work.is_news(found):
            await inbox.ask(found)

    async def report_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Repeating a report is safe."""
        known = await asyncio.to_thread(self._store.checkpoints.get, checkpoint.uuid)
        if known is not None and known.trial_id != checkpoint.trial_id:
            raise Conflict(f"checkpoint '{checkpoint.uuid}' belongs to trial {known.trial_id}")
        await self._of(checkpoint.trial_id, CheckpointReported(checkpoint))

    # What the API shows

    def shown_state(self, experiment: Experiment) -> str:
        """The state by which a person knows the experiment: ACTIVE says how far its most advanced trial is."""
        if experiment.state is not S.ACTIVE:
            return str(experiment.state)
        return self._refined(self._allocations.most_advanced(experiment.job_id))

    def shown_trial_state(self, trial: Trial) -> str:
        if trial.state is not TrialState.ACTIVE:
            return str(trial.state)
        allocation = self._allocations.get(trial.allocation_id) if trial.allocation_id else None
        return self._refined(allocation.state if allocation else None)

    @staticmethod
    def _refined(state: object) -> str:
        name = str(state) if state is not None else "QUEUED"
        return {"ASSIGNED": "STARTING", "TERMINATED": "RUNNING"}.get(name, name)

    # The ends of allocations

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
        elif waiting.state is not TrialState.ACTIVE:
            self._allocations.insist(open_.id, PreemptionRequested(f"the trial is {waiting.state}"))

    async def close(self) -> None:
        for inbox in list(self._inboxes.values()):
            await inbox.close()
        for task in list(self._background):
            task.cancel()

    # Inboxes

    def _take_up(self, experiment: Experiment) -> ExperimentAtWork:
        at_work = ExperimentAtWork(
            experiment,
            store=self._store,
            ids=self._ids,
            allocations=self._allocations,
            pools=self._pools,
            logs=self._logs,
            finished=self._finished,
        )
        self._at_work[experiment.id] = at_work
        self._inboxes[experiment.id] = Inbox(f"experiment {experiment.id}", at_work, self._store)
        return at_work

    def _finished(self, experiment: Experiment) -> None:
        logger.info("experiment %d is %s", experiment.id, experiment.state)
        # The inbox itself calls this: it is closed once its present batch is answered.
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(self._drop(experiment.id)))

    async def _drop(self, experiment_id: int) -> None:
        self._at_work.pop(experiment_id, None)
        inbox = self._inboxes.pop(experiment_id, None)
        if inbox is not None:
            await inbox.close()

    async def _get(self, experiment_id: int) -> Experiment:
        at_work = self._at_work.get(experiment_id)
        if at_work is not None:
            return at_work.experiment
        experiment = await asyncio.to_thread(self._store.experiments.get, experiment_id)
        if experiment is None:
            raise NotFound(f"experiment '{experiment_id}' not found")
        return experiment

    async def _save(self, experiment: Experiment) -> None:
        await asyncio.wrap_future(self._store.commit([SaveExperiment(experiment)]))

    async def _ask(self, experiment_id: int, event: Event) -> None:
        inbox = self._inboxes.get(experiment_id)
        if inbox is None:
            experiment = await self._get(experiment_id)
            raise Invalid(
                f"experiment {experiment_id} has ended ({experiment.state}): it cannot be changed like this any more"
            )
        await inbox.ask(event)

    async def _experiment_of(self, trial_id: int) -> tuple[int, Trial]:
        experiment_id = self._of_trial.get(trial_id)
        if experiment_id in self._at_work:
            known = self._at_work[experiment_id].trials.get(trial_id)
            if known is not None:
                return known.experiment_id, known
        kept = await asyncio.to_thread(self._store.trials.get, trial_id)
        if kept is None:
            raise NotFound(f"trial '{trial_id}' not found")
        self._of_trial[trial_id] = kept.experiment_id
        return kept.experiment_id, kept

    async def _of(self, trial_id: int, event: Event) -> None:
        """Hand a trial's report to its experiment; also to one that has ended, for reports that come late."""
        experiment_id, _ = await self._experiment_of(trial_id)
        inbox = self._inboxes.get(experiment_id)
        if inbox is None:
            raise Invalid(
                f"trial {trial_id} belongs to experiment {experiment_id}, which has ended: it takes no reports"
            )
        await inbox.ask(event)


def _with_settings(
    config: Json, resources: Mapping[str, int | float | None], keep: Mapping[str, int]
) -> Json:
    """The configuration with changed settings.

    Raises:
        Invalid: a value out of range.
    """
    allowed: dict[str, tuple[float, float]] = {
        "max_slots": (0, math.inf),
        "priority": (1, 99),
        "weight": (0, math.inf),
    }
    for key, value in resources.items():
        low, high = allowed[key]
        if value is not None and not low <= value <= high:
            span = f"from {low:g} to {high:g}" if high < math.inf else f"{low:g} or more"
            raise Invalid(f"{key} is {value}: it must be {span}")
    for key, number in keep.items():
        if number < 0:
            raise Invalid(f"{key} is {number}: it must be 0 or more")
    return {
        **config,
        "resources": {**config["resources"], **resources},
        "checkpoint_storage": {**config["checkpoint_storage"], **keep},
    }
