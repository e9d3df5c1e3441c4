"""The store on a SQLite file: durability, locks, full disks, group commit."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from contracts.store_examples import (
    checkpoint,
    commit,
    experiment,
    family,
    log,
    report,
    session,
    trial,
    user,
)
from detlab_master.store.base import ExperimentFilter, LogFilter, Page, StoreConflict, StoreUnavailable
from detlab_master.store.sql import SqlStore, open_store
from detlab_master.store.writer import Writer
from detlab_master.store.writes import (
    AppendLogs,
    ArchiveReports,
    InsertReport,
    SaveCheckpoint,
    SaveExperiment,
    SaveSession,
    SaveTrial,
    SaveUser,
    Write,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "detlab.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqlStore]:
    opened = open_store(f"sqlite:///{path}?timeout=0.05")
    yield opened
    opened.close()


def test_a_file_that_is_opened_again_gives_the_same_answers(path: Path) -> None:
    def answers(store: SqlStore) -> list[object]:
        return [
            store.users.all(),
            store.users.session("hash"),
            store.experiments.find(ExperimentFilter(), Page()),
            store.experiments.totals([1, 2]),
            store.trials.find(1, None, Page()),
            store.trials.open_allocations(),
            store.metrics.reports([1, 2], include_archived=True),
            store.checkpoints.find(),
            store.checkpoints.storage_id({"type": "shared_fs"}, 1),
            store.logs.find(LogFilter(["1.task-1"])),
            store.highest_ids(),
            store.cluster_id(),
        ]

    first = open_store(f"sqlite:///{path}")
    commit(first, SaveUser(user()), SaveSession(session()), *family(1), *family(2))
    commit(first, *(InsertReport(report(steps)) for steps in range(5)), ArchiveReports(1, 2, "training", 3))
    commit(first, SaveCheckpoint(checkpoint()), AppendLogs((log("a"), log("b"))))
    before = answers(first)
    first.close()
    again = open_store(f"sqlite:///{path}")
    assert answers(again) == before
    again.close()


def test_what_was_acknowledged_survives_kill_9(path: Path) -> None:
    """Each line of the child's output is a transaction whose future was done."""
    child = """
        import sys
        from collections import deque
        from contracts.store_examples import commit, family, report, trial
        from detlab_master.store.sql import open_store
        from detlab_master.store.writes import InsertReport, SaveTrial

        store = open_store(sys.argv[1])
        commit(store, *family())
        waiting = deque()
        for number in range(10**9):
            writes = [InsertReport(report(number)), SaveTrial(trial(total_batches=number))]
            waiting.append((number, store.commit(writes)))
            if len(waiting) > 20:
                first, future = waiting.popleft()
                future.result()
                print(first, flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(child), f"sqlite:///{path}"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    with process, process.stdout as lines:
        acknowledged = [next(lines) for _ in range(500)]
        process.send_signal(signal.SIGKILL)
        acknowledged += [line for line in lines if line.endswith("\n")]
    assert [int(line) for line in acknowledged] == list(range(len(acknowledged)))

    store = open_store(f"sqlite:///{path}")
    kept = [found.steps_completed for found in store.metrics.reports([1])]
    assert len(kept) >= len(acknowledged)
    assert kept == list(range(len(kept)))
    found = store.trials.get(1)
    assert found is not None
    assert found.total_batches == kept[-1]  # a transaction is there whole, or not at all
    store.close()


def test_commits_reach_the_disk(store: SqlStore, path: Path) -> None:
    with store._writing.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


def test_transactions_that_wait_together_share_a_commit(path: Path) -> None:
    """The database is held by somebody else while they are handed in; then all go at once, but for the first."""
    open_store(f"sqlite:///{path}").close()
    engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": 30, "check_same_thread": False})
    commits: list[object] = []
    sa.event.listen(engine, "commit", commits.append)
    writer = Writer(engine)
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")
    futures = [writer.commit([SaveExperiment(experiment(id))]) for id in range(1, 301)]
    other.rollback()
    other.close()
    for future in futures:
        future.result(timeout=30)
    assert 1 <= len(commits) <= 2
    writer.close()
    engine.dispose()


def test_a_conflict_in_a_batch_costs_only_its_own_transaction(path: Path) -> None:
    open_store(f"sqlite:///{path}").close()
    store = open_store(f"sqlite:///{path}?timeout=30")
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")
    futures = [
        store.commit([SaveExperiment(experiment(id)), SaveTrial(trial(id, 999 if id % 10 == 0 else id))])
        for id in range(1, 101)
    ]
    other.rollback()
    other.close()
    failed = [id for id, future in enumerate(futures, start=1) if future.exception(timeout=30)]
    assert failed == list(range(10, 101, 10))
    assert all(isinstance(futures[id - 1].exception(), StoreConflict) for id in failed)
    kept, _ = store.experiments.find(ExperimentFilter(), Page())
    assert [one.id for one in kept] == [id for id in range(1, 101) if id % 10]
    store.close()


def test_a_locked_database_is_unavailable_and_comes_back(store: SqlStore, path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(StoreUnavailable, match="locked"):
            commit(store, SaveUser(user()))
        assert store.users.all() == []  # readers are not held up
    finally:
        other.rollback()
        other.close()
    commit(store, SaveUser(user()))
    assert store.users.get(1) == user()


def test_a_full_disk_is_unavailable_and_keeps_what_was_acknowledged(path: Path) -> None:
    store = open_store(f"sqlite:///{path}")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    kept: list[int] = []
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))  # no file may grow beyond 1 MiB
    try:
        with pytest.raises(StoreUnavailable):
            for id in range(1, 200):
                commit(store, SaveExperiment(experiment(id, notes="x" * 50_000)))
                kept.append(id)
        with pytest.raises(StoreUnavailable):
            commit(store, SaveExperiment(experiment(1000, notes="x" * 1_500_000)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert kept
    assert [one.id for one in store.experiments.find(ExperimentFilter(), Page())[0]] == kept
    commit(store, SaveExperiment(experiment(1000, notes="x" * 1_500_000)))
    store.close()
    again = open_store(f"sqlite:///{path}")
    assert [one.id for one in again.experiments.find(ExperimentFilter(), Page())[0]] == [*kept, 1000]
    again.close()


def test_a_value_that_cannot_be_stored_costs_only_its_own_transaction(store: SqlStore) -> None:
    bad: list[Write] = [
        InsertReport(report(1, metrics={"loss": float("nan")})),
        InsertReport(report(1 << 70)),
        InsertReport(report(2, metrics={"loss": object()})),
        SaveUser(user(username="half \ud83d")),
    ]
    commit(store, *family())
    futures = [store.commit([one]) for one in bad]
    good = store.commit([InsertReport(report(1))])
    for future in futures:
        with pytest.raises(StoreConflict, match=r"cannot be stored|cannot carry this out"):
            future.result(timeout=30)
    good.result(timeout=30)
    assert len(store.metrics.reports([1])) == 1


def test_many_threads_may_read_at_once(store: SqlStore) -> None:
    commit(store, *family())
    together = threading.Barrier(32)
    found: list[object] = []

    def read() -> None:
        together.wait(timeout=30)
        found.extend(store.trials.get(1) for _ in range(20))

    threads = [threading.Thread(target=read) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [trial()] * 640


def test_the_file_is_its_owners_alone(store: SqlStore, path: Path) -> None:
    commit(store, SaveUser(user()))
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mysql://localhost/x", "begins with 'mysql'"),
        ("postgresql+psycopg://localhost/x", r"begins with 'postgresql\+psycopg'"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("detlab.db", "cannot be read"),
    ],
)
def test_a_bad_url_is_refused_with_what_is_allowed(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=rf"{problem}.*sqlite:////path/to/file or postgresql\+psycopg2://"):
        open_store(url)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnavailable, match=f"cannot open the database file {tmp_path}/file/detlab.db"):
        open_store(f"sqlite:///{tmp_path}/file/detlab.db")
    with pytest.raises(StoreUnavailable, match=f"cannot open sqlite:///{tmp_path}/file: .*not a database"):
        open_store(f"sqlite:///{tmp_path}/file")
