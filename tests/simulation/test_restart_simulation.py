"""A master that ends at any step leads to the same search as one that lives.

For a seed, a search is run on a world in which the master never ends, and on others in which it ends and starts again:
between any two steps, and right after any commit, so that effects and answers are lost. Trials, hyperparameters, what the
search heard and in which order, validations, checkpoints and final states must all be the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from simulation.test_core_simulation import MOST_STEPS, SEARCHERS, TRIALS
from simulation.world import Kept, World

Ends = Callable[[int], bool]
SEARCHES = [pytest.param(searcher, id=searcher["name"]) for searcher in SEARCHERS]


def never(number: int) -> bool:
    return False


def every(number: int) -> Ends:
    return lambda n: n % number == 0


def sometimes(seed: int, share: float) -> Ends:
    rng = random.Random(seed)
    return lambda n: rng.random() < share


def run(
    seed: int, searcher: dict[str, Any], *, after_commits: Ends = never, after_steps: Ends = never
) -> World:
    """The world at the end of the search."""
    world = World(seed, searcher, failure_rate=0.0, ends_after=after_commits)
    for step in range(1, MOST_STEPS):
        before = world.kept
        world.step()
        if after_steps(step):
            world.restart_at_once()
        world.check(before)
        if world.kept.experiment.state.terminal:
            return world
    raise AssertionError(f"seed {seed}: no end after {MOST_STEPS} steps")


def of_search(kept: Kept) -> Kept:
    """What was kept, without the words that tell a person why an allocation was asked to stop."""
    told = {i: replace(a, exit_reason="") for i, a in kept.allocations.items()}
    return replace(kept, allocations=told)


def assert_same(seed: int, searcher: dict[str, Any], expected: Kept | None = None, **ends: Ends) -> None:
    if expected is None:
        expected = of_search(run(seed, searcher).kept)
    assert len(expected.trials) == TRIALS[searcher["name"]]
    got = of_search(run(seed, searcher, **ends).kept)
    assert got.events == expected.events, f"seed {seed}: the search heard something else"
    assert got.trials == expected.trials, f"seed {seed}: other trials"
    assert got == expected, f"seed {seed}"


@pytest.mark.parametrize("searcher", SEARCHES)
def test_ends_after_every_step(searcher: dict[str, Any]) -> None:
    assert_same(11, searcher, after_steps=every(1))


@pytest.mark.parametrize("searcher", SEARCHES)
def test_ends_after_every_third_commit(searcher: dict[str, Any]) -> None:
    assert_same(12, searcher, after_commits=every(3))


@pytest.mark.parametrize("searcher", SEARCHES)
def test_ends_after_random_commits_and_steps(searcher: dict[str, Any]) -> None:
    for seed in range(20, 24):
        assert_same(seed, searcher, after_commits=sometimes(seed, 0.1), after_steps=sometimes(-seed, 0.05))


@pytest.mark.full
@pytest.mark.parametrize("searcher", SEARCHES)
def test_ends_once_after_each_commit(searcher: dict[str, Any]) -> None:
    """Every single commit of a search, one world each."""
    undisturbed = run(13, searcher)
    expected = of_search(undisturbed.kept)
    for commit in range(1, undisturbed.commits + 1):
        assert_same(13, searcher, expected, after_commits=commit.__eq__)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 140))
def test_ends_at_random_in_many_worlds(seed: int) -> None:
    searcher = SEARCHERS[seed % len(SEARCHERS)]
    assert_same(seed, searcher, after_commits=sometimes(seed, 0.2), after_steps=sometimes(-seed, 0.1))
