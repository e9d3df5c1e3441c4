"""What every store keeps to: the model registry, and what it holds on to."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.store_examples import checkpoint, commit, experiment, family, model, model_version
from contracts.test_store_lists import LABELS, NAMES, SETTINGS, expected_page, pages, some
from detlab_master.store import records
from detlab_master.store.base import HighestIds, ModelFilter, Page, Store, StoreConflict
from detlab_master.store.writes import (
    DeleteExperiment,
    DeleteModel,
    DeleteModelVersion,
    SaveCheckpoint,
    SaveExperiment,
    SaveModel,
    SaveModelVersion,
    SaveTrialSource,
    Write,
)


def checkpoints(*numbers: int) -> list[Write]:
    """Experiments with a checkpoint each, ``uuid-<number>``."""
    return [
        write
        for number in numbers
        for write in [
            *family(number),
            SaveCheckpoint(checkpoint(f"uuid-{number}", experiment_id=number, trial_id=number)),
        ]
    ]


def test_what_trials_work_with_is_kept_as_long_as_they_are(store: Store) -> None:
    plain = records.TrialSource(2, "uuid-1", "INFERENCE")
    registered = records.TrialSource(2, "uuid-1", "FINE_TUNING", model_id=3, model_version=4)
    other = records.TrialSource(1, "uuid-9", "INFERENCE")
    commit(store, *checkpoints(1, 2), *map(SaveTrialSource, (registered, plain, other, plain)))
    assert store.checkpoints.sources(checkpoint_uuid="uuid-1") == [plain, registered]
    assert store.checkpoints.sources(model_version=(3, 4)) == [registered]
    assert store.checkpoints.sources() == [other, plain, registered]
    changed = records.TrialSource(2, "uuid-1", "FINE_TUNING")
    commit(store, SaveTrialSource(changed))
    assert store.checkpoints.sources(checkpoint_uuid="uuid-1") == [changed, registered]
    commit(store, DeleteExperiment(1))
    assert store.checkpoints.sources() == [changed, registered]
    commit(store, DeleteExperiment(2))
    assert store.checkpoints.sources() == []
    with pytest.raises(StoreConflict):
        commit(store, SaveTrialSource(other))


def test_models_are_kept_in_every_field(store: Store) -> None:
    sparse = records.Model(id=2, name="x", owner_id=1, workspace_id=1, created_at=0.0, updated_at=0.0)
    commit(store, SaveModel(model()), SaveModel(sparse))
    assert store.models.get(1) == model()
    assert store.models.get(2) == sparse
    assert store.models.get(3) is None
    changed = model(name="new", labels=(), metadata={}, archived=False)
    commit(store, SaveModel(changed))
    assert store.models.get(1) == changed


def test_a_name_is_one_model_of_its_owner(store: Store) -> None:
    commit(store, SaveModel(model(3, name="digits", owner_id=2)), SaveModel(model(1, name="digits")))
    with pytest.raises(StoreConflict):
        commit(store, SaveModel(model(2, name="digits")))
    assert [found.id for found in store.models.by_name("digits")] == [1, 3]
    assert store.models.by_name("Digits") == []
    commit(store, SaveModel(model(1, name="old")), SaveModel(model(2, name="digits")))
    assert [found.id for found in store.models.by_name("digits")] == [2, 3]


def test_a_model_lies_in_a_workspace_that_exists(store: Store) -> None:
    with pytest.raises(StoreConflict):
        commit(store, SaveModel(model(workspace_id=5)))
    assert store.projects.workspace_by_name("Uncategorized") == store.projects.workspace(1)
    assert store.projects.workspace_by_name("other") is None


def test_versions_are_kept_in_every_field(store: Store) -> None:
    sparse = records.ModelVersion(
        id=2, model_id=1, version=2, checkpoint_uuid="uuid-1", owner_id=1, created_at=0.0, updated_at=0.0
    )
    commit(store, *checkpoints(1), SaveModel(model()))
    commit(store, SaveModelVersion(model_version(1)), SaveModelVersion(sparse))
    assert store.models.version(1, 1) == model_version(1)
    assert store.models.version(1, 2) == sparse
    assert store.models.version(1, 3) is None
    assert store.models.version(2, 1) is None
    changed = model_version(1, name="new", labels=(), metadata={})
    commit(store, SaveModelVersion(changed))
    assert store.models.version(1, 1) == changed
    assert store.models.version_counts([1, 2]) == {1: 2}
    assert store.models.version_counts([]) == {}


@pytest.mark.parametrize(
    "orphan",
    [model_version(model_id=2), model_version(checkpoint_uuid="uuid-2")],
    ids=["model", "checkpoint"],
)
def test_a_version_has_a_model_and_a_checkpoint(store: Store, orphan: records.ModelVersion) -> None:
    commit(store, *checkpoints(1), SaveModel(model()))
    with pytest.raises(StoreConflict):
        commit(store, SaveModelVersion(orphan))


def test_versions_in_order_and_in_pages(store: Store) -> None:
    commit(store, *checkpoints(1), SaveModel(model(1)), SaveModel(model(2)))
    kept = [model_version(number, created_at=float(-number)) for number in range(1, 6)]
    commit(store, SaveModelVersion(model_version(1, 2)), *(SaveModelVersion(one) for one in reversed(kept)))

    def numbers(**page: Any) -> list[int]:
        found, total = store.models.versions(1, Page(**page))
        assert total == 5
        return [version.version for version in found]

    assert numbers() == [1, 2, 3, 4, 5]
    assert numbers(order_by="version", descending=True, limit=2) == [5, 4]
    assert numbers(order_by="created_at", offset=1, limit=3) == [4, 3, 2]
    assert numbers(offset=-2) == [4, 5]
    with pytest.raises(ValueError, match="cannot order by 'name': it is one of id, version, created_at"):
        numbers(order_by="name")


def test_which_checkpoints_are_registered(store: Store) -> None:
    commit(store, *checkpoints(1, 2, 3), SaveModel(model(1)), SaveModel(model(2)))
    first, second = (
        model_version(1, 1, checkpoint_uuid="uuid-1"),
        model_version(1, 2, checkpoint_uuid="uuid-2"),
    )
    commit(store, SaveModelVersion(second), SaveModelVersion(first))
    registered = store.models.registered
    assert registered(checkpoint_uuids=["uuid-3", "uuid-2", "uuid-1"]) == [first, second]
    assert registered(checkpoint_uuids=["uuid-2"]) == [second]
    assert registered(checkpoint_uuids=[]) == []
    assert registered(experiment_id=1) == [first]
    assert registered(experiment_id=3) == []
    commit(store, DeleteModelVersion(1, 1))
    assert registered(checkpoint_uuids=["uuid-1"]) == []


def test_an_experiment_with_a_registered_checkpoint_cannot_be_deleted(store: Store) -> None:
    commit(
        store,
        *checkpoints(1, 2),
        SaveModel(model()),
        SaveModelVersion(model_version(checkpoint_uuid="uuid-2")),
    )
    with pytest.raises(StoreConflict):
        commit(store, DeleteExperiment(2))
    assert store.experiments.get(2) is not None
    assert store.checkpoints.get("uuid-2") is not None
    commit(store, DeleteExperiment(1))
    commit(store, DeleteModelVersion(1, 1), DeleteExperiment(2))
    assert store.experiments.get(2) is None


def test_deleting_models_and_versions(store: Store) -> None:
    commit(store, *checkpoints(1), SaveModel(model(1)), SaveModel(model(2)), SaveModel(model(5)))
    versions = [model_version(1, 1), model_version(2, 1), model_version(3, 1), model_version(1, 2)]
    commit(store, *(SaveModelVersion(version) for version in versions))
    assert store.highest_ids() == HighestIds(1, 1, 0, 1, model=5, model_version=21)
    commit(
        store,
        DeleteModelVersion(1, 2),
        DeleteModelVersion(1, 9),
        DeleteModel(2),
        DeleteModel(5),
        DeleteModel(9),
    )
    assert store.models.version(1, 2) is None
    assert store.models.version_counts([1, 2]) == {1: 2}
    assert store.models.get(2) is None
    assert store.models.version(2, 1) is None
    assert store.models.find(ModelFilter(), Page())[1] == 1
    assert store.checkpoints.get("uuid-1") is not None
    assert store.highest_ids() == HighestIds(1, 1, 0, 1, model=5, model_version=21)
    with pytest.raises(StoreConflict):
        commit(store, SaveModelVersion(model_version(2, 2)))


def test_a_transaction_of_the_registry_that_fails_leaves_nothing(store: Store) -> None:
    commit(store, *checkpoints(1), SaveModel(model(1)), SaveModelVersion(model_version()))
    with pytest.raises(StoreConflict):
        commit(
            store,
            SaveModel(model(1, name="new", last_version=8)),
            SaveModelVersion(model_version(8)),
            DeleteModelVersion(1, 1),
            DeleteExperiment(77),
            SaveExperiment(experiment(2, project_id=404)),
        )
    assert store.models.get(1) == model(1)
    assert store.models.versions(1, Page()) == ([model_version()], 1)
    assert store.highest_ids().model_version == 11


# ---- lists -------------------------------------------------------------------------------------------------------

MODELS = [
    model(
        id,
        name=f"{pick.choice(NAMES)} {id}",
        description=pick.choice(NAMES),
        owner_id=pick.randint(1, 3),
        archived=pick.random() < 0.5,
        labels=tuple(pick.sample(LABELS, pick.randint(0, 3))),
        created_at=float(pick.randint(0, 5)),
        updated_at=float(pick.randint(0, 5)),
    )
    for pick in [random.Random(9)]
    for id in range(1, 31)
]
VERSIONS = [
    model_version(number, one.id)
    for pick in [random.Random(10)]
    for one in MODELS
    for number in range(1, pick.randint(1, 4))
]
ORDERS: dict[str, Callable[[records.Model], Any]] = {
    "id": lambda one: one.id,
    "name": lambda one: one.name,
    "description": lambda one: one.description,
    "created_at": lambda one: one.created_at,
    "updated_at": lambda one: one.updated_at,
    "workspace_id": lambda one: one.workspace_id,
    "num_versions": lambda one: sum(version.model_id == one.id for version in VERSIONS),
}
FILTERS = st.builds(
    ModelFilter,
    owner_ids=some([1, 2, 3, 9]),
    ids=st.none() | st.lists(st.integers(1, 35), max_size=30),
    workspace_ids=some([1, 2]),
    archived=st.none() | st.booleans(),
    name=st.none() | st.sampled_from([*NAMES, "A", "%", "_", "É", "SS"]),
    description=st.none() | st.sampled_from([*NAMES, "ta", "é"]),
    labels=some(LABELS),
)


@pytest.fixture
def full_store(store: Store) -> Store:
    commit(store, *checkpoints(1), *(SaveModel(one) for one in MODELS))
    commit(store, *(SaveModelVersion(one) for one in VERSIONS))
    return store


@SETTINGS
@given(where=FILTERS, page=pages(list(ORDERS)))
def test_models_are_found_as_a_list_comprehension_finds_them(
    full_store: Store, where: ModelFilter, page: Page
) -> None:
    found = [
        one
        for one in MODELS
        if (where.owner_ids is None or one.owner_id in where.owner_ids)
        and (where.ids is None or one.id in where.ids)
        and (where.workspace_ids is None or one.workspace_id in where.workspace_ids)
        and (where.archived is None or one.archived is where.archived)
        and (where.name is None or where.name.casefold() in one.name.casefold())
        and (where.description is None or where.description.casefold() in one.description.casefold())
        and (where.labels is None or all(label in one.labels for label in where.labels))
    ]
    assert full_store.models.find(where, page) == expected_page(found, page, ORDERS[page.order_by])


def test_an_unknown_order_names_those_that_there_are(store: Store) -> None:
    with pytest.raises(ValueError, match="cannot order by 'colour': it is one of id, name"):
        store.models.find(ModelFilter(), Page(order_by="colour"))
