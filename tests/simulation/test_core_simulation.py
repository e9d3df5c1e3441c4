"""The core under failures at random steps. A failing seed is part of the message, and replays: `replay(seed)`."""

from __future__ import annotations

from typing import Any

import pytest

from detlab_master.core.states import ExperimentState, TrialState
from simulation.world import World

SEARCHERS: list[dict[str, Any]] = [
    {"name": "single"},
    {"name": "random", "max_trials": 6, "max_concurrent_trials": 3},
    {"name": "grid", "max_concurrent_trials": 4},
    {
        "name": "adaptive_asha",
        "max_trials": 12,
        "max_time": 64,
        "time_metric": "batches",
        "smaller_is_better": True,
    },
    {"name": "async_halving", "num_rungs": 3, "max_trials": 9, "max_time": 64, "time_metric": "batches"},
]
TRIALS = {"single": 1, "random": 6, "grid": 7, "adaptive_asha": 12, "async_halving": 9}
MOST_STEPS = 60_000


def replay(seed: int) -> World:
    """Run one seed to its end, looking at the invariants after every step."""
    searcher = SEARCHERS[seed % len(SEARCHERS)]
    world = World(seed, searcher, failure_rate=0.02)
    try:
        for step in range(MOST_STEPS):
            before = world.kept
            world.step()
            world.check(before)
            if step == 4_000:
                world.wake()
            if world.kept.experiment.state.terminal:
                break
        kept = world.kept
        assert kept.experiment.state.terminal, f"still {kept.experiment.state} after {MOST_STEPS} steps"
        assert kept.experiment.state in (ExperimentState.COMPLETED, ExperimentState.ERROR)
        assert len(kept.trials) == TRIALS[searcher["name"]], "the search did not run all of its trials"
        failed = [t for t in kept.trials.values() if t.state is TrialState.ERROR]
        all_failed = len(failed) == len(kept.trials)
        assert (kept.experiment.state is ExperimentState.ERROR) == all_failed
    except Exception as error:
        story = "\n  ".join(world.story[-20:])
        raise AssertionError(
            f"seed {seed} fails: {error!r}\nlast failures that were played:\n  {story}"
        ) from error
    return world


@pytest.mark.parametrize("decade", range(10))
def test_a_hundred_seeds(decade: int) -> None:
    for seed in range(decade * 10, decade * 10 + 10):
        replay(seed)


@pytest.mark.full
@pytest.mark.parametrize("century", range(10))
def test_a_thousand_seeds(century: int) -> None:
    for seed in range(1000 + century * 100, 1100 + century * 100):
        replay(seed)


def test_a_seed_replays() -> None:
    assert replay(3).kept == replay(3).kept


def test_the_invariants_can_fail() -> None:
    """A core that forgets the end of a run is caught."""
    world = World(1, {"name": "single"}, failure_rate=0.0)
    process = None
    while process is None:
        world.step()
        process = next((p for a in world.agents.values() for p in a.processes.values()), None)
    agent = world.agents[process.agent_id]
    agent.processes["twin"] = process
    with pytest.raises(AssertionError, match="runs twice"):
        world.check(world.kept)
