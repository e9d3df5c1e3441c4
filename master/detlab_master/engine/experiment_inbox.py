"""One experiment at work: the core's machine behind an inbox, with the metric sums of its trials."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from detlab_master.core import allocation as allocation_core
from detlab_master.core import expconf, hyperparameters, log_policies, metrics, trial, unmanaged
from detlab_master.core import experiment_events as core
from detlab_master.core.errors import Invalid, NotFound
from detlab_master.core.experiment import ExperimentMachine
from detlab_master.core.records import Allocation, Checkpoint, Experiment, Json, MetricReport, Task, Trial
from detlab_master.core.scheduling import Request
from detlab_master.core.searchers import base as search
from detlab_master.core.searchers.base import Searcher
from detlab_master.core.searchers.make import make
from detlab_master.core.states import AllocationState, TaskType
from detlab_master.engine import clock
from detlab_master.engine.allocations import AllocationService
from detlab_master.engine.inbox import FlushFirst, Plan
from detlab_master.engine.logs import LogService
from detlab_master.resources.base import ResourceManager
from detlab_master.store import writes
from detlab_master.store.base import Page, Store


@dataclass(frozen=True)
class Created:
    """The first event of an experiment: it is kept together with the trials that the search starts with."""


@dataclass(frozen=True)
class Continued:
    """The experiment has ended, and goes on with the record that its machine was built with."""


@dataclass(frozen=True)
class MetricsReported:
    report: MetricReport


@dataclass(frozen=True)
class CheckpointReported:
    checkpoint: Checkpoint


@dataclass(frozen=True)
class LogsMatched:
    """Lines of a trial's run match log policies."""

    trial_id: int
    allocation_id: str
    matches: tuple[log_policies.Match, ...]


Event = (
    core.Event | unmanaged.Event | Created | Continued | MetricsReported | CheckpointReported | LogsMatched
)


@dataclass(frozen=True)
class Pools:
    """What a new allocation needs to know of its resource pool."""

    default_priority: Callable[[str], int]
    preemption_timeout: float  # seconds, where the configuration says nothing


class ExperimentAtWork:
    """The machine of an experiment's inbox.

    Args:
        experiment: as it is in the store, or about to be.
        finished: called when the experiment has become terminal.
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        store: Store,
        ids: clock.Ids,
        allocations: AllocationService,
        resources: ResourceManager,
        pools: Pools,
        logs: LogService,
        finished: Callable[[Experiment], None],
    ) -> None:
        self._store = store
        self._ids = ids
        self._allocations = allocations
        self._resources = resources
        self._pools = pools
        self._logs = logs
        self._finished = finished
        self._machine = _machine(experiment)
        self._metrics: dict[int, metrics.TrialMetrics] = {}
        self._matched: dict[int, LogsMatched] = {}  # by trial: what its present run has matched
        searcher = experiment.config["searcher"]
        self._searched = metrics.SearcherMetric(searcher["metric"], searcher["smaller_is_better"])

    @property
    def experiment(self) -> Experiment:
        return self._machine.experiment

    @property
    def trials(self) -> dict[int, Trial]:
        """By id; not to be changed."""
        return self._machine.trials

    async def apply(self, event: Event, plan: Plan) -> None:
        match event:
            case Created():
                plan.writes.append(writes.SaveExperiment(self.experiment))
                self._handle(core.Started(), plan)
            case Continued():
                self._handle(core.Continued(_first_hparams(self.experiment)), plan)
            case core.Edited():
                before = self.experiment
                self._handle(event, plan)
                after = plan.answer = self.experiment
                plan.effects.append(lambda: self._reschedule(before, after))
            case MetricsReported(report):
                await self._report(report, plan)
            case CheckpointReported(checkpoint):
                self._checkpoint(checkpoint, plan)
            case LogsMatched():
                self._logs_matched(event, plan)
            case (
                core.TrialKilled(trial_id) | core.TrialProgressed(trial_id) | core.EarlyExitReported(trial_id)
            ):
                self._trial(trial_id)
                self._handle(event, plan)
            case unmanaged.TrialAdded(_, external_id):
                self._handle(event, plan)
                known = self._unmanaged.named(external_id)
                plan.answer = known or max(self.trials.values(), key=lambda one: one.id)
            case unmanaged.TrialStarted(trial_id):
                self._trial(trial_id)
                self._handle(event, plan)
                plan.answer = self._trial(trial_id)
            case unmanaged.TrialHeard(trial_id, _, run_id):
                if run_id is None:
                    self._trial(trial_id)
                else:
                    self._present_run(trial_id, run_id)
                self._handle(event, plan)
                plan.answer = self._trial(trial_id)
            case _:
                self._handle(event, plan)

    @property
    def _unmanaged(self) -> unmanaged.UnmanagedMachine:
        assert isinstance(self._machine, unmanaged.UnmanagedMachine)  # its events go to such experiments only
        return self._machine

    def signs(self) -> dict[int | None, float]:
        """Of an unmanaged experiment: of whom something should be heard, see `UnmanagedMachine.signs`."""
        return self._unmanaged.signs()

    async def reload(self) -> None:
        """From the store: the record, the searcher's past, the trials, the sums of those that still run."""
        experiment_id = self.experiment.id
        experiment = await asyncio.to_thread(self._store.experiments.get, experiment_id)
        if experiment is None:
            raise NotFound(f"experiment '{experiment_id}' not found")
        await self.load(experiment)

    async def load(self, experiment: Experiment) -> None:
        """Begin with this record; the rest from the store."""
        experiment_id = experiment.id
        past = await asyncio.to_thread(self._store.experiments.searcher_events, experiment_id)
        kept, _ = await asyncio.to_thread(self._store.trials.find, experiment_id, None, Page())
        running = [t.id for t in kept if not t.state.terminal]
        reports = await asyncio.to_thread(self._store.metrics.reports, running)
        self._machine = _machine(experiment)
        self._machine.restore(past, kept)
        self._metrics = {}
        self._matched = {}
        for report in reports:
            self._metrics.setdefault(report.trial_id, metrics.TrialMetrics()).add(report)

    def request(self, task: Task, allocation: Allocation) -> Request:
        """The scheduler's view of one of this experiment's allocations."""
        resources = self.experiment.config["resources"]
        assert task.trial_id is not None  # an experiment's task
        return Request(
            allocation_id=allocation.id,
            job_id=task.job_id,
            pool=allocation.resource_pool,
            slots=allocation.slots,
            priority=resources.get("priority") or allocation.priority,
            order=allocation.queue_order,
            preemptible=True,
            single_node=bool(resources.get("is_single_node")),
            max_slots=resources.get("max_slots"),
            weight=resources.get("weight") or 1.0,
            excluded=frozenset(self.trials[task.trial_id].excluded_agents),
        )

    def _reschedule(self, before: Experiment, after: Experiment) -> None:
        """What was changed of the experiment's resources counts at once, for what waits and what runs."""
        old, new = before.config["resources"], after.config["resources"]
        if old.get("max_slots") != new.get("max_slots"):
            self._resources.set_max_slots(after.job_id, new.get("max_slots"))
        if new.get("priority") is not None and old.get("priority") != new["priority"]:
            self._resources.set_priority(after.job_id, new["priority"])

    # Reports

    async def _report(self, report: MetricReport, plan: Plan) -> None:
        metrics.check(report)
        before = self._check_run(report.trial_id, report.run_id)
        if report.group in metrics.PROFILING_GROUPS:
            plan.writes.append(writes.InsertReport(report))
            return
        known = self._metrics.get(report.trial_id)
        if known is None:
            if before.run_id > 1 or before.state.terminal:  # there may be earlier reports
                if not plan.alone:
                    raise FlushFirst
                known = metrics.TrialMetrics(
                    await asyncio.to_thread(self._store.metrics.reports, [report.trial_id])
                )
            else:
                known = metrics.TrialMetrics()
            self._metrics[report.trial_id] = known
        if known.continues(report):
            known.add(report)
            after = metrics.with_report(before, report, known, self._searched)
            plan.writes.append(writes.InsertReport(report))
            new_to_search = True
        else:
            if not plan.alone:
                raise FlushFirst
            corrected = await self._corrected(report, known, before, plan)
            if corrected is None:
                return  # it is there already: the answer to its first sending got lost
            after, new_to_search = corrected
        tell_search = report.group == metrics.VALIDATION and new_to_search and not before.state.terminal
        self._handle(core.Reported(after, report.metrics if tell_search else None), plan)

    async def _corrected(
        self, report: MetricReport, known: metrics.TrialMetrics, before: Trial, plan: Plan
    ) -> tuple[Trial, bool] | None:
        """A report at or before the last step: the trial after it, and whether the search must hear of it."""
        kept = await asyncio.to_thread(self._store.metrics.reports, [report.trial_id])
        if known.rolls_back(report):
            plan.writes.append(
                writes.ArchiveReports(report.trial_id, report.run_id, report.group, report.steps_completed)
            )
            kept = [r for r in kept if not _rolled_back(r, report)]
        same = next((r for r in kept if _same_place(r, report)), None)
        union = metrics.merged(same, report) if same else report
        if union is None:
            return None
        plan.writes.append(writes.ReplaceReport(union) if same else writes.InsertReport(report))
        kept = sorted(
            [union, *(r for r in kept if r is not same)], key=lambda r: (r.steps_completed, r.reported_at)
        )
        after, self._metrics[report.trial_id] = metrics.recomputed(before, kept, self._searched)
        heard = same is not None and self._searched.value(same.metrics) is not None
        return after, not heard

    def _checkpoint(self, checkpoint: Checkpoint, plan: Plan) -> None:
        if checkpoint.allocation_id:
            self._check_run(checkpoint.trial_id, _run_of(checkpoint.allocation_id))
        else:  # the official client in detached mode does not say of which run it is
            self._trial(checkpoint.trial_id)
        if self.experiment.unmanaged:
            self._handle(unmanaged.TrialHeard(checkpoint.trial_id), plan)
        plan.writes.append(writes.SaveCheckpoint(checkpoint))

    # Logs

    def is_news(self, found: LogsMatched) -> bool:
        """Whether a policy has matched that did not before in that run; a pattern may match every line."""
        seen = self._matched.get(found.trial_id)
        if seen is None or seen.allocation_id != found.allocation_id:
            return True
        return not set(found.matches) <= set(seen.matches)

    def _logs_matched(self, found: LogsMatched, plan: Plan) -> None:
        seen = self._matched.get(found.trial_id)
        known = seen.matches if seen is not None and seen.allocation_id == found.allocation_id else ()
        new = tuple(match for match in found.matches if match not in known)
        before = self._trial(found.trial_id)
        for match in new:
            self._handle(core.LogPolicyMatched(found.trial_id, match), plan)
            after = self._trial(found.trial_id)
            if after != before:
                line = self._logs.say(
                    after.task_id, found.allocation_id, log_policies.told(match), level="LOG_LEVEL_WARNING"
                )
                plan.writes.append(writes.AppendLogs((line,)))
                before = after
        plan.effects.append(lambda: self._logs.kept(before.task_id))
        if not before.state.terminal:
            self._matched[found.trial_id] = replace(found, matches=(*known, *new))

    def _check_run(self, trial_id: int, run_id: int) -> Trial:
        known = self._present_run(trial_id, run_id)
        if known.unmanaged:
            unmanaged.check_takes_reports(known)
        return known

    def _present_run(self, trial_id: int, run_id: int) -> Trial:
        known = self._trial(trial_id)
        if run_id != known.run_id:
            raise Invalid(
                f"trial {trial_id} is in run {known.run_id}, and this report comes from run {run_id}:"
                " that process was replaced and must end"
            )
        return known

    def _trial(self, trial_id: int) -> Trial:
        known = self.trials.get(trial_id)
        if known is None:
            raise NotFound(f"trial '{trial_id}' not found")
        return known

    # From what the core decides to what is kept and done

    def _handle(self, event: core.Event | unmanaged.Event, plan: Plan) -> None:
        machine, now = self._machine, clock.now()
        if isinstance(machine, unmanaged.UnmanagedMachine):
            effects = machine.handle(event, self._ids, now)
        else:
            assert not isinstance(event, unmanaged.Event)  # as above
            effects = machine.handle(event, self._ids, now)
        for effect in effects:
            self._carry(effect, plan)

    def _carry(self, effect: core.Effect, plan: Plan) -> None:
        match effect:
            case core.KeepExperiment(experiment):
                plan.writes.append(writes.SaveExperiment(experiment))
            case core.KeepTrial(kept):
                plan.writes.append(writes.SaveTrial(kept))
            case core.KeepProgress(experiment_id, progress):
                plan.writes.append(writes.SetProgress(experiment_id, progress))
            case core.RecordSearcherEvent(event):
                plan.writes.append(writes.AppendSearcherEvent(event))
            case core.TrialEnded(ended):
                self._metrics.pop(ended.id, None)
                self._matched.pop(ended.id, None)
                plan.writes.append(writes.SaveTask(replace(self._task(ended), end_time=ended.end_time)))
            case core.TaskOpened(opened):
                plan.writes.append(writes.SaveTask(self._task(opened)))
            case core.Said(of, text):
                line = self._logs.say(of.task_id, "", text)
                plan.writes.append(writes.AppendLogs((line,)))
                plan.effects.append(lambda: self._logs.kept(of.task_id))
            case core.Finished(experiment):
                plan.effects.append(lambda: self._finished(experiment))
            case trial.RequestAllocation(running):
                self._queue(running, plan)
            case trial.StopAllocation(allocation_id, reason):
                stop = allocation_core.PreemptionRequested(reason)
                plan.effects.append(lambda: self._allocations.insist(allocation_id, stop))
            case trial.KillAllocationLater(allocation_id, seconds, reason):
                plan.effects.append(lambda: self._allocations.kill_later(allocation_id, seconds, reason))
            case trial.KillAllocation(allocation_id, reason):
                kill = allocation_core.KillRequested(reason)
                plan.effects.append(lambda: self._allocations.insist(allocation_id, kill))

    def _task(self, of: Trial) -> Task:
        return Task(
            id=of.task_id,
            type=TaskType.TRIAL,
            owner_id=self.experiment.owner_id,
            job_id=self.experiment.job_id,
            start_time=of.start_time,
            experiment_id=of.experiment_id,
            trial_id=of.id,
        )

    def _queue(self, running: Trial, plan: Plan) -> None:
        config = self.experiment.config
        resources = config["resources"]
        pool = resources["resource_pool"]
        task = self._task(running)
        assert running.allocation_id is not None  # RequestAllocation carries it
        allocation = Allocation(
            id=running.allocation_id,
            task_id=task.id,
            owner_id=task.owner_id,
            run_id=running.run_id,
            resource_pool=pool,
            slots=resources["slots_per_trial"],
            priority=resources.get("priority") or self._pools.default_priority(pool),
            state=AllocationState.QUEUED,
            queued_at=clock.now(),
            queue_order=self._ids.queue_order(),
            preemption_timeout=config.get("preemption_timeout") or self._pools.preemption_timeout,
        )
        plan.writes += [writes.SaveTask(task), writes.SaveAllocation(allocation)]
        request = self.request(task, allocation)
        plan.effects.append(lambda: self._allocations.adopt(task, allocation, request))


def _machine(experiment: Experiment) -> ExperimentMachine | unmanaged.UnmanagedMachine:
    if experiment.unmanaged:
        return unmanaged.UnmanagedMachine(experiment)
    config = expconf.restore(experiment.config)
    return ExperimentMachine(experiment, _searcher(config), max_restarts=config.max_restarts)


def _searcher(config: expconf.ExperimentConfig) -> Searcher:
    rng = random.Random(config.reproducibility.experiment_seed)
    return make(config.searcher, hyperparameters.parse(config.hyperparameters), rng)


def _first_hparams(experiment: Experiment) -> Json | None:
    """The hyperparameters that the trial of a single search has by its configuration; None for another search."""
    config = expconf.restore(experiment.config)
    if config.searcher.name != "single":
        return None
    (action,) = _searcher(config).step(search.Started())
    assert isinstance(action, search.Create)  # a single search starts with its one trial
    return action.hparams


def _run_of(allocation_id: str) -> int:
    return int(allocation_id.rpartition(".")[2])


def _same_place(one: MetricReport, other: MetricReport) -> bool:
    return (one.group, one.steps_completed) == (other.group, other.steps_completed)


def _rolled_back(old: MetricReport, new: MetricReport) -> bool:
    if old.run_id >= new.run_id:
        return False
    if old.group == new.group:
        return old.steps_completed >= new.steps_completed
    return old.steps_completed > new.steps_completed
