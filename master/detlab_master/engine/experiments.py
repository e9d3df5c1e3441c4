"""Experiments, for the API: create them, carry out their users' verbs, take their trials' reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

from detlab_master.core import experiment_events as core
from detlab_master.core import trial as trials
from detlab_master.core.errors import Conflict, Invalid, NotFound
from detlab_master.core.experiment_edit import ExperimentEdit
from detlab_master.core.permissions import Principal
from detlab_master.core.records import Checkpoint, Experiment, Json, MetricReport, Trial
from detlab_master.core.states import CheckpointState, TrialState
from detlab_master.core.states import ExperimentState as S
from detlab_master.engine import clock
from detlab_master.engine.allocations import AllocationService
from detlab_master.engine.checkpoint_holds import STARTED_FROM, CheckpointHolds
from detlab_master.engine.collector import CheckpointCollector
from detlab_master.engine.contexts import Contexts
from detlab_master.engine.destinations import Destinations
from detlab_master.engine.experiment_inbox import CheckpointReported, MetricsReported
from detlab_master.engine.experiments_at_work import ExperimentsAtWork
from detlab_master.engine.inbox import Closed
from detlab_master.engine.submissions import CreatedExperiment, CreateExperiment, Submissions
from detlab_master.store.base import Store
from detlab_master.store.writes import SaveTrial


class ExperimentService:
    def __init__(
        self,
        *,
        store: Store,
        ids: clock.Ids,
        allocations: AllocationService,
        at_work: ExperimentsAtWork,
        submissions: Submissions,
        contexts: Contexts,
        collector: CheckpointCollector,
        holds: CheckpointHolds,
    ) -> None:
        self._store = store
        self._destinations = Destinations(store)
        self._ids = ids
        self._allocations = allocations
        self._at_work = at_work
        self._submissions = submissions
        self._contexts = contexts
        self._collector = collector
        self._holds = holds

    # Creation

    async def create(self, principal: Principal, asked: CreateExperiment) -> CreatedExperiment:
        """Validate, keep and start an experiment. Raises what `Submissions.draft` raises."""
        created = await self._submissions.draft(principal, asked)
        if asked.validate_only:
            return created
        experiment = replace(created.experiment, id=self._ids.experiment(), job_id=self._ids.unique())
        sha256 = experiment.context_sha256
        source = experiment.config["searcher"].get("source_checkpoint_uuid")
        starts = self._holds.needing(source, STARTED_FROM) if source else nullcontext()
        with self._contexts.held(sha256):
            if sha256 and not self._contexts.path(sha256).exists():
                raise NotFound(
                    f"the model definition of experiment '{experiment.forked_from}' was deleted with it"
                )
            async with starts:
                return replace(created, experiment=await self._at_work.create(experiment))

    async def continue_(self, principal: Principal, experiment_id: int, override: str) -> CreatedExperiment:
        """Let an experiment that has ended go on: its trials run again from their latest checkpoints.

        Args:
            override: YAML to merge over its configuration; only for a single search.

        Raises:
            Invalid, IllegalMove: it has not ended, is archived, or is a search that cannot be continued like this.
            ConfigErrors: what the override leads to is wrong.
        """
        async with self._at_work.alone(experiment_id):
            experiment = await self._at_work.get(experiment_id)
            if experiment.unmanaged:
                raise Invalid(
                    f"experiment {experiment_id} is detached: it goes on when its script is run again with the same"
                    " external ids"
                )
            if not experiment.state.terminal:
                raise Invalid(
                    f"experiment {experiment_id} is {self.shown_state(experiment)}: only one that has ended can be"
                    f" continued; one that is paused is activated (det experiment activate {experiment_id})"
                )
            if experiment.archived:
                raise Invalid(
                    f"experiment {experiment_id} is archived: only one that is not can be continued"
                    f" (det experiment unarchive {experiment_id})"
                )
            continued = await self._submissions.continued(experiment, override)
            async with self._collector.leaving_alone(experiment_id):  # trials need their checkpoints again
                return replace(continued, experiment=await self._at_work.take_up_again(continued.experiment))

    # Verbs

    async def activate(self, experiment_id: int) -> None:
        await self._at_work.ask(experiment_id, core.Activated())

    async def pause(self, experiment_id: int) -> None:
        await self._at_work.ask(experiment_id, core.Paused())

    async def cancel(self, experiment_id: int) -> None:
        await self._stop(experiment_id, core.Canceled())

    async def kill(self, experiment_id: int) -> None:
        await self._stop(experiment_id, core.Killed())

    async def kill_trial(self, trial_id: int) -> None:
        kept = await self._at_work.trial(trial_id)
        if not kept.state.terminal:
            await self._stop(kept.experiment_id, core.TrialKilled(trial_id))

    async def _stop(self, experiment_id: int, event: core.Event) -> None:
        """Repeating a stop, or stopping what has ended, succeeds."""
        with suppress(Closed):
            await self._at_work.ask(experiment_id, event)

    async def archive(self, experiment_id: int, archived: bool) -> None:
        def change(experiment: Experiment) -> Experiment:
            if not experiment.state.terminal:
                raise Invalid(
                    f"experiment {experiment_id} is {self.shown_state(experiment)}: only one that has ended can be"
                    f" archived; {how_to_end(experiment, 'cancel')}"
                )
            return replace(experiment, archived=archived)

        await self._change(experiment_id, change)

    async def move(self, experiment_id: int, project_id: int) -> None:
        """Put it into another project; moving it to where it is succeeds.

        Raises:
            NotFound: there is no such project.
            Invalid: the project takes no experiments.
        """
        project = (await self._destinations.numbered(project_id)).project
        await self._change(experiment_id, lambda one: replace(one, project_id=project.id))

    async def edit(self, experiment_id: int, edit: ExperimentEdit) -> Experiment:
        """Change what a person may change at any time.

        Raises:
            Invalid: a value out of range.
        """

        def change(experiment: Experiment) -> Experiment:
            if experiment.unmanaged and edit.resources:
                raise Invalid(
                    f"experiment {experiment_id} is detached: it uses no slots of the cluster, so it has no"
                    f" {', '.join(edit.resources)}"
                )
            changed = edit.applied(experiment)
            return replace(changed, gc_due=clock.now()) if edit.keep_checkpoints else changed

        changed = await self._change(experiment_id, change)
        if edit.keep_checkpoints:
            self._collector.request(experiment_id)
        return changed

    async def _change(self, experiment_id: int, change: Callable[[Experiment], Experiment]) -> Experiment:
        def change_what_stays(experiment: Experiment) -> Experiment:
            if experiment.state in (S.DELETING, S.DELETED):
                raise Invalid(f"experiment {experiment_id} is being deleted: it cannot be changed any more")
            return change(experiment)

        return await self._at_work.change(experiment_id, change_what_stays)

    # Reports of trials

    async def report_metrics(self, trial_id: int, reports: Sequence[MetricReport]) -> None:
        """Keep a trial's reports in this order; a validation goes to the search in the same transaction.

        Raises:
            NotFound: no such trial.
            Invalid: a report comes from a run that was replaced, or contradicts an earlier one; those before it
                are kept, and those behind it are not.
        """
        await self._at_work.report(trial_id, *map(MetricsReported, reports))

    async def report_progress(self, trial_id: int, progress: float) -> None:
        await self._at_work.report(trial_id, core.TrialProgressed(trial_id, min(1.0, max(0.0, progress))))

    async def report_early_exit(self, trial_id: int, reason: str) -> None:
        if reason == "EXITED_REASON_INIT_INVALID_HP":
            reason = trials.INVALID_HP
        await self._at_work.report(trial_id, core.EarlyExitReported(trial_id, reason))

    async def report_runner_state(self, trial_id: int, state: str) -> None:
        await self._at_work.report(trial_id, core.RunnerStateReported(trial_id, state))

    async def describe_trial(self, trial_id: int, metadata: Json) -> None:
        """Keep what is noted about a trial, which may have ended.

        Raises:
            NotFound: no such trial.
        """
        experiment_id = (await self._at_work.trial(trial_id)).experiment_id
        async with self._at_work.alone(experiment_id):
            try:
                await self._at_work.ask(experiment_id, core.TrialDescribed(trial_id, metadata))
            except Closed:
                trial = await self._at_work.trial(trial_id)
                await asyncio.wrap_future(self._store.commit([SaveTrial(replace(trial, metadata=metadata))]))

    async def report_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Repeating a report is safe."""
        known = await asyncio.to_thread(self._store.checkpoints.get, checkpoint.uuid)
        if known is not None and known.trial_id != checkpoint.trial_id:
            raise Conflict(f"checkpoint '{checkpoint.uuid}' belongs to trial {known.trial_id}")
        if known is not None and known.state is not CheckpointState.COMPLETED:
            return  # a report that was sent again, and its files have gone since
        await self._at_work.report(checkpoint.trial_id, CheckpointReported(checkpoint))

    # What the API shows

    def shown_state(self, experiment: Experiment) -> str:
        """The state by which a person knows the experiment: ACTIVE says how far its most advanced trial is."""
        if experiment.state is not S.ACTIVE:
            return str(experiment.state)
        if experiment.unmanaged:
            return "RUNNING"
        return self._refined(self._allocations.most_advanced(experiment.job_id))

    def shown_trial_state(self, trial: Trial) -> str:
        if trial.state is not TrialState.ACTIVE:
            return str(trial.state)
        if trial.unmanaged:
            return "RUNNING"
        allocation = self._allocations.get(trial.allocation_id) if trial.allocation_id else None
        return self._refined(allocation.state if allocation else None)

    @staticmethod
    def _refined(state: object) -> str:
        name = str(state) if state is not None else "QUEUED"
        return {"ASSIGNED": "STARTING", "TERMINATED": "RUNNING"}.get(name, name)


def how_to_end(experiment: Experiment, verb: str) -> str:
    """What a person can do about an experiment that has not ended."""
    if experiment.unmanaged:
        return "it is detached, and ends with its script, or some minutes after nothing is heard of that any more"
    return f"end it first (det experiment {verb} {experiment.id})"
