"""What a search may choose from, written in Python; pure.

    hparams = {
        "learning_rate": loguniform(1e-4, 1e-1),
        "width": randint(4, 24),
        "activation": ["relu", "gelu"],          # a list is a choice
        "dropout": 0.2,                          # anything else is the same for every trial
    }

Each function gives a piece of an experiment configuration, so Determined's own form
(`{"type": "int", "minval": 4, "maxval": 24}`) may stand in the same dict. `count` is how many values a grid
search tries.
"""

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["choice", "const", "loguniform", "randint", "uniform"]

TYPES = frozenset({"categorical", "const", "double", "int", "log"})


def uniform(low: float, high: float, *, count: int | None = None) -> dict[str, Any]:
    """A number from `low` to `high`."""
    _ascending("uniform", low, high)
    return _with_count({"type": "double", "minval": float(low), "maxval": float(high)}, count)


def loguniform(low: float, high: float, *, base: float = 10, count: int | None = None) -> dict[str, Any]:
    """A number from `low` to `high`, every order of magnitude as likely as the others."""
    _ascending("loguniform", low, high)
    if low <= 0:
        raise ValueError(f"loguniform({low:g}, {high:g}): both ends must be above 0")
    if base <= 1:
        raise ValueError(f"loguniform: base is {base:g}; it must be above 1")
    log = math.log10 if base == 10 else lambda x: math.log(x) / math.log(base)
    return _with_count({"type": "log", "base": float(base), "minval": log(low), "maxval": log(high)}, count)


def randint(low: int, high: int, *, count: int | None = None) -> dict[str, Any]:
    """A whole number from `low` to `high`, both included (as in Python's random.randint)."""
    if not all(isinstance(end, numbers.Integral) for end in (low, high)):
        raise ValueError(f"randint({low!r}, {high!r}): both ends must be whole numbers")
    _ascending("randint", low, high)
    return _with_count({"type": "int", "minval": int(low), "maxval": int(high)}, count)


def choice(values: Sequence[Any]) -> dict[str, Any]:
    """One of these values; what a plain list means too."""
    return {"type": "categorical", "vals": list(values)}


def const(value: Any) -> dict[str, Any]:
    """This value as it is, a list for example."""
    return {"type": "const", "val": value}


def space(hparams: Mapping[str, Any]) -> dict[str, Any]:
    """The `hyperparameters` of an experiment configuration, as plain YAML values.

    Raises ValueError, naming the hyperparameter, for what cannot be sent.
    """
    return {_key(name, ""): _entry(value, str(name)) for name, value in hparams.items()}


def varies(hyperparameters: Mapping[str, Any]) -> bool:
    """Whether a search has anything to choose in `space(...)`."""
    return any(
        isinstance(value, Mapping)
        and (value["type"] != "const" if value.get("type") in TYPES else varies(value))
        for value in hyperparameters.values()
    )


def _entry(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        if "type" in value and value["type"] in TYPES:
            return {_key(k, path): _plain(v, f"{path}.{k}") for k, v in value.items()}
        return {_key(k, path): _entry(v, f"{path}.{k}") for k, v in value.items()}
    if isinstance(value, (list, tuple, range)):
        if not value:
            raise ValueError(f"{path} is an empty list: there is nothing to choose from")
        return choice([_plain(v, path) for v in value])
    return _plain(value, path)


def _plain(value: Any, path: str) -> Any:
    """The same value made of what YAML knows: numbers of numpy become numbers of Python."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Mapping):
        return {_key(k, path): _plain(v, f"{path}.{k}") for k, v in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [_plain(v, path) for v in value]
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) and math.isfinite(value):
        return float(value)
    raise ValueError(
        f"{path} is {value!r:.80}, of type {type(value).__name__}: a hyperparameter is a finite number, a "
        "string, a truth value, or a list or dict of those"
    )


def _key(name: Any, path: str) -> str:
    if not isinstance(name, str):
        within = f" in {path}" if path else ""
        raise ValueError(f"the name {name!r}{within} is not a string")  # noqa: TRY004 - as all that is wrong with a space
    return name


def _ascending(function: str, low: float, high: float) -> None:
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"{function}({low!r}, {high!r}): the first must be below the second")


def _with_count(entry: dict[str, Any], count: int | None) -> dict[str, Any]:
    if count is None:
        return entry
    if count < 1:
        raise ValueError(f"count is {count}: it must be at least 1")
    return {**entry, "count": int(count)}
