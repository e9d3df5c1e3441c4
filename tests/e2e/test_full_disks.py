"""The disk of the master, of an agent, or of the checkpoints is full, and later has room again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.conftest import Place, running_place
from e2e.invariants import every_acknowledged_report_is_kept, every_line_is_in_the_log_once
from e2e.trials import WITNESS, hyperparameters, script_config, witness_config
from support.cluster import free_port, wait_for
from support.disks import fill, small_disk

HUGE = """
import os
from determined import core
with core.init() as context:
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "small").write_text("fits")
        with open(path / "weights", "wb") as file:
            for _ in range(64):
                file.write(os.urandom(1 << 20))
"""


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """With the disks that the test names."""
    with running_place(slots=2, disks=request.param) as started:
        yield started


@pytest.mark.parametrize("place", [{"master": 24}], indirect=True, ids=["master"])
def test_the_masters_disk_is_full(place: Place) -> None:
    cluster = place.cluster
    config = witness_config(place.side, hyperparameters=hyperparameters(steps=14, seconds=0.2))
    (place.side / "checkpoints").mkdir(mode=0o777)
    (place.side / "checkpoints").chmod(0o777)
    config["checkpoint_storage"] = {"type": "shared_fs", "host_path": str(place.side / "checkpoints")}
    experiment_id = cluster.create(config, {"train.py": WITNESS})
    trial = wait_for(lambda: cluster.trials(experiment_id), "there is a trial")[0]
    record = place.record(trial["id"])
    wait_for(lambda: record.last("acknowledged") >= 2, "the trial trains")

    filler = fill(cluster.master_folder)
    path = f"/api/v1/experiments/{experiment_id}"
    notes = ""

    def refused() -> bool:
        """One more note is refused, for want of room; those before it were kept."""
        nonlocal notes
        longer = notes + 2_000 * "x"
        answer = cluster.request("PATCH", path, json={"notes": longer})
        if answer.status_code == 200:
            notes = longer
            return False
        assert answer.status_code == 503, answer.text
        assert answer.headers["Retry-After"] == "1"
        assert "the disk of the master's database is full" in answer.json()["error"]["error"], answer.text
        return True

    wait_for(refused, "the database has no room")
    assert cluster.experiment(experiment_id)["notes"] == notes  # reading goes on, of what was acknowledged
    large = {
        "config": json.dumps(script_config(place.side)),
        "modelDefinition": [{"path": "x", "content": 3_000_000 * "A", "type": 48, "mode": 0o644}],
    }
    answer = cluster.request("POST", "/api/v1/experiments", json=large)
    assert answer.status_code == 503 and "disk of the master's data folder is full" in answer.text
    assert len(cluster.get("/api/v1/experiments")["experiments"]) == 1  # nothing half-applied

    filler.unlink()
    wait_for(lambda: not refused(), "there is room again")
    assert cluster.wait_for_end(experiment_id) == "COMPLETED"
    assert cluster.trials(experiment_id)[0]["restarts"] == 0 and record.runs == 1
    assert not list((cluster.master_folder / "contexts").glob(".incoming*"))
    every_acknowledged_report_is_kept(place, record)
    every_line_is_in_the_log_once(place, record)


def test_a_master_does_not_start_on_a_full_disk(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with small_disk(data, 1):
        fill(data)
        command = [sys.executable, "-m", "detlab_master", "--data-dir", str(data), "--port", str(free_port())]
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert str(data) in ended.stderr and "No space left on device" in ended.stderr, ended.stderr


@pytest.mark.parametrize("place", [{"agent": 8}], indirect=True, ids=["agent"])
def test_the_agents_disk_is_full(place: Place) -> None:
    cluster = place.cluster
    config = witness_config(place.side, hyperparameters=hyperparameters(steps=14, seconds=0.1))
    going = cluster.create(config, {"train.py": WITNESS})
    trial = wait_for(lambda: cluster.trials(going), "there is a trial")[0]
    record = place.record(trial["id"])
    wait_for(lambda: record.last("acknowledged") >= 2, "the trial trains")

    filler = fill(cluster.folder / "agent")
    failing = cluster.create(script_config(place.side, max_restarts=1), {"train.py": "print('never')"})
    assert cluster.wait_for_end(failing) == "ERROR"  # it cannot start, and says why
    log = cluster.logs(cluster.trials(failing)[0]["id"])
    assert "the task cannot be started on this agent" in log and "No space left on device" in log, log
    # What runs trains on to its end, which the agent can only tell once there is room.
    wait_for(
        lambda: record.last("saved") == 14 and record.process is None, "the trial has trained to its end"
    )
    filler.unlink()
    assert cluster.wait_for_end(going) == "COMPLETED"
    assert cluster.trials(going)[0]["restarts"] == 0 and record.runs == 1
    every_acknowledged_report_is_kept(place, record)


@pytest.mark.parametrize("place", [{"storage": 8}], indirect=True, ids=["storage"])
def test_the_storage_of_checkpoints_is_full(place: Place) -> None:
    cluster = place.cluster
    storage = cluster.folder / "storage"
    storage.chmod(0o1777)
    config = script_config(place.side, checkpoint_storage={"type": "shared_fs", "host_path": str(storage)})
    experiment_id = cluster.create(config, {"train.py": HUGE})
    assert cluster.wait_for_end(experiment_id) == "ERROR"
    (trial,) = cluster.trials(experiment_id)
    log = cluster.logs(trial["id"])
    assert f"the disk of {storage} is full; free some space there" in log, log
    assert cluster.get(f"/api/v1/trials/{trial['id']}/checkpoints")["checkpoints"] == []
    assert [path for path in storage.iterdir() if path.is_dir()] == []  # and half of one is not left behind
