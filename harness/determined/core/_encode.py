"""Metrics as JSON: numbers of any library become plain ones, NaN and the infinities become strings."""

import math
from collections.abc import Mapping
from typing import Any


def metrics_to_json(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A snapshot of the metrics that can be sent, and does not change when the caller's objects do.

    Raises TypeError, naming the metric, for a value that has no JSON form.
    """
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics must be a dict of names to values, not a {type(metrics).__name__}")
    return {_name(key): _value(value, str(key)) for key, value in metrics.items()}


def _name(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"the name of a metric must be a string, not {key!r}")
    return key


def _value(value: Any, path: str) -> Any:
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _float(float(value))
    if isinstance(value, Mapping):
        return {str(key): _value(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_value(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if hasattr(value, "tolist"):  # arrays, tensors and their scalars, without importing their libraries
        return _value(value.tolist(), path)
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(
        f"the metric {path!r} is a {type(value).__name__}, which cannot be reported: {value!r:.80}"
    )


def _float(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value
