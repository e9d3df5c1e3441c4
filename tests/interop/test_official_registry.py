"""The model registry, through the official client's SDK and `det`."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.official import Official

TRAIN = """
from determined import core

with core.init() as context:
    for steps in (1, 2):
        context.train.report_validation_metrics(steps, {"accuracy": steps / 4})
        with context.checkpoint.store_path({"steps_completed": steps}) as (path, uuid):
            (path / "weights").write_text(f"weights after {steps}")
"""


@pytest.fixture(scope="module")
def uuids(official: Official) -> list[str]:
    """Two checkpoints, the better one first."""
    config = {
        "name": "tiny",
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "accuracy", "smaller_is_better": False},
        "checkpoint_storage": {"save_trial_latest": 2, "save_trial_best": 2},
        "max_restarts": 0,
    }
    ours = official.cluster
    experiment_id = ours.create(config, {"train.py": TRAIN})
    assert ours.wait_for_end(experiment_id) == "COMPLETED"
    query = {"sortByAttr": "SORT_BY_SEARCHER_METRIC"}
    answer = ours.get(f"/api/v1/experiments/{experiment_id}/checkpoints", params=query)
    found = [checkpoint["uuid"] for checkpoint in answer["checkpoints"]]
    assert len(found) == 2
    return found


def test_sdk(official: Official, uuids: list[str], tmp_path: Path) -> None:
    script = Path(__file__).with_name("registry_script.py")
    said = official.python(script, *uuids, tmp_path / "weights")
    assert said["empty"] is True
    assert (said["version"], said["of"]) == (1, ["from the SDK", True])
    assert said["latest"] == [2, uuids[1]]
    assert said["one"] == ["the first", "noted", uuids[0]]
    assert "is version 1 of the model 'from the SDK'" in said["refused"]
    assert (Path(said["path"]) / "weights").read_text() == "weights after 2"
    assert said["numbers"] == [1, 2]
    assert said["edited"] == ["another", {"classes": 10}, ["a", "b"], True, False]
    assert said["owner"] == "determined"
    assert said["found"] == {
        "names": ["from the SDK"],
        "by_part": ["from the SDK"],
        "by_id": "from the SDK",
        "labels": ["a", "b"],
    }
    assert (said["left"], said["gone"]) == ([1], True)


def test_det(official: Official, uuids: list[str]) -> None:
    official.det("model", "create", "digits", "--description", "ten of them")
    again = official.det("model", "create", "digits", code=1)
    assert "there is a model 'digits' already" in again.out + again.err
    official.det("model", "register-version", "digits", uuids[0])
    official.det("m", "register-version", "digits", uuids[1])

    (listed,) = official.det("model", "list", "--json").json
    assert (listed["name"], listed["description"], listed["archived"]) == ("digits", "ten of them", False)
    shown = official.det("model", "list-versions", "digits").out
    assert all(uuid in shown for uuid in uuids)
    shown = official.det("model", "describe", "digits", "--version", "2").out
    assert uuids[1] in shown and uuids[0] not in shown

    refused = official.det("checkpoint", "delete", uuids[0], "--yes", code=1)
    assert "delete it from the model registry first" in refused.out + refused.err
    official.det("model", "delete", "digits")
    assert official.det("model", "list", "--json").json == []
