"""What every store keeps to: transactions, users, experiments and what goes with them when they are deleted."""

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
from detlab_master.core.states import CheckpointState, ExperimentState
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
    assert project == records.Project(1, 1, "Uncategorized", owner_id=1, key="UNCAT", immutable=True)
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
