"""Detached experiments: the machine under any order of events, and who counts as silent."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detlab_master.core import experiment_events as core
from detlab_master.core import transitions
from detlab_master.core.records import Experiment
from detlab_master.core.states import ExperimentState as S
from detlab_master.core.states import TrialState as T
from detlab_master.core.transitions import IllegalMove
from detlab_master.core.unmanaged import (
    Listener,
    SilenceFound,
    TrialAdded,
    TrialHeard,
    TrialStarted,
    UnmanagedMachine,
)

OPEN = (T.ACTIVE, T.PAUSED)


class Ids:
    def __init__(self) -> None:
        self._trials = count(1)

    def trial(self) -> int:
        return next(self._trials)

    def task(self, experiment_id: int) -> str:
        return f"{experiment_id}.task"


class Script:
    """A machine, with a clock that ticks at each event."""

    def __init__(self) -> None:
        config = {"reproducibility": {"experiment_seed": 1}}
        self.machine = UnmanagedMachine(
            Experiment(5, "job", 1, 1, S.PAUSED, config, "", "", 0, start_time=0.0, unmanaged=True)
        )
        self.ids = Ids()
        self.now = 0.0
        self.kept: dict[int, Any] = {}
        self.kept_experiment = self.machine.experiment

    def tell(self, event: Any) -> list[Any]:
        self.now += 1
        effects = self.machine.handle(event, self.ids, self.now)
        for effect in effects:
            if isinstance(effect, core.KeepTrial):
                self.kept[effect.trial.id] = effect.trial
            elif isinstance(effect, core.KeepExperiment):
                self.kept_experiment = effect.experiment
            elif isinstance(effect, core.KeepProgress):
                self.kept_experiment = Experiment(
                    **{**vars(self.kept_experiment), "progress": effect.progress}
                )
        return effects

    def trial(self, number: int = 1) -> Any:
        return self.machine.trials[number]

    def silence(self, number: int | None = 1) -> list[Any]:
        return self.tell(SilenceFound(number, self.machine.signs()[number], 300.0))

    @property
    def state(self) -> S:
        return self.machine.experiment.state


def started() -> Script:
    script = Script()
    script.tell(TrialAdded({"lr": 1}, "fold 1"))
    script.tell(TrialStarted(1))
    return script


def test_a_script_from_start_to_end() -> None:
    script = Script()
    script.tell(TrialAdded({"lr": 1}, None))
    assert (script.state, script.trial().state, script.trial().run_id) == (S.PAUSED, T.PAUSED, 0)
    effects = script.tell(TrialStarted(1))
    assert any(isinstance(effect, core.TaskOpened) for effect in effects)
    assert (script.state, script.trial().state, script.trial().run_id) == (S.ACTIVE, T.ACTIVE, 1)
    script.tell(core.TrialProgressed(1, 0.5))
    assert script.machine.experiment.progress == 0.5
    effects = script.tell(TrialHeard(1, T.COMPLETED))
    assert isinstance(effects[-1], core.Finished)
    assert any(isinstance(effect, core.TrialEnded) for effect in effects)
    ended = script.machine.experiment
    assert (ended.state, ended.progress, ended.end_time, ended.gc_due) == (S.COMPLETED, 1.0, script.now, None)


def test_an_external_id_is_the_same_trial_with_its_new_hyperparameters() -> None:
    script = started()
    script.tell(TrialHeard(1, T.ERROR))
    script.tell(TrialAdded({"lr": 2}, "fold 1"))
    assert list(script.machine.trials) == [1]
    assert (script.trial().hparams, script.state) == ({"lr": 2}, S.ERROR)
    script.tell(TrialStarted(1))
    assert (script.trial().run_id, script.trial().end_time, script.state) == (2, None, S.ACTIVE)
    script.tell(TrialAdded({"lr": 3}, "fold 2"))
    assert list(script.machine.trials) == [1, 2]


def test_silence_and_what_comes_after_it() -> None:
    script = started()
    effects = script.silence()
    assert (script.state, script.trial().state) == (S.ERROR, T.ERROR)
    assert script.machine.experiment.error == "nothing was heard of trial 1 for 300 seconds"
    assert any(isinstance(effect, core.Said) for effect in effects)
    script.tell(core.TrialProgressed(1, 0.25))  # the laptop was opened again
    assert (script.state, script.trial().state, script.trial().lost_contact) == (S.ACTIVE, T.ACTIVE, False)
    assert (script.machine.experiment.error, script.machine.experiment.end_time) == ("", None)
    script.silence()
    script.tell(TrialHeard(1, T.COMPLETED))  # its last words were late
    assert (script.state, script.trial().state) == (S.COMPLETED, T.COMPLETED)
    script = started()
    script.silence()
    script.tell(TrialHeard(1, T.ERROR))
    assert (script.state, script.trial().state, script.trial().lost_contact) == (S.ERROR, T.ERROR, False)


def test_what_has_ended_by_its_own_words_takes_no_reports() -> None:
    script = started()
    script.tell(TrialHeard(1, T.ERROR))
    before = script.machine.experiment, dict(script.machine.trials)
    with pytest.raises(IllegalMove, match="until its script starts again"):
        script.tell(core.TrialProgressed(1, 0.5))
    with pytest.raises(IllegalMove):
        script.tell(TrialHeard(1, T.COMPLETED))
    assert script.tell(TrialHeard(1)) == []  # a heartbeat that was overtaken
    assert script.tell(TrialHeard(1, T.ERROR)) == []  # a retry
    assert (script.machine.experiment, script.machine.trials) == before


def test_a_silence_that_was_broken_in_the_meantime_is_none() -> None:
    script = started()
    last = script.machine.signs()[1]
    script.tell(TrialHeard(1))
    assert script.tell(SilenceFound(1, last, 300.0)) == []
    assert script.state is S.ACTIVE


def test_an_experiment_whose_script_never_added_a_trial_ends() -> None:
    script = Script()
    script.silence(None)
    assert (script.state, script.machine.experiment.error) == (S.ERROR, "no trial of it ever started")
    script.tell(TrialAdded({}, None))
    assert (script.state, script.machine.experiment.error) == (S.PAUSED, "")


@pytest.mark.parametrize(
    "event",
    [
        *(core.Activated(), core.Paused(), core.Canceled(), core.Killed()),
        *(core.TrialKilled(1), core.Continued()),
    ],
)
def test_nobody_steers_it_from_the_master(event: core.Event) -> None:
    script = started()
    with pytest.raises(IllegalMove, match=r"experiment 5 is detached: .* End the script itself"):
        script.tell(event)
    assert script.state is S.ACTIVE


@pytest.mark.parametrize(
    ("ends", "state"),
    [
        ((T.COMPLETED, T.ERROR), S.COMPLETED),
        ((T.ERROR, T.CANCELED), S.ERROR),
        ((T.CANCELED, T.CANCELED), S.CANCELED),
    ],
)
def test_the_experiment_ends_as_its_best_trial(ends: tuple[T, T], state: S) -> None:
    script = Script()
    for _ in ends:
        script.tell(TrialAdded({}, None))
    for number, end in enumerate(ends, 1):
        script.tell(TrialStarted(number))
        script.tell(TrialHeard(number, end))
    assert script.state is state


def event(draw: Callable[..., Any], script: Script) -> Any:
    numbers = sorted(script.machine.trials)
    if not numbers:
        return draw(st.sampled_from([TrialAdded({}, "a"), SilenceFound(None, 0.0, 9.0)]))
    number = draw(st.sampled_from(numbers))
    silent = script.machine.signs().get(number)
    choices = [
        TrialAdded({}, draw(st.sampled_from([None, "a", "b"]))),
        TrialStarted(number),
        *(TrialHeard(number, state) for state in (None, T.ACTIVE, T.COMPLETED, T.ERROR, T.CANCELED)),
        core.TrialProgressed(number, draw(st.floats(0, 1))),
        core.RunnerStateReported(number, "training"),
        core.Reported(script.trial(number)),
        *([SilenceFound(number, silent, 9.0)] * 3 if silent is not None else []),
    ]
    return draw(st.sampled_from(choices))


@given(st.data())
def test_any_order_of_events(data: st.DataObject) -> None:
    """The tables hold, what is kept is what is in memory, and the experiment is what its trials say."""
    script = Script()
    for _ in range(data.draw(st.integers(1, 30))):
        before, trials_before = script.state, dict(script.machine.trials)
        happened = event(data.draw, script)
        try:
            script.tell(happened)
        except IllegalMove:
            assert (script.state, script.machine.trials) == (before, trials_before)
        states = [trial.state for trial in script.machine.trials.values()]
        assert script.machine.experiment == script.kept_experiment
        assert script.machine.trials == script.kept
        if script.state is not before:
            assert script.state in transitions.UNMANAGED_EXPERIMENT[before]
        if states:
            assert (script.state is S.ACTIVE) == (T.ACTIVE in states)
            assert script.state.terminal == (not any(state in OPEN for state in states))
        for trial in script.machine.trials.values():
            assert (trial.end_time is None) == (not trial.state.terminal)
            assert not trial.lost_contact or trial.state is T.ERROR
        again = UnmanagedMachine(script.machine.experiment)
        again.restore([], script.machine.trials.values())
        assert again.signs() == script.machine.signs()


def test_the_tables_have_every_state() -> None:
    assert set(transitions.UNMANAGED_TRIAL) == {T.ACTIVE, T.PAUSED, T.COMPLETED, T.ERROR, T.CANCELED}
    ours = {state for state in S if not state.stopping}
    assert set(transitions.UNMANAGED_EXPERIMENT) == ours


def test_a_listener_goes_by_its_own_clock() -> None:
    listener: Listener[str] = Listener(patience=10.0)
    assert listener.silent({"a": 1e9, "b": 5.0}, at=0.0) == []  # times of day mean nothing
    assert listener.silent({"a": 1e9, "b": 4.0}, at=9.0) == []  # any change is a sign
    assert listener.silent({"a": 1e9, "b": 4.0}, at=10.5) == ["a"]
    assert listener.silent({"b": 4.0, "c": 0.0}, at=19.5) == ["b"]
    assert listener.silent({"c": 0.0}, at=20.0) == []
    assert listener.silent({"b": 4.0, "c": 0.0}, at=25.0) == []  # b is new again
