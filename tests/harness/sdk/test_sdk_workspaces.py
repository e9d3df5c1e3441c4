"""Workspaces and projects in the Python API: against the master itself."""

from __future__ import annotations

import asyncio

import pytest

from determined.common.api import errors
from determined.experimental import Determined, client
from detlab_master.store.writes import SaveExperiment
from harness.real_master import rig
from master.api.rig import ALICE, Rig, experiment_record

__all__ = ["rig"]


async def test_workspaces_and_projects(rig: Rig) -> None:
    await asyncio.to_thread(_workspaces)
    await asyncio.to_thread(_projects)


def _workspaces() -> None:
    with Determined() as det:
        vision = det.create_workspace("vision")
        assert (vision.name, vision.username, vision.archived) == ("vision", "alice", False)
        assert repr(vision) == f"Workspace(id={vision.id}, name='vision')"
        assert [one.name for one in det.list_workspaces()] == ["Uncategorized", "vision"]
        assert vision.list_pools() == ["default"]
        vision.edit(name="sight", default_compute_pool="default", checkpoint_storage_config={})
        assert (vision.name, vision.default_compute_pool) == ("sight", "default")
        vision.archive()
        vision.reload()
        assert vision.archived
        vision.unarchive()
        with pytest.raises(errors.NotFoundException, match="there is no workspace 'vision'"):
            det.get_workspace("vision")
        with pytest.raises(errors.APIException, match="already"):
            det.create_workspace("sight")
        det.delete_workspace("sight")
        assert len(det.list_workspaces()) == 1


def _projects() -> None:
    with Determined() as det:
        vision = det.create_workspace("vision")
        digits = vision.create_project("digits", description="ten of them", key="dgt")
        assert (digits.key, digits.description, digits.workspace_id) == ("DGT", "ten of them", vision.id)
        digits.set_name("numbers")
        digits.set_description("")
        digits.set_key("nu")
        digits.add_note("plan", "train")
        digits.add_note("other", "")
        digits.remove_note("other")
        with pytest.raises(ValueError, match="has no note 'other'"):
            digits.remove_note("other")
        digits.archive()
        assert vision.list_projects()[0].archived
        digits.unarchive()
        found = vision.get_project("numbers")
        assert (found.key, found.description, found.archived) == ("NU", "", False)
        assert found.notes == [{"name": "plan", "contents": "train"}]
        with pytest.raises(errors.NotFoundException, match="no project 'num' in workspace 'vision'"):
            vision.get_project("num")
        vision.delete_project("numbers")
        assert vision.list_projects() == []


async def test_experiments_move(rig: Rig) -> None:
    await rig.keep(SaveExperiment(experiment_record(5, ALICE, rig.folder)))
    await asyncio.to_thread(_move)


def _move() -> None:
    client.login()
    digits = client.create_workspace("vision").create_project("digits")
    experiment = client.get_experiment(5)
    experiment.move_to_project("vision", "digits")
    assert experiment.project_id == digits.id
    assert [one.id for one in digits.list_experiments()] == [5]
    assert [one.id for one in client.list_experiments(project_id=1)] == []
    digits.reload()
    assert (digits.n_experiments, digits.n_active_experiments) == (1, 0)
    assert digits.last_experiment_started_at is not None
    client.delete_workspace("vision")
    with pytest.raises(errors.NotFoundException):
        client.get_experiment(5)
    client.logout()
