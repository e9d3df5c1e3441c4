"""The wall clock of master and agent jumps by hours, forth and back, while trials run and wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.conftest import Place, running_place
from e2e.invariants import every_acknowledged_report_is_kept, every_line_is_in_the_log_once
from e2e.trials import WITNESS, hyperparameters, witness_config
from support.cluster import wait_for


@dataclass
class Clock:
    """What the master and the agent of a place take for the time of day; monotonic clocks go on as they do."""

    place: Place
    file: Path

    def jump(self, hours: int) -> None:
        """So far from the true time."""
        ready = self.file.with_suffix(".new")
        ready.write_text(f"{hours:+d}h\n")
        ready.replace(self.file)


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[Clock]:
    library = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    if library is None:
        pytest.skip("no library to put a process's clock forward and back: apt-get install libfaketime")
    file = tmp_path / "clock"
    file.write_text("+0h\n")
    variables = {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",  # the name in older versions
    }
    with running_place(slots=1, variables=variables) as place:
        yield Clock(place, file)


@pytest.mark.parametrize(
    "seconds", [1.0, pytest.param(25.0, marks=pytest.mark.full)], ids="stays{:g}s".format
)
def test_the_clock_jumps(clock: Clock, seconds: float) -> None:
    place, cluster = clock.place, clock.place.cluster

    def submit(steps: int) -> int:
        config = witness_config(place.side, hyperparameters=hyperparameters(steps=steps, seconds=0.1))
        return cluster.create(config, {"train.py": WITNESS})

    def trains_on() -> None:
        seen = record.last("acknowledged")
        wait_for(lambda: record.last("acknowledged") > seen, "the trial trains on", 10)
        time.sleep(seconds)  # a heartbeat or a long poll may take notice

    first = submit(steps=2000)
    trial = wait_for(lambda: cluster.trials(first), "there is a trial")[0]
    record = place.record(trial["id"])
    wait_for(lambda: record.last("acknowledged") >= 2, "the trial trains")
    second = submit(steps=4)  # waits for the slot
    clock.jump(+6)
    trains_on()
    clock.jump(-6)
    trains_on()
    third = submit(steps=4)  # by the clock twelve hours before the second, which goes first all the same
    assert cluster.experiment(third)["startTime"] < cluster.experiment(second)["startTime"]
    assert cluster.get(f"/api/v1/trials/{trial['id']}")["trial"]["wallClockTime"] >= 0
    assert cluster.get("/api/v1/me")["user"]["username"] == "determined"  # the login is still good

    asked = time.monotonic()
    cluster.post(f"/api/v1/experiments/{first}/pause")
    wait_for(
        lambda: record.notes("preempted") and record.process is None, "the long poll has told the trial", 20
    )
    assert time.monotonic() - asked < 20
    assert cluster.wait_for_end(second) == "COMPLETED"
    assert cluster.wait_for_end(third) == "COMPLETED"
    ids = [cluster.trials(i)[0]["id"] for i in (second, third)]
    pids = [(place.side / f"{i}.pid").stat().st_mtime for i in ids]  # in the true time
    assert pids == sorted(pids), "the third went before the second"

    cluster.kill_master()  # its successor starts at another time
    clock.jump(0)
    cluster.start_master()
    cluster.post(f"/api/v1/experiments/{first}/activate")
    left = record.last("preempted")
    wait_for(lambda: record.last("acknowledged") > left, "the first trains on from its checkpoint")
    cluster.post(f"/api/v1/experiments/{first}/cancel")
    assert cluster.wait_for_end(first) == "CANCELED"
    assert cluster.trials(first)[0]["restarts"] == 0 and record.runs == 2
    assert cluster.said("detlab_master").count("lost its connection") == 0
    every_acknowledged_report_is_kept(place, record)
    every_line_is_in_the_log_once(place, record)
