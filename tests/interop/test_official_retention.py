"""The official client's commands that remove something: checkpoints, TensorBoard files, experiments; and its downloads."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from interop.official import Official
from interop.test_official_cli import checkpoints, created
from support.cluster import wait_for

SAVES = """
from determined import core

with core.init() as context:
    for step, accuracy in ((1, 0.5), (2, 0.9), (3, 0.7), (4, 0.6)):
        context.train.report_validation_metrics(step, {"accuracy": accuracy})
        with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
            (path / "weights").write_text(f"weights of {step}")
            (path / "optimizer").write_text("optimizer")
"""
CONFIG = {
    "name": "saves",
    "entrypoint": "python3 saves.py",
    "searcher": {
        "name": "single",
        "metric": "accuracy",
        "smaller_is_better": False,
        "max_length": {"batches": 4},
    },
    "checkpoint_storage": {"save_experiment_best": 0, "save_trial_best": 3, "save_trial_latest": 2},
    "max_restarts": 0,
}


@pytest.fixture(scope="module")
def saved(official: Official, tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """Two experiments that have ended, with a checkpoint at each of 4 steps; their policy keeps all but the first."""
    folder = tmp_path_factory.mktemp("saves")
    (folder / "saves.py").write_text(SAVES)
    config = folder / "saves.yaml"
    config.write_text(yaml.safe_dump(CONFIG))
    both = [created(official.det("experiment", "create", config, folder)) for _ in range(2)]
    for experiment in both:
        assert official.cluster.wait_for_end(experiment) == "COMPLETED"
        wait_for(partial(_all_but_the_first, official, experiment), "the first checkpoint is collected")
    return both


def _all_but_the_first(official: Official, experiment: int) -> bool:
    return steps(official, experiment) == [2, 3, 4]


def steps(official: Official, experiment: int) -> list[int]:
    """Those with files, as the API says, which is what the disk says too."""
    kept = [one for one in checkpoints(official, experiment) if one["state"] != "STATE_DELETED"]
    there = {path.name for path in (official.cluster.master_folder / "checkpoints").iterdir()}
    removed = [one for one in checkpoints(official, experiment) if one["state"] == "STATE_DELETED"]
    if not {one["uuid"] for one in kept} <= there or {one["uuid"] for one in removed} & there:
        return []  # just being removed
    return [int(one["metadata"]["steps_completed"]) for one in kept]


def of_step(official: Official, experiment: int, step: int) -> dict[str, Any]:
    return next(
        one for one in checkpoints(official, experiment) if int(one["metadata"]["steps_completed"]) == step
    )


def test_set_gc_policy(official: Official, saved: list[int]) -> None:
    experiment = saved[0]
    numbers = ("--save-experiment-best", 1, "--save-trial-best", 0, "--save-trial-latest", 1)
    command = ("experiment", "set", "gc-policy", experiment, *numbers)
    asked = official.det(*command, typed="n\n")
    third, others = (
        of_step(official, experiment, 3),
        [of_step(official, experiment, step) for step in (1, 2, 4)],
    )
    assert third["uuid"] in asked.out and "0.7" in asked.out
    assert not any(one["uuid"] in asked.out for one in others)
    assert steps(official, experiment) == [2, 3, 4]
    assert official.cluster.experiment(experiment)["config"]["checkpoint_storage"]["save_trial_latest"] == 2

    official.det(*command, typed="y\n")
    wait_for(lambda: steps(official, experiment) == [2, 4], "the third is collected")
    storage = official.cluster.experiment(experiment)["config"]["checkpoint_storage"]
    assert [storage[f"save_{name}"] for name in ("experiment_best", "trial_best", "trial_latest")] == [
        1,
        0,
        1,
    ]

    numbers = ("--save-experiment-best", 0, "--save-trial-best", 0, "--save-trial-latest", 1)
    official.det("experiment", "set", "gc-policy", experiment, *numbers, "--yes")
    wait_for(lambda: steps(official, experiment) == [4], "the second is collected")


def test_downloads_and_removals(official: Official, saved: list[int], tmp_path: Path) -> None:
    experiment = saved[1]
    official.det("experiment", "download", experiment, "--top-n", 2, "-o", tmp_path / "top", "-q")
    top = {path.name: (path / "weights").read_text() for path in (tmp_path / "top").iterdir()}
    assert top == {of_step(official, experiment, step)["uuid"]: f"weights of {step}" for step in (2, 3)}
    trial = official.cluster.trials(experiment)[0]["id"]
    # This client takes from the wrong end of the list, so which one it fetches is its own affair (rest-api.md 4.6).
    for which in ("latest", "best"):
        official.det("trial", "download", trial, f"--{which}", "-o", tmp_path / which, "-q")
        (weights,) = (tmp_path / which).rglob("weights")
        assert weights.read_text() in {f"weights of {step}" for step in (2, 3, 4)}

    second, third = [of_step(official, experiment, step)["uuid"] for step in (2, 3)]
    official.det("checkpoint", "rm", second, "--glob", "opt*", "--yes")
    left = of_step(official, experiment, 2)
    assert left["state"] == "STATE_PARTIALLY_DELETED"
    assert left["resources"]["weights"] == "12" and "optimizer" not in left["resources"]
    official.det("checkpoint", "delete", f"{second},{third}", "--yes")
    assert steps(official, experiment) == [4]

    official.det("experiment", "delete-tb-files", experiment)
    assert steps(official, experiment) == [4]
    uuids = {one["uuid"] for one in checkpoints(official, experiment)}
    official.det("experiment", "delete", experiment, "--yes")
    path = f"/api/v1/experiments/{experiment}"
    wait_for(lambda: official.cluster.request("GET", path).status_code == 404, "the experiment is gone")
    assert not uuids & {path.name for path in (official.cluster.master_folder / "checkpoints").iterdir()}
