"""What the cluster adds to an experiment's configuration, as configurations to merge below it."""

from collections.abc import Mapping
from typing import Any

from detlab_master.core.expconf.merge import merge
from detlab_master.core.expconf.schema import DEFAULT_LOG_POLICIES
from detlab_master.core.expconf.shorthand import write_out

KEYS = (
    "checkpoint_storage",
    "workspace_checkpoint_storage",
    "task_container_defaults",
    "pool_task_container_defaults",
    "default_priority",
    "default_compute_resource_pool",
    "default_aux_resource_pool",
    "resource_pools",
)


def cluster_config(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the cluster's defaults set, in one configuration.

    Args:
        defaults: any of
            checkpoint_storage: the master's, and workspace_checkpoint_storage, which goes before it;
            task_container_defaults: as in master.yaml, and pool_task_container_defaults, which go before
                them;
            default_priority: the scheduler's;
            default_compute_resource_pool, default_aux_resource_pool: names;
            resource_pools: names of all that exist (not part of the result).
    """
    unknown = set(defaults) - set(KEYS)
    if unknown:
        raise ValueError(f"unknown defaults {sorted(unknown)}; there are {', '.join(KEYS)}")
    config: dict[str, Any] = {}
    for layer in (
        _task_container(defaults.get("pool_task_container_defaults") or {}),
        _task_container(defaults.get("task_container_defaults") or {}),
        {"checkpoint_storage": defaults.get("workspace_checkpoint_storage")},
        {"checkpoint_storage": defaults.get("checkpoint_storage")},
        {"resources": {"priority": defaults.get("default_priority")}},
        {"log_policies": DEFAULT_LOG_POLICIES},
    ):
        config = merge(config, write_out(layer))
    return config


def _task_container(container: Mapping[str, Any]) -> dict[str, Any]:
    """The part of task_container_defaults that an experiment's configuration has keys for."""
    environment = (
        "image",
        "registry_auth",
        "force_pull_image",
        "environment_variables",
        "add_capabilities",
        "drop_capabilities",
    )
    config: dict[str, Any] = {
        key: container.get(key)
        for key in ("bind_mounts", "log_policies", "preemption_timeout", "slurm", "pbs")
    }
    config["environment"] = {key: container.get(key) for key in environment}
    config["resources"] = {"devices": container.get("devices")}
    return config


def pod_spec(defaults: Mapping[str, Any], slots: int) -> dict[str, Any] | None:
    """The pod that the defaults describe for a task with this many slots."""
    key = "gpu_pod_spec" if slots else "cpu_pod_spec"
    merged: dict[str, Any] | None = None
    for name in ("pool_task_container_defaults", "task_container_defaults"):
        spec = (defaults.get(name) or {}).get(key)
        if isinstance(spec, dict):
            merged = spec if merged is None else merge(merged, spec, ("environment", "pod_spec"))
    return merged
