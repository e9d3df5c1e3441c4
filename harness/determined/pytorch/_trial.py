"""The class that a user's PyTorch training derives from."""

import abc
from typing import Any

import torch
import torch.utils.data

from determined.errors import TrialError
from determined.pytorch._callback import PyTorchCallback
from determined.pytorch._context import PyTorchTrialContext
from determined.pytorch._data import DataLoader, data_length
from determined.pytorch._reducer import Reducer, ReducerChoice

AnyDataLoader = DataLoader | torch.utils.data.DataLoader[Any]


class PyTorchTrial(abc.ABC):
    """A training that can be searched over, paused and resumed.

    Make models, optimizers and learning rate schedules in `__init__`, and wrap them by the context; define
    one of `evaluate_batch` and `evaluate_full_dataset`. Training metrics are averaged over the batches of a
    report period; `batches` and `epochs` (finished ones) are added to all metrics.
    """

    trial_context_class = PyTorchTrialContext

    @abc.abstractmethod
    def __init__(self, context: PyTorchTrialContext) -> None:
        """Build the trial. `context` gives the hyperparameters and does the wrapping: keep it."""

    @abc.abstractmethod
    def build_training_data_loader(self) -> AnyDataLoader:
        """The data to train on, as a `determined.pytorch.DataLoader`."""

    @abc.abstractmethod
    def build_validation_data_loader(self) -> AnyDataLoader:
        """The data to validate on, as a `determined.pytorch.DataLoader`."""

    @abc.abstractmethod
    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> torch.Tensor | dict[str, Any]:
        """Train on one batch, with `context.backward` and `context.step_optimizer`, and return its metrics.

        `batch_idx` counts from 0 over the whole training. A tensor alone is the metric `loss`.
        """

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """The validation metrics of one batch. `evaluation_reducer` says how they become one."""
        raise TrialError(f"{type(self).__name__} does not define evaluate_batch()")

    def evaluate_full_dataset(self, data_loader: "torch.utils.data.DataLoader[Any]") -> dict[str, Any]:
        """The validation metrics of the whole validation data."""
        raise TrialError(f"{type(self).__name__} does not define evaluate_full_dataset()")

    def evaluation_reducer(self) -> ReducerChoice:
        """How the metrics of `evaluate_batch` are put together; the average unless overridden."""
        return Reducer.AVG

    def get_batch_length(self, batch: Any) -> int:
        """How many records a batch holds, for the log; override it for batches of one's own types."""
        return data_length(batch)

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Callbacks by name; the names tell their states apart in checkpoints."""
        return {}


def defines(trial: PyTorchTrial, method: str) -> bool:
    """Whether the user's class overrides a method of PyTorchTrial."""
    return getattr(type(trial), method) is not getattr(PyTorchTrial, method)


def check(trial: PyTorchTrial) -> None:
    """Raise TrialError for a trial that cannot be trained, with what is missing."""
    name = type(trial).__name__
    if not isinstance(trial, PyTorchTrial):
        raise TrialError(f"{name} is not a determined.pytorch.PyTorchTrial")
    evaluates = [m for m in ("evaluate_batch", "evaluate_full_dataset") if defines(trial, m)]
    if len(evaluates) != 1:
        which = "both of them" if evaluates else "neither"
        raise TrialError(
            f"{name} must define one of evaluate_batch and evaluate_full_dataset, and has {which}"
        )
