"""From the metrics of batches to those of a report."""

import abc
import enum
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from determined.core import DistributedContext
from determined.errors import TrialError

logger = logging.getLogger("determined.pytorch")


class Reducer(enum.Enum):
    """How a validation metric of many batches becomes one. Each batch counts the same."""

    AVG = "avg"
    SUM = "sum"
    MAX = "max"
    MIN = "min"


# A reducer for all metrics, one by name (AVG for the others), or one's own function over the batches' values.
ReducerChoice = Reducer | Mapping[str, Reducer] | Callable[[Sequence[Any]], Any]


class MetricReducer(abc.ABC):
    """Computes a metric over many batches that is no average of theirs. Register with `wrap_reducer`."""

    @abc.abstractmethod
    def reset(self) -> None:
        """Begin anew: called before a report period or a validation."""

    @abc.abstractmethod
    def per_slot_reduce(self) -> Any:
        """What this process has gathered since `reset`; it must be possible to pickle it."""

    @abc.abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """The metric (or a dict of metrics, if the reducer has no name) from all slots' `per_slot_reduce`."""


class FunctionReducer(MetricReducer):
    """A function over all values that `update` was given."""

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self._function = function
        self._values: list[Any] = []

    def reset(self) -> None:
        self._values = []

    def update(self, value: Any) -> None:
        self._values.append(value)

    def per_slot_reduce(self) -> list[Any]:
        return self._values

    def cross_slot_reduce(self, per_slot_metrics: list[list[Any]]) -> Any:
        return self._function([value for values in per_slot_metrics for value in values])


class RegisteredReducers:
    """The reducers that a trial registered with `wrap_reducer`."""

    def __init__(self) -> None:
        self._training: list[tuple[MetricReducer, str | None]] = []
        self._validation: list[tuple[MetricReducer, str | None]] = []

    def add(self, reducer: MetricReducer, name: str | None, for_training: bool, for_validation: bool) -> None:
        reducer.reset()
        if for_training:
            self._training.append((reducer, name))
        if for_validation:
            self._validation.append((reducer, name))

    def reset(self, *, for_training: bool) -> None:
        for reducer, _ in self._training if for_training else self._validation:
            reducer.reset()

    def reduce(self, distributed: DistributedContext, *, for_training: bool) -> dict[str, Any]:
        """The metrics of all slots' reducers, which begin anew."""
        metrics: dict[str, Any] = {}
        for reducer, name in self._training if for_training else self._validation:
            value = reducer.cross_slot_reduce(distributed.allgather(reducer.per_slot_reduce()))
            reducer.reset()
            if name is not None:
                metrics[name] = value
            elif isinstance(value, dict):
                metrics |= value
            else:
                raise TrialError(
                    f"{type(reducer).__name__} was wrapped without a name, so it must return a dict of "
                    f"metrics, but it returned a {type(value).__name__}"
                )
        return metrics


def snapshot(metrics: Any, source: str) -> dict[str, Any]:
    """One batch's metrics, cut off from the graph and from later changes, without waiting for the device.

    `source` names the method that returned them, for the error. A tensor alone is the `loss`.
    """
    return {
        name: value.detach().clone() if isinstance(value, torch.Tensor) else value
        for name, value in _by_name(metrics, source).items()
    }


def values(metrics: Any, source: str) -> dict[str, Any]:
    """Like `snapshot`, with plain numbers for single values that are on the CPU: cheaper than their tensors."""
    return {
        name: _value(value) if isinstance(value, torch.Tensor) else value
        for name, value in _by_name(metrics, source).items()
    }


def _value(value: torch.Tensor) -> Any:
    return value.item() if value.is_cpu and value.numel() == 1 else value.detach().clone()


def _by_name(metrics: Any, source: str) -> dict[str, Any]:
    if isinstance(metrics, dict):
        return metrics
    if isinstance(metrics, torch.Tensor):
        return {"loss": metrics}
    raise TrialError(f"{source}() must return a dict of metrics, but returned a {type(metrics).__name__}")


_warned: set[tuple[str, str]] = set()


def stack(batches: Sequence[Mapping[str, Any]], source: str) -> dict[str, torch.Tensor]:
    """Each metric's values of the batches that have it, as float64 on the CPU, shape [batches, ...].

    What cannot be averaged, such as a text, is left out, and named once in the log. `source`: the method that
    returned it.
    """
    columns: dict[str, list[Any]] = {}
    for batch in batches:
        for name, value in batch.items():
            columns.setdefault(name, []).append(value)
    stacked = {}
    for name, column in columns.items():
        try:
            stacked[name] = _stacked(column)
        except (TypeError, ValueError, RuntimeError) as e:
            if (source, name) not in _warned:
                _warned.add((source, name))
                text = f"{column[0]!r:.80}, which cannot be averaged: {e}"
                logger.warning("%s() returned the metric %r as %s; it is not reported", source, name, text)
    return stacked


def _stacked(column: list[Any]) -> torch.Tensor:
    if all(type(value) is float for value in column):
        return torch.tensor(column, dtype=torch.float64)
    tensors = [v if isinstance(v, torch.Tensor) else torch.as_tensor(v, dtype=torch.float64) for v in column]
    return torch.stack(tensors).to("cpu", torch.float64)


def reduce(batches: Sequence[Mapping[str, Any]], choice: ReducerChoice, source: str) -> dict[str, Any]:
    """The metrics of all batches together, as plain numbers (or lists, for metrics of more than one value)."""
    if not isinstance(choice, Reducer | Mapping) and callable(choice):
        names = {name: None for batch in batches for name in batch}
        return {name: choice([batch[name] for batch in batches if name in batch]) for name in names}
    result = {}
    for name, column in stack(batches, source).items():
        reducer = choice if isinstance(choice, Reducer) else choice.get(name, Reducer.AVG)
        match reducer:
            case Reducer.AVG:
                reduced = column.mean(0)
            case Reducer.SUM:
                reduced = column.sum(0)
            case Reducer.MAX:
                reduced = column.amax(0)
            case Reducer.MIN:
                reduced = column.amin(0)
        result[name] = plain(reduced)
    return result


def plain(value: torch.Tensor) -> Any:
    """A number for a tensor of one element, else nested lists."""
    return value.item() if value.numel() == 1 else value.tolist()
