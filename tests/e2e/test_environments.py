"""`environment.image` names a Python environment of agent.yaml: with which Python trials run, and what is said of others."""

from __future__ import annotations

import sys
import venv
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from support.cluster import Cluster

FILES = {"train.py": "import sys; print('RUNS IN', sys.prefix)"}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The agent is not started yet: what its environments are is not known."""
    bare = tmp_path_factory.mktemp("environments") / "bare"
    venv.create(bare)
    running = Cluster(
        tmp_path_factory.mktemp("cluster"), environments={"mine": sys.prefix, "bare": str(bare)}
    )
    try:
        running.start_master()
        yield running
    finally:
        running.stop()


def config(image: str) -> dict[str, Any]:
    return {
        "name": "an environment",
        "entrypoint": "python3 train.py",
        "environment": {"image": image},
        "searcher": {"name": "single", "metric": "loss", "max_length": 1},
        "hyperparameters": {},
        "max_restarts": 3,
    }


def test_with_which_python_trials_run(ours: Cluster) -> None:
    hopeless = ours.create(config("bare"), FILES)
    ours.start_agent()
    ours.wait_for_agent()
    assert ours.wait_for_end(hopeless) == "ERROR"
    trial = ours.trials(hopeless)[0]
    log = ours.logs(trial["id"])
    assert "environments.bare:" in log and "has no `determined`: install" in log
    assert (trial["restarts"], log.count("Scheduled on")) == (0, 1), "trying again cannot help"

    for image in ("mine", "someones/image:1"):
        experiment = ours.create(config(image), FILES)
        assert ours.wait_for_end(experiment) == "COMPLETED"
        assert f"RUNS IN {sys.prefix}" in ours.logs(ours.trials(experiment)[0]["id"])


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("mine", None),
        (
            "someones/image:1",
            "<config>.environment.image: has no effect: 'someones/image:1' is no Python environment of an agent",
        ),
        ("determinedai/pytorch-ngc-dev:0736b6d", None),  # the default: nobody has chosen it
    ],
)
def test_what_is_said_when_it_is_submitted(ours: Cluster, image: str, says: str | None) -> None:
    body = {"config": yaml.safe_dump(config(image)), "validateOnly": True}
    messages = ours.post("/api/v1/experiments", body)["messages"]
    of_image = [message for message in messages if "environment.image" in message]
    assert [message[: len(says or "")] for message in of_image] == ([] if says is None else [says])


def test_a_storage_that_only_the_official_package_has_is_warned_of(ours: Cluster) -> None:
    asked = {**config("mine"), "checkpoint_storage": {"type": "gcs", "bucket": "team"}}
    body = {"config": yaml.safe_dump(asked), "validateOnly": True}
    messages = ours.post("/api/v1/experiments", body)["messages"]
    (told,) = [message for message in messages if "checkpoint_storage" in message]
    assert told.startswith("<config>.checkpoint_storage.type: gcs is refused when a trial starts, unless")


def test_what_no_agent_can_run_is_refused_when_it_is_submitted(ours: Cluster) -> None:
    answer = ours.request("POST", "/api/v1/experiments", json={"config": yaml.safe_dump(config("bare"))})
    assert answer.status_code == 400
    assert "<config>.environment.image: is 'bare', which no agent can run: environments.bare: " in answer.text
