"""Templates, and experiments that start from one, in a project, with what their workspace gives."""

from __future__ import annotations

from typing import Any

import pytest

from master.api.rig import CONFIG, Answer, Rig
from master.api.test_api_workspaces import make, make_project

V1 = "/api/v1"
MASKED = {"access_key": "********", "secret_key": "********"}


async def put(rig: Rig, path: str, config: Any, by: str = "alice", **fields: Any) -> Answer:
    return await rig.call("POST", f"{V1}/templates/{path}", {"config": config, **fields}, by=by)


async def create(rig: Rig, text: str = "", **fields: Any) -> Answer:
    return await rig.call("POST", f"{V1}/experiments", {"config": CONFIG + text, "activate": False, **fields})


async def created(rig: Rig, text: str = "", **fields: Any) -> dict[str, Any]:
    answer = await create(rig, text, **fields)
    assert answer.status == 200, answer.body
    experiment: dict[str, Any] = answer.json["experiment"]
    return experiment


async def test_a_template_from_its_start_to_its_end(rig: Rig) -> None:
    config = {"max_restarts": 1, "resources": {"slots_per_trial": 2}}
    answer = await put(rig, "gpus", config, name="gpus", workspaceId=0)
    assert answer.json == {"template": {"name": "gpus", "config": config, "workspaceId": 1}}
    for by in ("alice", "bob"):
        assert (await rig.call("GET", f"{V1}/templates/gpus", by=by)).json == answer.json
    assert (await put(rig, "gpus", {}, by="bob")).status == 409
    edited = await rig.call("PATCH", f"{V1}/templates/gpus", {"debug": True})
    assert edited.json["template"]["config"] == {"debug": True}
    assert (await rig.call("DELETE", f"{V1}/templates/gpus", by="bob")).status == 403
    assert (await rig.call("DELETE", f"{V1}/templates/gpus")).json == {}
    for method in ("GET", "PATCH", "DELETE"):
        assert (await rig.call(method, f"{V1}/templates/gpus")).error == "template 'gpus' not found"


async def test_keys_of_a_storage_are_its_makers(rig: Rig) -> None:
    storage = {"type": "s3", "bucket": "b", "access_key": "id", "secret_key": "a-secret"}
    await put(rig, "bucket", {"checkpoint_storage": storage})
    for by, shown in (("alice", storage), ("admin", storage), ("bob", storage | MASKED)):
        one = (await rig.call("GET", f"{V1}/templates/bucket", by=by)).json["template"]
        (listed,) = (await rig.call("GET", f"{V1}/templates", by=by)).json["templates"]
        assert one == listed and one["config"]["checkpoint_storage"] == shown
    answer = await rig.call(
        "POST", f"{V1}/experiments", {"config": CONFIG, "activate": False, "template": "bucket"}, by="bob"
    )
    used = answer.json["experiment"]["config"]["checkpoint_storage"]
    assert used["secret_key"] == "a-secret", "who uses a template gets what is in it"


async def test_lists(rig: Rig) -> None:
    workspace = await make(rig)
    for name, where in (("b", 1), ("ab", workspace["id"]), ("c", 1)):
        await put(rig, name, {}, workspaceId=where)

    async def names(**query: Any) -> list[str]:
        answer = await rig.call("GET", f"{V1}/templates", by="bob", query=query)
        return [template["name"] for template in answer.json["templates"]]

    assert await names() == ["ab", "b", "c"]
    assert await names(sortBy="SORT_BY_NAME", orderBy="ORDER_BY_DESC", limit=2) == ["c", "b"]
    assert await names(name="B") == ["ab", "b"]
    assert await names(workspaceIds=workspace["id"]) == ["ab"]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"resources": {"slots": 2}}, "<template>.resources.slots: unknown key"),
        ({"max_restarts": "many"}, "<template>.max_restarts"),
        ({"searcher": {"name": "grit"}}, "<template>.searcher.name"),
        ({"hyperparameters": {"lr": {"type": "log"}}}, "<template>.hyperparameters.lr"),
        ([], "config is []: expected an object"),
    ],
)
async def test_what_is_no_template(rig: Rig, config: Any, text: str) -> None:
    answer = await put(rig, "t", config)
    assert answer.status == 400 and text in answer.error
    assert (await put(rig, "t", {})).status == 200
    if isinstance(config, dict):
        answer = await rig.call("PATCH", f"{V1}/templates/t", config)
        assert answer.status == 400 and text in answer.error
        assert (await rig.call("GET", f"{V1}/templates/t")).json["template"]["config"] == {}


async def test_names_and_places_of_templates(rig: Rig) -> None:
    assert (await put(rig, "%20x", {})).status == 400
    assert (await put(rig, "a%2Fb", {})).status == 400
    assert (await put(rig, "x", {}, name="y")).status == 400
    assert (await put(rig, "x", {}, workspaceId=99)).error == "workspace '99' not found"


async def test_an_experiment_from_a_template(rig: Rig) -> None:
    project = await make_project(rig)
    config = {
        "name": "not this one",
        "max_restarts": 1,
        "hyperparameters": {"momentum": 0.9},
        "labels": ["from the template"],
        "workspace": "Uncategorized",
        "project": "digits",
    }
    await put(rig, "t", config, by="bob")
    shown = await created(rig, template="t")
    assert (shown["name"], shown["config"]["max_restarts"]) == ("digits", 1)
    assert set(shown["config"]["hyperparameters"]) == {"lr", "momentum"}
    assert (shown["labels"], shown["projectId"]) == (["from the template"], project["id"])
    assert shown["originalConfig"] == CONFIG
    assert (await created(rig, "project: Uncategorized\n", template="t"))["projectId"] == 1
    assert (await created(rig, template="t", projectId=1))["projectId"] == 1
    refused = await create(rig, template="tt")
    assert refused.status == 404
    assert refused.error == "template 'tt' not found: there are t. Did you mean 't'?"


async def test_an_experiment_into_a_project(rig: Rig) -> None:
    workspace = await make(rig, by="bob")
    project = await make_project(rig, workspace["id"], by="bob")
    named = "workspace: vision\nproject: digits\n"
    for shown in (await created(rig, named), await created(rig, projectId=project["id"])):
        assert (shown["workspaceName"], shown["projectName"]) == ("vision", "digits")
    for text, status, error in (
        ("workspace: vision\n", 400, "<config>.project: is required where workspace is given"),
        ("project: digits\n", 400, "<config>.workspace: is required where project is given"),
        ("workspace: [1]\nproject: digits\n", 400, "<config>.workspace"),
        (
            "workspace: visoin\nproject: digits\n",
            404,
            "there are Uncategorized, vision. Did you mean 'vision'?",
        ),
        (
            "workspace: vision\nproject: other\n",
            404,
            "project 'other' not found in workspace 'vision': there are digits",
        ),
    ):
        answer = await create(rig, text)
        assert answer.status == status and error in answer.error, answer.error
    assert (await create(rig, projectId=99)).error == "project '99' not found"
    for what, number in (("projects", project["id"]), ("workspaces", workspace["id"])):
        await rig.call("POST", f"{V1}/{what}/{number}/archive", by="bob")
        for refused in (await create(rig, named), await create(rig, projectId=project["id"])):
            assert refused.status == 400 and "is archived and takes no experiments" in refused.error
        await rig.call("POST", f"{V1}/{what}/{number}/unarchive", by="bob")
    assert (await create(rig, named)).status == 200


async def test_what_a_workspace_gives_its_experiments(rig: Rig) -> None:
    storage = {"type": "shared_fs", "host_path": "/nfs/vision", "save_trial_best": 4}
    workspace = await make(rig, checkpointStorageConfig=storage, defaultAuxPool="default")
    project = await make_project(rig, workspace["id"])
    kept = (await created(rig, projectId=project["id"]))["config"]["checkpoint_storage"]
    assert (kept["host_path"], kept["save_trial_best"]) == ("/nfs/vision", 4)
    own = "checkpoint_storage: {save_trial_best: 2}\n"
    kept = (await created(rig, own, projectId=project["id"]))["config"]["checkpoint_storage"]
    assert (kept["host_path"], kept["save_trial_best"]) == ("/nfs/vision", 2)
    assert (await created(rig))["config"]["checkpoint_storage"]["host_path"] != "/nfs/vision"
