"""What every store keeps to: transactions, and each write with the reads that show it."""

from __future__ import annotations

import threading
from concurrent.futures import Future
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
    session,
    task,
    trial,
    user,
)
from detlab_master.core.states import CheckpointState, ExperimentState, TrialState
from detlab_master.store import records
from detlab_master.store.base import (
    ExperimentFilter,
    ExperimentTotals,
    HighestIds,
    LogFilter,
    Page,
    Store,
    StoreConflict,
    StoreUnavailable,
)
from detlab_master.store.writes import (
    AppendLogs,
    AppendSearcherEvent,
    ArchiveReports,
    DeleteExperiment,
    DeleteSession,
    DeleteSessionsOf,
    InsertReport,
    ReplaceReport,
    SaveAllocation,
    SaveCheckpoint,
    SaveExperiment,
    SaveSession,
    SaveTask,
    SaveTrial,
    SaveUser,
    SetProgress,
    Write,
)


def event(seq: int, experiment_id: int = 1) -> AppendSearcherEvent:
    return AppendSearcherEvent(records.SearcherEvent(experiment_id, seq, {"type": "created", "n": seq}))


# ---- what is there from the start --------------------------------------------------------------------------------


def test_a_new_store_is_empty_but_for_the_first_project(store: Store) -> None:
    workspace, project = store.projects.workspace(1), store.projects.project(1)
    assert workspace == records.Workspace(1, "Uncategorized", owner_id=1, immutable=True)
    assert project == records.Project(1, 1, "Uncategorized", owner_id=1, immutable=True)
    assert store.projects.find("Uncategorized", "Uncategorized") == project
    assert store.projects.find("Uncategorized", "other") is None
    assert store.projects.find("other", "Uncategorized") is None
    assert store.projects.workspace(2) is None
    assert store.projects.project(2) is None
    assert store.highest_ids() == HighestIds(0, 0, 0, 0)
    assert len(store.cluster_id()) == 36
    assert store.cluster_id() == store.cluster_id()
    assert store.experiments.find(ExperimentFilter(), Page()) == ([], 0)
    assert store.experiments.unfinished() == []
    assert store.trials.find(1, None, Page()) == ([], 0)
    assert store.trials.open_allocations() == []


# ---- transactions ------------------------------------------------------------------------------------------------


def test_a_failing_transaction_leaves_nothing_and_its_neighbours_whole(store: Store) -> None:
    commit(store, SaveExperiment(experiment()))
    commit(store, event(0))
    futures = [
        store.commit([event(1)]),
        store.commit([SaveTrial(trial(1)), event(2), event(0)]),
        store.commit([event(2), SaveTrial(trial(2))]),
        store.commit([SaveTrial(trial(3)), SaveTrial(trial(4, experiment_id=99))]),
        store.commit([SaveTrial(trial(5)), InsertReport(report(1, trial_id=5))]),
    ]
    failures = [future.exception(timeout=30) for future in futures]
    assert [type(failure) for failure in failures] == [
        type(None),
        StoreConflict,
        type(None),
        StoreConflict,
        type(None),
    ]
    assert [e.seq for e in store.experiments.searcher_events(1)] == [0, 1, 2]
    assert [found.id for found in store.trials.find(1, None, Page())[0]] == [2, 5]
    assert len(store.metrics.reports([5])) == 1


def test_transactions_take_effect_in_the_order_of_the_calls(store: Store) -> None:
    futures: list[Future[None]] = []
    for number in range(200):
        writes: list[Write] = [SaveExperiment(experiment(notes=str(number)))]
        if number % 50 == 49:
            writes.append(SaveTrial(trial(experiment_id=404)))  # fails: the batch is done again one by one
        futures.append(store.commit(writes))
    failed = [number for number, future in enumerate(futures) if future.exception(timeout=30)]
    assert failed == [49, 99, 149, 199]
    kept = store.experiments.get(1)
    assert kept is not None
    assert kept.notes == "198"


def test_the_last_of_several_saves_in_a_transaction_stays(store: Store) -> None:
    commit(store, *family())
    commit(
        store, SaveTrial(trial(total_batches=1)), SaveTrial(trial(total_batches=2)), InsertReport(report(1))
    )
    assert store.trials.get(1) == trial(total_batches=2)


def test_an_empty_transaction_is_done(store: Store) -> None:
    commit(store)


def test_a_transaction_cannot_be_cancelled_once_it_was_handed_over(store: Store) -> None:
    future = store.commit([SaveUser(user())])
    assert not future.cancel()
    future.result(timeout=30)
    assert store.users.get(1) == user()


def test_a_closed_store_finishes_what_it_was_given_and_takes_no_more(store: Store) -> None:
    futures = [store.commit([SaveUser(user(id))]) for id in range(50)]
    store.close()
    for future in futures:
        future.result(timeout=0)
    with pytest.raises(StoreUnavailable, match="closed"):
        store.commit([SaveUser(user(99))]).result(timeout=30)
    store.close()


def test_readers_see_whole_transactions_while_others_write(store: Store) -> None:
    """A trial's report and its total are one transaction: no reader finds the total ahead of the reports."""
    commit(store, *family(1), *family(2))
    failures: list[str] = []
    stop = threading.Event()

    def read(trial_id: int) -> None:
        seen = 0
        while not stop.is_set():
            found = store.trials.get(trial_id)
            reports = store.metrics.reports([trial_id])
            if found is None or not seen <= found.restarts <= len(reports):
                failures.append(f"restarts {found and found.restarts}, seen {seen}, {len(reports)} reports")
                return
            seen = found.restarts

    commit(store, *(SaveTrial(trial(id, id, restarts=0)) for id in (1, 2)))
    readers = [threading.Thread(target=read, args=(id,)) for id in (1, 2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(1, 101):
            futures = [
                store.commit(
                    [
                        InsertReport(report(number, trial_id=id)),
                        SaveTrial(trial(id, id, restarts=number)),
                    ]
                )
                for id in (1, 2)
            ]
            for future in futures:
                future.result(timeout=30)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert failures == []


# ---- users and sessions ------------------------------------------------------------------------------------------


def test_users(store: Store) -> None:
    commit(store, SaveUser(user(2)), SaveUser(user(1, password_hash=None, last_auth_at=None)))
    assert store.users.get(2) == user(2)
    assert store.users.by_name("user-1") == user(1, password_hash=None, last_auth_at=None)
    assert store.users.get(3) is None
    assert store.users.by_name("nobody") is None
    assert [found.id for found in store.users.all()] == [1, 2]
    renamed = user(2, username="Zoë", admin=False, active=False, remote=False)
    commit(store, SaveUser(renamed))
    assert store.users.by_name("Zoë") == renamed
    assert store.users.by_name("user-2") is None


def test_a_username_belongs_to_one_user(store: Store) -> None:
    commit(store, SaveUser(user(1)))
    with pytest.raises(StoreConflict):
        commit(store, SaveUser(user(2, username="user-1")))
    assert store.users.get(2) is None
    commit(store, SaveUser(user(1, username="free")), SaveUser(user(2, username="user-1")))
    taken = store.users.by_name("user-1")
    assert taken is not None
    assert taken.id == 2


def test_sessions(store: Store) -> None:
    login = session("login", kind="user", expires_at=None, allocation_id=None)
    commit(
        store,
        SaveUser(user()),
        SaveSession(login),
        SaveSession(session("a")),
        SaveSession(session("b", kind="task")),
        SaveSession(session("c", allocation_id="another")),
    )
    assert store.users.session("login") == login
    assert store.users.session("a") == session("a")
    assert store.users.session("none") is None
    commit(store, SaveSession(replace(login, expires_at=9.0)))
    assert store.users.session("login") == replace(login, expires_at=9.0)
    commit(store, DeleteSessionsOf("1.task.1"), DeleteSession("none"))
    assert [store.users.session(token) for token in ("a", "b")] == [None, None]
    assert store.users.session("c") is not None
    commit(store, DeleteSession("login"))
    assert store.users.session("login") is None


# ---- experiments -------------------------------------------------------------------------------------------------


def test_experiments_are_kept_in_every_field(store: Store) -> None:
    sparse = records.Experiment(
        id=2,
        job_id="job-2",
        owner_id=1,
        project_id=1,
        state=ExperimentState.PAUSED,
        config={},
        original_config="",
        context_sha256="",
        context_bytes=0,
        start_time=0.0,
    )
    commit(store, SaveExperiment(experiment()), SaveExperiment(sparse))
    assert store.experiments.get(1) == experiment()
    assert store.experiments.get(2) == sparse
    assert store.experiments.get(3) is None
    kept = store.experiments.get(1)
    assert kept is not None
    assert kept.state is ExperimentState.ACTIVE
    changed = experiment(name="new", labels=(), end_time=None, forked_from=None, archived=False)
    commit(store, SaveExperiment(changed))
    assert store.experiments.get(1) == changed


def test_an_experiment_lies_in_a_project_that_exists(store: Store) -> None:
    with pytest.raises(StoreConflict):
        commit(store, SaveExperiment(experiment(project_id=5)))


def test_progress_is_set_in_order_with_saves(store: Store) -> None:
    commit(store, SaveExperiment(experiment(progress=0.1)), SetProgress(1, 0.2), SetProgress(1, 0.3))
    assert store.experiments.get(1) == experiment(progress=0.3)
    commit(store, SetProgress(1, 0.4), SaveExperiment(experiment(progress=0.5)), SetProgress(77, 0.6))
    assert store.experiments.get(1) == experiment(progress=0.5)
    commit(store, SetProgress(1, 1.0))
    assert store.experiments.get(1) == experiment(progress=1.0)


def test_unfinished_experiments_are_those_that_are_not_terminal(store: Store) -> None:
    states = list(reversed(ExperimentState))
    commit(store, *(SaveExperiment(experiment(id, state=state)) for id, state in enumerate(states, start=1)))
    expected = [id for id, state in enumerate(states, start=1) if not state.terminal]
    assert [found.id for found in store.experiments.unfinished()] == expected
    assert len(expected) == 6


def test_totals(store: Store) -> None:
    commit(store, *family(1), *family(2), SaveTrial(trial(5)), SaveTrial(trial(3)))
    for number, state in enumerate(CheckpointState):
        commit(
            store, SaveCheckpoint(checkpoint(f"uuid-{number}", state=state, resources={"x": 10, "y": number}))
        )
    totals = store.experiments.totals([1, 2, 3])
    assert totals == {
        1: ExperimentTotals(1, 3, (1, 3, 5), 2, 10 + 1 + 10 + 4),
        2: ExperimentTotals(2, 1, (2,), 0, 0),
    }
    assert store.experiments.totals([]) == {}


def test_searcher_events_come_in_order_and_once(store: Store) -> None:
    commit(store, SaveExperiment(experiment(1)), SaveExperiment(experiment(2)))
    commit(store, event(0), event(1, experiment_id=2), event(0, experiment_id=2))
    commit(store, event(2), event(1))
    assert store.experiments.searcher_events(1) == [event(seq).event for seq in range(3)]
    assert [found.seq for found in store.experiments.searcher_events(2)] == [0, 1]
    with pytest.raises(StoreConflict):
        commit(store, event(1))
    with pytest.raises(StoreConflict):
        commit(store, event(3), event(3))
    with pytest.raises(StoreConflict):
        commit(store, event(0, experiment_id=3))
    assert len(store.experiments.searcher_events(1)) == 3


def test_deleting_an_experiment_takes_all_of_it_and_nothing_else(store: Store) -> None:
    for id in (1, 2):
        commit(
            store,
            *family(id),
            event(0, experiment_id=id),
            InsertReport(report(1, trial_id=id)),
            InsertReport(report(1, trial_id=id, group="validation", run_id=0)),
            SaveCheckpoint(checkpoint(f"uuid-{id}", experiment_id=id, trial_id=id)),
            AppendLogs((log(task_id=f"{id}.task-{id}", container_id=f"c{id}", offset=0),)),
            SaveSession(session(f"token-{id}", allocation_id=f"{id}.task-{id}.1")),
        )
    commit(store, SaveTrial(trial(9, experiment_id=2)))
    commit(store, DeleteExperiment(2), DeleteExperiment(77))

    assert store.experiments.get(2) is None
    assert store.experiments.searcher_events(2) == []
    assert store.trials.find(2, None, Page()) == ([], 0)
    assert store.trials.get(2) is None
    assert store.trials.task("2.task-2") is None
    assert store.trials.allocation("2.task-2.1") is None
    assert store.metrics.reports([2], include_archived=True) == []
    assert store.metrics.report(2, "training", 1) is None
    assert store.checkpoints.get("uuid-2") is None
    assert store.checkpoints.find(experiment_id=2) == []
    assert store.logs.find(LogFilter(["2.task-2"])) == []
    assert store.users.session("token-2") is None
    assert store.highest_ids() == HighestIds(experiment=2, trial=9, user=0, queue_order=1)

    assert store.experiments.get(1) == experiment(1)
    assert len(store.experiments.searcher_events(1)) == 1
    assert store.trials.get(1) == trial(1)
    assert store.trials.task("1.task-1") == task()
    assert [found.id for found in store.trials.open_allocations()] == ["1.task-1.1"]
    assert len(store.metrics.reports([1])) == 2
    assert store.checkpoints.get("uuid-1") is not None
    assert len(store.logs.find(LogFilter(["1.task-1"]))) == 1
    assert store.users.session("token-1") is not None


@pytest.mark.parametrize(
    "late",
    [
        SaveTrial(trial(2, 2)),
        SaveTask(task("2.late", experiment_id=2)),
        SaveAllocation(allocation("late", task_id="2.task-2")),
        InsertReport(report(5, trial_id=2)),
        ReplaceReport(report(5, trial_id=2)),
        SaveCheckpoint(checkpoint(experiment_id=2, trial_id=2)),
        event(9, experiment_id=2),
    ],
    ids=lambda write: type(write).__name__,
)
def test_nothing_is_written_to_a_deleted_experiment(store: Store, late: Write) -> None:
    commit(store, *family(1), *family(2))
    commit(store, DeleteExperiment(2))
    with pytest.raises(StoreConflict):
        commit(store, late)


def test_a_deletion_in_the_middle_of_a_transaction_keeps_its_place(store: Store) -> None:
    commit(store, *family(1))
    commit(
        store, SaveTrial(trial(2)), DeleteExperiment(1), SaveExperiment(experiment(1)), SaveTrial(trial(3))
    )
    assert [found.id for found in store.trials.find(1, None, Page())[0]] == [3]


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
    first = store.checkpoints.storage_id({"type": "shared_fs", "host_path": "/a"})
    second = store.checkpoints.storage_id({"type": "shared_fs", "host_path": "/b"})
    assert first != second
    assert store.checkpoints.storage_id({"host_path": "/a", "type": "shared_fs"}) == first
    numbers: list[int] = []
    threads = [
        threading.Thread(target=lambda: numbers.append(store.checkpoints.storage_id({"type": "s3"})))
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
