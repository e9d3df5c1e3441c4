"""Retention on a real cluster: what is left on disk after searches, also when the master is killed while it removes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from determined.common.api import errors
from determined.experimental import Determined
from e2e.conftest import Place
from e2e.trials import script_config, searcher
from support.cluster import PASSWORD, wait_for

# Each trial is best somewhere in its middle, and saves more often than it validates.
SEARCH = """
import determined as det
from determined import core

rate = det.get_cluster_info().trial.hparams["rate"]
with core.init() as context:
    for step in range(1, 9):
        if step % 4:
            accuracy = "NaN" if rate == 3 and step == 5 else 1 - abs(step - 2 * rate) / 10 - rate / 1000
            context.train.report_validation_metrics(step, {"accuracy": float(accuracy)})
        with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
            (path / "weights").write_text(str(step))
"""
MANY = """
from determined import core

with core.init() as context:
    for step in range(1, 61):
        context.train.report_validation_metrics(step, {"accuracy": step % 50})
        with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
            for number in range(50):
                (path / f"shard-{number}").write_text("x")
"""


def policy(experiment_best: int, trial_best: int, trial_latest: int) -> dict[str, int]:
    return {
        "save_experiment_best": experiment_best,
        "save_trial_best": trial_best,
        "save_trial_latest": trial_latest,
    }


def checkpoints(place: Place, experiment_id: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = place.cluster.get(f"/api/v1/experiments/{experiment_id}/checkpoints")[
        "checkpoints"
    ]
    return found


def on_disk(place: Place) -> set[str]:
    return {path.name for path in (place.cluster.master_folder / "checkpoints").iterdir()}


def kept(saved: list[dict[str, Any]], keep: dict[str, int]) -> set[str]:
    """The rules of the reference, read naively from what the API says of all checkpoints that there ever were."""

    def metric(one: dict[str, Any]) -> float | None:
        value = one["training"]["searcherMetric"]
        return None if value is None else float(value) if value != "NaN" else float("-inf")

    def step(one: dict[str, Any]) -> int:
        return int(one["metadata"]["steps_completed"])

    of_trial = defaultdict(list)
    for one in saved:
        of_trial[one["training"]["trialId"]].append(one)
    validated = [one for one in saved if metric(one) is not None]
    best = sorted(validated, key=lambda one: metric(one) or 0.0, reverse=True)[: keep["save_experiment_best"]]
    for trial in of_trial.values():
        ranked = sorted(
            (one for one in trial if one in validated), key=lambda one: metric(one) or 0.0, reverse=True
        )
        best += ranked[: keep["save_trial_best"]]
        best += sorted(trial, key=step, reverse=True)[: keep["save_trial_latest"]]
    return {one["uuid"] for one in best}


def test_a_search_leaves_just_what_its_policy_keeps(place: Place) -> None:
    others = on_disk(place)
    first = policy(3, 2, 1)
    config = script_config(
        place.side,
        searcher=searcher("grid"),
        hyperparameters={"rate": {"type": "categorical", "vals": [1, 2, 3, 4]}},
        checkpoint_storage=first,
    )
    experiment_id = place.cluster.create(config, {"train.py": SEARCH})
    assert place.cluster.wait_for_end(experiment_id) == "COMPLETED"
    saved = checkpoints(place, experiment_id)
    assert len(saved) == 4 * 8
    expected = kept(saved, first)
    assert 4 * 3 <= len(expected) <= 4 * 3 + 3
    wait_for(lambda: on_disk(place) - others == expected, "just these are left")
    wait_for(lambda: _states(place, experiment_id) == _as_kept(saved, expected), "and the API says so")

    # A registered one stays, and a narrower policy takes the others.
    latest = max(saved, key=lambda one: (one["training"]["trialId"], int(one["metadata"]["steps_completed"])))
    place.cluster.post("/api/v1/models", {"name": "kept"})
    place.cluster.post("/api/v1/models/kept/versions", {"checkpointUuid": latest["uuid"]})
    narrower = policy(1, 0, 0)
    numbers = [f"--{name.replace('_', '-')}={number}" for name, number in narrower.items()]
    said = place.det("experiment", "set", "gc-policy", str(experiment_id), *numbers, "--yes")
    assert said.returncode == 0, said.stderr
    expected = kept(saved, narrower) | {latest["uuid"]}
    wait_for(lambda: on_disk(place) - others == expected, "two are left")

    refused = place.det("experiment", "delete", str(experiment_id), "--yes")
    assert refused.returncode == 1 and "is version 1 of the model 'kept'" in refused.stderr
    assert on_disk(place) - others == expected
    assert place.cluster.request("DELETE", "/api/v1/models/kept").status_code == 200
    assert place.det("experiment", "delete", str(experiment_id), "--yes").returncode == 0
    path = f"/api/v1/experiments/{experiment_id}"
    wait_for(lambda: place.cluster.request("GET", path).status_code == 404, "the experiment is gone")
    assert on_disk(place) == others


def _states(place: Place, experiment_id: int) -> dict[str, str]:
    return {one["uuid"]: one["state"] for one in checkpoints(place, experiment_id)}


def _as_kept(saved: list[dict[str, Any]], expected: set[str]) -> dict[str, str]:
    return {one["uuid"]: "STATE_COMPLETED" if one["uuid"] in expected else "STATE_DELETED" for one in saved}


@pytest.fixture(scope="module")
def many(place: Place) -> int:
    """An experiment with 60 checkpoints, all kept."""
    config = script_config(place.side, checkpoint_storage=policy(0, 0, 1000))
    experiment_id = place.cluster.create(config, {"train.py": MANY})
    assert place.cluster.wait_for_end(experiment_id) == "COMPLETED"
    assert len(checkpoints(place, experiment_id)) == 60
    return experiment_id


def kill_in_the_middle(place: Place, uuids: set[str], begin: Callable[[], None]) -> set[str]:
    """Kill the master with -9 when some of these are removed; what is left then."""
    begin()
    while len(left := on_disk(place) & uuids) > len(uuids) - 5:
        time.sleep(0.001)
    place.cluster.kill_master()
    left = on_disk(place) & uuids
    assert left, "the master was quicker than the test"
    return left


def test_a_master_that_is_killed_while_it_collects(place: Place, many: int) -> None:
    saved = checkpoints(place, many)
    keep = policy(1, 1, 30)
    expected = kept(saved, keep)
    patch = {"id": many, "checkpointStorage": {_camel(name): number for name, number in keep.items()}}

    def begin() -> None:
        assert place.cluster.request("PATCH", f"/api/v1/experiments/{many}", json=patch).status_code == 200

    left = kill_in_the_middle(place, {one["uuid"] for one in saved}, begin)
    assert left > expected
    place.cluster.start_master()
    place.cluster.wait_for_agent()
    states = _as_kept(saved, expected)
    wait_for(lambda: _states(place, many) == states, "the next master ends it")
    assert on_disk(place) & set(states) == expected


def test_a_master_that_is_killed_while_it_deletes_an_experiment(place: Place, many: int) -> None:
    there = {one["uuid"] for one in checkpoints(place, many) if one["state"] != "STATE_DELETED"}
    contexts = place.cluster.master_folder / "contexts"
    before = {path.name for path in contexts.iterdir()}
    with Determined(place.cluster.url, "determined", PASSWORD) as det:
        experiment = det.get_experiment(many)
        kill_in_the_middle(place, there, experiment.delete)
        place.cluster.start_master()
        place.cluster.wait_for_agent()

        def gone() -> bool:
            try:
                experiment.reload()
            except errors.NotFoundException:
                return True
            return False

        wait_for(gone, "the next master ends it")
    assert not on_disk(place) & there
    assert place.cluster.request("GET", f"/api/v1/checkpoints/{next(iter(there))}").status_code == 404
    wait_for(lambda: {path.name for path in contexts.iterdir()} < before, "its code is removed")


def test_tensorboard_files(place: Place) -> None:
    """What the trial's own account has written where the official harness would."""
    script = """
import os, pathlib
import determined as det

info = det.get_cluster_info()
root = pathlib.Path(os.environ["STORE"]) / info.cluster_id / "tensorboard" / "experiment"
folder = root / str(info.trial.experiment_id) / "trial" / str(info.trial.trial_id)
folder.mkdir(parents=True)
(folder / "events").write_text("x")
"""
    store = place.cluster.master_folder / "checkpoints"
    config = script_config(place.side)
    config["environment"]["environment_variables"].append(f"STORE={store}")
    experiment_id = place.cluster.create(config, {"train.py": script})
    assert place.cluster.wait_for_end(experiment_id) == "COMPLETED"

    def events() -> list[Path]:
        return list(store.rglob("events"))

    assert len(events()) == 1
    said = place.det("experiment", "delete-tb-files", str(experiment_id))
    assert said.returncode == 0 and str(experiment_id) in said.stdout, said.stderr
    assert not events()


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.title() for part in others)
