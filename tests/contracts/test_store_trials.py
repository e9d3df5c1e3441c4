"""What every store keeps to: trials and all that belongs to them, and the ids in use."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from contracts.store_examples import (
    allocation,
    checkpoint,
    commit,
    experiment,
    family,
    log,
    report,
    task,
    trial,
    user,
)
from detlab_master.core.states import CheckpointState, TrialState
from detlab_master.store import records
from detlab_master.store.base import (
    HighestIds,
    LogFilter,
    Store,
    StoreConflict,
)
from detlab_master.store.writes import (
    AppendLogs,
    ArchiveReports,
    DeleteExperiment,
    InsertReport,
    ReplaceReport,
    SaveAllocation,
    SaveCheckpoint,
    SaveExperiment,
    SaveTask,
    SaveTrial,
    SaveUser,
)

# ---- trials, tasks, allocations ----------------------------------------------------------------------------------


def test_trials_are_kept_in_every_field(store: Store) -> None:
    sparse = records.Trial(
        id=2,
        experiment_id=1,
        request_id=0,
        task_id="1.x",
        state=TrialState.PAUSED,
        hparams={},
        seed=0,
        start_time=0.0,
    )
    commit(store, SaveExperiment(experiment()), SaveTrial(trial()), SaveTrial(sparse))
    assert store.trials.get(1) == trial()
    assert store.trials.get(2) == sparse
    assert store.trials.get(3) is None
    changed = trial(state=TrialState.COMPLETED, latest_validation=None, searcher_metric=None, run_id=3)
    commit(store, SaveTrial(changed))
    assert store.trials.get(1) == changed


def test_tasks(store: Store) -> None:
    notebook = task("notebook", experiment_id=None, trial_id=None, end_time=None)
    commit(store, SaveExperiment(experiment()), SaveTask(task()), SaveTask(notebook))
    assert store.trials.task("1.task-1") == task()
    assert store.trials.task("notebook") == notebook
    assert store.trials.task("none") is None
    commit(store, SaveTask(task(end_time=7.0)))
    assert store.trials.task("1.task-1") == task(end_time=7.0)


def test_allocations_are_kept_in_every_field_and_in_order(store: Store) -> None:
    commit(store, SaveExperiment(experiment()), SaveTask(task()), SaveTask(task("other")))
    runs = [
        allocation("run-10", run_id=10, queue_order=30, ended_at=9.0, containers=()),
        allocation("run-2", run_id=2, queue_order=20, started_at=None, exit_code=None, failure=None),
        allocation("elsewhere", task_id="other", queue_order=10),
    ]
    commit(store, *(SaveAllocation(one) for one in runs))
    assert store.trials.allocation("run-10") == runs[0]
    assert store.trials.allocation("run-2") == runs[1]
    assert store.trials.allocation("none") is None
    assert store.trials.allocations("1.task-1") == [runs[1], runs[0]]
    assert store.trials.allocations("none") == []
    assert store.trials.allocations_of(["none", "1.task-1"]) == [runs[1], runs[0]]
    assert store.trials.allocations_of([]) == []
    assert store.trials.open_allocations() == [runs[2], runs[1]]
    commit(store, SaveAllocation(replace(runs[2], ended_at=5.0)))
    assert store.trials.open_allocations() == [runs[1]]
    assert store.highest_ids().queue_order == 30


# ---- metrics -----------------------------------------------------------------------------------------------------


def test_reports_are_kept_in_every_field(store: Store) -> None:
    commit(store, *family())
    full = report(5, metrics={"loss": "NaN", "n": 1}, batch_metrics=({"a": 1.5}, {"b": [1]}), run_id=4)
    commit(store, InsertReport(full), InsertReport(report(5, group="validation")))
    kept = store.metrics.report(1, "training", 5)
    assert kept is not None
    assert kept == replace(full, id=kept.id)
    assert kept.id > 0
    other = store.metrics.report(1, "validation", 5)
    assert other is not None
    assert other == report(5, group="validation", id=other.id)
    assert store.metrics.report(1, "training", 6) is None
    assert store.metrics.report(2, "training", 5) is None


def test_a_point_has_one_report_that_counts(store: Store) -> None:
    commit(store, *family(), InsertReport(report(5)), InsertReport(report(6, archived=True)))
    with pytest.raises(StoreConflict):
        commit(store, InsertReport(report(5)))
    commit(store, InsertReport(report(6)), InsertReport(report(6, archived=True)))
    assert [found.steps_completed for found in store.metrics.reports([1])] == [5, 6]
    assert len(store.metrics.reports([1], include_archived=True)) == 4


def test_profiling_reports_have_no_steps_and_there_may_be_many(store: Store) -> None:
    first, second = report(0, "gpu"), report(0, "gpu", reported_at=11.5)
    commit(store, *family(), InsertReport(first), InsertReport(second))
    assert [r.reported_at for r in store.metrics.reports([1], "gpu")] == [10.5, 11.5]
    commit(store, ArchiveReports(1, 2, "gpu", 0))


def test_replacing_a_report_keeps_its_id(store: Store) -> None:
    commit(store, *family(), InsertReport(report(5, archived=True)), InsertReport(report(5)))
    before = store.metrics.report(1, "training", 5)
    assert before is not None
    merged = report(
        5, metrics={"loss": 1, "accuracy": 2}, batch_metrics=({"x": 1},), run_id=2, reported_at=99.0
    )
    commit(store, ReplaceReport(merged))
    assert store.metrics.report(1, "training", 5) == replace(merged, id=before.id)
    assert [found.metrics for found in store.metrics.reports([1], include_archived=True)] == [
        {"loss": 0.5, "name": "x"},
        {"loss": 1, "accuracy": 2},
    ]
    with pytest.raises(StoreConflict, match="no report"):
        commit(store, ReplaceReport(report(6)))


def test_a_report_inserted_in_the_same_transaction_can_be_replaced(store: Store) -> None:
    commit(store, *family(), InsertReport(report(5)), ReplaceReport(report(5, metrics={"new": 1})))
    kept = store.metrics.report(1, "training", 5)
    assert kept is not None
    assert kept.metrics == {"new": 1}


def test_archiving_reaches_from_that_step_in_its_group_and_beyond_it_in_others(store: Store) -> None:
    commit(store, *family(1), *family(2))
    for group in ("training", "validation"):
        for steps in (1, 2, 3):
            commit(store, InsertReport(report(steps, group, run_id=1)))
    commit(store, InsertReport(report(3, trial_id=2)), InsertReport(report(4, run_id=2)))
    commit(store, ArchiveReports(1, 2, "training", 2), InsertReport(report(2, run_id=2)))
    live = [(found.group, found.steps_completed, found.run_id) for found in store.metrics.reports([1])]
    assert live == [
        ("training", 1, 1),
        ("validation", 1, 1),
        ("validation", 2, 1),
        ("training", 2, 2),
        ("training", 4, 2),
    ]
    archived = [found for found in store.metrics.reports([1], include_archived=True) if found.archived]
    assert [(found.group, found.steps_completed) for found in archived] == [
        ("training", 2),
        ("training", 3),
        ("validation", 3),
    ]
    assert len(store.metrics.reports([2])) == 1


def test_archiving_reaches_what_came_earlier_in_its_transaction(store: Store) -> None:
    commit(store, *family())
    commit(
        store,
        InsertReport(report(5)),
        ArchiveReports(1, 2, "training", 5),
        InsertReport(report(5, run_id=2)),
    )
    assert [found.run_id for found in store.metrics.reports([1])] == [2]
    assert len(store.metrics.reports([1], include_archived=True)) == 2


def test_reports_can_be_read_page_by_page(store: Store) -> None:
    commit(store, *family(1), *family(2), *family(3))
    for steps in (3, 1, 2):
        for trial_id in (2, 1, 3):
            commit(
                store,
                InsertReport(report(steps, "validation", trial_id=trial_id)),
                InsertReport(report(steps, trial_id=trial_id, archived=steps == 3)),
            )
    everything = store.metrics.reports([1, 2], include_archived=True)
    places = [(found.trial_id, found.steps_completed, found.id) for found in everything]
    assert places == sorted(places)
    assert len(places) == 12
    paged: list[records.MetricReport] = []
    while True:
        after = (paged[-1].trial_id, paged[-1].steps_completed, paged[-1].id) if paged else None
        page = store.metrics.reports([1, 2], include_archived=True, after=after, limit=5)
        if not page:
            break
        paged += page
    assert paged == everything
    assert store.metrics.reports([1, 2]) == [found for found in everything if not found.archived]
    assert store.metrics.reports([2, 1], "training") == [
        found for found in everything if found.group == "training" and not found.archived
    ]
    assert store.metrics.reports([]) == []
    assert store.metrics.reports([1], limit=0) == []


# ---- checkpoints -------------------------------------------------------------------------------------------------


def test_checkpoints(store: Store) -> None:
    commit(store, *family(1), *family(2), SaveTrial(trial(3)))
    made = {
        "late": checkpoint("late", steps_completed=300, state=CheckpointState.ACTIVE),
        "b": checkpoint("b", steps_completed=200, reported_at=9.0),
        "a": checkpoint("a", steps_completed=200, reported_at=8.0, storage_id=None),
        "gone": checkpoint("gone", steps_completed=250, state=CheckpointState.DELETED),
        "third": checkpoint("third", trial_id=3, steps_completed=1),
        "second": checkpoint("second", trial_id=2, experiment_id=2),
    }
    commit(store, *(SaveCheckpoint(one) for one in made.values()))
    assert store.checkpoints.get("a") == made["a"]
    assert store.checkpoints.get("late") == made["late"]
    assert store.checkpoints.get("none") is None
    assert [one.uuid for one in store.checkpoints.find()] == ["a", "b", "gone", "late", "second", "third"]
    assert [one.uuid for one in store.checkpoints.find(trial_ids=[1, 7])] == [
        one.uuid for one in store.checkpoints.find(trial_id=1)
    ]
    assert store.checkpoints.find(trial_ids=[]) == []
    assert [one.uuid for one in store.checkpoints.find(experiment_id=1)] == [
        "a",
        "b",
        "gone",
        "late",
        "third",
    ]
    assert [one.uuid for one in store.checkpoints.find(trial_id=1)] == ["a", "b", "gone", "late"]
    assert store.checkpoints.find(trial_id=2, experiment_id=1) == []
    some = store.checkpoints.find(experiment_id=1, states=[CheckpointState.ACTIVE, CheckpointState.DELETED])
    assert [one.uuid for one in some] == ["gone", "late"]
    assert store.checkpoints.find(states=[]) == []
    assert store.checkpoints.latest(1) == made["b"]
    assert store.checkpoints.latest(99) is None
    commit(store, SaveCheckpoint(replace(made["late"], state=CheckpointState.COMPLETED)))
    latest = store.checkpoints.latest(1)
    assert latest is not None
    assert latest.uuid == "late"


def test_a_storage_configuration_has_one_number(store: Store) -> None:
    first = store.checkpoints.storage_id({"type": "shared_fs", "host_path": "/a"}, 1)
    second = store.checkpoints.storage_id({"type": "shared_fs", "host_path": "/b"}, 1)
    assert first != second
    assert store.checkpoints.storage_id({"host_path": "/a", "type": "shared_fs"}, 1) == first
    assert store.checkpoints.storage(second, 1) == {"type": "shared_fs", "host_path": "/b"}
    assert store.checkpoints.storage(99, 1) is None
    another = store.checkpoints.storage_id({"type": "shared_fs", "host_path": "/a"}, 2)
    assert another not in (first, second)
    assert store.checkpoints.storage(another, 1) is store.checkpoints.storage(first, 2) is None
    numbers: list[int] = []
    threads = [
        threading.Thread(target=lambda: numbers.append(store.checkpoints.storage_id({"type": "s3"}, 1)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(numbers) == 8
    assert len(set(numbers) | {first, second}) == 3


# ---- logs --------------------------------------------------------------------------------------------------------


def test_log_lines_are_kept_in_every_field_and_in_order_of_arrival(store: Store) -> None:
    sparse = records.LogLine(task_id="t", allocation_id="", timestamp=1.0, log="last, without an end")
    commit(store, AppendLogs((log("one\n", task_id="t", offset=4), log("two\n", task_id="u"))))
    commit(store, AppendLogs((log("three\n", task_id="t", timestamp=0.0), sparse)))
    found = store.logs.find(LogFilter(["t"]))
    assert [replace(line, id=0) for line in found] == [
        log("one\n", task_id="t", offset=4),
        log("three\n", task_id="t", timestamp=0.0),
        sparse,
    ]
    ids = [line.id for line in found]
    assert ids == sorted(set(ids))
    assert store.logs.find(LogFilter(["t"]), after_id=ids[0]) == found[1:]
    assert store.logs.find(LogFilter(["t"]), after_id=ids[-1]) == []
    assert store.logs.find(LogFilter(["t"]), limit=2) == found[:2]
    assert store.logs.find(LogFilter(["t"]), limit=2, descending=True) == found[:0:-1]
    assert [line.task_id for line in store.logs.find(LogFilter(["u", "t"]))] == ["t", "u", "t", "t"]
    assert store.logs.find(LogFilter([])) == []


def test_repeated_log_lines_are_dropped(store: Store) -> None:
    commit(store, AppendLogs((log("0", offset=0), log("10", offset=10))))
    commit(store, AppendLogs((log("10 again", offset=10), log("20", offset=20), log("20 again", offset=20))))
    commit(store, AppendLogs((log("0 of another", offset=0, container_id="other"), log("x"), log("x"))))
    assert [line.log for line in store.logs.find(LogFilter(["1.task-1"]))] == [
        "0",
        "10",
        "20",
        "0 of another",
        "x",
        "x",
    ]


def test_a_follower_misses_no_line_when_later_ones_were_deleted(store: Store) -> None:
    commit(store, *family(1), *family(2))
    commit(store, AppendLogs((log("first"), log("of the other", task_id="2.task-2"))))
    seen = store.logs.find(LogFilter(["1.task-1", "2.task-2"]))[-1].id
    commit(store, DeleteExperiment(2))
    commit(store, AppendLogs((log("second"),)))
    assert [line.log for line in store.logs.find(LogFilter(["1.task-1"]), after_id=seen)] == ["second"]


def test_a_line_with_any_characters_is_kept(store: Store) -> None:
    commit(store, AppendLogs((log("nul \0, half \ud83d, whole \U0001f600, café\n"),)))
    (line,) = store.logs.find(LogFilter(["1.task-1"]))
    assert line.log == "nul \ufffd, half \ufffd, whole \U0001f600, café\n"


# ---- ids ---------------------------------------------------------------------------------------------------------


def test_highest_ids(store: Store) -> None:
    commit(store, *family(4), *family(2), SaveUser(user(3)), SaveUser(user(1)))
    assert store.highest_ids() == HighestIds(experiment=4, trial=4, user=3, queue_order=4)
    for deleted in (4, 2):
        commit(store, DeleteExperiment(deleted))
        ids = store.highest_ids()
        assert (ids.experiment, ids.trial) == (4, 4)
    commit(store, SaveExperiment(experiment(5)), SaveTrial(trial(7, 5)))
    ids = store.highest_ids()
    assert (ids.experiment, ids.trial) == (5, 7)


def test_ids_that_no_database_holds_are_not_there(store: Store) -> None:
    assert store.experiments.get(1 << 70) is None
    assert store.trials.get(-(1 << 70)) is None
    assert store.users.by_name("half \ud83d") is None
