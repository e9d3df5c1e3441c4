"""Experiments whose trials run under the official package, in the environment that agents call `official`."""

from __future__ import annotations

from typing import Any

import pytest

from detlab_agent import namespace
from support.cluster import Cluster, wait_for

needs_namespaces = pytest.mark.skipif(
    bool(namespace.refusal()),
    reason=f"the official package needs a mount namespace for its fixed paths: {namespace.refusal()};"
    " run the tests as root, or allow user namespaces",
)


def config(entrypoint: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": "under the official package",
        "entrypoint": entrypoint,
        "environment": {"image": "official"},
        "searcher": {"name": "single", "metric": "loss", "max_length": 1},
        "hyperparameters": {},
        "max_restarts": 0,
    } | changes


def first_trial(ours: Cluster, experiment_id: int) -> int:
    found = wait_for(lambda: ours.trials(experiment_id), "a trial")[0]["id"]
    assert isinstance(found, int)
    return found
