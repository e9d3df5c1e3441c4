"""`det model`."""

from __future__ import annotations

import json

import pytest

from harness.api_stub import TIME, UUID, Reply, StubMaster, failure, model, model_version

from .conftest import Det

MODELS = "/api/v1/models"


@pytest.fixture(autouse=True)
def registry(master: StubMaster) -> None:
    master.answer("GET", f"{MODELS}/digits", {"model": model(name="digits")})
    master.paged(MODELS, "models", [model(name="digits"), model(6, name="1e5", metadata={})])
    master.paged(f"{MODELS}/5/versions", "modelVersions", [model_version(2), model_version(1)])
    master.answer("GET", f"{MODELS}/5/versions/1", {"modelVersion": model_version(1)})


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")]


def test_list(master: StubMaster, det: Det) -> None:
    lines = det("model", "list", "-w", "A,B").out.splitlines()
    assert cells(lines[0]) == ["ID", "Name", "Workspace ID", "Creation Time", "Last Updated Time", "Metadata"]
    assert cells(lines[2]) == [
        "5",
        "digits",
        "1",
        "2026-01-02 03:04:05+0000",
        "2026-01-02 04:05:06+0000",
        '{"dataset": "digits"}',
    ]
    assert cells(lines[3])[1] == "1e5"
    query = master.sent("GET", MODELS)[0].query
    assert query["workspaceNames"] == ["A", "B"]
    assert (query["sortBy"], query["orderBy"]) == (["SORT_BY_LAST_UPDATED_TIME"], ["ORDER_BY_ASC"])
    assert det("model").out.splitlines() == lines
    shown = det("m", "ls", "--sort-by", "name", "--order-by", "desc", "--json")
    assert [one["id"] for one in json.loads(shown.out)] == [5, 6]
    query = master.sent("GET", MODELS)[2].query
    assert (query["sortBy"], query["orderBy"]) == (["SORT_BY_NAME"], ["ORDER_BY_DESC"])


def test_create(master: StubMaster, det: Det) -> None:
    master.answer("POST", MODELS, lambda request: Reply({"model": model(name=request.body["name"])}))
    ran = det("model", "create", "my model", "--description", "mine", "-w", "Mine")
    assert cells(ran.out.splitlines()[2])[:4] == ["5", "my model", "ten of them", "1"]
    body = master.sent("POST", MODELS)[0].body
    assert (body["name"], body["description"], body["workspaceName"]) == ("my model", "mine", "Mine")
    assert json.loads(det("m", "create", "x", "--json").out)["name"] == "x"
    master.answer("POST", MODELS, failure(409, "AlreadyExists", "there is a model 'x' already"))
    ran = det("m", "create", "x")
    assert (ran.code, ran.err) == (1, "there is a model 'x' already\n")


def test_describe(master: StubMaster, det: Det) -> None:
    lines = det("model", "describe", "digits").out.splitlines()
    assert cells(lines[0])[:3] == ["ID", "Name", "Description"]
    assert cells(lines[4]) == [
        "Version #",
        "Trial ID",
        "Batch #",
        "Checkpoint UUID",
        "Validation Metrics",
        "Metadata",
    ]
    assert cells(lines[6])[0] == "2"
    lines = det("model", "describe", "digits", "--version", "1").out.splitlines()
    assert cells(lines[6])[:4] == ["1", "12", "100", UUID]
    text = "".join(lines)
    assert '"accuracy": 0.9' in text and '"steps_completed": 100' in text
    described = {
        "id": 5,
        "name": "digits",
        "description": "ten of them",
        "metadata": {"dataset": "digits"},
        "archived": False,
        "creation_time": TIME,
        "last_updated_time": "2026-01-02T04:05:06Z",
        "labels": ["b", "a"],
        "notes": "",
        "num_versions": 2,
        "username": "ada",
        "workspace_id": 1,
    }
    assert json.loads(det("m", "describe", "digits", "--json").out) == described
    shown = det("m", "describe", "digits", "--version", "1", "--json")
    assert json.loads(shown.out) == {**described, "modelVersion": model_version(1)}
    master.paged(f"{MODELS}/5/versions", "modelVersions", [])
    assert len(det("model", "describe", "digits").out.splitlines()) == 3
    ran = det("model", "describe", "none")
    assert (ran.code, ran.out) == (1, "")


def test_list_versions(det: Det) -> None:
    lines = det("model", "list-versions", "digits").out.splitlines()
    assert [cells(line)[0] for line in lines[6:] if cells(line)[0]] == ["2", "1"]
    shown = json.loads(det("model", "list-versions", "digits", "--json").out)
    assert shown == {
        "model": model(name="digits"),
        "modelVersions": [model_version(2), model_version(1)],
    }


def test_register_version(master: StubMaster, det: Det) -> None:
    master.answer("GET", f"{MODELS}/5", {"model": model(name="digits")})
    master.answer("POST", f"{MODELS}/5/versions", {"modelVersion": model_version(3)})
    lines = det("model", "register-version", "digits", UUID).out.splitlines()
    assert cells(lines[2])[:2] == ["5", "digits"]
    assert cells(lines[6])[0] == "3"
    assert master.sent("POST", f"{MODELS}/5/versions")[0].body["checkpointUuid"] == UUID
    shown = det("m", "register-version", "digits", UUID, "--json")
    assert json.loads(shown.out) == {"modelVersion": model_version(3)}


def test_move_and_delete(master: StubMaster, det: Det) -> None:
    master.answer("PATCH", f"{MODELS}/5", {"model": model(name="digits", workspaceId=3)})
    assert det("model", "move", "digits", "-w", "Other").out == "Moved model digits to workspace Other\n"
    assert master.sent("PATCH", f"{MODELS}/5")[0].body == {"workspaceName": "Other"}
    assert det("model", "move", "digits").code == 2
    master.answer("DELETE", f"{MODELS}/5", {})
    ran = det("model", "delete", "digits")
    assert ran.out == "Deleted model digits with its 2 versions; their checkpoints stay\n"
    assert len(master.sent("DELETE", f"{MODELS}/5")) == 1
