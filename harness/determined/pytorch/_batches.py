"""The batches to train on, from any position of a training on."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch.utils.data

from determined.errors import TrialError
from determined.pytorch import _saved
from determined.pytorch._context import PyTorchTrialContext
from determined.pytorch._data import DataLoader
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

    `epoch_rng_state`: of the random number generators when the current epoch of a loader of the trial's own
    began. With it, a resumed training has the loader make the same epoch again, and passes over its beginning.
    None for a `determined.pytorch.DataLoader`, which finds any position by itself.
    """

    def __init__(self, loader: AnyDataLoader, trial_seed: int) -> None:
        self._loader = loader
        self._trial_seed = trial_seed
        self.epoch_length = _length(loader)
        self.epoch_rng_state: dict[str, Any] | None = None

    def starting_at(self, batch_idx: int, epoch_rng_state: dict[str, Any] | None) -> Iterator[Any]:
        """All batches from the one of index `batch_idx` on.

        What is drawn at random to get there is drawn before this returns: the caller sets the generators'
        states afterwards.
        """
        if isinstance(self._loader, DataLoader):
            return iter(self._loader.get_data_loader(repeat=True, skip=batch_idx, seed=self._trial_seed))
        into_epoch = batch_idx % self.epoch_length
        if into_epoch == 0:
            return self._epochs()
        if epoch_rng_state is not None:
            _saved.set_rng_state(epoch_rng_state)
        rest = self._epoch()
        for _ in range(into_epoch):
            next(rest)
        return itertools.chain(rest, self._epochs())

    def _epochs(self) -> Iterator[Any]:
        while True:
            yield from self._epoch()

    def _epoch(self) -> Iterator[Any]:
        assert not isinstance(self._loader, DataLoader)
        self.epoch_rng_state = _saved.rng_state()
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
