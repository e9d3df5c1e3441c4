"""What every store does for the collection of checkpoints and the deletion of trials."""

from __future__ import annotations

import pytest

from contracts.store_examples import (
    checkpoint,
    commit,
    experiment,
    family,
    log,
    model,
    model_version,
    report,
    session,
    task,
    trial,
)
from detlab_master.core.states import TrialState
from detlab_master.store.base import LogFilter, Page, Store, StoreConflict
from detlab_master.store.writes import (
    AppendLogs,
    CollectionDone,
    DeleteTrial,
    InsertReport,
    SaveCheckpoint,
    SaveExperiment,
    SaveModel,
    SaveModelVersion,
    SaveSession,
    SaveTask,
    SaveTrial,
)


def test_a_collection_is_due_until_just_that_one_is_done(store: Store) -> None:
    for id, due in ((1, 7.25), (2, None), (3, 5.0)):
        commit(store, SaveExperiment(experiment(id, gc_due=due)))
    assert store.experiments.collections_due() == [3, 1]
    commit(store, CollectionDone(1, 7.0), CollectionDone(2, 7.0), CollectionDone(77, 7.25))
    assert store.experiments.collections_due() == [3, 1]
    commit(store, CollectionDone(1, 7.25))
    assert store.experiments.collections_due() == [3]
    assert store.experiments.get(1) == experiment(1, gc_due=None)
    commit(store, SaveExperiment(experiment(3, gc_due=9.0)), CollectionDone(3, 9.0))
    assert store.experiments.collections_due() == []


def test_contexts(store: Store) -> None:
    assert store.experiments.contexts() == set()
    for id, sha256 in ((1, "aa"), (2, "bb"), (3, "aa"), (4, "")):
        commit(store, SaveExperiment(experiment(id, context_sha256=sha256)))
    assert store.experiments.contexts() == {"aa", "bb", ""}


def test_warm_starts_are_those_of_other_trials(store: Store) -> None:
    commit(store, *family(1), *family(2))
    for uuid in ("own", "sibling", "other", "unused"):
        commit(store, SaveCheckpoint(checkpoint(uuid)))
    commit(store, SaveCheckpoint(checkpoint("elsewhere", experiment_id=2, trial_id=2)))
    commit(
        store,
        SaveTrial(trial(1, warm_start_checkpoint="own")),
        SaveTrial(trial(5, warm_start_checkpoint="sibling")),
        SaveTrial(trial(6, warm_start_checkpoint="elsewhere")),
        SaveTrial(trial(2, 2, warm_start_checkpoint="other")),
        SaveTrial(trial(7, 2, warm_start_checkpoint="other")),
        SaveTrial(trial(8, 2, warm_start_checkpoint="nowhere")),
    )
    assert store.checkpoints.warm_starts(1) == {"sibling", "other"}
    assert store.checkpoints.warm_starts(2) == {"elsewhere"}
    assert store.checkpoints.warm_starts(3) == set()


def test_who_starts_from_a_checkpoint(store: Store) -> None:
    commit(store, *family(1), *family(2))
    commit(store, SaveCheckpoint(checkpoint("source")), SaveCheckpoint(checkpoint("unused")))
    running = [
        trial(5, 2, state=TrialState.ACTIVE, warm_start_checkpoint="source"),
        trial(6, 2, state=TrialState.STOPPING_CANCELED, warm_start_checkpoint="source"),
        trial(8, 2, state=TrialState.PAUSED, warm_start_checkpoint="nowhere"),
    ]
    ended = trial(7, 2, state=TrialState.COMPLETED, warm_start_checkpoint="source")
    commit(store, *(SaveTrial(one) for one in (*running, ended)))
    find = store.checkpoints.starting_from
    assert [one.id for one in find(checkpoint_uuids=["unused", "source"])] == [5, 6]
    assert [one.id for one in find(checkpoint_uuids=["nowhere"])] == [8]
    assert find(checkpoint_uuids=["unused"]) == find(checkpoint_uuids=[]) == []
    assert [one.id for one in find(experiment_id=1)] == [5, 6]
    assert find(experiment_id=2) == []


def test_deleting_a_trial_takes_all_of_it_and_nothing_else(store: Store) -> None:
    commit(store, *family(1), SaveTrial(trial(2)), SaveTask(task("1.task-2", trial_id=2)))
    for id in (1, 2):
        commit(
            store,
            InsertReport(report(1, trial_id=id)),
            SaveCheckpoint(checkpoint(f"uuid-{id}", trial_id=id)),
            AppendLogs((log(task_id=f"1.task-{id}", container_id=f"c{id}", offset=0),)),
        )
    commit(store, SaveSession(session("token", allocation_id="1.task-1.1")))
    before = store.experiments.get(1)
    commit(store, DeleteTrial(1), DeleteTrial(77))
    assert [one.id for one in store.trials.find(1, None, Page())[0]] == [2]
    assert store.trials.task("1.task-1") is None
    assert store.trials.allocation("1.task-1.1") is None
    assert store.trials.open_allocations() == []
    assert store.metrics.reports([1], include_archived=True) == []
    assert [one.uuid for one in store.checkpoints.find(experiment_id=1)] == ["uuid-2"]
    assert store.logs.find(LogFilter(["1.task-1"])) == []
    assert store.users.session("token") is None
    assert store.experiments.get(1) == before
    assert store.trials.task("1.task-2") is not None
    assert len(store.metrics.reports([2])) == len(store.logs.find(LogFilter(["1.task-2"]))) == 1
    commit(store, DeleteTrial(2))
    assert store.highest_ids().trial == 2  # ids are not used again


def test_a_trial_with_a_registered_checkpoint_cannot_be_deleted(store: Store) -> None:
    commit(store, *family(1), SaveCheckpoint(checkpoint("uuid-1")), SaveModel(model()))
    commit(store, SaveModelVersion(model_version(checkpoint_uuid="uuid-1")))
    with pytest.raises(StoreConflict):
        commit(store, DeleteTrial(1))
    assert store.trials.get(1) == trial(1)
    assert store.checkpoints.get("uuid-1") is not None
