"""Workspaces and projects: what there is, who changes it, and how they go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from detlab_master.core.records import ModelVersion
from detlab_master.core.states import ExperimentState, PlaceState
from detlab_master.store.writes import SaveExperiment, SaveModelVersion, SaveProject, SaveWorkspace
from master.api.rig import ALICE, BOB, T0, Answer, Rig, experiment_record

V1 = "/api/v1"
STORAGE = {"type": "s3", "bucket": "theirs", "access_key": "id", "secret_key": "secret"}


async def make(rig: Rig, name: str = "vision", by: str = "alice", **fields: Any) -> dict[str, Any]:
    answer = await rig.call("POST", f"{V1}/workspaces", {"name": name, **fields}, by=by)
    assert answer.status == 200, answer.body
    made: dict[str, Any] = answer.json["workspace"]
    return made


async def make_project(
    rig: Rig, workspace: int = 1, name: str = "digits", by: str = "alice", **fields: Any
) -> dict[str, Any]:
    path = f"{V1}/workspaces/{workspace}/projects"
    answer = await rig.call("POST", path, {"name": name, **fields}, by=by)
    assert answer.status == 200, answer.body
    made: dict[str, Any] = answer.json["project"]
    return made


async def put_into(rig: Rig, project: int, number: int = 5, owner: int = ALICE, **changes: Any) -> None:
    record = experiment_record(number, owner, rig.folder, project_id=project, **changes)
    await rig.keep(SaveExperiment(record))


async def gone(rig: Rig, path: str) -> bool:
    for _ in range(200):
        if (await rig.call("GET", path)).status == 404:
            return True
        await asyncio.sleep(0.05)
    return False


# Workspaces


async def test_the_first_workspace_and_project(rig: Rig) -> None:
    answer = await rig.call("GET", f"{V1}/workspaces/1")
    assert answer.json["workspace"] == {
        "id": 1,
        "name": "Uncategorized",
        "archived": False,
        "immutable": True,
        "state": "WORKSPACE_STATE_UNSPECIFIED",
        "errorMessage": "",
        "userId": 1,
        "username": "admin",
        "numProjects": 1,
        "numExperiments": 0,
        "pinned": False,
        "pinnedAt": None,
        "agentUserGroup": None,
        "checkpointStorageConfig": None,
        "defaultComputePool": "",
        "defaultAuxPool": "",
    }
    project = (await rig.call("GET", f"{V1}/projects/1")).json["project"]
    assert (project["name"], project["key"], project["immutable"]) == ("Uncategorized", "UNCAT", True)
    for what in ("workspaces", "projects"):
        for method, verb, body in (
            ("PATCH", "", {"name": "other"}),
            ("POST", "/archive", None),
            ("DELETE", "", None),
        ):
            answer = await rig.call(method, f"{V1}/{what}/1{verb}", body, by="admin")
            assert answer.status == 400, f"{what} {method} {verb}: {answer.body!r}"
        answer = await rig.call("PATCH", f"{V1}/{what}/1", {"name": "other"}, by="alice")
        assert answer.status == 403
    assert (await rig.call("PATCH", f"{V1}/projects/1", {"description": "x"}, by="admin")).status == 200


async def test_whoever_is_user_1_does_not_own_what_was_there_from_the_start(rig: Rig) -> None:
    """Behind a Hub that is whoever logged in first."""
    from dataclasses import replace

    from detlab_master.store.writes import SaveUser

    first = rig.store.users.get(1)
    assert first is not None
    await rig.keep(SaveUser(replace(first, admin=False)))
    for path in (f"{V1}/workspaces/1", f"{V1}/projects/1"):
        assert (await rig.call("PATCH", path, {"description": "mine"}, by="admin")).status == 403


async def test_create_edit_and_archive(rig: Rig) -> None:
    made = await make(rig, defaultComputePool="default", checkpointStorageConfig=STORAGE)
    assert (made["name"], made["username"], made["defaultComputePool"]) == ("vision", "alice", "default")
    path = f"{V1}/workspaces/{made['id']}"
    answer = await rig.call(
        "PATCH", path, {"name": "sight", "defaultComputePool": "", "defaultAuxPool": "default"}
    )
    edited = answer.json["workspace"]
    assert (edited["name"], edited["defaultComputePool"], edited["defaultAuxPool"]) == (
        "sight",
        "",
        "default",
    )
    assert edited["checkpointStorageConfig"] == STORAGE
    cleared = await rig.call("PATCH", path, {"checkpointStorageConfig": {}})
    assert cleared.json["workspace"]["checkpointStorageConfig"] is None
    for verb, archived in (("archive", True), ("archive", True), ("unarchive", False)):
        assert (await rig.call("POST", f"{path}/{verb}")).json == {}
        assert (await rig.call("GET", path)).json["workspace"]["archived"] is archived


async def test_keys_of_its_storage_are_its_owners(rig: Rig) -> None:
    made = await make(rig, checkpointStorageConfig=STORAGE)
    shown = {}
    for by in ("alice", "bob", "admin"):
        one = await rig.call("GET", f"{V1}/workspaces/{made['id']}", by=by)
        listed = await rig.call("GET", f"{V1}/workspaces", by=by, query={"name": "VIS"})
        assert listed.json["workspaces"] == [one.json["workspace"]]
        shown[by] = one.json["workspace"]["checkpointStorageConfig"]
    assert shown["alice"] == shown["admin"] == STORAGE
    assert shown["bob"] == {**STORAGE, "access_key": "********", "secret_key": "********"}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"name": ""}, "it is blank"),
        ({"name": "x" * 54}, "has 54 characters, and may have 53"),
        ({"defaultComputePool": "gpus"}, "there is no resource pool 'gpus'"),
        ({"defaultAuxPool": "defalt"}, "Did you mean 'default'?"),
        ({"checkpointStorageConfig": {"bucket": "x"}}, "<workspace>.checkpoint_storage.type: is required"),
        ({"checkpointStorageConfig": {"type": "s3"}}, "<workspace>.checkpoint_storage.bucket: is required"),
        ({"checkpointStorageConfig": {"type": "s3", "bucket": "x", "buckt": 1}}, "unknown key"),
        ({"agentUserGroup": {"agentUid": 0}}, "not linked with Unix accounts"),
        ({"clusterQuotaPairs": {"k8s": 3}}, "no Kubernetes"),
    ],
)
async def test_what_a_workspace_cannot_be(rig: Rig, fields: dict[str, Any], text: str) -> None:
    answer = await rig.call("POST", f"{V1}/workspaces", {"name": "vision", **fields})
    assert answer.status == 400 and text in answer.error
    made = await make(rig)
    answer = await rig.call("PATCH", f"{V1}/workspaces/{made['id']}", fields)
    assert answer.status == 400 and text in answer.error


async def test_a_name_is_taken_once(rig: Rig) -> None:
    made = await make(rig)
    again = await rig.call("POST", f"{V1}/workspaces", {"name": "vision"}, by="bob")
    assert (again.status, "already" in again.error) == (409, True)
    other = await make(rig, "text")
    path = f"{V1}/workspaces/{other['id']}"
    assert (await rig.call("PATCH", path, {"name": "vision"})).status == 409
    assert (await rig.call("PATCH", path, {"name": "text"})).status == 200
    await make_project(rig, made["id"])
    projects = f"{V1}/workspaces/{made['id']}/projects"
    assert (await rig.call("POST", projects, {"name": "digits"})).status == 409
    assert (await rig.call("POST", projects, {"name": "x", "key": "dig"})).status == 409
    await make_project(rig, other["id"])


async def test_lists(rig: Rig) -> None:
    for name, by in (("b", "alice"), ("A", "bob"), ("ab", "alice")):
        await make(rig, name, by)

    async def names(**query: Any) -> list[str]:
        answer = await rig.call("GET", f"{V1}/workspaces", query=query)
        assert answer.json["pagination"]["total"] >= len(answer.json["workspaces"])
        return [workspace["name"] for workspace in answer.json["workspaces"]]

    assert await names() == ["Uncategorized", "b", "A", "ab"]
    assert await names(sortBy="SORT_BY_NAME", orderBy="ORDER_BY_DESC") == ["Uncategorized", "b", "ab", "A"]
    assert await names(limit=2, offset=1) == ["b", "A"]
    assert await names(name="a", sortBy="SORT_BY_NAME") == ["A", "ab", "Uncategorized"]
    assert await names(nameCaseSensitive="A") == ["A"]
    assert await names(users=["alice", "nobody"]) == ["b", "ab"]
    assert await names(userIds=BOB) == ["A"]
    assert await names(users="nobody") == []
    assert await names(pinned="true") == []
    assert await names(archived="true") == []
    pools = await rig.call("GET", f"{V1}/workspaces/1/available-resource-pools")
    assert pools.json["resourcePools"] == ["default"]


# Projects


async def test_projects(rig: Rig) -> None:
    workspace = await make(rig)
    made = await make_project(rig, workspace["id"], description="ten of them", by="bob")
    assert made == {
        "id": 2,
        "name": "digits",
        "key": "DIG",
        "description": "ten of them",
        "notes": [],
        "archived": False,
        "immutable": False,
        "state": "WORKSPACE_STATE_UNSPECIFIED",
        "errorMessage": "",
        "workspaceId": workspace["id"],
        "workspaceName": "vision",
        "userId": BOB,
        "username": "bob",
        "numExperiments": 0,
        "numActiveExperiments": 0,
        "numRuns": 0,
        "lastExperimentStartedAt": None,
    }
    path = f"{V1}/projects/2"
    for by in ("bob", "alice", "admin"):  # alice owns the workspace
        answer = await rig.call("PATCH", path, {"name": f"by {by}", "key": "dg"}, by=by)
        assert (answer.json["project"]["name"], answer.json["project"]["key"]) == (f"by {by}", "DG")
    notes = [{"name": "plan", "contents": "train"}, {"name": "", "contents": ""}]
    assert (await rig.call("PUT", f"{path}/notes", {"notes": notes})).json == {"notes": notes}
    assert (await rig.call("GET", path)).json["project"]["notes"] == notes
    assert (await rig.call("PATCH", path, {"key": "too long"})).status == 400
    other = await make(rig, "bobs", "bob")
    foreign = await make_project(rig, other["id"], by="bob")
    assert (await rig.call("PATCH", f"{V1}/projects/{foreign['id']}", {"name": "x"})).status == 403
    assert (await rig.call("POST", f"{V1}/workspaces/99/projects", {"name": "x"})).status == 404


async def test_what_is_in_projects_is_counted_as_far_as_one_sees_it(rig: Rig) -> None:
    workspace = await make(rig)
    project = await make_project(rig, workspace["id"])
    await put_into(rig, project["id"], 5, start_time=T0 + 1)
    await put_into(rig, project["id"], 6, state=ExperimentState.PAUSED, end_time=None)
    await put_into(rig, project["id"], 7, BOB, start_time=T0 + 9)
    seen = {}
    for by in ("alice", "bob", "admin"):
        shown = (await rig.call("GET", f"{V1}/projects/{project['id']}", by=by)).json["project"]
        around = (await rig.call("GET", f"{V1}/workspaces/{workspace['id']}", by=by)).json["workspace"]
        seen[by] = (shown["numExperiments"], shown["numActiveExperiments"], around["numExperiments"])
        inside = await rig.call("GET", f"{V1}/experiments", by=by, query={"projectId": project["id"]})
        assert len(inside.json["experiments"]) == shown["numExperiments"]
    assert seen == {"alice": (2, 1, 2), "bob": (1, 0, 1), "admin": (3, 1, 3)}


async def test_lists_of_projects(rig: Rig) -> None:
    workspace = (await make(rig))["id"]
    first = await make_project(rig, workspace, "b", description="z")
    second = await make_project(rig, workspace, "a", "bob", description="y")
    await make_project(rig, 1, "elsewhere")
    await put_into(rig, first["id"], 5, start_time=T0)
    await rig.call("POST", f"{V1}/projects/{second['id']}/archive")

    async def names(**query: Any) -> list[str]:
        answer = await rig.call("GET", f"{V1}/workspaces/{workspace}/projects", query=query)
        return [project["name"] for project in answer.json["projects"]]

    assert await names() == ["b", "a"]
    assert await names(sortBy="SORT_BY_NAME") == ["a", "b"]
    assert await names(sortBy="SORT_BY_DESCRIPTION") == ["a", "b"]
    assert await names(sortBy="SORT_BY_LAST_EXPERIMENT_START_TIME", orderBy="ORDER_BY_DESC") == ["b", "a"]
    assert await names(archived="true") == ["a"]
    assert await names(archived="false") == ["b"]
    assert await names(users="bob") == ["a"]
    assert await names(name="B") == ["b"]
    assert await names(limit=1, offset=-1) == ["a"]
    await rig.call("POST", f"{V1}/workspaces/{workspace}/archive")
    assert await names(archived="true") == ["b", "a"]
    answer = await rig.call("POST", f"{V1}/projects/{first['id']}/unarchive")
    assert answer.status == 400 and "unarchive that first" in answer.error


# Moving


async def move(rig: Rig, number: int, project: int, by: str = "alice") -> Answer:
    body = {"destinationProjectId": project, "experimentId": number}
    return await rig.call("POST", f"{V1}/experiments/{number}/move", body, by=by)


async def test_move(rig: Rig) -> None:
    number = (await rig.things()).experiment.id
    bobs = await make_project(rig, by="bob")
    assert (await move(rig, number, bobs["id"])).json == {}
    shown = (await rig.call("GET", f"{V1}/experiments/{number}")).json["experiment"]
    assert (shown["projectId"], shown["projectName"], shown["projectOwnerId"]) == (bobs["id"], "digits", BOB)
    assert (await move(rig, number, 1, by="bob")).status == 404  # it stays alice's
    assert (await move(rig, number, 99)).error == "project '99' not found"
    await rig.call("POST", f"{V1}/projects/{bobs['id']}/archive", by="bob")
    assert (await rig.call("GET", f"{V1}/experiments/{number}")).json["experiment"]["parentArchived"] is True
    assert (await move(rig, number, 1)).status == 200
    refused = await move(rig, number, bobs["id"])
    assert (refused.status, "is archived" in refused.error) == (400, True)
    assert (await rig.call("POST", f"{V1}/experiments/{number}/move", {})).status == 400


# Deleting


async def test_empty_places_go_at_once(rig: Rig) -> None:
    workspace = await make(rig)
    one, two = (
        await make_project(rig, workspace["id"], "one"),
        await make_project(rig, workspace["id"], "two"),
    )
    assert (await rig.call("DELETE", f"{V1}/projects/{one['id']}")).json == {"completed": True}
    assert (await rig.call("DELETE", f"{V1}/workspaces/{workspace['id']}")).json == {"completed": True}
    for path in (f"projects/{one['id']}", f"projects/{two['id']}", f"workspaces/{workspace['id']}"):
        assert (await rig.call("GET", f"{V1}/{path}")).status == 404
    assert (await make(rig))["id"] > workspace["id"]


async def test_a_project_goes_with_its_experiments(rig: Rig) -> None:
    things = await rig.things()
    project = await make_project(rig)
    await move(rig, things.experiment.id, project["id"])
    path = f"{V1}/projects/{project['id']}"
    assert (await rig.call("DELETE", path)).json == {"completed": False}
    assert await gone(rig, path)
    assert (await rig.call("GET", f"{V1}/experiments/{things.experiment.id}")).status == 404


async def test_a_workspace_goes_with_its_projects(rig: Rig) -> None:
    workspace = await make(rig)
    projects = [await make_project(rig, workspace["id"], name) for name in ("full", "empty")]
    await put_into(rig, projects[0]["id"])
    path = f"{V1}/workspaces/{workspace['id']}"
    assert (await rig.call("DELETE", path)).json == {"completed": False}
    assert await gone(rig, path)
    assert rig.store.projects.projects(workspace["id"]) == []
    assert rig.store.experiments.get(5) is None


@pytest.mark.parametrize("what", ["project", "workspace"])
@pytest.mark.parametrize(
    ("inside", "text"),
    [
        ("running", "have not ended (5): end them first (det experiment kill 5)"),
        ("foreign", "experiments of other users"),
        ("registered", "is in the model registry"),
    ],
)
async def test_what_is_not_deleted(rig: Rig, what: str, inside: str, text: str) -> None:
    workspace = await make(rig)
    project = await make_project(rig, workspace["id"])
    match inside:
        case "running":
            await put_into(rig, project["id"], state=ExperimentState.ACTIVE)
        case "foreign":
            await put_into(rig, project["id"], owner=BOB)
        case "registered":
            things = await rig.things()
            await move(rig, things.experiment.id, project["id"])
            uuid = things.checkpoint.uuid
            await rig.keep(SaveModelVersion(ModelVersion(1, things.model.id, 1, uuid, ALICE, T0, T0)))
    number = project["id"] if what == "project" else workspace["id"]
    answer = await rig.call("DELETE", f"{V1}/{what}s/{number}")
    assert answer.status == 400 and text in answer.error
    assert rig.store.projects.counts()[project["id"]].experiments == 1
    shown = (await rig.call("GET", f"{V1}/projects/{project['id']}")).json["project"]
    assert shown["state"] == "WORKSPACE_STATE_UNSPECIFIED"


async def test_a_workspace_with_models_or_templates_stays(rig: Rig) -> None:
    workspace = await make(rig)
    path = f"{V1}/workspaces/{workspace['id']}"
    await rig.call("POST", f"{V1}/models", {"name": "m", "workspaceName": "vision"}, by="bob")
    answer = await rig.call("DELETE", path)
    assert answer.status == 400 and "models of the registry" in answer.error
    await rig.call("PATCH", f"{V1}/models/m", {"workspaceId": 1}, by="bob")
    await rig.call("POST", f"{V1}/templates/t", {"workspaceId": workspace["id"], "config": {}}, by="bob")
    answer = await rig.call("DELETE", path)
    assert answer.status == 400 and "templates (t)" in answer.error
    assert (await rig.call("DELETE", f"{V1}/templates/t")).status == 200  # it lies in alice's workspace
    assert (await rig.call("DELETE", path)).json == {"completed": True}


async def test_an_experiment_that_cannot_be_deleted_is_said(rig: Rig) -> None:
    """The registry takes a checkpoint after the deletion has begun: as if another request had been a bit faster."""
    things = await rig.things()
    workspace = await make(rig)
    project = await make_project(rig, workspace["id"])
    await move(rig, things.experiment.id, project["id"])
    records = rig.store.projects.workspace(workspace["id"]), rig.store.projects.project(project["id"])
    assert records[0] is not None and records[1] is not None
    from dataclasses import replace

    await rig.keep(
        SaveWorkspace(replace(records[0], state=PlaceState.DELETING)),
        SaveProject(replace(records[1], state=PlaceState.DELETING)),
        SaveModelVersion(ModelVersion(1, things.model.id, 1, things.checkpoint.uuid, ALICE, T0, T0)),
    )
    refused = await rig.call("POST", f"{V1}/workspaces/{workspace['id']}/archive")
    assert refused.status == 400 and "is being deleted" in refused.error
    await rig.services.place_deletion.restore()  # what the next master does
    for _ in range(200):
        shown = (await rig.call("GET", f"{V1}/workspaces/{workspace['id']}")).json["workspace"]
        if shown["state"] == "WORKSPACE_STATE_DELETE_FAILED":
            break
        await asyncio.sleep(0.05)
    assert "is version 1 of the model" in shown["errorMessage"]
    await rig.call("DELETE", f"{V1}/models/{things.model.id}")
    assert (await rig.call("DELETE", f"{V1}/workspaces/{workspace['id']}")).json == {"completed": False}
    assert await gone(rig, f"{V1}/workspaces/{workspace['id']}")
