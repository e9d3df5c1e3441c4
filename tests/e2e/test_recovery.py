"""Master, agent and trials are killed in the middle of a search, which must not notice."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from e2e.conftest import Place, running_place
from e2e.invariants import every_acknowledged_report_is_kept, every_line_is_in_the_log_once
from e2e.trials import WITNESS, Record, hyperparameters, searcher, witness_config
from support.cluster import wait_for

TRIALS, STEPS = 10, 12
RUNG = 3  # the step at which the search compares trials, for the first time and the last


@pytest.fixture
def two_slots(db_url: str) -> Iterator[Place]:
    with running_place(slots=2, db_url=db_url) as started:
        yield started


def test_a_search_survives_the_end_of_every_part(two_slots: Place) -> None:
    place = two_slots
    cluster = place.cluster
    config = witness_config(
        place.side,
        searcher=searcher(
            "adaptive_asha",
            mode="aggressive",  # one bracket
            max_trials=TRIALS,
            time_metric="batches",
            max_time=STEPS,
            max_rungs=2,
        ),
        hyperparameters=hyperparameters(
            steps=STEPS, seconds=0.15, rate={"type": "double", "minval": 0.1, "maxval": 0.9}
        ),
        max_restarts=2,
    )
    experiment_id = cluster.create(config, {"train.py": WITNESS})

    _some_trial_trains(place)
    cluster.kill_master()
    cluster.start_master()

    _some_trial_trains(place)
    cluster.kill_agent()
    _trains_on_without_an_agent(place)
    cluster.start_agent()

    killed = [_kill_a_trial(place)]
    wait_for(lambda: place.record(killed[0]).runs == 2, "the killed trial runs again")

    _some_trial_trains(place)
    cluster.kill_master()
    cluster.kill_agent()
    killed.append(_kill_a_trial(place))
    cluster.start_master()
    cluster.start_agent()

    assert cluster.wait_for_end(experiment_id) == "COMPLETED"
    trials = cluster.trials(experiment_id)
    assert len(trials) == TRIALS
    for trial in trials:
        record = place.record(trial["id"])
        kills = killed.count(trial["id"])
        assert trial["state"] == "STATE_COMPLETED"
        assert trial["restarts"] == kills, f"trial {trial['id']}"
        assert record.runs == 1 + kills, f"trial {trial['id']} was started anew for no reason"
        assert not record.notes("violation"), f"trial {trial['id']} ran twice at once"
        if trial["id"] % 2:
            assert record.last("acknowledged") == STEPS
        record.assert_resumed_from_its_checkpoints()
        every_acknowledged_report_is_kept(place, record)
        every_line_is_in_the_log_once(place, record)
    stopped = [trial["id"] for trial in trials if trial["totalBatchesProcessed"] < STEPS]
    assert len(stopped) >= TRIALS // 2 - 1 and not any(trial_id % 2 for trial_id in stopped)
    assert not cluster.task_processes()


def _some_trial_trains(place: Place) -> Record:
    """One with some steps behind it and some before it."""

    def found() -> Record | None:
        # Not one that is about to be stopped by the search: what ends it is no failure.
        good = (record for record in place.at_work() if record.trial_id % 2)
        return next((record for record in good if RUNG < _steps(record) <= STEPS - 4), None)

    return wait_for(found, "a trial is in the middle of its training")


def _steps(record: Record) -> int:
    """The last step that its newest run had acknowledged; 0 when there is none."""
    run = record.notes("pid")[-1][0]
    return max((step for number, step in record.notes("acknowledged") if number == run), default=0)


def _trains_on_without_an_agent(place: Place) -> None:
    before = {r.trial_id: len(r.notes("acknowledged")) for r in place.at_work()}
    assert before

    def further() -> bool:
        return any(len(place.record(i).notes("acknowledged")) > count for i, count in before.items())

    wait_for(further, "a trial trains on while the agent is away")


def _kill_a_trial(place: Place) -> int:
    """Kill a trial's process, surely before the end of its training; returns the trial's id."""
    while True:
        record = _some_trial_trains(place)
        process = record.process
        if process is None:
            continue
        try:
            process.suspend()  # it must not end between the look and the blow
            if _steps(record) < STEPS and not record.notes("preempted"):
                process.kill()
                return record.trial_id
            process.resume()
        except psutil.NoSuchProcess:
            continue
