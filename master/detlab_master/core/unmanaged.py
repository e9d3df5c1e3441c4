"""The life of a detached experiment: its trials are scripts that run somewhere else, and the master only hears of them.

Nothing is scheduled, searched or restarted. A trial is what its script says it is, for as long as something is heard of it:
each report is a sign of life, and so are the heartbeats that clients send every minute. One that falls silent becomes ERROR;
when it is heard of again after all (a laptop was closed, a network was away) it goes on as if nothing had been. The
experiment follows its trials: it is ACTIVE while one of them is, and ends with the last one that is open.

A script that is started again under the same names gets its trial back as a new run: what the last run still sends is
refused.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, NoReturn, TypeVar

from detlab_master.core import experiment_events as core
from detlab_master.core import transitions
from detlab_master.core import trial as trials
from detlab_master.core.experiment import Ids, with_log_retention
from detlab_master.core.experiment_events import Effect
from detlab_master.core.records import Experiment, Json, SearcherEvent, Trial
from detlab_master.core.states import ExperimentState as S
from detlab_master.core.states import TrialState as T
from detlab_master.core.transitions import IllegalMove

REPORTED = (T.ACTIVE, T.COMPLETED, T.ERROR, T.CANCELED)  # what a script may say of itself
K = TypeVar("K", bound=Hashable)


# Events beside those of every experiment


@dataclass(frozen=True)
class TrialAdded:
    """A script is about to start; one with an external id that is known is that trial."""

    hparams: Json
    external_id: str | None = None


@dataclass(frozen=True)
class TrialStarted:
    """A script starts, as a new run of its trial."""

    trial_id: int


@dataclass(frozen=True)
class TrialHeard:
    """A heartbeat, perhaps with what has become of the trial: one of `REPORTED`.

    `run_id`: of the run that speaks, where it says so. One that was replaced must not end the next one's trial.
    """

    trial_id: int
    state: T | None = None
    run_id: int | None = None


@dataclass(frozen=True)
class SilenceFound:
    """Nothing was heard for too long of a trial since it was heard of last, or of an experiment that has none (None)."""

    trial_id: int | None
    last_activity: float
    seconds: float  # how long is too long


Event = TrialAdded | TrialStarted | TrialHeard | SilenceFound


class UnmanagedMachine:
    """A detached experiment with its trials. Used like `ExperimentMachine`."""

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.trials: dict[int, Trial] = {}

    def restore(self, past: Iterable[SearcherEvent], existing: Iterable[Trial]) -> None:
        """Take up where a master stopped; there is no searcher, and so no past."""
        self.trials = {trial.id: trial for trial in existing}

    def handle(self, event: core.Event | Event, ids: Ids, now: float) -> list[Effect]:
        """Apply one event; arguments and result as those of `ExperimentMachine.handle`.

        Raises:
            IllegalMove: a verb that detached experiments do not have, or that the state does not allow; nothing was
                changed.
        """
        match event:
            case core.Edited(change):
                self.experiment = change(self.experiment)
                return [core.KeepExperiment(self.experiment)]
            case core.LogsRetained(days, trial_id):
                self.experiment, kept = with_log_retention(self.experiment, self.trials, days, trial_id)
                return kept
            case core.LogPolicyMatched(trial_id, match):
                trial = self.trials[trial_id]
                labelled, _ = trials.step(trial, trials.LogPolicyMatched(match), max_restarts=0, now=now)
                return [self._keep(labelled)] if labelled != trial else []
            case core.TrialDescribed(trial_id, metadata):
                return [self._keep(replace(self.trials[trial_id], metadata=metadata))]
            case core.Started() | core.AllocationEnded():
                return []
            case core.Activated() | core.Paused() | core.Canceled() | core.Killed() | core.TrialKilled():
                self._not_ours_to_steer()
            case core.Continued():
                self._not_ours_to_steer()
            case SilenceFound():
                return self._silent(event, now)
        if self.experiment.state in (S.DELETING, S.DELETE_FAILED, S.DELETED):
            raise IllegalMove(
                f"experiment {self.experiment.id} is being deleted: it takes no reports any more"
            )
        match event:
            case TrialAdded():
                return self._add(event, ids, now)
            case TrialStarted(trial_id):
                return self._start(self.trials[trial_id], now)
            case TrialHeard(trial_id, state):
                return self._heard(self.trials[trial_id], state, now)
            case core.Reported(trial):
                return self._sign_of_life(trial, now)
            case core.TrialProgressed(trial_id, progress):
                return self._sign_of_life(replace(self.trials[trial_id], progress=progress), now)
            case core.EarlyExitReported(trial_id, reason):
                return self._sign_of_life(replace(self.trials[trial_id], early_exit_reason=reason), now)
            case core.RunnerStateReported(trial_id, runner_state):
                return self._sign_of_life(replace(self.trials[trial_id], runner_state=runner_state), now)

    def signs(self) -> dict[int | None, float]:
        """Of whom something should be heard, each with when that was last: open trials by id, or None for the
        experiment itself as long as it has no trials."""
        if not self.trials and not self.experiment.state.terminal:
            return {None: self.experiment.start_time}
        return {
            trial.id: trial.last_activity or 0.0 for trial in self.trials.values() if not trial.state.terminal
        }

    def _not_ours_to_steer(self) -> NoReturn:
        number = self.experiment.id
        raise IllegalMove(
            f"experiment {number} is detached: its script runs outside of the cluster, where the master cannot stop or"
            " start it. End the script itself, or run it again with the same external ids to go on"
        )

    # Trials

    def _add(self, event: TrialAdded, ids: Ids, now: float) -> list[Effect]:
        known = self.named(event.external_id)
        if known is not None:
            return (
                [self._keep(replace(known, hparams=event.hparams))] if known.hparams != event.hparams else []
            )
        experiment = self.experiment
        trial = Trial(
            id=ids.trial(),
            experiment_id=experiment.id,
            request_id=1 + max((trial.request_id for trial in self.trials.values()), default=-1),
            task_id=ids.task(experiment.id),
            state=T.PAUSED,
            hparams=event.hparams,
            seed=experiment.config["reproducibility"]["experiment_seed"],
            start_time=now,
            log_retention_days=(experiment.config.get("retention_policy") or {}).get("log_retention_days"),
            external_id=event.external_id,
            last_activity=now,
        )
        return [self._keep(trial), core.TaskOpened(trial), *self._follow(now)]

    def named(self, external_id: str | None) -> Trial | None:
        """The trial with that external id."""
        if external_id is None:
            return None
        return next((trial for trial in self.trials.values() if trial.external_id == external_id), None)

    def _start(self, trial: Trial, now: float) -> list[Effect]:
        again = replace(
            self._opened(trial),
            run_id=trial.run_id + 1,
            last_activity=now,
            early_exit_reason=None,
            progress=0.0 if trial.state.terminal else trial.progress,
        )
        return [self._keep(again), core.TaskOpened(again), *self._follow(now)]

    def _heard(self, trial: Trial, state: T | None, now: float) -> list[Effect]:
        said_before = state is trial.state and not trial.lost_contact
        if trial.state.terminal and not trial.lost_contact and (state is None or said_before):
            return []  # a heartbeat that was overtaken by the end, or an end that is said again
        if state is None or said_before:
            return self._sign_of_life(trial, now)
        trial = replace(self._opened(trial) if trial.lost_contact else trial, last_activity=now)
        if state is not T.ACTIVE:
            return self._close(trial, state, now)
        opened = self._opened(trial)
        return [self._keep(opened), core.TaskOpened(opened), *self._follow(now)]

    def _sign_of_life(self, trial: Trial, now: float) -> list[Effect]:
        """Keep what a report has made of a trial.

        Raises:
            IllegalMove: it has ended, by what it said itself.
        """
        heard = replace(trial, last_activity=now)
        if trial.lost_contact:
            heard = self._opened(heard)
            again = core.Said(heard, "The trial is heard of again, and goes on.")
            return [self._keep(heard), core.TaskOpened(heard), again, *self._follow(now)]
        check_takes_reports(trial)
        return [self._keep(heard), *self._follow(now)]

    def _silent(self, event: SilenceFound, now: float) -> list[Effect]:
        if self.signs().get(event.trial_id) != event.last_activity:
            return []  # it was heard of in the meantime
        if event.trial_id is None:
            return self._end(S.ERROR, now, "no trial of it ever started")
        trial = self.trials[event.trial_id]
        why = f"nothing was heard of trial {trial.id} for {event.seconds:g} seconds"
        ended = self._close(replace(trial, lost_contact=True), T.ERROR, now, why)
        told = (
            f"Nothing was heard of the script for {event.seconds:g} seconds: the trial is ERROR until it is."
        )
        return [*ended, core.Said(self.trials[trial.id], told)]

    @staticmethod
    def _opened(trial: Trial) -> Trial:
        if trial.state is T.ACTIVE:
            return trial
        state = transitions.check(transitions.UNMANAGED_TRIAL, f"trial {trial.id}", trial.state, T.ACTIVE)
        return replace(trial, state=state, end_time=None, lost_contact=False)

    def _close(self, trial: Trial, to: T, now: float, why: str = "") -> list[Effect]:
        state = transitions.check(transitions.UNMANAGED_TRIAL, f"trial {trial.id}", trial.state, to)
        ended = replace(trial, state=state, end_time=now)
        return [self._keep(ended), core.TrialEnded(ended), *self._follow(now, why)]

    def _keep(self, trial: Trial) -> core.KeepTrial:
        self.trials[trial.id] = trial
        return core.KeepTrial(trial)

    # The experiment

    def _follow(self, now: float, why: str = "") -> list[Effect]:
        states = {trial.state for trial in self.trials.values()}
        to = next(
            state for state in (T.ACTIVE, T.PAUSED, T.COMPLETED, T.ERROR, T.CANCELED) if state in states
        )
        state = S(str(to))
        if state is self.experiment.state:
            return self._keep_progress()
        if state.terminal:
            return self._end(state, now, why if state is S.ERROR else "")
        self._move(state)
        self.experiment = replace(self.experiment, end_time=None, error="", progress=self._progress())
        return [core.KeepExperiment(self.experiment)]

    def _end(self, state: S, now: float, why: str) -> list[Effect]:
        self._move(state)
        self.experiment = replace(self.experiment, end_time=now, error=why, progress=self._progress())
        return [core.KeepExperiment(self.experiment), core.Finished(self.experiment)]

    def _move(self, to: S) -> None:
        what = f"experiment {self.experiment.id}"
        state = transitions.check(transitions.UNMANAGED_EXPERIMENT, what, self.experiment.state, to)
        self.experiment = replace(self.experiment, state=state)

    def _keep_progress(self) -> list[Effect]:
        progress = self._progress()
        if progress == self.experiment.progress:
            return []
        self.experiment = replace(self.experiment, progress=progress)
        return [core.KeepProgress(self.experiment.id, progress)]

    def _progress(self) -> float:
        """The mean of its trials; one that completed is done, whatever it said."""
        done = [1.0 if trial.state is T.COMPLETED else trial.progress for trial in self.trials.values()]
        return sum(done) / len(done) if done else 0.0


def check_takes_reports(trial: Trial) -> None:
    """Whether something may still be reported of an unmanaged trial.

    Raises:
        IllegalMove: it said that it has ended.
    """
    if trial.state.terminal and not trial.lost_contact:
        raise IllegalMove(
            f"trial {trial.id} is {trial.state}: it takes no reports until its script starts again"
        )


@dataclass
class Listener(Generic[K]):
    """Finds who has fallen silent.

    It goes by when a sign of life was noticed here, by a clock that only goes forward: a wall clock that jumps makes nobody
    silent, and neither does a master that was away, which hears of everybody anew.

    Args:
        patience: seconds.
    """

    patience: float
    _noticed: dict[K, tuple[float, float]] = field(
        default_factory=dict
    )  # -> (last sign, when it was noticed)

    def silent(self, signs: Mapping[K, float], at: float) -> list[K]:
        """Those of whom nothing new was noticed for longer than the patience.

        Args:
            signs: who should be heard of, each with when that was last; any change is a sign.
            at: seconds of the clock that only goes forward.
        """
        for key, sign in signs.items():
            known = self._noticed.get(key)
            if known is None or known[0] != sign:
                self._noticed[key] = (sign, at)
        self._noticed = {key: self._noticed[key] for key in signs}
        return [key for key, (_, noticed) in self._noticed.items() if at - noticed > self.patience]
