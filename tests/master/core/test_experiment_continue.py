"""An experiment that has ended goes on: which of its trials run again, and that the search is none the worse for it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from detlab_master.core import experiment_events as events
from detlab_master.core.experiment import ExperimentMachine
from detlab_master.core.hyperparameters import parse
from detlab_master.core.records import Allocation, Container, Experiment, SearcherEvent, Trial
from detlab_master.core.searchers.base import Method, Search
from detlab_master.core.searchers.grid import GridSearch
from detlab_master.core.searchers.random import RandomSearch
from detlab_master.core.searchers.single import SingleSearch
from detlab_master.core.states import AllocationState, ExperimentState, TrialState
from detlab_master.core.transitions import IllegalMove

SPACE = parse({"lr": {"type": "double", "minval": 0.0, "maxval": 1.0, "count": 6}})


@dataclass
class Played:
    """A machine, and what it asked to be kept."""

    kind: str
    machine: ExperimentMachine = field(init=False)
    kept: dict[int, Trial] = field(default_factory=dict)
    past: list[SearcherEvent] = field(default_factory=list)
    ids: int = 0

    def __post_init__(self) -> None:
        config = {"searcher": {"name": self.kind, "max_concurrent_trials": 2}}
        first = Experiment(1, "job", 1, 1, ExperimentState.ACTIVE, config, "", "", 0, start_time=0.0)
        self.machine = self._fresh(first)
        self.tell(events.Started())

    def _fresh(self, record: Experiment) -> ExperimentMachine:
        methods: dict[str, Method] = {
            "single": SingleSearch(),
            "random": RandomSearch(6, 2),
            "grid": GridSearch(SPACE, 2),
        }
        return ExperimentMachine(record, Search(methods[self.kind], SPACE, random.Random(7)), max_restarts=0)

    def trial(self) -> int:
        self.ids += 1
        return self.ids

    def task(self, experiment_id: int) -> str:
        return f"{experiment_id}.task{self.ids}"

    def tell(self, event: events.Event) -> list[events.Effect]:
        effects = self.machine.handle(event, self, 1.0)
        for effect in effects:
            match effect:
                case events.KeepTrial(kept):
                    self.kept[kept.id] = kept
                case events.RecordSearcherEvent(recorded):
                    self.past.append(recorded)
        return effects

    def end(self, trial_id: int, failure: str | None = None) -> None:
        ended = Allocation(
            id=self.kept[trial_id].allocation_id or "",
            task_id=self.kept[trial_id].task_id,
            owner_id=1,
            run_id=1,
            resource_pool="default",
            slots=1,
            priority=42,
            state=AllocationState.TERMINATED,
            queued_at=0.0,
            queue_order=1,
            containers=(Container("c", "a", (0,), AllocationState.TERMINATED),),
            exit_code=1 if failure else 0,
            failure=failure,
        )
        self.tell(events.AllocationEnded(trial_id, ended))

    def restart(self) -> None:
        """A new master takes it up."""
        record = self.machine.experiment
        self.machine = self._fresh(record)
        self.machine.restore(self.past, sorted(self.kept.values(), key=lambda t: t.id))

    def play_out(self) -> None:
        """Every run ends well."""
        while open_ := [t for t in self.kept.values() if not t.state.terminal]:
            self.end(open_[0].id)

    @property
    def states(self) -> list[str]:
        return [str(t.state) for t in self.kept.values()]

    @property
    def state(self) -> ExperimentState:
        return self.machine.experiment.state


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("kind", ["random", "grid"])
def test_a_search_that_was_canceled_runs_all_of_its_trials_after_all(kind: str, restarted: bool) -> None:
    whole = Played(kind)
    whole.play_out()

    cut = Played(kind)
    cut.end(1)
    cut.tell(events.Canceled())
    for trial_id in (2, 3):
        cut.end(trial_id)
    assert (cut.state, cut.states) == (ExperimentState.CANCELED, ["COMPLETED", "CANCELED", "CANCELED"])
    if restarted:
        cut.restart()
    cut.tell(events.Continued())
    assert (cut.state, cut.states) == (ExperimentState.ACTIVE, ["COMPLETED", "ACTIVE", "ACTIVE"])
    assert cut.machine.experiment.end_time is None
    if restarted:
        cut.restart()
    cut.play_out()
    assert (cut.state, cut.machine.experiment.progress) == (ExperimentState.COMPLETED, 1.0)
    assert [t.hparams for t in cut.kept.values()] == [t.hparams for t in whole.kept.values()]
    assert [t.run_id for t in cut.kept.values()] == [1, 2, 2, 1, 1, 1]


@pytest.mark.parametrize("restarted", [False, True])
def test_trials_that_failed_run_again_and_nothing_else(restarted: bool) -> None:
    played = Played("random")
    for trial_id in range(1, 7):
        played.end(trial_id, "container_failed" if trial_id in (2, 5) else None)
    assert played.state is ExperimentState.COMPLETED
    if restarted:
        played.restart()
    played.tell(events.Continued())
    assert [t.id for t in played.kept.values() if t.state is TrialState.ACTIVE] == [2, 5]
    played.play_out()
    assert (played.state, played.states) == (ExperimentState.COMPLETED, ["COMPLETED"] * 6)


@pytest.mark.parametrize("restarted", [False, True])
def test_no_more_trials_run_at_a_time_than_the_search_may_have_open(restarted: bool) -> None:
    played = Played("grid")
    for trial_id in range(1, 7):
        played.end(trial_id, "container_failed")
    played.tell(events.Continued())
    finished: list[int] = []
    while open_ := [t.id for t in played.kept.values() if not t.state.terminal]:
        assert len(open_) <= 2
        if len(finished) == 2:  # what runs again while the experiment is paused would not be paused
            played.tell(events.Paused())
            played.end(open_[0], "agent_failed")
            played.tell(events.Activated())
        if restarted:
            played.restart()
        played.end(open_[0])
        finished.append(open_[0])
    assert sorted(finished) == [1, 2, 3, 4, 5, 6]
    assert (played.state, played.states) == (ExperimentState.COMPLETED, ["COMPLETED"] * 6)


def test_canceled_while_some_still_wait_for_their_turn_it_can_be_continued_again() -> None:
    played = Played("grid")
    for trial_id in range(1, 7):
        played.end(trial_id, "container_failed")
    played.tell(events.Continued())
    played.end(1)
    played.tell(events.Killed())
    for trial_id in (2, 3):
        played.end(trial_id)
    assert (played.state, played.states.count("COMPLETED")) == (ExperimentState.CANCELED, 1)
    played.restart()
    played.tell(events.Continued())
    played.play_out()
    assert (played.state, played.states) == (ExperimentState.COMPLETED, ["COMPLETED"] * 6)


def test_a_search_all_of_whose_trials_failed_may_succeed_the_second_time() -> None:
    played = Played("grid")
    for trial_id in range(1, 7):
        played.end(trial_id, "container_failed")
    assert played.state is ExperimentState.ERROR
    played.tell(events.Continued())
    played.end(1, "container_failed")
    played.play_out()
    assert (played.state, played.states.count("ERROR")) == (ExperimentState.COMPLETED, 1)


def test_what_completed_while_the_experiment_stopped_counts() -> None:
    played = Played("random")
    played.tell(events.Canceled())
    played.end(1)
    played.end(2)
    # One that the search needs no more ends as COMPLETED whoever else wants its end.
    played.kept[1] = replace(played.kept[1], state=TrialState.COMPLETED)
    played.restart()
    played.tell(events.Continued())
    assert played.states == ["COMPLETED", "ACTIVE", "ACTIVE"], "the exit of the first made room for a third"
    played.play_out()
    assert (played.state, len(played.kept)) == (ExperimentState.COMPLETED, 6)


def test_a_single_trial_goes_on_with_fresh_restarts_and_other_hyperparameters() -> None:
    played = Played("single")
    played.end(1)
    assert played.state is ExperimentState.COMPLETED
    played.tell(events.Continued({"lr": 0.5}))
    again = played.kept[1]
    assert (again.state, again.run_id, again.restarts, again.end_time) == (TrialState.ACTIVE, 2, 0, None)
    assert again.hparams == {"lr": 0.5}
    played.tell(events.Paused())
    played.end(1)
    played.restart()
    played.play_out()
    assert (played.state, len(played.kept)) == (ExperimentState.COMPLETED, 1)


def test_a_search_with_nothing_left_is_not_continued() -> None:
    played = Played("random")
    played.play_out()
    before = played.machine.experiment
    with pytest.raises(IllegalMove, match="nothing to continue"):
        played.tell(events.Continued())
    assert played.machine.experiment is before


def test_a_search_under_way_is_not_continued() -> None:
    for verb in (events.Paused(), events.Activated(), events.Canceled()):
        played = Played("random")
        played.tell(verb)
        with pytest.raises(IllegalMove, match="only one that has ended"):
            played.tell(events.Continued())
