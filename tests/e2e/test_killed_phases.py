"""Master, agent or trial are killed in each phase of an experiment: queued, starting, saving, stopping, deleting.

(test_recovery.py kills them while trials train, test_kill_rounds.py at random moments.)
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from _pytest.mark.structures import ParameterSet

from e2e.conftest import Place, running_place
from e2e.invariants import every_acknowledged_report_is_kept, every_line_is_in_the_log_once
from e2e.trials import WITNESS, Record, hyperparameters, witness_config
from support.cluster import wait_for

# As WITNESS, but its checkpoints take a while, and it says when it is at them.
SLOW_SAVER = WITNESS.replace(
    '(path / "step").write_text(str(step))',
    '(path / "step").write_text(str(step)); note("saving", step); time.sleep(hparams["saves"])',
)


def full(case: str) -> ParameterSet:
    return pytest.param(case, marks=pytest.mark.full)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with running_place(slots=1) as started:
        yield started


def submit(place: Place, code: str = WITNESS, **hparams: object) -> tuple[int, Record]:
    config = witness_config(place.side, hyperparameters=hyperparameters(**hparams), max_restarts=3)
    experiment_id = place.cluster.create(config, {"train.py": code})
    trial = wait_for(lambda: place.cluster.trials(experiment_id), "there is a trial")[0]
    return experiment_id, place.record(trial["id"])


def restart(place: Place, who: str) -> None:
    cluster = place.cluster
    if "master" in who:
        cluster.kill_master()
    if "agent" in who:
        cluster.kill_agent()
    if "master" in who:
        cluster.start_master()
    if "agent" in who:
        cluster.start_agent()


def assert_done(place: Place, experiment_id: int, record: Record, *, restarts: int = 0) -> None:
    assert place.cluster.wait_for_end(experiment_id) == "COMPLETED"
    (trial,) = place.cluster.trials(experiment_id)
    assert trial["restarts"] == restarts
    assert not record.notes("violation")
    record.assert_resumed_from_its_checkpoints()
    every_acknowledged_report_is_kept(place, record)
    every_line_is_in_the_log_once(place, record)


def test_queued(place: Place) -> None:
    first, holder = submit(place, steps=2000)
    wait_for(lambda: holder.last("acknowledged"), "the slot is taken")
    second, waiting = submit(place)
    restart(place, "master agent")
    assert place.cluster.experiment(second)["state"] == "STATE_QUEUED"
    place.cluster.post(f"/api/v1/experiments/{first}/kill")
    assert_done(place, second, waiting)
    assert waiting.runs == 1


@pytest.mark.parametrize("who", [full("master"), full("agent"), "master agent"])
def test_starting(place: Place, who: str) -> None:
    experiment_id, record = submit(place)
    cluster = place.cluster
    wait_for(lambda: cluster.experiment(experiment_id)["state"] != "STATE_QUEUED", "it has its slot")
    assert record.notes("pid") == []
    restart(place, who)
    assert_done(place, experiment_id, record)
    assert record.runs == 1


@pytest.mark.parametrize("who", [full("master agent"), "trial"])
def test_saving(place: Place, who: str) -> None:
    experiment_id, record = submit(place, SLOW_SAVER, steps=4, saves=0.7)
    wait_for(lambda: record.last("saving") == 4, "it saves its second checkpoint")
    if who == "trial":
        process = record.process
        assert process is not None
        process.kill()
        wait_for(lambda: len(record.notes("start")) == 2, "it runs again")
        assert record.last("start") == 2  # not from the half that was there
    else:
        restart(place, who)
    assert_done(place, experiment_id, record, restarts=int(who == "trial"))
    saved = place.cluster.get(f"/api/v1/trials/{record.trial_id}/checkpoints")["checkpoints"]
    kept = [one for one in saved if one["state"] == "STATE_COMPLETED"]
    assert 4 in [one["metadata"]["steps_completed"] for one in kept]
    storage = place.cluster.master_folder / "checkpoints"
    for one in kept:
        assert (storage / one["uuid"] / "step").is_file()
    assert not [path for path in storage.iterdir() if path.name.startswith(".incomplete")]


@pytest.mark.parametrize("verb", ["pause", full("cancel"), full("kill")])
def test_stopping(place: Place, verb: str) -> None:
    experiment_id, record = submit(place, SLOW_SAVER, steps=2000, saves=0.5)
    wait_for(lambda: record.last("acknowledged") >= 3, "it trains")
    path = f"/api/v1/experiments/{experiment_id}"
    place.cluster.post(f"{path}/{verb}")
    restart(place, "master agent")  # what was acknowledged is carried out by the next master
    wait_for(lambda: record.process is None, "the trial has left", 30)
    if verb == "pause":
        assert record.last("saved") == record.last("preempted") > 0
        place.cluster.post(f"{path}/activate")
        wait_for(lambda: len(record.notes("start")) == 2, "it goes on")
        assert record.last("start") == record.last("preempted")
        place.cluster.post(f"{path}/kill")
    assert place.cluster.wait_for_end(experiment_id) == "CANCELED"
    (trial,) = place.cluster.trials(experiment_id)
    assert trial["restarts"] == 0 and record.runs == (2 if verb == "pause" else 1)


def test_deleting(place: Place) -> None:
    experiment_id, record = submit(place)
    assert_done(place, experiment_id, record)
    cluster = place.cluster
    saved = cluster.get(f"/api/v1/trials/{record.trial_id}/checkpoints")["checkpoints"]
    path = f"/api/v1/experiments/{experiment_id}"
    assert cluster.request("DELETE", path).status_code == 200
    restart(place, "master")
    wait_for(lambda: cluster.request("GET", path).status_code == 404, "it is deleted")
    assert saved and not any((cluster.master_folder / "checkpoints" / one["uuid"]).exists() for one in saved)


def test_nothing_is_left_running(place: Place) -> None:
    """The last of this file."""
    wait_for(lambda: not place.cluster.task_processes(), "all tasks' processes have ended", 20)
