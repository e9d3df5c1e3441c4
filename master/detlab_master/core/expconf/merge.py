"""How two configurations become one: what the higher one sets wins, and some lists are joined.

Both sides are written out already (`shorthand.py`), so an absent key is one that is not set. Neither is
changed.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str, ...]


def merge(high: Mapping[str, Any], low: Mapping[str, Any], path: Path = ()) -> dict[str, Any]:
    """Everything that either side sets, each key by its rule."""
    merged = dict(low)
    for key, value in high.items():
        merged[key] = _merge_value(value, low[key], (*path, key)) if key in low else value
    return merged


def _merge_value(high: Any, low: Any, path: Path) -> Any:
    if path == ("log_policies",) and isinstance(high, list) and isinstance(low, list):
        return _log_policies(high, low)
    if path in _LISTS and isinstance(high, list) and isinstance(low, list):
        return _LISTS[path](high, low)
    if not isinstance(high, dict) or not isinstance(low, dict):
        return high
    if path == ("data",):
        return {**low, **high}
    if path[0] == "hyperparameters":
        return _hyperparameters(high, low)
    if path in _VARIANTS:
        return _variant(high, low, path)
    return merge(high, low, path)


def _hyperparameters(high: dict[str, Any], low: dict[str, Any]) -> dict[str, Any]:
    """Nested maps merge; a hyperparameter with a type is taken whole."""
    merged = dict(low)
    for name, value in high.items():
        below = low.get(name)
        if (
            isinstance(value, dict)
            and isinstance(below, dict)
            and "type" not in value
            and "type" not in below
        ):
            merged[name] = _hyperparameters(value, below)
        else:
            merged[name] = value
    return merged


# Sections that are one of several kinds: the key that says which, and the keys that all kinds share.
_VARIANTS: dict[Path, tuple[str, frozenset[str]]] = {
    ("searcher",): (
        "name",
        frozenset(
            (
                "metric",
                "smaller_is_better",
                "source_trial_id",
                "source_checkpoint_uuid",
                "max_length",
                "unit",
                "time_metric",
                "max_time",
            )
        ),
    ),
    ("checkpoint_storage",): (
        "type",
        frozenset(("save_experiment_best", "save_trial_best", "save_trial_latest")),
    ),
}


def _variant(high: dict[str, Any], low: dict[str, Any], path: Path) -> dict[str, Any]:
    """Two of different kinds share only the common keys; one that does not say its kind is of the other's."""
    which, common = _VARIANTS[path]
    if which in high and which in low and high[which] != low[which]:
        low = {key: value for key, value in low.items() if key in common}
    return merge(high, low, path)


def _variables(high: list[Any], low: list[Any]) -> list[Any]:
    """Low first; of equal entries only the last counts, so that what was merged before is not doubled."""
    joined = [*low, *high]
    return [entry for i, entry in enumerate(joined) if entry not in joined[i + 1 :]]


def _arguments(high: list[Any], low: list[Any]) -> list[Any]:
    """Low first, unless high has them already, in one piece."""
    there = any(high[i : i + len(low)] == low for i in range(len(high) - len(low) + 1))
    return high if there else [*low, *high]


def _new_by(*keys: str) -> Callable[[list[Any], list[Any]], list[Any]]:
    """High first, then those of low whose key is not used yet."""

    def join(high: list[Any], low: list[Any]) -> list[Any]:
        def identity(item: Any) -> Any:
            return tuple(item.get(key) for key in keys) if isinstance(item, dict) else item

        used = [identity(item) for item in high]
        return [*high, *(item for item in low if identity(item) not in used)]

    return join


_LISTS: dict[Path, Callable[[list[Any], list[Any]], list[Any]]] = {
    ("bind_mounts",): _new_by("container_path"),
    ("resources", "devices"): _new_by("container_path"),
    ("environment", "proxy_ports"): _new_by("proxy_port"),
    ("environment", "environment_variables", "cpu"): _variables,
    ("environment", "environment_variables", "cuda"): _variables,
    ("environment", "environment_variables", "rocm"): _variables,
    ("slurm", "sbatch_args"): _arguments,
    ("pbs", "pbsbatch_args"): _arguments,
}


def _log_policies(high: list[Any], low: list[Any]) -> list[Any]:
    """Low ones stay unless high has one of the same name, or without names the same pattern and action."""

    def identity(policy: Any) -> Any:
        if not isinstance(policy, dict):
            return policy
        return policy.get("name") or (policy.get("pattern"), policy.get("action"))

    replaced = [identity(policy) for policy in high]
    return [*(policy for policy in low if identity(policy) not in replaced), *high]
