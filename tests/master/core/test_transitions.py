"""States change as the tables of core.transitions say, whatever happens; and the page in docs/ shows those tables."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detlab_master import diagrams
from detlab_master.core import allocation as alloc
from detlab_master.core import experiment_events as events
from detlab_master.core import transitions, trial
from detlab_master.core.experiment import ExperimentMachine
from detlab_master.core.hyperparameters import parse
from detlab_master.core.records import Allocation, Container, Experiment, Trial
from detlab_master.core.searchers.base import Search
from detlab_master.core.searchers.random import RandomSearch
from detlab_master.core.states import AllocationState, ExperimentState, TrialState
from detlab_master.core.transitions import IllegalMove

PAGE = Path(__file__).parents[3] / "docs" / "states.md"
ENDED = Allocation(
    id="1.t.1",
    task_id="1.t",
    owner_id=1,
    run_id=1,
    resource_pool="default",
    slots=1,
    priority=42,
    state=AllocationState.TERMINATED,
    queued_at=0.0,
    queue_order=1,
    containers=(Container("c", "a", (0,), AllocationState.TERMINATED),),
)
ENDS = (
    ENDED,
    replace(ENDED, exit_code=1, failure="container_failed"),
    replace(ENDED, exit_code=1, failure="container_failed", preempt_acked=True),
    replace(ENDED, failure="container_aborted", aborted=True),
    replace(ENDED, failure="agent_failed"),
)


def test_the_page_shows_the_tables() -> None:
    assert PAGE.read_text() == diagrams.page(), "the tables have changed; type: make docs"


def test_every_state_has_its_row() -> None:
    assert set(transitions.EXPERIMENT) == set(ExperimentState)
    assert set(transitions.TRIAL) == set(TrialState)
    assert set(transitions.ALLOCATION) == set(AllocationState)


# Trials


def trials() -> Iterator[Trial]:
    """In every state that a trial can be in: an ACTIVE or stopping one waits for the end of an allocation."""
    for state, reason, stopped, restarts in product(
        TrialState, (None, trial.INVALID_HP), (False, True), (0, 2)
    ):
        waits = (None,) if state.terminal else (None, ENDED.id) if state is TrialState.PAUSED else (ENDED.id,)
        if state is TrialState.STOPPING_COMPLETED and not stopped:
            continue
        for allocation_id in waits:
            yield Trial(
                1,
                1,
                0,
                "1.t",
                state,
                {},
                1,
                start_time=0.0,
                run_id=1,
                allocation_id=allocation_id,
                early_exit_reason=reason,
                stopped_by_searcher=stopped,
                restarts=restarts,
            )


TRIAL_EVENTS: tuple[trial.Event, ...] = (
    trial.Activated(),
    trial.Paused(),
    trial.Canceled(),
    trial.Killed(),
    trial.StoppedBySearcher(),
    trial.EarlyExitReported(trial.INVALID_HP),
    trial.Continued(),
    *(trial.AllocationEnded(ended) for ended in ENDS),
)


def test_a_trial_moves_along_its_table_and_uses_all_of_it() -> None:
    seen = set()
    for before, event in product(trials(), TRIAL_EVENTS):
        after, _ = trial.step(before, event, max_restarts=2, now=1.0)
        if after.state is not before.state:
            assert after.state in transitions.TRIAL[before.state], (before, event)
            seen.add((before.state, after.state))
        waits = after.allocation_id is not None
        assert waits or after.state.terminal or after.state is TrialState.PAUSED, (before, event)
    assert seen == {(state, to) for state, following in transitions.TRIAL.items() for to in following}


# Allocations


@given(st.lists(st.integers(0, 15), max_size=12))
def test_an_allocation_moves_along_its_table(choices: list[int]) -> None:
    containers = (Container("c0", "a", (0,)), Container("c1", "b", (0,)))
    possible: list[alloc.Event] = [
        alloc.Granted(containers),
        alloc.AgentLost("a"),
        alloc.BecameReady(),
        alloc.PreemptionRequested(),
        alloc.PreemptionTimedOut(),
        alloc.KillRequested(),
        *(
            alloc.ContainerMoved(c.id, state)
            for c in containers
            for state in AllocationState
            if state is not AllocationState.QUEUED
        ),
    ]
    now = replace(ENDED, state=AllocationState.QUEUED, containers=())
    for choice in choices:
        before = now
        try:
            now, _ = alloc.step(before, possible[choice], 1.0)
        except IllegalMove:
            continue
        assert now.state is before.state or now.state in transitions.ALLOCATION[before.state]


# Experiments


class Ids:
    def __init__(self) -> None:
        self.last = 0

    def trial(self) -> int:
        self.last += 1
        return self.last

    def task(self, experiment_id: int) -> str:
        return f"{experiment_id}.task{self.last}"


def machine(state: ExperimentState = ExperimentState.ACTIVE) -> ExperimentMachine:
    config: dict[str, Any] = {"searcher": {"name": "random"}}
    search = Search(
        RandomSearch(4, 2), parse({"lr": {"type": "double", "minval": 0, "maxval": 1}}), random.Random(1)
    )
    record = Experiment(1, "job", 1, 1, state, config, "", "", 0, start_time=0.0)
    return ExperimentMachine(record, search, max_restarts=1)


def happening(of: ExperimentMachine, choice: int) -> events.Event:
    """One of the things that may happen to an experiment with these trials."""
    verbs: list[events.Event] = [events.Activated(), events.Paused(), events.Canceled(), events.Killed()]
    if choice < 8:
        return verbs[choice % 4]
    if choice < 12:
        return events.Continued()
    known = list(of.trials.values())
    one = known[choice % len(known)]
    if choice < 16:
        return events.TrialKilled(one.id)
    if choice < 24:
        return events.EarlyExitReported(one.id, trial.INVALID_HP)
    ended = replace(ENDS[choice % len(ENDS)], id=one.allocation_id or "none")
    return events.AllocationEnded(one.id, ended)


@settings(max_examples=300)
@given(st.lists(st.integers(0, 99), max_size=40))
def test_an_experiment_moves_along_its_table(choices: list[int]) -> None:
    tried, ids = machine(), Ids()
    tried.handle(events.Started(), ids, 1.0)
    for choice in choices:
        before, its_trials = tried.experiment, dict(tried.trials)
        event = happening(tried, choice)
        try:
            tried.handle(event, ids, 2.0)
        except IllegalMove:
            assert (tried.experiment, tried.trials) == (before, its_trials), (
                "a refused event changed something"
            )
            continue
        now = tried.experiment.state
        steps = {now} | set(transitions.EXPERIMENT[before.state])
        steps |= {
            end for middle in transitions.EXPERIMENT[before.state] for end in transitions.EXPERIMENT[middle]
        }
        assert now is before.state or now in steps
        if now is before.state is not None and event == events.Continued():
            raise AssertionError("what was continued is where it was")
        if now.terminal:
            assert all(t.state.terminal for t in tried.trials.values())
            assert tried.experiment.end_time == 2.0 or before.state.terminal


@pytest.mark.parametrize("state", list(ExperimentState))
@pytest.mark.parametrize("event", [events.Activated(), events.Paused(), events.Canceled(), events.Killed()])
def test_a_verb_in_any_state_moves_by_the_table_or_changes_nothing(
    state: ExperimentState, event: events.Event
) -> None:
    tried = machine(state)
    before = copy.copy(tried.experiment)
    wanted = {
        events.Activated: {ExperimentState.ACTIVE},
        events.Paused: {ExperimentState.PAUSED},
        events.Canceled: {ExperimentState.STOPPING_CANCELED, ExperimentState.CANCELED},
        events.Killed: {ExperimentState.STOPPING_KILLED, ExperimentState.CANCELED},
    }[type(event)]
    try:
        effects = tried.handle(event, Ids(), 1.0)
    except IllegalMove as error:
        assert tried.experiment == before
        assert str(state) in str(error)
        assert not wanted & {state}, "repeating a verb that is in effect must succeed"
        return
    if not effects:  # it is in effect already, or something stronger is
        assert tried.experiment == before
        assert state in wanted or state.stopping
    else:
        assert tried.experiment.state in wanted
