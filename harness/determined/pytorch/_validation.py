"""One validation of a trial: from the validation data to metrics."""

import inspect
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from determined.errors import TrialError
from determined.pytorch._callback import PyTorchCallback
from determined.pytorch._context import PyTorchTrialContext
from determined.pytorch._data import DataLoader
from determined.pytorch._reducer import reduce, snapshot
from determined.pytorch._trial import AnyDataLoader, PyTorchTrial, defines

logger = logging.getLogger("determined.pytorch")

GENERATOR = "validation_generator"


class Validation:
    """Computes a trial's validation metrics whenever it is called, and leaves its models as they were.

    `batches`: how many to validate on at most; None for all.
    """

    def __init__(
        self,
        trial: PyTorchTrial,
        context: PyTorchTrialContext,
        callbacks: Mapping[str, PyTorchCallback],
        loader: AnyDataLoader,
        batches: int | None,
    ) -> None:
        self._trial = trial
        self._context = context
        self._callbacks = callbacks
        self._generator = loader.generator if isinstance(loader, DataLoader) else None
        self._loader = loader.get_data_loader() if isinstance(loader, DataLoader) else loader
        self._batches = batches
        self._evaluate_full = (
            context._forward(trial.evaluate_full_dataset) if defines(trial, "evaluate_full_dataset") else None
        )
        self._evaluate_batch = context._forward(_with_batch_idx(trial.evaluate_batch))

    def state_dict(self) -> dict[str, Any]:
        """What the next validation's order depends on beside the global random number generators."""
        return {} if self._generator is None else {GENERATOR: self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._generator is not None and GENERATOR in state:
            self._generator.set_state(state[GENERATOR])

    def __call__(self) -> dict[str, Any]:
        for callback in self._callbacks.values():
            callback.on_validation_start()
        # Of each module by itself: a trial may keep some of them, such as normalisations, out of training.
        modes = [(module, module.training) for model in self._context.models for module in model.modules()]
        for model in self._context.models:
            model.eval()
        self._context._reducers.reset(for_training=False)
        try:
            with torch.no_grad():
                metrics = self._full() if self._evaluate_full else self._by_batches()
        finally:
            for module, training in modes:
                module.training = training
        metrics |= self._context._reducers.reduce(self._context.distributed, for_training=False)
        for callback in self._callbacks.values():
            callback.on_validation_end(metrics)
        return metrics

    def _full(self) -> dict[str, Any]:
        assert self._evaluate_full is not None
        outcome = self._evaluate_full(self._loader)
        return reduce([snapshot(outcome, "evaluate_full_dataset")], {}, "evaluate_full_dataset")

    def _by_batches(self) -> dict[str, Any]:
        for callback in self._callbacks.values():
            callback.on_validation_epoch_start()
        outputs = []
        begin = time.monotonic()
        for batch_idx, batch in enumerate(itertools.islice(self._loader, self._batches)):
            if self._context.experimental._auto_to_device:
                batch = self._context.to_device(batch)
            outputs.append(snapshot(self._evaluate_batch(batch, batch_idx), "evaluate_batch"))
        for callback in self._callbacks.values():
            if type(callback).on_validation_epoch_end is not PyTorchCallback.on_validation_epoch_end:
                callback.on_validation_epoch_end([_in_numpy(output) for output in outputs])
        if not outputs:
            raise TrialError("build_validation_data_loader() returned a loader without a single batch")
        metrics = reduce(outputs, self._trial.evaluation_reducer(), "evaluate_batch")
        logger.info("validated on %d batches in %.3g s", len(outputs), time.monotonic() - begin)
        return metrics


def _with_batch_idx(method: Callable[..., Any]) -> Callable[[Any, int], Any]:
    """`evaluate_batch`, whose older form takes the batch alone."""
    parameters = inspect.signature(method).parameters.values()
    if len(parameters) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return method
    return lambda batch, batch_idx: method(batch)


def _in_numpy(metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics of a batch for a callback, which may know nothing of torch and its devices."""
    return {
        name: value.float().cpu().numpy() if isinstance(value, torch.Tensor) else value
        for name, value in metrics.items()
    }
