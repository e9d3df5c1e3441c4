"""What a task knows about itself and its cluster.

The agent describes a task by environment variables. What only turns up while the task is made ready (the
addresses of its peers, the accelerators it sees) the entry point writes to `$DET_RUN_DIR/info`.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from determined.errors import ClusterInfoError

T = TypeVar("T")

DEFAULT_RUN_DIR = "/run/determined"


def run_dir(env: Mapping[str, str] | None = None) -> Path:
    """The task's run folder: `info/` and `train/model/` live in it."""
    return Path((os.environ if env is None else env).get("DET_RUN_DIR") or DEFAULT_RUN_DIR)


@dataclass(frozen=True)
class ResourcesInfo:
    """The accelerators that this task's container sees."""

    gpu_uuids: list[str]


@dataclass(frozen=True)
class RendezvousInfo:
    """The containers of a distributed task, in the order of their ranks."""

    container_addrs: list[str]
    container_rank: int
    container_slot_counts: list[int]


@dataclass(frozen=True)
class TrialInfo:
    """The trial that a task of type TRIAL runs."""

    trial_id: int
    experiment_id: int
    trial_seed: int
    hparams: dict[str, Any]
    _config: dict[str, Any] = field(repr=False)  # the merged experiment config
    _steps_completed: int  # of this trial's newest checkpoint; 0 on a fresh or warm start
    _trial_run_id: int  # counts the trial's allocations from 1
    _debug: bool
    _inter_node_network_interface: str | None


@dataclass(frozen=True)
class ClusterInfo:
    """The task that this process belongs to. Get it from `determined.get_cluster_info()`."""

    master_url: str
    cluster_id: str
    agent_id: str
    slot_ids: list[int]
    task_id: str
    allocation_id: str
    session_token: str = field(repr=False)
    task_type: str  # TRIAL, NOTEBOOK, COMMAND, SHELL, TENSORBOARD, CHECKPOINT_GC or GENERIC
    master_cert_name: str | None
    master_cert_file: str | None
    latest_checkpoint: str | None  # a checkpoint's uuid; only trials have one
    user_data: dict[str, Any]  # the experiment config's `data`
    _resources: ResourcesInfo
    _rendezvous: RendezvousInfo
    _trial: TrialInfo | None

    @property
    def gpu_uuids(self) -> list[str]:
        return self._resources.gpu_uuids

    @property
    def container_addrs(self) -> list[str]:
        return self._rendezvous.container_addrs

    @property
    def container_rank(self) -> int:
        return self._rendezvous.container_rank

    @property
    def container_slot_counts(self) -> list[int]:
        return self._rendezvous.container_slot_counts

    @property
    def trial(self) -> TrialInfo:
        """The trial of this task. Raises ClusterInfoError in a task of another type."""
        if self._trial is None:
            raise ClusterInfoError(f"this task is of type {self.task_type}: only a TRIAL has a trial")
        return self._trial


def get_cluster_info() -> ClusterInfo | None:
    """What this process can know about its task, or None when it does not run in one.

    Raises ClusterInfoError when it does, but the description of the task is incomplete.
    """
    return cluster_info_from(os.environ)


def cluster_info_from(env: Mapping[str, str]) -> ClusterInfo | None:
    """`get_cluster_info` from the variables given."""
    if not env.get("DET_ALLOCATION_ID"):
        return None
    task_type = _required(env, "DET_TASK_TYPE")
    slot_ids = _json(env, "DET_SLOT_IDS", list, default=[])
    trial = _trial(env) if task_type == "TRIAL" else None
    info = run_dir(env) / "info"
    resources = _from_file(info / "resources.json")
    rendezvous = _from_file(info / "rendezvous.json")
    return ClusterInfo(
        master_url=_required(env, "DET_MASTER"),
        cluster_id=env.get("DET_CLUSTER_ID", ""),
        agent_id=env.get("DET_AGENT_ID", ""),
        slot_ids=slot_ids,
        task_id=_required(env, "DET_TASK_ID"),
        allocation_id=_required(env, "DET_ALLOCATION_ID"),
        session_token=_required(env, "DET_SESSION_TOKEN"),
        task_type=task_type,
        master_cert_name=env.get("DET_MASTER_CERT_NAME") or None,
        master_cert_file=env.get("DET_MASTER_CERT_FILE") or None,
        latest_checkpoint=(env.get("DET_LATEST_CHECKPOINT") or None) if trial else None,
        user_data=(trial._config.get("data") or {}) if trial else {},
        _resources=ResourcesInfo(gpu_uuids=list(resources.get("gpu_uuids", []))),
        _rendezvous=RendezvousInfo(
            container_addrs=list(rendezvous.get("container_addrs", ["127.0.0.1"])),
            container_rank=int(rendezvous.get("container_rank", 0)),
            container_slot_counts=list(rendezvous.get("container_slot_counts", [len(slot_ids)])),
        ),
        _trial=trial,
    )


def _trial(env: Mapping[str, str]) -> TrialInfo:
    config = _json(env, "DET_EXPERIMENT_CONFIG", dict)
    return TrialInfo(
        trial_id=_integer(env, "DET_TRIAL_ID"),
        experiment_id=_integer(env, "DET_EXPERIMENT_ID"),
        trial_seed=_integer(env, "DET_TRIAL_SEED"),
        hparams=_json(env, "DET_HPARAMS", dict),
        _config=config,
        _steps_completed=_integer(env, "DET_STEPS_COMPLETED"),
        _trial_run_id=_integer(env, "DET_TRIAL_RUN_ID"),
        _debug=bool(config.get("debug")),
        _inter_node_network_interface=env.get("DET_INTER_NODE_NETWORK_INTERFACE") or None,
    )


def _required(env: Mapping[str, str], name: str) -> str:
    value = env.get(name)
    if not value:
        raise ClusterInfoError(
            f"{name} is not set, but DET_ALLOCATION_ID is: this task's environment is incomplete"
        )
    return value


def _integer(env: Mapping[str, str], name: str) -> int:
    value = _required(env, name)
    try:
        return int(value)
    except ValueError:
        raise ClusterInfoError(f"{name} is {value!r}: it must be an integer") from None


def _json(env: Mapping[str, str], name: str, kind: type[T], default: T | None = None) -> T:
    if default is not None and not env.get(name):
        return default
    text = _required(env, name)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as e:
        raise ClusterInfoError(f"{name} is not JSON: {e}") from None
    if not isinstance(value, kind):
        raise ClusterInfoError(
            f"{name} must be a JSON {'list' if kind is list else 'object'}, not {text[:80]!r}"
        )
    return value


def _from_file(path: Path) -> dict[str, Any]:
    """What the entry point wrote down, or nothing where it did not run."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, json.JSONDecodeError) as e:
        raise ClusterInfoError(f"cannot read {path}: {e}") from e
    if not isinstance(content, dict):
        raise ClusterInfoError(f"{path} must hold a JSON object")
    return content
