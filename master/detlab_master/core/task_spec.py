"""The environment and the command of a task's container: a pure function of records.

The variables are those of Determined's harness protocol (reference: harness-protocol.md 3), so that its harness and
ours find what they need.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from detlab_master.core.records import Allocation, Checkpoint, Container, Experiment, Task, Trial

TRIAL_COMMAND = ("python3", "-m", "determined.exec.trial")


@dataclass(frozen=True)
class ClusterFacts:
    cluster_id: str
    master_id: str
    cluster_name: str
    version: str


@dataclass(frozen=True)
class Secrets:
    """Tokens made for one allocation; void when it ends."""

    session_token: str  # scoped to the allocation
    user_token: str  # acts as the owner


def task_environment(
    *,
    cluster: ClusterFacts,
    master_url: str,
    owner: str,
    task: Task,
    allocation: Allocation,
    container: Container,
    secrets: Secrets,
) -> dict[str, str]:
    """What every task gets."""
    url = urlsplit(master_url)
    port = url.port or (443 if url.scheme == "https" else 80)
    return {
        "DET_MASTER": master_url,
        "DET_MASTER_ADDR": url.hostname or "",
        "DET_MASTER_HOST": url.hostname or "",
        "DET_MASTER_PORT": str(port),
        "DET_MASTER_ID": cluster.master_id,
        "DET_CLUSTER_ID": cluster.cluster_id,
        "DET_AGENT_ID": container.agent_id,
        "DET_SLOT_IDS": json.dumps(list(container.slot_ids)),
        "DET_TASK_ID": task.id,
        "DET_ALLOCATION_ID": allocation.id,
        "DET_SESSION_TOKEN": secrets.session_token,
        "DET_TASK_TYPE": str(task.type),
        "DET_USER": owner,
        "DET_USER_TOKEN": secrets.user_token,
        "DET_RESOURCES_ID": container.id,
        "DET_RESOURCES_TYPE": "docker-container",
        "DET_CONTAINER_ID": container.id,
        "DET_USE_TLS": "true" if url.scheme == "https" else "false",
        "DET_SEGMENT_ENABLED": "false",
        "DET_TASK_LOGGING_METADATA": json.dumps({"task_id": task.id, "allocation_id": allocation.id}),
    }


def trial_environment(
    experiment: Experiment, trial: Trial, own_checkpoint: Checkpoint | None
) -> dict[str, str]:
    """What a trial gets in addition: who it is, and where it goes on.

    Args:
        own_checkpoint: the trial's latest COMPLETED checkpoint; without one it starts from the warm-start checkpoint, if
            it has one, at step 0.
    """
    latest = own_checkpoint.uuid if own_checkpoint else trial.warm_start_checkpoint
    variables = {
        "DET_EXPERIMENT_ID": str(experiment.id),
        "DET_TRIAL_ID": str(trial.id),
        "DET_TRIAL_RUN_ID": str(trial.run_id),
        "DET_TRIAL_SEED": str(trial.seed),
        "DET_EXPERIMENT_CONFIG": json.dumps(_as_the_harness_reads_it(experiment.config)),
        "DET_HPARAMS": json.dumps(dict(trial.hparams)),
        "DET_STEPS_COMPLETED": str(own_checkpoint.steps_completed if own_checkpoint else 0),
    }
    if latest:
        variables["DET_LATEST_CHECKPOINT"] = latest
    return variables


def _as_the_harness_reads_it(config: Mapping[str, Any]) -> dict[str, Any]:
    """The official harness goes by which keys of the searcher are there, whatever their value: `unit: null` breaks it."""
    searcher = config.get("searcher") or {}
    return {**config, "searcher": {key: value for key, value in searcher.items() if value is not None}}


def image(config: Mapping[str, Any], slot_type: str) -> str:
    """The configuration's `environment.image` for this kind of slot (cpu, cuda or rocm)."""
    images = config.get("environment", {}).get("image") or ""
    return str(images.get(slot_type) or "") if isinstance(images, Mapping) else str(images)


def user_environment(experiment: Experiment, slot_type: str) -> dict[str, str]:
    """The configuration's own environment_variables for this kind of slot (cpu, cuda or rocm)."""
    named = experiment.config.get("environment", {}).get("environment_variables") or []
    if isinstance(named, dict):
        named = named.get(slot_type) or []
    return dict(entry.partition("=")[::2] for entry in named if "=" in entry)
