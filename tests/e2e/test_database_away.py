"""The database goes away for a while: SQLite's file is locked by another process, PostgreSQL's server is stopped."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from determined.common.api.session import Session
from e2e.conftest import Place, running_place
from e2e.invariants import every_acknowledged_report_is_kept, every_line_is_in_the_log_once
from e2e.trials import WITNESS, hyperparameters, searcher, witness_config
from support.cluster import Cluster, wait_for
from support.postgres import PostgresServer

STEPS = 14


@dataclass
class Fickle:
    """A place whose database can be taken away."""

    place: Place
    away: Callable[[], object]
    back: Callable[[], object]

    @contextmanager
    def without_database(self) -> Iterator[None]:
        self.away()
        try:
            yield
        finally:
            self.back()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.full)])
def fickle(request: pytest.FixtureRequest) -> Iterator[Fickle]:
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        with running_place(slots=2, db_url=server.new_database()) as place:
            yield Fickle(place, server.stop, server.start)
        return
    with running_place(slots=2, db_url=f"{Cluster.db_url}?timeout=0.5") as place:
        file = place.cluster.master_folder / "master.db"
        other = sqlite3.connect(file, isolation_level=None, timeout=30)
        try:
            yield Fickle(place, lambda: other.execute("BEGIN IMMEDIATE"), lambda: other.execute("ROLLBACK"))
        finally:
            other.close()


@pytest.mark.parametrize("seconds", [4.0, pytest.param(30.0, marks=pytest.mark.full)])
def test_the_database_goes_away_and_comes_back(fickle: Fickle, seconds: float) -> None:
    place, cluster = fickle.place, fickle.place.cluster
    config = witness_config(
        place.side,
        searcher=searcher("random", max_trials=4, max_concurrent_trials=2),
        hyperparameters=hyperparameters(steps=STEPS, seconds=0.1),
    )
    first = cluster.create(config, {"train.py": WITNESS})
    wait_for(
        lambda: any(place.record(t["id"]).last("acknowledged") >= 3 for t in cluster.trials(first)),
        "they train",
    )
    path = f"/api/v1/experiments/{first}"
    with ThreadPoolExecutor() as clients, fickle.without_database():
        # What a person does by hand is refused; what the client does is tried again until it is done.
        began = time.monotonic()
        answer = cluster.request("PATCH", path, json={"notes": "by hand"})
        assert answer.status_code == 503, answer.text
        assert answer.headers["Retry-After"] == "1"
        assert "database" in answer.json()["error"]["error"]
        running = list(place.at_work())
        assert running
        time.sleep(max(0.0, seconds - 2.0 - (time.monotonic() - began)))
        with_client = Session(cluster.url, token=cluster.token())
        renamed = clients.submit(with_client.patch, path, {"name": "renamed"})
        time.sleep(2.0)
        assert all(record.process is not None for record in running), "a trial gave up"
    renamed.result(60)
    with_client.close()
    assert cluster.wait_for_end(first) == "COMPLETED"
    assert cluster.experiment(first)["name"] == "renamed"
    assert cluster.experiment(first)["notes"] == ""  # what was refused did not happen
    trials = cluster.trials(first)
    assert len(trials) == 4
    for trial in trials:
        record = place.record(trial["id"])
        assert trial["state"] == "STATE_COMPLETED" and trial["restarts"] == 0
        assert record.runs == 1 and record.last("saved") == STEPS
        every_acknowledged_report_is_kept(place, record)
        every_line_is_in_the_log_once(place, record)
    wait_for(lambda: not cluster.task_processes(), "all tasks have ended")
