"""Rounds of kill -9 at random moments: each a small search whose master, agent and trials are killed under way.

What is drawn for a round comes from its seed, which is part of the test's name; when things happen is up to the machine.
Rounds share a cluster. In each, the experiment of the round before is deleted while the killing goes on.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from typing import Any

import psutil
import pytest

from detlab_master.core import expconf
from detlab_master.core import hyperparameters as spaces
from detlab_master.core.searchers import base
from detlab_master.core.searchers.make import make
from e2e.conftest import Place
from e2e.invariants import every_acknowledged_report_is_kept, every_line_is_in_the_log_once
from e2e.trials import WITNESS, hyperparameters, searcher, witness_config
from support.cluster import wait_for

STEPS, ROUNDS, CONTINUED = 6, 50, 10  # rounds for each database
SEARCHES: list[dict[str, Any]] = [
    {"name": "random", "max_trials": 5, "max_concurrent_trials": 3},
    {"name": "grid"},
    {"name": "async_halving", "max_trials": 5, "num_rungs": 2, "max_time": STEPS, "time_metric": "batches"},
    {"name": "adaptive_asha", "max_trials": 5, "max_rungs": 2, "max_time": STEPS, "time_metric": "batches"},
]


class Killer:
    """Strikes at random moments, and starts again what it has killed."""

    def __init__(self, place: Place, rng: random.Random) -> None:
        self._place = place
        self._rng = rng
        self.killed_tasks = 0
        self.killed_agents = 0
        self.story: list[str] = []

    def strike(self) -> None:
        time.sleep(self._rng.uniform(0.0, 1.2))
        cluster = self._place.cluster
        victims = self._rng.choice(["master", "agent", "task", "task", "master agent", "agent task"])
        self.story.append(victims)
        if "master" in victims:
            cluster.kill_master()
        if "agent" in victims:
            cluster.kill_agent()
            self.killed_agents += 1
        if "task" in victims:
            self._kill_a_task()
        time.sleep(self._rng.uniform(0.0, 0.4))
        if "master" in victims:
            cluster.start_master()
        if "agent" in victims:
            cluster.start_agent()

    def _kill_a_task(self) -> None:
        """Any process of a task but its shim: while it is being prepared, trains, saves, or leaves."""
        processes = [p for p in self._place.cluster.task_processes() if _is_harness(p)]
        if processes:
            self.killed_tasks += 1
            with contextlib.suppress(psutil.NoSuchProcess):
                self._rng.choice(processes).kill()


def _is_harness(process: psutil.Process) -> bool:
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return "determined.exec" in command or "train.py" in command


@pytest.fixture(scope="module")
def last_round(place: Place) -> list[int]:
    """The experiment of the round before, which the next one deletes."""
    return []


@pytest.mark.full
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_kills_at_random_moments(place: Place, last_round: list[int], seed: int) -> None:
    rng = random.Random(seed)
    cluster = place.cluster
    killer = Killer(place, rng)
    config = witness_config(
        place.side,
        searcher=searcher(**rng.choice(SEARCHES)),
        hyperparameters=hyperparameters(
            steps=STEPS, rate={"type": "double", "minval": 0.1, "maxval": 0.9, "count": 4}
        ),
        max_restarts=20,
    )
    experiment_id = cluster.create(config, {"train.py": WITNESS})
    doomed = last_round.pop() if last_round else None
    if doomed is not None:
        assert cluster.request("DELETE", f"/api/v1/experiments/{doomed}").status_code == 200
    pauses = rng.random() < 0.3
    if pauses:
        cluster.post(f"/api/v1/experiments/{experiment_id}/pause")
        killer.strike()
        cluster.post(f"/api/v1/experiments/{experiment_id}/activate")
    for _ in range(rng.randint(1, 3)):
        killer.strike()
    try:
        assert cluster.wait_for_end(experiment_id) == "COMPLETED"
        _nothing_is_lost_and_nothing_is_twice(place, experiment_id, killer)
        if doomed is not None:
            gone = f"/api/v1/experiments/{doomed}"
            wait_for(lambda: cluster.request("GET", gone).status_code == 404, "the last round is deleted")
    except AssertionError as error:
        error.add_note(f"seed {seed} fails; what was killed: {', '.join(killer.story)}")
        raise
    last_round.append(experiment_id)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1000, 1000 + CONTINUED))
def test_kills_around_a_continuation(place: Place, seed: int) -> None:
    """The user ends the search under way, and continues it, twice; whatever is killed meanwhile."""
    rng = random.Random(seed)
    cluster = place.cluster
    killer = Killer(place, rng)
    config = witness_config(
        place.side,
        searcher=searcher(**rng.choice(SEARCHES[:2])),
        hyperparameters=hyperparameters(
            steps=STEPS, rate={"type": "double", "minval": 0.1, "maxval": 0.9, "count": 4}
        ),
        max_restarts=20,
    )
    experiment_id = cluster.create(config, {"train.py": WITNESS})
    path = f"/api/v1/experiments/{experiment_id}"
    try:
        for _ in range(2):
            killer.strike()
            verb = rng.choice(["cancel", "kill"])
            cluster.post(f"{path}/{verb}")
            killer.story.append(verb)
            killer.strike()
            if cluster.wait_for_end(experiment_id) == "CANCELED":
                cluster.post("/api/v1/experiments/continue", {"id": experiment_id})
                killer.story.append("continue")
            killer.strike()
        assert cluster.wait_for_end(experiment_id) == "COMPLETED"
        _nothing_is_lost_and_nothing_is_twice(place, experiment_id, killer)
    except AssertionError as error:
        error.add_note(f"seed {seed} fails; what happened: {', '.join(killer.story)}")
        raise


def _nothing_is_lost_and_nothing_is_twice(place: Place, experiment_id: int, killer: Killer) -> None:
    trials = place.cluster.trials(experiment_id)
    for trial in trials:
        record = place.record(trial["id"])
        assert not record.notes("violation"), f"trial {trial['id']} ran twice at once"
        record.assert_resumed_from_its_checkpoints()
        killed = trial["state"] == "STATE_ERROR"
        every_acknowledged_report_is_kept(place, record, last_killed=killed)
        every_line_is_in_the_log_once(place, record, last_killed=killed)
    assert sum(trial["restarts"] for trial in trials) <= killer.killed_tasks
    stopped = _decisions_equal_a_replay(place, experiment_id)
    for trial in trials:
        if trial["id"] not in stopped:
            assert trial["state"] == "STATE_COMPLETED" and trial["totalBatchesProcessed"] == STEPS
        else:  # one that is killed while it leaves, as the search has told it to, has failed
            assert trial["state"] == "STATE_COMPLETED" or killer.killed_tasks


def _decisions_equal_a_replay(place: Place, experiment_id: int) -> set[int]:
    """A new searcher, given what the database says the search was told, decides what was done.

    Returns:
        The trials that the search has stopped.
    """
    (kept,) = place.cluster.rows("SELECT config FROM experiments WHERE id = :id", id=experiment_id)
    config = expconf.restore(_json(kept[0]))
    rng = random.Random(config.reproducibility.experiment_seed)
    search = make(config.searcher, spaces.parse(config.hyperparameters), rng)
    told = place.cluster.rows(
        "SELECT seq, event FROM searcher_events WHERE experiment_id = :id ORDER BY seq", id=experiment_id
    )
    assert [seq for seq, _ in told] == list(range(len(told)))
    actions = [action for _, event in told for action in search.step(base.event_from_json(_json(event)))]
    created = {a.request_id: (a.hparams, a.seed) for a in actions if isinstance(a, base.Create)}
    stopped = {a.request_id for a in actions if isinstance(a, base.Stop)}
    rows = place.cluster.rows(
        "SELECT id, request_id, hparams, seed FROM trials WHERE experiment_id = :id", id=experiment_id
    )
    assert {request: (_json(hparams), seed) for _, request, hparams, seed in rows} == created
    assert len(rows) == len(created), "a trial was made twice"
    assert isinstance(actions[-1], base.Shutdown) and not actions[-1].failure
    return {trial_id for trial_id, request_id, _, _ in rows if request_id in stopped}


def _json(value: Any) -> Any:
    """PostgreSQL's driver decodes JSON, SQLite's does not."""
    return json.loads(value) if isinstance(value, str) else value
