"""What a store says of logs whose time may be over, and how it removes them."""

from __future__ import annotations

from contracts.store_examples import commit, experiment, log, task, trial
from detlab_master.store.base import KeptLog, LogFields, LogFilter, Store
from detlab_master.store.writes import AppendLogs, DeleteLogs, SaveExperiment, SaveTask, SaveTrial


def test_logs_of_ended_tasks(store: Store) -> None:
    assert store.logs.of_ended_tasks() == []
    commit(
        store,
        SaveExperiment(experiment()),
        SaveTask(task("late", trial_id=1, end_time=20.0)),
        SaveTask(task("early", trial_id=2, end_time=10.0)),
        SaveTask(task("server", trial_id=None, experiment_id=None, end_time=15.0)),
        SaveTask(task("running", trial_id=3, end_time=None)),
        SaveTask(task("silent", trial_id=4, end_time=5.0)),
        SaveTrial(trial(1, log_retention_days=7)),
        SaveTrial(trial(2, log_retention_days=None)),
        AppendLogs(tuple(log(task_id=name) for name in ("late", "early", "server", "running", "gone"))),
    )
    assert store.logs.of_ended_tasks() == [
        KeptLog("early", 10.0, None),
        KeptLog("server", 15.0, None),
        KeptLog("late", 20.0, 7),
    ]


def test_lines_are_removed_from_the_first_on(store: Store) -> None:
    lines = [log(f"{n}\n", task_id="t", offset=n) for n in range(5)]
    commit(store, AppendLogs((*lines, log(task_id="u", container_id="other"))))
    ids = [line.id for line in store.logs.find(LogFilter(["t"]))]
    assert store.logs.first("t", 2) == (2, ids[1])
    assert store.logs.first("t", 9) == (5, ids[4])
    commit(store, DeleteLogs("t", ids[1]))
    assert [line.log for line in store.logs.find(LogFilter(["t"]))] == ["2\n", "3\n", "4\n"]
    commit(store, DeleteLogs("t", ids[4]), DeleteLogs("t", ids[4]), DeleteLogs("nobody", 99))
    assert store.logs.first("t", 9) == (0, 0)
    assert len(store.logs.find(LogFilter(["u"]))) == 1


def test_lines_removed_in_the_transaction_that_brought_them(store: Store) -> None:
    commit(store, AppendLogs((log("a", task_id="t"),)))
    _, last = store.logs.first("t", 1)
    commit(store, AppendLogs((log("b", task_id="t"),)), DeleteLogs("t", last))
    assert [line.log for line in store.logs.find(LogFilter(["t"]))] == ["b"]


def test_how_far_the_lines_of_containers_are_kept(store: Store) -> None:
    lines = [log(task_id="t", container_id="one", offset=offset) for offset in (1, 2, 7, 10)]
    more = [log(task_id="t", container_id="two", offset=3), log(task_id="t", container_id="", offset=None)]
    commit(store, AppendLogs((*lines, *more)))
    assert store.logs.last_offsets(["one", "two", "three"]) == {"one": 10, "two": 3}
    assert store.logs.last_offsets(["two"]) == {"two": 3}
    assert store.logs.last_offsets([]) == {}


def test_where_lines_come_from(store: Store) -> None:
    commit(
        store,
        AppendLogs(
            (log(task_id="t"), log("again", task_id="t"), log(task_id="t", rank_id=None), log(task_id="u"))
        ),
    )
    found = store.logs.fields("t")
    assert len(found) == 2
    assert set(found) == {
        LogFields("1.task-1.1", "agent-1", "container-1", rank, "agent", "stderr") for rank in (3, None)
    }
    assert store.logs.fields("nobody") == []
