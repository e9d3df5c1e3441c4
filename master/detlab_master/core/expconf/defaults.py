"""What the cluster adds to an experiment's configuration, as configurations to merge below it."""

from collections.abc import Mapping
from typing import Any, cast

from pydantic import ValidationError

from detlab_master.core.expconf.errors import ConfigError, from_pydantic
from detlab_master.core.expconf.merge import merge
from detlab_master.core.expconf.schema import DEFAULT_LOG_POLICIES, ExperimentConfig
from detlab_master.core.expconf.shorthand import write_out

KEYS = (
    "checkpoint_storage",
    "workspace_checkpoint_storage",
    "task_container_defaults",
    "default_priority",
    "default_compute_resource_pool",
    "default_aux_resource_pool",
    "pools",
)
# Keys of task_container_defaults that stand in the same place of a configuration, or under `environment`.
_TOP = ("bind_mounts", "log_policies", "preemption_timeout", "slurm", "pbs")
_ENVIRONMENT = (
    "image",
    "registry_auth",
    "force_pull_image",
    "environment_variables",
    "add_capabilities",
    "drop_capabilities",
)


def cluster_config(defaults: Mapping[str, Any], pool: str, slots: int) -> dict[str, Any]:
    """Everything that the cluster sets for a trial in this pool with this many slots, in one configuration.

    Args:
        defaults: any of
            checkpoint_storage: the master's, and workspace_checkpoint_storage, which goes before it;
            task_container_defaults: as in master.yaml;
            default_priority: the scheduler's;
            default_compute_resource_pool, default_aux_resource_pool: names;
            pools: by name, all that exist; each may have task_container_defaults and a default_priority of its own,
                which go before those of the cluster.
    """
    unknown = set(defaults) - set(KEYS)
    if unknown:
        raise ValueError(f"unknown defaults {sorted(unknown)}; there are {', '.join(KEYS)}")
    of_pool = (defaults.get("pools") or {}).get(pool) or {}
    config: dict[str, Any] = {}
    for layer in (
        container_config(of_pool.get("task_container_defaults") or {}, slots),
        container_config(defaults.get("task_container_defaults") or {}, slots),
        {"checkpoint_storage": defaults.get("workspace_checkpoint_storage")},
        {"checkpoint_storage": defaults.get("checkpoint_storage")},
        {"resources": {"priority": of_pool.get("default_priority")}},
        {"resources": {"priority": defaults.get("default_priority")}},
        {"log_policies": DEFAULT_LOG_POLICIES},
    ):
        config = merge(config, write_out(layer))
    return config


def container_config(container: Mapping[str, Any], slots: int) -> dict[str, Any]:
    """The part of task_container_defaults that an experiment's configuration has keys for."""
    environment = {key: container.get(key) for key in _ENVIRONMENT}
    environment["pod_spec"] = container.get("gpu_pod_spec" if slots else "cpu_pod_spec")
    resources = {"devices": container.get("devices"), "shm_size": container.get("shm_size_bytes")}
    return {
        **{key: container.get(key) for key in _TOP},
        "environment": environment,
        "resources": resources,
    }


def container_problems(container: Mapping[str, Any], root: str) -> list[ConfigError]:
    """What is wrong with task_container_defaults, by paths under `root`; asked when the master starts."""
    problems: list[ConfigError] = []
    for slots in (0, 1):  # each has a pod of its own
        try:
            ExperimentConfig.model_validate(write_out(container_config(container, slots)))
        except ValidationError as error:
            problems += from_pydantic(error, ExperimentConfig, root, missing=False)
    named = [ConfigError(_as_in_master_yaml(each.path, root), each.message) for each in problems]
    return list(dict.fromkeys(named))


def _as_in_master_yaml(path: str, root: str) -> str:
    for section in ("environment.", "resources."):
        path = path.replace(f"{root}.{section}", f"{root}.")
    return path.replace(f"{root}.shm_size", f"{root}.shm_size_bytes")


def pool_of(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> tuple[str, int]:
    """The resource pool that a configuration asks for, or the default one for its slots; and the slots."""
    resources = cast(Mapping[str, Any], config.get("resources") or {})
    slots = int(resources.get("slots_per_trial", 1))
    kind = "compute" if slots else "aux"
    pool = resources.get("resource_pool") or defaults.get(f"default_{kind}_resource_pool") or ""
    return str(pool), slots
