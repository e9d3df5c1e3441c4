"""Experiments that are ended by failures and by their user, and continued, again and again: each trial gets to its end.

As test_core_simulation.py: `replay(seed)` plays one world. And as test_restart_simulation.py: a master that ends at any step
of it changes nothing.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from detlab_master.core import experiment_events as core
from detlab_master.core.states import ExperimentState, TrialState
from simulation.test_core_simulation import MOST_STEPS, SEARCHERS, TRIALS
from simulation.test_restart_simulation import Ends, every, never, of_search, sometimes
from simulation.world import Kept, World

CONTINUABLE = [searcher for searcher in SEARCHERS if searcher["name"] in ("single", "random", "grid")]
BY_NAME = [pytest.param(searcher, id=searcher["name"]) for searcher in CONTINUABLE]
TIMES = 3  # that an experiment is continued
Verb = type[core.Canceled] | type[core.Killed]


def replay(seed: int) -> World:
    """Failures and a user who loses patience; then the last leg, in which nothing breaks."""
    searcher = CONTINUABLE[seed % len(CONTINUABLE)]
    world = World(seed, searcher, failure_rate=0.05, max_restarts=1)
    fate = random.Random(-seed)
    try:
        while world.continued < TIMES:
            patience = fate.choice([50, 200, MOST_STEPS])
            play(world, patience=patience, verb=core.Killed if fate.random() < 0.5 else core.Canceled)
            kept = world.kept
            if searcher["name"] != "single" and all(
                t.state is TrialState.COMPLETED for t in kept.trials.values()
            ):
                break  # there is nothing to continue
            world.go_on()
        world.wake()
        play(world)
        kept = world.kept
        if world.continued == TIMES:  # else failures have ended it, and every trial had come to its end
            assert all(trial.state is TrialState.COMPLETED for trial in kept.trials.values())
            assert kept.experiment.state is ExperimentState.COMPLETED and not kept.experiment.error
        assert len(kept.trials) == TRIALS[searcher["name"]], "the search did not run all of its trials"
    except Exception as error:
        story = "\n  ".join(world.story[-20:])
        raise AssertionError(
            f"seed {seed} fails: {error!r}\nlast failures that were played:\n  {story}"
        ) from error
    return world


def play(world: World, *, patience: int = MOST_STEPS, verb: Verb = core.Killed) -> None:
    """To the end of the experiment, which the user brings about after so many steps."""
    for step in range(MOST_STEPS):
        state = world.kept.experiment.state
        if state.terminal:
            return
        if step >= patience and not state.stopping:
            world.stop(verb())
        if step == 4_000:
            world.wake()
        before = world.kept
        world.step()
        world.check(before)
    raise AssertionError(f"no end after {MOST_STEPS} steps")


@pytest.mark.parametrize("decade", range(3))
def test_thirty_seeds(decade: int) -> None:
    for seed in range(decade * 10, decade * 10 + 10):
        replay(seed)


@pytest.mark.full
@pytest.mark.parametrize("century", range(5))
def test_five_hundred_seeds(century: int) -> None:
    for seed in range(1000 + century * 100, 1100 + century * 100):
        replay(seed)


# A master that ends


def story(
    seed: int, searcher: dict[str, Any], verb: Verb, after_commits: Ends = never, after_steps: Ends = never
) -> Kept:
    """A trial excludes an agent, the user ends the experiment, and continues it."""
    world = World(seed, searcher, failure_rate=0.0, ends_after=after_commits)
    for step in range(1, MOST_STEPS):
        before = world.kept
        world.step()
        if step in (30, 60):
            for agent in world.agents.values():
                if agent.processes:
                    world.trouble(agent, next(iter(agent.processes.values())))
                    break
        if step == 90 and not world.continued:  # a trial that excludes every agent has ended by itself
            world.stop(verb())
        if after_steps(step):
            world.restart_at_once()
        world.check(before)
        if world.kept.experiment.state.terminal:
            if world.continued:
                return of_search(world.kept)
            assert any(trial.excluded_agents for trial in world.kept.trials.values())
            world.go_on()
    raise AssertionError(f"seed {seed}: no end after {MOST_STEPS} steps")


def assert_same(seed: int, searcher: dict[str, Any], verb: Verb, **ends: Ends) -> None:
    expected, got = story(seed, searcher, verb), story(seed, searcher, verb, **ends)
    assert got.events == expected.events, f"seed {seed}: the search heard something else"
    assert got.trials == expected.trials, f"seed {seed}: other trials"
    assert got == expected, f"seed {seed}"


@pytest.mark.parametrize("verb", [core.Canceled, core.Killed])
@pytest.mark.parametrize("searcher", BY_NAME)
def test_ends_at_random(searcher: dict[str, Any], verb: Verb) -> None:
    for seed in (40, 41):
        assert_same(
            seed, searcher, verb, after_commits=sometimes(seed, 0.2), after_steps=sometimes(-seed, 0.1)
        )


@pytest.mark.full
@pytest.mark.parametrize("verb", [core.Canceled, core.Killed])
@pytest.mark.parametrize("searcher", BY_NAME)
def test_ends_all_the_time(searcher: dict[str, Any], verb: Verb) -> None:
    for seed in range(50, 55):
        assert_same(seed, searcher, verb, after_steps=every(1))
        assert_same(seed, searcher, verb, after_commits=every(1))
        assert_same(seed, searcher, verb, after_commits=every(3))
