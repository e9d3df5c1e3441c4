"""The model registry in the Python API."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from determined.common.api import errors
from determined.experimental import Determined, Model, ModelSortBy, OrderBy, client
from harness.api_stub import (
    PASSWORD,
    UUID,
    Answer,
    Reply,
    Request,
    StubMaster,
    failure,
    model,
    model_version,
)

MODELS = "/api/v1/models"


@pytest.fixture
def det(master: StubMaster) -> Iterator[Determined]:
    with Determined(user="ada", password=PASSWORD) as connection:
        yield connection


@pytest.fixture
def digits(master: StubMaster, det: Determined) -> Model:
    """A model whose changes the stub keeps."""
    kept = model()

    def change(request: Request) -> Answer:
        kept.update(request.body)
        return Reply({"model": kept})

    master.answer("GET", f"{MODELS}/5", lambda _: Reply({"model": kept}))
    master.answer("PATCH", f"{MODELS}/5", change)
    master.paged(f"{MODELS}/5/versions", "modelVersions", [model_version(2), model_version(1)])
    return det.get_model(5)


def test_attributes(digits: Model) -> None:
    assert (digits.model_id, digits.name, digits.username) == (5, "hand-written digits", "ada")
    assert (digits.description, digits.metadata, digits.labels) == (
        "ten of them",
        {"dataset": "digits"},
        ["b", "a"],
    )
    assert (digits.archived, digits.workspace_id, digits.num_versions) == (False, 1, 2)
    assert digits.last_updated_time == datetime.datetime(2026, 1, 2, 4, 5, 6, tzinfo=datetime.UTC)
    assert repr(digits) == "Model(name='hand-written digits', model_id=5)"


def test_create_and_find(master: StubMaster, det: Determined) -> None:
    master.answer("POST", MODELS, {"model": model()})
    made = det.create_model("x", "some", {"a": 1}, labels=["l"], workspace_name="Mine")
    assert made.model_id == 5
    assert master.sent("POST", MODELS)[0].body == {
        "name": "x",
        "description": "some",
        "metadata": {"a": 1},
        "labels": ["l"],
        "workspaceName": "Mine",
    }
    det.create_model("x")
    assert "workspaceName" not in master.sent("POST", MODELS)[1].body
    master.answer("POST", MODELS, failure(409, "AlreadyExists", "there is a model 'x' already"))
    with pytest.raises(errors.APIException, match="there is a model 'x' already") as refused:
        det.create_model("x")
    assert refused.value.status_code == 409

    master.answer("GET", f"{MODELS}/50% digits?", {"model": model()})
    assert det.get_model("50% digits?").model_id == 5
    with pytest.raises(errors.NotFoundException):
        det.get_model("none")


def test_lists(master: StubMaster, det: Determined) -> None:
    master.paged(MODELS, "models", [model(), model(6)], default_limit=1)
    master.answer("GET", "/api/v1/model/labels", {"labels": ["a", "b"]})
    found = det.list_models(
        ModelSortBy.NUM_VERSIONS, OrderBy.DESC, name="di", workspace_names=["A", "B"], model_id=5
    )
    assert [one.model_id for one in found] == [5, 6]
    query = master.sent("GET", MODELS)[0].query
    assert query["sortBy"] == ["SORT_BY_NUM_VERSIONS"]
    assert (query["orderBy"], query["name"], query["id"]) == (["ORDER_BY_DESC"], ["di"], ["5"])
    assert query["workspaceNames"] == ["A", "B"]
    assert "description" not in query
    assert det.get_model_labels() == ["a", "b"]


@pytest.mark.parametrize(
    ("change", "sent"),
    [
        (lambda m: m.set_description("new"), {"description": "new"}),
        (lambda m: m.set_labels(["z"]), {"labels": ["z"]}),
        (lambda m: m.add_metadata({"a": 1}), {"metadata": {"dataset": "digits", "a": 1}}),
        (lambda m: m.remove_metadata(["dataset", "none"]), {"metadata": {}}),
    ],
)
def test_changes(
    master: StubMaster, digits: Model, change: Callable[[Model], None], sent: dict[str, Any]
) -> None:
    change(digits)
    assert [request.body for request in master.sent("PATCH", f"{MODELS}/5")] == [sent]
    ((name, value),) = sent.items()
    assert getattr(digits, name) == value


def test_moving(master: StubMaster, digits: Model) -> None:
    master.answer("PATCH", f"{MODELS}/5", {"model": model(workspaceId=3)})
    digits.move_to_workspace("Other")
    assert master.sent("PATCH", f"{MODELS}/5")[0].body == {"workspaceName": "Other"}
    assert digits.workspace_id == 3


def test_archiving_and_deleting(master: StubMaster, digits: Model) -> None:
    for verb in ("archive", "unarchive"):
        master.answer("POST", f"{MODELS}/5/{verb}", {})
    digits.archive()
    assert digits.archived
    digits.unarchive()
    assert not digits.archived
    master.answer("DELETE", f"{MODELS}/5", {})
    digits.delete()
    assert len(master.sent("DELETE", f"{MODELS}/5")) == 1


def test_versions(master: StubMaster, digits: Model) -> None:
    assert [version.model_version for version in digits.list_versions()] == [2, 1]
    latest = digits.get_version()
    assert latest is not None
    query = master.sent("GET", f"{MODELS}/5/versions")[-1].query
    assert (query["sortBy"], query["orderBy"], query["limit"]) == (
        ["SORT_BY_VERSION"],
        ["ORDER_BY_DESC"],
        ["1"],
    )
    assert (latest.model_version, latest.model_id, latest.model_name) == (2, 5, "hand-written digits")
    assert (latest.checkpoint.uuid, latest.metadata, latest.comment) == (UUID, {"approved": True}, "why")
    master.paged(f"{MODELS}/5/versions", "modelVersions", [])
    assert digits.get_version() is None

    master.answer("GET", f"{MODELS}/5/versions/1", {"modelVersion": model_version(1)})
    first = digits.get_version(1)
    assert first is not None
    assert first.model_version == 1
    with pytest.raises(errors.NotFoundException):
        digits.get_version(3)

    master.answer(
        "PATCH",
        f"{MODELS}/5/versions/1",
        lambda request: Reply({"modelVersion": model_version(1, **request.body)}),
    )
    first.set_name("the first")
    assert first.name == "the first"
    first.set_notes("noted")
    assert first.notes == "noted"
    first.reload()
    assert first.notes == ""
    master.answer("DELETE", f"{MODELS}/5/versions/1", {})
    first.delete()
    assert len(master.sent("DELETE", f"{MODELS}/5/versions/1")) == 1


def test_registering(master: StubMaster, digits: Model) -> None:
    master.answer("POST", f"{MODELS}/5/versions", {"modelVersion": model_version(3)})
    assert digits.register_version(UUID).model_version == 3
    (request,) = master.sent("POST", f"{MODELS}/5/versions")
    assert request.body == {"modelName": "hand-written digits", "checkpointUuid": UUID}


def test_old_names_and_the_module(master: StubMaster, digits: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_shared", None)
    client.login(user="ada", password=PASSWORD)
    master.paged(MODELS, "models", [model()])
    master.answer("POST", MODELS, {"model": model()})
    master.answer("GET", "/api/v1/model/labels", {"labels": ["a"]})
    with pytest.warns(FutureWarning, match=r"use list_versions\(\)"):
        assert len(digits.get_versions()) == 2
    with pytest.warns(FutureWarning, match=r"use list_models\(\)"):
        assert len(client.get_models(name="x")) == 1
    with pytest.warns(FutureWarning, match=r"use get_model\(\)"):
        assert client.get_model_by_id(5).model_id == 5
    assert client.create_model("x", "d").model_id == client.get_model(5).model_id == 5
    assert [one.model_id for one in client.list_models(workspace_ids=[1])] == [5]
    assert client.get_model_labels() == ["a"]
    shared = client.current()
    assert shared is not None
    shared.close()
