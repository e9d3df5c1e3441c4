"""The life of an experiment: the search decides, the trials run, and the end of the last one ends it.

An `ExperimentMachine` is the one mutable object of the core: it owns the searcher and the experiment's trials, and
`handle` changes them in place, because a search of thousands of trials must not be copied for each report. It does no
I/O: what has to be kept and what has to be done comes back as effects, in order. When keeping them fails, the engine
throws the machine away and builds it anew from the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from detlab_master.core import transitions
from detlab_master.core import trial as trials
from detlab_master.core.experiment_events import (
    Activated,
    AllocationEnded,
    Canceled,
    Continued,
    EarlyExitReported,
    Edited,
    Effect,
    Event,
    Finished,
    KeepExperiment,
    KeepProgress,
    KeepTrial,
    Killed,
    LogPolicyMatched,
    LogsRetained,
    Paused,
    RecordSearcherEvent,
    Reported,
    RunnerStateReported,
    Started,
    TrialDescribed,
    TrialEnded,
    TrialKilled,
    TrialProgressed,
)
from detlab_master.core.progress import OpenProgress
from detlab_master.core.records import Experiment, Json, SearcherEvent, Trial
from detlab_master.core.searchers import base as search
from detlab_master.core.states import ExperimentState as S
from detlab_master.core.states import TrialState
from detlab_master.core.transitions import IllegalMove

_END = {
    S.STOPPING_CANCELED: S.CANCELED,
    S.STOPPING_KILLED: S.CANCELED,
    S.STOPPING_COMPLETED: S.COMPLETED,
    S.STOPPING_ERROR: S.ERROR,
}


class Ids(Protocol):
    """Where the ids of new things come from."""

    def trial(self) -> int: ...
    def task(self, experiment_id: int) -> str: ...


class ExperimentMachine:
    """One experiment with its searcher and its trials.

    Args:
        experiment: the record as it is.
        searcher: fresh; `restore` feeds it the past.
        max_restarts: failed runs of a trial that are tried again.
    """

    def __init__(self, experiment: Experiment, searcher: search.Searcher, *, max_restarts: int) -> None:
        self.experiment = experiment
        self.trials: dict[int, Trial] = {}
        self._searcher = searcher
        self._max_restarts = max_restarts
        self._by_request: dict[int, int] = {}  # request id -> trial id
        self._open: dict[int, None] = {}  # ids of trials that are not terminal, in order of creation
        self._open_progress = OpenProgress()
        self._told: set[int] = set()  # request ids of trials whose exit the searcher has taken
        self._waiting: dict[int, None] = {}  # ids of closed trials that are to run again, in order
        self._events_seen = 0

    def restore(self, past: Iterable[SearcherEvent], existing: Iterable[Trial]) -> None:
        """Take up where a master stopped: the searcher's past, then the trials as they were kept."""
        for recorded in past:
            # What it decides was carried out then. A decision that made the search fail was kept as a state.
            with suppress(search.SearcherError):
                self._step_search(search.event_from_json(recorded.event))
            self._events_seen = recorded.seq + 1
        for trial in existing:
            self._adopt(trial)
            closed = trial.state.terminal and trial.request_id not in self._told
            if closed and self.experiment.state in (S.ACTIVE, S.PAUSED):
                self._waiting[trial.id] = None  # the searcher has heard that it runs again

    def handle(self, event: Event, ids: Ids, now: float) -> list[Effect]:
        """Apply one event.

        Args:
            event: what happened.
            ids: names new trials.
            now: Unix seconds.

        Returns:
            What to keep and what to do, in order.

        Raises:
            IllegalMove: a verb that the state does not allow; nothing was changed.
        """
        match event:
            case Started():
                return self._search(search.Started(), ids, now)
            case Activated():
                return self._activate(now)
            case Paused():
                return self._pause(now)
            case Canceled():
                return self._stop(S.STOPPING_CANCELED, trials.Canceled(), ids, now)
            case Killed():
                return self._stop(S.STOPPING_KILLED, trials.Killed(), ids, now)
            case TrialKilled(trial_id):
                return self._trial(trial_id, trials.Killed(), ids, now)
            case Reported(trial, validation):
                return self._reported(trial, validation, ids, now)
            case TrialProgressed(trial_id, progress):
                return self._progressed(trial_id, progress)
            case EarlyExitReported(trial_id, reason):
                return self._trial(trial_id, trials.EarlyExitReported(reason), ids, now)
            case LogPolicyMatched(trial_id, match):
                return self._trial(trial_id, trials.LogPolicyMatched(match), ids, now)
            case LogsRetained(days, trial_id):
                self.experiment, kept = with_log_retention(self.experiment, self.trials, days, trial_id)
                return kept
            case RunnerStateReported(trial_id, state):
                return [self._keep(replace(self.trials[trial_id], runner_state=state))]
            case TrialDescribed(trial_id, metadata):
                return [self._keep(replace(self.trials[trial_id], metadata=metadata))]
            case AllocationEnded(trial_id, allocation):
                return self._trial(trial_id, trials.AllocationEnded(allocation), ids, now)
            case Edited(change):
                self.experiment = change(self.experiment)
                return [KeepExperiment(self.experiment)]
            case Continued(hparams):
                return self._continue(hparams, ids, now)

    # Verbs of the user

    def _activate(self, now: float) -> list[Effect]:
        if self.experiment.state is S.ACTIVE:
            return []
        effects: list[Effect] = [self._move(S.ACTIVE)]
        for trial in self._open_trials():
            effects += self._step_trial(trial, trials.Activated(), now)
        return effects + self._run_waiting(now)

    def _pause(self, now: float) -> list[Effect]:
        if self.experiment.state is S.PAUSED:
            return []
        effects: list[Effect] = [self._move(S.PAUSED)]
        for trial in self._open_trials():
            effects += self._step_trial(trial, trials.Paused(), now)
        return effects

    def _stop(self, to: S, event: trials.Event, ids: Ids, now: float) -> list[Effect]:
        state = self.experiment.state
        if state is to or state is _END[to] or (state.stopping and to not in transitions.EXPERIMENT[state]):
            return []  # it is stopping already, and not more gently than asked
        effects: list[Effect] = [self._move(to)]
        self._waiting.clear()
        for trial in self._open_trials():
            effects += self._trial(trial.id, event, ids, now)
        return effects + self._finish_if_done(now)

    def _continue(self, hparams: Json | None, ids: Ids, now: float) -> list[Effect]:
        single = self.experiment.config["searcher"]["name"] == "single"
        again = [t for t in self.trials.values() if single or t.state is not TrialState.COMPLETED]
        what = f"experiment {self.experiment.id}"
        if not self.experiment.state.terminal:
            raise IllegalMove(f"{what} is {self.experiment.state}: only one that has ended can be continued")
        if not again:
            raise IllegalMove(f"{what} has nothing to continue: all of its trials are COMPLETED")
        state = transitions.check(transitions.EXPERIMENT, what, self.experiment.state, S.ACTIVE)
        self.experiment = replace(self.experiment, state=state, end_time=None, error="")
        effects: list[Effect] = [KeepExperiment(self.experiment)]
        for trial in again:
            self._waiting[trial.id] = None
            if trial.request_id in self._told:
                reopened = search.Reopened(trial.request_id, _exit_reason(trial))
                effects += self._search(reopened, ids, now)
        for trial in list(self.trials.values()):  # those that completed while the experiment was stopping
            if trial.id not in self._waiting and trial.request_id not in self._told:
                effects += self._tell_exit(trial, ids, now)
        return effects + self._run_waiting(now, hparams) + self._keep_progress()

    def _run_waiting(self, now: float, hparams: Json | None = None) -> list[Effect]:
        """Let trials of a continued experiment run again, as many at a time as the search may have open."""
        limit = self.experiment.config["searcher"].get("max_concurrent_trials") or None
        effects: list[Effect] = []
        while (
            self._waiting and self.experiment.state is S.ACTIVE and (limit is None or len(self._open) < limit)
        ):
            trial = self.trials[next(iter(self._waiting))]
            del self._waiting[trial.id]
            after, more = trials.step(
                trial, trials.Continued(hparams), max_restarts=self._max_restarts, now=now
            )
            self._adopt(after)
            effects += [KeepTrial(after), *more]
        return effects

    # What trials report

    def _reported(self, trial: Trial, validation: Json | None, ids: Ids, now: float) -> list[Effect]:
        effects: list[Effect] = [self._keep(trial)]
        if validation is not None:
            effects += self._search(search.Validated(trial.request_id, dict(validation)), ids, now)
            effects += self._keep_progress()
        return effects

    def _progressed(self, trial_id: int, progress: float) -> list[Effect]:
        trial = replace(self.trials[trial_id], progress=progress)
        if not trial.state.terminal:
            self._open_progress.set(trial_id, progress)
        return [self._keep(trial), *self._keep_progress()]

    def _keep_progress(self) -> list[Effect]:
        progress = min(1.0, max(0.0, self._searcher.progress(self._open_progress.total)))
        if progress == self.experiment.progress:
            return []
        self.experiment = replace(self.experiment, progress=progress)
        return [KeepProgress(self.experiment.id, progress)]

    # The search and its trials

    def _search(self, event: search.Event, ids: Ids, now: float) -> list[Effect]:
        """Let the searcher hear of an event, and do what it decides.

        It hears nothing while the experiment stops, and so can go on from there if the experiment is continued.
        """
        if self.experiment.state.stopping or self.experiment.state.terminal:
            return []
        record = SearcherEvent(self.experiment.id, self._events_seen, search.event_to_json(event))
        self._events_seen += 1
        effects: list[Effect] = [RecordSearcherEvent(record)]
        try:
            actions = self._step_search(event)
        except search.SearcherError as error:
            return effects + self._searcher_failed(str(error), ids, now)
        for action in actions:
            effects += self._act(action, ids, now)
        return effects

    def _step_search(self, event: search.Event) -> list[search.Action]:
        actions = self._searcher.step(event)
        match event:
            case search.Exited(request_id):
                self._told.add(request_id)
            case search.Reopened(request_id):
                self._told.discard(request_id)
        return actions

    def _act(self, action: search.Action, ids: Ids, now: float) -> list[Effect]:
        match action:
            case search.Create():
                return self._create(action, ids, now)
            case search.Stop(request_id):
                return self._trial(self._by_request[request_id], trials.StoppedBySearcher(), ids, now)
            case search.Shutdown(failure, cancel):
                end = S.STOPPING_ERROR if failure else S.STOPPING_CANCELED if cancel else S.STOPPING_COMPLETED
                return [self._move(end), *self._finish_if_done(now)]

    def _create(self, action: search.Create, ids: Ids, now: float) -> list[Effect]:
        state = self.experiment.state
        if state.stopping or state.terminal:
            return []
        experiment_id = self.experiment.id
        source = self.experiment.config.get("searcher", {}).get("source_checkpoint_uuid")
        trial = Trial(
            id=ids.trial(),
            experiment_id=experiment_id,
            request_id=action.request_id,
            task_id=ids.task(experiment_id),
            state=TrialState.PAUSED if state is S.PAUSED else TrialState.ACTIVE,
            hparams=action.hparams,
            seed=action.seed,
            start_time=now,
            warm_start_checkpoint=source,
            log_retention_days=(self.experiment.config.get("retention_policy") or {}).get(
                "log_retention_days"
            ),
        )
        started, effects = trials.start(trial)
        self._adopt(started)
        return [KeepTrial(started), *effects]

    def _trial(self, trial_id: int, event: trials.Event, ids: Ids, now: float) -> list[Effect]:
        """Step one trial, and tell the search when it has closed."""
        before = self.trials[trial_id]
        effects = self._step_trial(before, event, now)
        after = self.trials[trial_id]
        if after.state.terminal and not before.state.terminal:
            effects.append(TrialEnded(after))
            if self.experiment.state.stopping:
                return effects + self._finish_if_done(now)
            effects += self._tell_exit(after, ids, now)
            effects += self._run_waiting(now)
            effects += self._keep_progress()
        return effects

    def _tell_exit(self, closed: Trial, ids: Ids, now: float) -> list[Effect]:
        return self._search(search.Exited(closed.request_id, _exit_reason(closed)), ids, now)

    def _step_trial(self, trial: Trial, event: trials.Event, now: float) -> list[Effect]:
        after, effects = trials.step(trial, event, max_restarts=self._max_restarts, now=now)
        if after == trial:
            return list(effects)
        if after.state.terminal:
            self._open.pop(trial.id)
            self._open_progress.close(trial.id)
        return [self._keep(after), *effects]

    def _searcher_failed(self, why: str, ids: Ids, now: float) -> list[Effect]:
        state = self.experiment.state
        if state.stopping or state.terminal:
            return []
        self.experiment = replace(self.experiment, error=why)
        return self._stop(S.STOPPING_ERROR, trials.Canceled(f"the search has failed: {why}"), ids, now)

    def _finish_if_done(self, now: float) -> list[Effect]:
        state = self.experiment.state
        if not state.stopping or self._open:
            return []
        self.experiment = replace(self.experiment, end_time=now, gc_due=now)
        if state is S.STOPPING_COMPLETED:
            self.experiment = replace(self.experiment, progress=1.0)
        return [self._move(_END[state]), Finished(self.experiment)]

    # Bookkeeping

    def _adopt(self, trial: Trial) -> None:
        self.trials[trial.id] = trial
        self._by_request[trial.request_id] = trial.id
        if not trial.state.terminal:
            self._open[trial.id] = None
            self._open_progress.set(trial.id, trial.progress)

    def _keep(self, trial: Trial) -> KeepTrial:
        self.trials[trial.id] = trial
        return KeepTrial(trial)

    def _open_trials(self) -> Sequence[Trial]:
        return [self.trials[trial_id] for trial_id in self._open]

    def _move(self, to: S) -> KeepExperiment:
        what = f"experiment {self.experiment.id}"
        state = transitions.check(transitions.EXPERIMENT, what, self.experiment.state, to)
        self.experiment = replace(self.experiment, state=state)
        return KeepExperiment(self.experiment)


def with_log_retention(
    experiment: Experiment, known: dict[int, Trial], days: int, trial_id: int | None
) -> tuple[Experiment, list[Effect]]:
    """Logs are kept for so many days, of one trial or of all and those to come: the experiment, and what to keep.

    Args:
        known: the trials by id; those that change are replaced in it.
    """
    changed = [replace(one, log_retention_days=days) for one in known.values() if trial_id in (None, one.id)]
    known.update({one.id: one for one in changed})
    kept: list[Effect] = [KeepTrial(one) for one in changed]
    if trial_id is not None:
        return experiment, kept
    config = {**experiment.config, "retention_policy": {"log_retention_days": days}}
    experiment = replace(experiment, config=config)
    return experiment, [KeepExperiment(experiment), *kept]


def _exit_reason(trial: Trial) -> search.ExitReason:
    if trial.state is TrialState.CANCELED:
        return "canceled"
    if trial.state is TrialState.ERROR:
        return "errored"
    return "invalid_hp" if trial.early_exit_reason == trials.INVALID_HP else "completed"
