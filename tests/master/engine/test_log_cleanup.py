"""The cleanup of logs over a store, the times of its schedule, and the master's own log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from contracts.store_examples import commit, experiment, log, task, trial
from detlab_master.app import wire
from detlab_master.config import MasterConfig
from detlab_master.engine import clock, schedules
from detlab_master.engine.log_retention import LogRetention
from detlab_master.engine.master_logs import MasterLogs, without_secrets
from detlab_master.engine.schedules import Schedule
from detlab_master.store.base import LogFilter, Store
from detlab_master.store.sql import open_store
from detlab_master.store.writes import AppendLogs, SaveExperiment, SaveTask, SaveTrial
from support.cluster import wait_for

DAY = 86400.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path}/master.db")
    yield opened
    opened.close()


def keep(
    store: Store, name: str, number: int, *, days: int | None, ended_days_ago: float, lines: int
) -> None:
    end = clock.now() - ended_days_ago * DAY
    made = tuple(log(f"{n}\n", task_id=name, container_id=name, offset=n) for n in range(lines))
    commit(
        store,
        SaveExperiment(experiment()),
        SaveTask(task(name, trial_id=number, end_time=end)),
        SaveTrial(trial(number, log_retention_days=days)),
        AppendLogs(made),
    )


def left(store: Store, *names: str) -> list[int]:
    return [len(store.logs.find(LogFilter([name]))) for name in names]


async def cleaner_of(store: Store, folder: Path, days: int | None, schedule: Schedule) -> LogRetention:
    services = await wire(MasterConfig(data_dir=folder), store, folder)
    return LogRetention(store, services.at_work, days, schedule)


async def test_what_is_due_goes_in_batches_and_nothing_else(store: Store, tmp_path: Path) -> None:
    keep(store, "old", 1, days=None, ended_days_ago=8, lines=5001)
    keep(store, "young", 2, days=None, ended_days_ago=6, lines=3)
    keep(store, "own", 3, days=1, ended_days_ago=2, lines=4)
    keep(store, "kept", 4, days=-1, ended_days_ago=999, lines=5)
    cleaner = await cleaner_of(store, tmp_path, 7, schedules.every(3600))
    assert await cleaner.clean() == 5005
    assert left(store, "old", "young", "own", "kept") == [0, 3, 0, 5]
    assert await cleaner.clean() == 0


async def test_without_a_setting_all_logs_stay(store: Store, tmp_path: Path) -> None:
    keep(store, "old", 1, days=None, ended_days_ago=999, lines=1)
    cleaner = await cleaner_of(store, tmp_path, None, schedules.every(3600))
    assert await cleaner.clean() == 0


def soon(now: float) -> float:
    return now + 0.01


async def test_it_cleans_up_by_its_schedule(store: Store, tmp_path: Path) -> None:
    keep(store, "old", 1, days=0, ended_days_ago=1, lines=10)
    cleaner = await cleaner_of(store, tmp_path, None, soon)
    cleaner.start()
    await asyncio.to_thread(wait_for, lambda: left(store, "old") == [0], "the lines are gone", 20)
    await cleaner.close()


def test_a_duration_comes_at_its_multiples() -> None:
    assert schedules.every(3600)(7200.0) == 10800.0
    assert schedules.every(3600)(7201.0) == 10800.0


def test_cron_comes_at_its_times() -> None:
    noon = datetime(2026, 3, 1, 12, 0).astimezone().timestamp()
    at = datetime(2026, 3, 2, 3, 30).astimezone().timestamp()
    assert schedules.cron("30 3 * * *")(noon) == at


@pytest.mark.parametrize("wrong", ["* * * *", "61 * * * *", "a b c d e", "0 0 31 2 *"])
def test_what_is_no_cron_expression(wrong: str) -> None:
    with pytest.raises(ValueError, match="is no cron expression"):
        schedules.cron(wrong)


def test_the_masters_log_keeps_the_newest_entries() -> None:
    kept = MasterLogs(kept=3)
    log_of = logging.Logger("part")  # noqa: LOG001 - of no other test
    log_of.addHandler(kept)
    for number in range(5):
        log_of.warning("number %d", number)
    assert [(entry.id, entry.message) for entry in kept.after(0)] == [
        (3, "part: number 2"),
        (4, "part: number 3"),
        (5, "part: number 4"),
    ]
    assert [entry.id for entry in kept.after(3, 1)] == [4]
    assert kept.after(5) == []
    assert kept.count == 5
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        log_of.exception("it failed")
    assert "RuntimeError: broken" in kept.after(5)[0].message


@pytest.mark.parametrize(
    "text",
    [
        "cannot reach postgresql://detlab:s3cr3t@db/detlab",
        "header Authorization: Bearer s3cr3t",
        "body {'password': 's3cr3t', 'user': 'a'}",
        "GET /x?token=s3cr3t&y=1",
    ],
)
def test_no_secret_gets_into_it(text: str) -> None:
    shown = without_secrets(text)
    assert "s3cr3t" not in shown
    assert "***" in shown
