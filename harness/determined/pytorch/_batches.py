"""The batches to train on, from any position of a training on."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.utils.data

from determined.errors import TrialError
from determined.pytorch import _random
from determined.pytorch._context import PyTorchTrialContext
from determined.pytorch._data import DataLoader
from determined.pytorch._order import EndlessBatches
from determined.pytorch._trial import AnyDataLoader


def checked_loader(loader: Any, method: str, context: PyTorchTrialContext) -> AnyDataLoader:
    """What a method of the trial returned, if it can be trained with; else TrialError."""
    if isinstance(loader, DataLoader):
        return loader
    if not hasattr(loader, "__iter__"):
        raise TrialError(f"{method}() must return a DataLoader, but returned a {type(loader).__name__}")
    if context.experimental._reproducible_data:
        kind = (
            "torch DataLoader" if isinstance(loader, torch.utils.data.DataLoader) else type(loader).__name__
        )
        raise TrialError(
            f"{method}() returned a {kind}: return a determined.pytorch.DataLoader, which takes the "
            "arguments of torch's, or call context.experimental.disable_dataset_reproducibility_checks()"
        )
    checked: AnyDataLoader = loader
    return checked


class TrainingBatches:
    """The training data loader, one epoch after the other without end.

    A resumed training has it make the same epoch again: samplers of a `determined.pytorch.DataLoader` find any
    position by themselves (see EndlessBatches); of a loader of the trial's own the beginning is passed over, with
    the random number generators as they were when the epoch began.
    """

    def __init__(self, loader: AnyDataLoader) -> None:
        self._loader = loader
        self.epoch_length = _length(loader)
        self._sampled: EndlessBatches | None = None
        self._worker_seed = torch.initial_seed()  # the trial's, unless the script set another
        self._epoch_began: _random.States | None = None

    def starting_at(self, batch_idx: int, order: Mapping[str, Any]) -> Iterator[Any]:
        """All batches from the one of index `batch_idx` on; `order` is what `state_dict` returned there.

        What is drawn at random to get there is drawn before this returns: the caller sets the generators'
        states afterwards, and then calls `restore_generator`.
        """
        if isinstance(self._loader, DataLoader):
            self._worker_seed = order.get("worker_seed", self._worker_seed)
            loader, self._sampled = self._loader._training_loader(
                batch_idx, order, worker_seed=self._worker_seed
            )
            return iter(loader)
        into_epoch = batch_idx % self.epoch_length
        if into_epoch == 0:
            return self._epochs()
        _random.set_states(order.get("epoch_began") or {})
        rest = self._epoch()
        for _ in range(into_epoch):
            next(rest)
        return itertools.chain(rest, self._epochs())

    def restore_generator(self) -> None:
        """Let the loader's own random number generator go on where it was, if it has one."""
        if self._sampled is not None:
            self._sampled.restore_generator()

    def epoch_ended(self, batches: int) -> None:
        """An epoch is over after `batches` batches in all."""
        if self._sampled is not None:
            self._sampled.forget(batches)

    def state_dict(self, batches: int) -> dict[str, Any]:
        """What a training that resumes after `batches` batches needs to get the same data."""
        if self._sampled is not None:
            return self._sampled.state_dict(batches) | {"worker_seed": self._worker_seed}
        return {"epoch_began": self._epoch_began}

    def _epochs(self) -> Iterator[Any]:
        while True:
            yield from self._epoch()

    def _epoch(self) -> Iterator[Any]:
        assert not isinstance(self._loader, DataLoader)
        self._epoch_began = _random.get_states()
        return iter(self._loader)


def _length(loader: AnyDataLoader) -> int:
    try:
        length = len(loader)
    except TypeError as e:
        raise TrialError(
            f"the training data loader has no length, so epochs cannot be told apart ({e}): "
            "define __len__ on the dataset or on the loader"
        ) from e
    if length < 1:
        raise TrialError("build_training_data_loader() returned a loader without a single batch")
    return length
