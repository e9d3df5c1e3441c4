"""Warnings about configurations that are right, but may not do what their author thinks."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from detlab_master.core.expconf.environment import EnvironmentConfig
from detlab_master.core.expconf.errors import path_of
from detlab_master.core.expconf.resources import PbsConfig, ResourcesConfig, SlurmConfig
from detlab_master.core.expconf.schema import ExperimentConfig, Optimizations

_AS_PROCESS = "tasks run as processes of the agent"
# What no part of Detlab heeds, and why.
_UNHEEDED: Mapping[tuple[str, ...], str] = {
    ("environment", "force_pull_image"): f"{_AS_PROCESS}, from no image",
    ("environment", "registry_auth"): f"{_AS_PROCESS}, from no image",
    ("environment", "add_capabilities"): f"{_AS_PROCESS}, without capabilities",
    ("environment", "drop_capabilities"): f"{_AS_PROCESS}, without capabilities",
    ("environment", "pod_spec"): f"{_AS_PROCESS}, not as pods",
    ("environment", "ports"): f"{_AS_PROCESS}, whose ports are the host's",
    ("environment", "proxy_ports"): "the master does not proxy ports of trials",
    ("resources", "devices"): f"{_AS_PROCESS} and see the host's devices",
    (
        "resources",
        "weight",
    ): "resource pools schedule by priority; to be served sooner, set resources.priority",
    ("resources", "native_parallel"): "the entrypoint's launcher says how training is spread",
    ("slurm",): "agents run tasks, not Slurm",
    ("pbs",): "agents run tasks, not PBS",
    ("integrations", "pachyderm"): "Detlab does not talk to Pachyderm",
    ("integrations", "webhooks"): "Detlab sends no webhooks",
    ("records_per_epoch",): "an epoch is as long as the training data",
    **{
        ("optimizations", key): "it was for TensorFlow and Horovod"
        for key in Optimizations.model_fields
        if key not in ("aggregation_frequency", "average_aggregated_gradients")
    },
}


def on(config: ExperimentConfig, cluster: Mapping[str, Any]) -> list[str]:
    """Warnings for the author of a complete configuration, given what the cluster had set (merged in already)."""
    warnings = []
    if config.searcher.max_length is not None and not _is_trial_class(config.entrypoint):
        warnings.append(
            "<config>.searcher.max_length: is deprecated; set the training length in code, as in "
            "Trainer.fit(max_length=...). It still counts where the code sets none."
        )
    wanted, usual = config.model_dump(mode="json"), _without_the_author(cluster)
    for path, why in _UNHEEDED.items():
        if _at(wanted, path) != _at(usual, path):
            warnings.append(f"{path_of(path)}: has no effect: {why}.")
    return warnings


def on_untyped(hyperparameters: Mapping[str, Any], root: str) -> list[str]:
    """Warnings of objects that look like a range, but say no type."""
    return [
        f"{path_of(('hyperparameters', *path), root)}: has {' and '.join(keys)} but no type, so it is taken for an "
        "object of constants; for a hyperparameter, add a type."
        for path, keys in _untyped(hyperparameters, ())
    ]


def _untyped(raw: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    keys = [key for key in ("minval", "maxval", "vals") if key in raw and not isinstance(raw[key], Mapping)]
    if keys in (["minval", "maxval"], ["vals"]):
        yield path, keys
    for name, value in raw.items():
        if isinstance(value, Mapping) and "type" not in value:
            yield from _untyped(value, (*path, name))


def _is_trial_class(entrypoint: str | list[str] | None) -> bool:
    """module:TrialClass has no code of its own that calls `Trainer.fit`: max_length is where its length stands."""
    return isinstance(entrypoint, str) and re.fullmatch(r"[\w.]+:\w+", entrypoint.strip()) is not None


def _without_the_author(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """The sections in question as they are where nobody sets anything."""
    return {
        "environment": EnvironmentConfig.model_validate(cluster.get("environment", {})).model_dump(
            mode="json"
        ),
        "resources": ResourcesConfig.model_validate(cluster.get("resources", {})).model_dump(mode="json"),
        "slurm": SlurmConfig.model_validate(cluster.get("slurm", {})).model_dump(mode="json"),
        "pbs": PbsConfig.model_validate(cluster.get("pbs", {})).model_dump(mode="json"),
        "optimizations": Optimizations().model_dump(mode="json"),
        "records_per_epoch": 0,
    }


def _at(config: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = config
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
