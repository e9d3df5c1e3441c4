"""The model registry: models, their versions, and what it holds on to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from detlab_master.core.permissions import Principal
from detlab_master.core.records import Checkpoint
from detlab_master.core.states import CheckpointState, ExperimentState
from detlab_master.engine.checkpoint_files import CheckpointFiles
from detlab_master.engine.checkpoint_holds import CheckpointHolds
from detlab_master.engine.clock import Ids
from detlab_master.engine.registry import ModelRegistry
from detlab_master.store.base import ModelFilter, Page
from detlab_master.store.writes import SaveCheckpoint, SaveExperiment
from master.api.rig import ALICE, BOB, Answer, Rig, Things, checkpoint_record

MODELS = "/api/v1/models"


async def made(rig: Rig, name: str = "digits", *, by: str = "alice", **fields: Any) -> dict[str, Any]:
    answer = await rig.call("POST", MODELS, {"name": name, **fields}, by=by)
    assert answer.status == 200, answer.body
    model: dict[str, Any] = answer.json["model"]
    return model


async def register(rig: Rig, model: str | int, things: Things, *, by: str = "alice", **fields: Any) -> Answer:
    body = {"modelName": str(model), "checkpointUuid": things.checkpoint.uuid, **fields}
    return await rig.call("POST", f"{MODELS}/{quote(str(model))}/versions", body, by=by)


async def change_state(rig: Rig, things: Things, state: ExperimentState) -> None:
    await rig.keep(SaveExperiment(replace(things.experiment, state=state)))


# Models


async def test_a_model(rig: Rig) -> None:
    given: dict[str, Any] = {
        "description": "ten of them",
        "notes": "n",
        "labels": ["b", "a", "b"],
        "metadata": {"x": [1, 2.5], "y": None},
    }
    model = await made(rig, "hand written digits", **given)
    assert model == {
        "id": model["id"],
        "name": "hand written digits",
        **given,
        "labels": ["b", "a"],
        "archived": False,
        "creationTime": model["creationTime"],
        "lastUpdatedTime": model["creationTime"],
        "numVersions": 0,
        "userId": ALICE,
        "username": "alice",
        "workspaceId": 1,
    }
    for path in ("hand%20written%20digits", str(model["id"])):
        answer = await rig.call("GET", f"{MODELS}/{path}")
        assert (answer.status, answer.json) == (200, {"model": model})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "blank"),
        (" ", "blank"),
        ("a  b", "several in a row"),
        (" a", "begins or ends with a space"),
        ("a/b", "slash"),
        ("..", "folder"),
        ("123", "digits only"),
        ("١٢", "digits only"),
        ("a\nb", "cannot be printed"),
    ],
)
async def test_names_that_are_refused(rig: Rig, name: str, why: str) -> None:
    fine = await made(rig)
    for method, path in (("POST", MODELS), ("PATCH", f"{MODELS}/{fine['id']}")):
        answer = await rig.call(method, path, {"name": name})
        assert (answer.status, why in answer.error) == (400, True), answer.body
    assert (await rig.call("POST", MODELS, {})).status == 400


async def test_a_name_is_taken_once_by_each_user(rig: Rig) -> None:
    alices, bobs = await made(rig), await made(rig, by="bob")
    answer = await rig.call("POST", MODELS, {"name": "digits"})
    assert (answer.status, answer.json["error"]["reason"]) == (409, "AlreadyExists")
    other = await made(rig, "letters")
    assert (await rig.call("PATCH", f"{MODELS}/letters", {"name": "digits"})).status == 409
    assert (await rig.call("PATCH", f"{MODELS}/letters", {"name": "letters"})).status == 200

    async def found(name: str | int, by: str) -> Answer:
        return await rig.call("GET", f"{MODELS}/{name}", by=by)

    assert (await found("digits", "alice")).json["model"]["id"] == alices["id"]
    assert (await found("digits", "bob")).json["model"]["id"] == bobs["id"]
    assert (await found("letters", "admin")).json["model"]["id"] == other["id"]
    unclear = await found("digits", "admin")
    assert unclear.status == 400
    assert unclear.error.endswith(f"one of {alices['id']}, {bobs['id']}")
    admins = await made(rig, by="admin")
    assert (await found("digits", "admin")).json["model"]["id"] == admins["id"]
    assert (await found(alices["id"], "bob")).status == 404


async def test_names_are_given_once_also_at_the_same_time(rig: Rig) -> None:
    answers = await asyncio.gather(*(rig.call("POST", MODELS, {"name": "digits"}) for _ in range(8)))
    assert sorted(answer.status for answer in answers) == [200] + [409] * 7


async def test_a_model_is_changed_piece_by_piece(rig: Rig) -> None:
    model = await made(rig, description="old", labels=["a"], metadata={"x": 1})
    changes: list[dict[str, Any]] = [
        {"description": "new"},
        {"notes": "some"},
        {"labels": []},
        {"metadata": {}},
        {"name": "new name"},
        {"workspaceName": "Uncategorized"},
    ]
    for change in changes:
        answer = await rig.call("PATCH", f"{MODELS}/{model['id']}", change)
        assert answer.status == 200, answer.body
        after = answer.json["model"]
        expected = {k: v for k, v in {**model, **change}.items() if k in model}
        assert after == {**expected, "lastUpdatedTime": after["lastUpdatedTime"]}
        assert after["lastUpdatedTime"] > model["lastUpdatedTime"]
        model = after
    for verb, archived in (("archive", True), ("archive", True), ("unarchive", False)):
        assert (await rig.call("POST", f"{MODELS}/new%20name/{verb}")).json == {}
        assert (await rig.call("GET", f"{MODELS}/{model['id']}")).json["model"]["archived"] is archived


async def test_an_archived_workspace_takes_no_models(rig: Rig) -> None:
    workspace = (await rig.call("POST", "/api/v1/workspaces", {"name": "old"})).json["workspace"]
    path = f"/api/v1/workspaces/{workspace['id']}"
    assert (await rig.call("POST", f"{path}/archive")).status == 200
    answer = await rig.call("POST", MODELS, {"name": "x", "workspaceId": workspace["id"]})
    assert (answer.status, "archived" in answer.json["error"]["error"]) == (400, True)
    assert (await rig.call("POST", f"{path}/unarchive")).status == 200
    answer = await rig.call("POST", MODELS, {"name": "x", "workspaceId": workspace["id"]})
    assert (answer.status, answer.json["model"]["workspaceId"]) == (200, workspace["id"])


@pytest.mark.parametrize(
    ("workspace", "status"),
    [
        ({"workspaceId": 1}, 200),
        ({"workspaceName": "Uncategorized", "workspaceId": 1}, 200),
        ({"workspaceName": "elsewhere"}, 404),
        ({"workspaceId": 7}, 404),
        ({"workspaceId": 1, "workspaceName": "elsewhere"}, 400),
    ],
)
async def test_the_workspace_of_a_model(rig: Rig, workspace: Mapping[str, Any], status: int) -> None:
    assert (await rig.call("POST", MODELS, {"name": "x", **workspace})).status == status


async def test_lists(rig: Rig) -> None:
    digits = await made(rig, "Digits", description="hand-written", labels=["x", "y"])
    letters = await made(rig, "letters", labels=["y", "z"])
    bobs = await made(rig, "digits", by="bob", labels=["q"])
    things = await rig.things()
    await register(rig, "letters", things)
    await rig.call("POST", f"{MODELS}/letters/archive")

    async def names(by: str = "alice", **query: Any) -> list[Any]:
        answer = await rig.call("GET", MODELS, by=by, query=query)
        assert answer.status == 200, answer.body
        listed: list[dict[str, Any]] = answer.json["models"]
        return [model["name"] for model in listed if not model["name"].startswith("model of")]

    assert await names() == ["Digits", "letters"]
    assert await names("bob") == ["digits"]
    assert await names("admin") == ["Digits", "letters", "digits"]
    assert await names("admin", users="bob") == ["digits"]
    assert await names(users="bob") == []
    assert await names(userIds=BOB) == []
    assert await names("admin", userIds=[ALICE, BOB], users=["bob"]) == ["digits"]
    assert await names(users="nobody") == []
    assert await names(name="DIG") == ["Digits"]
    assert await names(description="WRITTEN") == ["Digits"]
    assert await names(labels="y") == ["Digits", "letters"]
    assert await names(labels=["y", "z"]) == ["letters"]
    assert await names(archived="true") == ["letters"]
    assert await names(archived="false") == ["Digits"]
    assert await names(id=digits["id"]) == ["Digits"]
    assert await names(id=bobs["id"]) == []
    assert await names(workspaceNames="Uncategorized") == ["Digits", "letters"]
    assert await names(workspaceNames="elsewhere") == []
    assert await names(workspaceIds=[1, 2]) == ["Digits", "letters"]
    assert await names(sortBy="SORT_BY_NAME", orderBy="ORDER_BY_DESC") == ["letters", "Digits"]
    assert await names(sortBy="SORT_BY_NUM_VERSIONS", orderBy="ORDER_BY_DESC") == ["letters", "Digits"]
    assert await names(sortBy="SORT_BY_LAST_UPDATED_TIME", limit=2) == ["Digits", "letters"]
    page = (await rig.call("GET", MODELS, query={"limit": 1, "offset": 1})).json
    assert page["pagination"] == {"offset": 1, "limit": 1, "startIndex": 1, "endIndex": 2, "total": 3}
    assert page["models"][0]["id"] == letters["id"]

    assert (await rig.call("GET", "/api/v1/model/labels")).json == {"labels": ["x", "y", "z"]}
    assert (await rig.call("GET", "/api/v1/model/labels", by="bob")).json == {"labels": ["q"]}
    elsewhere = await rig.call("GET", "/api/v1/model/labels", query={"workspaceId": 2})
    assert elsewhere.json == {"labels": []}


# Versions


async def test_a_version(rig: Rig) -> None:
    model, things = await made(rig), await rig.things()
    given: dict[str, Any] = {
        "name": "first",
        "comment": "c",
        "notes": "n",
        "labels": ["a"],
        "metadata": {"x": 1},
    }
    answer = await register(rig, "digits", things, **given)
    assert answer.status == 200, answer.body
    version = answer.json["modelVersion"]
    checkpoint = await rig.call("GET", f"/api/v1/checkpoints/{things.checkpoint.uuid}")
    counted = (await rig.call("GET", f"{MODELS}/digits")).json["model"]
    assert counted == {**model, "numVersions": 1, "lastUpdatedTime": version["creationTime"]}
    assert version == {
        "id": 1,
        "version": 1,
        **given,
        "model": counted,
        "checkpoint": checkpoint.json["checkpoint"],
        "creationTime": version["creationTime"],
        "lastUpdatedTime": version["creationTime"],
        "userId": ALICE,
        "username": "alice",
    }
    assert version["checkpoint"]["training"]["validationMetrics"]["avgMetrics"]["accuracy"] == 0.75
    for path in ("digits/versions/1", f"{model['id']}/versions/1"):
        assert (await rig.call("GET", f"{MODELS}/{path}")).json == {"modelVersion": version}
    listed = (await rig.call("GET", f"{MODELS}/digits/versions")).json
    assert (listed["model"], listed["modelVersions"]) == (counted, [version])

    changes = {"name": "best", "labels": [], "metadata": {}, "checkpoint": version["checkpoint"]}
    changed = (await rig.call("PATCH", f"{MODELS}/digits/versions/1", changes)).json["modelVersion"]
    assert [changed[k] for k in ("name", "comment", "labels", "metadata")] == ["best", "c", [], {}]
    other = (await rig.things()).checkpoint.uuid
    refused = await rig.call("PATCH", f"{MODELS}/digits/versions/1", {"checkpoint": {"uuid": other}})
    assert (refused.status, "keeps its checkpoint" in refused.error) == (400, True)


async def test_numbers_count_up_and_are_not_used_again(rig: Rig) -> None:
    await made(rig)
    things = [await rig.things() for _ in range(10)]
    answers = await asyncio.gather(*(register(rig, "digits", one) for one in things))
    assert sorted(answer.json["modelVersion"]["version"] for answer in answers) == list(range(1, 11))
    for number in (10, 4):
        assert (await rig.call("DELETE", f"{MODELS}/digits/versions/{number}")).json == {}
    assert (await register(rig, "digits", things[0])).json["modelVersion"]["version"] == 11

    async def numbers(**query: Any) -> list[int]:
        answer = await rig.call("GET", f"{MODELS}/digits/versions", query=query)
        return [version["version"] for version in answer.json["modelVersions"]]

    assert await numbers() == [1, 2, 3, 5, 6, 7, 8, 9, 11]
    newest = {"sortBy": "SORT_BY_VERSION", "orderBy": "ORDER_BY_DESC"}
    assert await numbers(**newest, limit=2) == [11, 9]
    assert await numbers(**newest, limit=2, offset=2) == [8, 7]
    assert await numbers(sortBy="SORT_BY_CREATION_TIME", limit=1, offset=-1) == [11]
    for path, status in (("4", 404), ("99", 404), ("latest", 400), ("-1", 400)):
        answer = await rig.call("GET", f"{MODELS}/digits/versions/{path}")
        assert answer.status == status, answer.body
    assert answer.error == "the version is '-1': expected an integer"


async def test_what_cannot_be_registered(rig: Rig) -> None:
    await made(rig)
    things = await rig.things()
    for state in (CheckpointState.ACTIVE, CheckpointState.PARTIALLY_DELETED, CheckpointState.DELETED):
        record = checkpoint_record(things.checkpoint.uuid, things.task, things.allocation, state=state)
        await rig.keep(SaveCheckpoint(record))
        answer = await register(rig, "digits", things)
        assert (answer.status, f"is {state}: only a COMPLETED" in answer.error) == (400, True)
    await rig.keep(SaveCheckpoint(things.checkpoint))
    await change_state(rig, things, ExperimentState.DELETING)
    answer = await register(rig, "digits", things)
    assert (answer.status, "is being deleted" in answer.error) == (400, True)
    foreign = await rig.things(BOB)
    answer = await register(rig, "digits", foreign)
    assert (answer.status, answer.error) == (404, f"checkpoint '{foreign.checkpoint.uuid}' not found")
    assert (await rig.call("POST", f"{MODELS}/digits/versions", {})).error.startswith(
        "checkpointUuid is missing"
    )
    assert (await rig.call("GET", f"{MODELS}/digits")).json["model"]["numVersions"] == 0


async def test_an_administrator_registers_for_others_what_is_theirs(rig: Rig) -> None:
    model = await made(rig)
    await made(rig, "admins own", by="admin")
    alices, bobs = await rig.things(), await rig.things(BOB)
    answer = await register(rig, model["id"], bobs, by="admin")
    assert (answer.status, "could not download it" in answer.error) == (400, True)
    assert (await register(rig, model["id"], alices, by="admin")).json["modelVersion"]["username"] == "admin"
    assert (await register(rig, "admins own", bobs, by="admin")).status == 200


# What the registry holds on to


async def test_a_registered_checkpoint_is_not_deleted(rig: Rig) -> None:
    things, free = await rig.things(), await rig.things()
    await made(rig)
    await register(rig, "digits", things)
    uuids = [free.checkpoint.uuid, things.checkpoint.uuid]
    for method, path, body in (
        ("DELETE", "/api/v1/checkpoints", {"checkpointUuids": uuids}),
        ("POST", "/api/v1/checkpoints/rm", {"checkpointUuids": uuids, "checkpointGlobs": ["*"]}),
        ("DELETE", f"/api/v1/experiments/{things.experiment.id}", None),
    ):
        answer = await rig.call(method, path, body)
        assert answer.status == 400, answer.body
        assert f"checkpoint '{things.checkpoint.uuid}' is version 1 of the model 'digits'" in answer.error
    assert [rig.store.checkpoints.get(uuid) for uuid in uuids] == [free.checkpoint, things.checkpoint]
    assert rig.store.experiments.get(things.experiment.id) == things.experiment
    looked = {"checkpointUuids": uuids, "checkpointGlobs": []}
    assert (await rig.call("POST", "/api/v1/checkpoints/rm", looked)).status == 200

    assert (await rig.call("DELETE", f"{MODELS}/digits")).json == {}
    assert (await rig.call("GET", f"{MODELS}/digits")).status == 404
    assert rig.store.models.registered(checkpoint_uuids=uuids) == []
    assert (await rig.call("DELETE", "/api/v1/checkpoints", {"checkpointUuids": uuids})).status == 200
    left = rig.store.checkpoints.get(things.checkpoint.uuid)
    assert left is not None
    assert left.state is CheckpointState.DELETED


async def test_nobody_registers_what_is_just_being_deleted(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its first file goes, the checkpoint is not complete any more."""
    things = await rig.things()
    await made(rig)
    begun, go_on = asyncio.Event(), asyncio.Event()
    remove = CheckpointFiles.remove

    async def slow(self: CheckpointFiles, *arguments: Any) -> dict[str, int]:
        if arguments[2]:  # it does not only look
            begun.set()
            await asyncio.wait_for(go_on.wait(), 10)
        return await remove(self, *arguments)

    monkeypatch.setattr(CheckpointFiles, "remove", slow)
    body = {"checkpointUuids": [things.checkpoint.uuid]}
    deleting = asyncio.create_task(rig.call("DELETE", "/api/v1/checkpoints", body))
    await asyncio.wait_for(begun.wait(), 10)
    assert _state(rig, things.checkpoint) is CheckpointState.PARTIALLY_DELETED
    answer = await register(rig, "digits", things)
    assert (answer.status, "only a COMPLETED one can be registered" in answer.error) == (400, True)
    go_on.set()
    assert (await deleting).status == 200
    assert _state(rig, things.checkpoint) is CheckpointState.DELETED


def _state(rig: Rig, checkpoint: Checkpoint) -> CheckpointState:
    found = rig.store.checkpoints.get(checkpoint.uuid)
    assert found is not None
    return found.state


async def test_the_registry_counts_on_after_a_restart(rig: Rig) -> None:
    things = await rig.things()
    model = await made(rig)
    await register(rig, "digits", things)
    last = rig.store.models.find(ModelFilter(), Page())[0][-1].id
    await rig.call("DELETE", f"{MODELS}/digits")
    again = ModelRegistry(rig.store, Ids(rig.store.highest_ids()), CheckpointHolds(rig.store))
    alice = Principal(ALICE, "alice", admin=False, kind="user")
    created = await again.create(alice, "digits")
    assert created.id == last + 1 > model["id"]
    assert (await again.register(alice, created.id, things.checkpoint.uuid)).version == 1
