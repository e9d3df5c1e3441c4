"""Metrics as JSON: numbers of any library become plain ones, NaN and the infinities become strings.

It happens in two steps. `snapshot` runs where training waits for it, and does no more than it must: the result does
not change with the caller's objects, and can be encoded. `encode` does the rest in the thread that sends: it waits for
an accelerator and turns large arrays into numbers.
"""

import math
import numbers
import sys
from collections.abc import Mapping
from typing import Any

Snapshot = Any  # JSON values, numbers that are not finite, and arrays and tensors that nobody else has

_PLAIN = frozenset({float, int, str, bool, type(None)})


def snapshot(metrics: Mapping[str, Any]) -> dict[str, Snapshot]:
    """What the metrics are at this moment.

    Raises TypeError, naming the metric, for a value that has no JSON form.
    """
    if not isinstance(metrics, Mapping):
        raise TypeError(f"metrics must be a dict of names to values, not a {type(metrics).__name__}")
    taken = {}
    for key, value in metrics.items():
        if type(key) is not str and not isinstance(key, str):
            raise TypeError(f"the name of a metric must be a string, not {key!r}")
        try:
            taken[str(key)] = value if type(value) in _PLAIN else _taken(value, key)
        except RecursionError:
            raise TypeError(f"the metric {key!r} is nested too deeply, or contains itself") from None
    return taken


def _taken(value: Any, path: str) -> Snapshot:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): _taken(item, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_taken(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if (array := _array(value, path)) is not None:
        return array
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "tolist"):  # a library's own scalars and arrays
        return _taken(value.tolist(), path)
    if isinstance(value, numbers.Real) or hasattr(value, "__float__"):
        return float(value)
    raise TypeError(
        f"the metric {path!r} is a {type(value).__name__}, which cannot be reported: {value!r:.80}"
    )


def _array(value: Any, path: str) -> Snapshot | None:
    """A copy of an array or tensor of numbers, if it is one: made by its own library, without importing that."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.is_complex() or value.layout is not torch.strided:
            raise TypeError(
                f"the metric {path!r} is a tensor of {value.dtype} ({value.layout}), which cannot be reported"
            )
        return value.detach().clone()
    if numpy is not None and not isinstance(value, numpy.ndarray) and callable(getattr(value, "numpy", None)):
        value = value.numpy()  # a TensorFlow tensor
    if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biuf":
        return value.copy()
    return None


def encode(taken: Snapshot) -> Any:
    """JSON values for a snapshot."""
    if isinstance(taken, float):
        return taken if math.isfinite(taken) else _not_finite(taken)
    if type(taken) in _PLAIN:
        return taken
    if isinstance(taken, dict):
        return {key: encode(value) for key, value in taken.items()}
    if isinstance(taken, list):
        return [encode(value) for value in taken]
    return encode(taken.tolist())


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def metrics_to_json(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics as JSON values, at once. Raises TypeError as `snapshot` does."""
    json: dict[str, Any] = encode(snapshot(metrics))
    return json
