"""What every store keeps to: workspaces, projects and templates, and what lies in them."""

from __future__ import annotations

import pytest

from contracts.store_examples import commit, experiment, family, model, project, template, trial, workspace
from detlab_master.core.states import ExperimentState
from detlab_master.store import records
from detlab_master.store.base import ProjectCounts, Store, StoreConflict
from detlab_master.store.writes import (
    DeleteExperiment,
    DeleteProject,
    DeleteTemplate,
    DeleteWorkspace,
    SaveExperiment,
    SaveModel,
    SaveProject,
    SaveTemplate,
    SaveTrial,
    SaveWorkspace,
    Write,
)


def test_they_are_kept_in_every_field(store: Store) -> None:
    sparse = records.Workspace(3, "x", owner_id=1)
    bare = records.Project(3, 3, "x", owner_id=1, key="X")
    commit(store, SaveWorkspace(workspace()), SaveWorkspace(sparse), SaveTemplate(template()))
    commit(store, SaveProject(project()), SaveProject(bare))
    assert (store.projects.workspace(2), store.projects.workspace(3)) == (workspace(), sparse)
    assert (store.projects.project(2), store.projects.project(3)) == (project(), bare)
    assert store.templates.get("gpus") == template()
    assert store.projects.workspace_by_name("x") == sparse
    assert store.projects.find("x", "x") == bare
    assert store.projects.find("x", "project 2") is None
    changed = workspace(checkpoint_storage=None, archived=False), project(notes=(), workspace_id=3)
    commit(store, SaveWorkspace(changed[0]), SaveProject(changed[1]), SaveTemplate(template(config={})))
    assert (store.projects.workspace(2), store.projects.project(2)) == changed
    assert store.templates.get("gpus") == template(config={})
    assert store.templates.get("other") is None


def test_lists_are_in_order(store: Store) -> None:
    commit(store, SaveWorkspace(workspace(3)), SaveWorkspace(workspace(2)))
    commit(store, *(SaveProject(project(id, workspace_id=2)) for id in (5, 4)), SaveProject(project(3)))
    commit(store, *(SaveTemplate(template(name)) for name in ("b", "a", "B")))
    assert [one.id for one in store.projects.workspaces()] == [1, 2, 3]
    assert [one.id for one in store.projects.projects()] == [1, 3, 4, 5]
    assert [one.id for one in store.projects.projects(2)] == [4, 5]
    assert store.projects.projects(9) == []
    assert [one.name for one in store.templates.all()] == ["B", "a", "b"]


@pytest.mark.parametrize(
    "second",
    [
        SaveWorkspace(workspace(4, name="taken")),
        SaveProject(project(4, workspace_id=2, name="taken")),
        SaveProject(project(4, key="TAKEN")),
        SaveProject(project(4, workspace_id=9)),
        SaveTemplate(template(workspace_id=9)),
    ],
    ids=["workspace name", "project name", "key", "no workspace", "no workspace of a template"],
)
def test_what_contradicts_is_refused(store: Store, second: Write) -> None:
    commit(store, SaveWorkspace(workspace(2, name="taken")))
    commit(store, SaveProject(project(2, workspace_id=2, name="taken", key="TAKEN")))
    with pytest.raises(StoreConflict):
        commit(store, second)
    commit(store, SaveProject(project(4, workspace_id=1, name="taken")))  # elsewhere the name is free


def test_nothing_is_deleted_with_something_in_it(store: Store) -> None:
    commit(store, SaveWorkspace(workspace()), SaveProject(project(workspace_id=2)))
    commit(store, SaveExperiment(experiment(1, project_id=2)))
    for delete in (DeleteProject(2), DeleteWorkspace(2)):
        with pytest.raises(StoreConflict):
            commit(store, delete)
    commit(store, DeleteExperiment(1), DeleteProject(2))
    for inside in (SaveModel(model(workspace_id=2)), SaveTemplate(template(workspace_id=2))):
        commit(store, inside)
        with pytest.raises(StoreConflict):
            commit(store, DeleteWorkspace(2))
        commit(store, SaveModel(model()), DeleteTemplate("gpus"))
    commit(store, DeleteWorkspace(2), DeleteProject(9), DeleteWorkspace(9), DeleteTemplate("none"))
    assert [one.id for one in store.projects.workspaces()] == [1]
    assert [one.id for one in store.projects.projects()] == [1]
    assert store.templates.all() == []


def test_ids_are_not_used_again(store: Store) -> None:
    assert (store.highest_ids().workspace, store.highest_ids().project) == (1, 1)
    commit(store, SaveWorkspace(workspace(5)), SaveProject(project(7)))
    commit(store, DeleteWorkspace(5), DeleteProject(7))
    assert (store.highest_ids().workspace, store.highest_ids().project) == (5, 7)


def test_what_is_in_a_project(store: Store) -> None:
    assert store.projects.counts() == {}
    commit(store, SaveProject(project()), *family(1), *family(2))
    commit(store, SaveTrial(trial(5, 2)))
    ended = {"project_id": 2, "state": ExperimentState.COMPLETED}
    commit(
        store,
        SaveExperiment(experiment(3, **ended, start_time=1.0)),
        SaveExperiment(experiment(4, **ended, start_time=9.0, owner_id=2)),
    )
    assert store.projects.counts() == {
        1: ProjectCounts(experiments=2, active=2, trials=3, last_start=1000.125),
        2: ProjectCounts(experiments=2, active=0, trials=0, last_start=9.0),
    }
    assert store.projects.counts([2, 8]) == {2: ProjectCounts(1, 0, 0, 9.0)}
    assert store.projects.counts([]) == {}
