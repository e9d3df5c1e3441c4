"""The data loader for trials, and moving batches to the device."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, Dataset, IterableDataset, RandomSampler, Sampler, SequentialSampler

from determined.pytorch import samplers
from determined.pytorch._order import EndlessBatches
from determined.pytorch._workers import NumberedBatches, SeededDataset, WorkerInit

logger = logging.getLogger("determined.pytorch")


class DataLoader:
    """A description of a torch data loader, with its arguments and defaults.

    The trainer makes the loader itself, because it knows where the training stands. The order is the one that torch
    draws, each epoch anew, from its global random number generator (which the trainer seeds by the trial's seed) or
    from `generator`; a resumed training sees just the batches that were still to come. `batch_size` is per slot.

    What a dataset and `collate_fn` draw from the generators of Python, NumPy and torch is the same after a resume,
    too: in workers, it depends on the seed of the training and the number of the batch alone.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool = False,
        sampler: Sampler[int] | Iterable[int] | None = None,
        batch_sampler: Sampler[list[int]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        if isinstance(dataset, IterableDataset):
            raise TypeError(
                "determined.pytorch.DataLoader needs a dataset with items by index, not an IterableDataset: use "
                "torch.utils.data.DataLoader and context.experimental.disable_dataset_reproducibility_checks()"
            )
        if sampler is not None and shuffle:
            raise ValueError("sampler and shuffle=True exclude each other: the sampler sets the order")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise ValueError("batch_sampler excludes batch_size, shuffle, sampler and drop_last")
        if batch_sampler is None and (batch_size is None or batch_size < 1):
            raise ValueError(f"batch_size is {batch_size}: it must be at least 1")
        self.dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.drop_last = drop_last
        self.generator = generator
        self._options: dict[str, Any] = {
            "num_workers": num_workers,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            "timeout": timeout,
            "worker_init_fn": worker_init_fn,
            "multiprocessing_context": multiprocessing_context,
            "generator": generator,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
        }

    def get_data_loader(
        self, repeat: bool = False, skip: int = 0, num_replicas: int = 1, rank: int = 0
    ) -> "torch.utils.data.DataLoader[Any]":
        """The torch data loader for one rank.

        `repeat`: go on without end (its length stays that of one epoch). `skip`: batches of this rank to leave out
        at the beginning.
        """
        return self._loader(
            self.dataset, samplers.adapt_batch_sampler(self._batches(), repeat, skip, num_replicas, rank)
        )

    def __len__(self) -> int:
        """Batches of one epoch, over all ranks together."""
        return len(self._batches())  # type: ignore[arg-type]

    def _training_loader(
        self, start: int, order: Mapping[str, Any], num_replicas: int = 1, rank: int = 0, worker_seed: int = 0
    ) -> tuple["torch.utils.data.DataLoader[Any]", EndlessBatches]:
        """The loader for a training that has come to `start`, and what knows the order of its data.

        `worker_seed`: of what data workers draw.
        """
        batches = EndlessBatches(
            self._batches(),
            start=start,
            num_replicas=num_replicas,
            rank=rank,
            generator=self.generator,
            order=order,
        )
        if self._options["num_workers"] == 0:  # draws from this process's generators, whose states are saved
            return self._loader(self.dataset, batches), batches
        dataset = SeededDataset(self.dataset, worker_seed, rank)
        worker_init_fn = WorkerInit(self._options["worker_init_fn"])
        return self._loader(dataset, NumberedBatches(batches, start), worker_init_fn=worker_init_fn), batches

    def _loader(
        self, dataset: Dataset[Any], batches: Sampler[Any], **options: Any
    ) -> "torch.utils.data.DataLoader[Any]":
        return torch.utils.data.DataLoader(dataset, batch_sampler=batches, **self._options | options)

    def _batches(self) -> Sampler[list[int]]:
        """The batches of one epoch."""
        if self.batch_sampler is not None:
            return self.batch_sampler
        sampler: Iterable[int]
        if self.sampler is not None:
            sampler = self.sampler
        elif self.shuffle:
            sampler = RandomSampler(self.dataset, generator=self.generator)  # type: ignore[arg-type]
        else:
            sampler = SequentialSampler(self.dataset)  # type: ignore[arg-type]
        assert self.batch_size is not None  # checked above
        return BatchSampler(sampler, self.batch_size, self.drop_last)


# What a batch may be: tensors, in containers of any depth.
TorchData = dict[str, Any] | Sequence[Any] | torch.Tensor

_unmoved_types: set[type] = set()


def to_device(data: Any, device: torch.device) -> Any:
    """`data` with all tensors in it on `device`: in lists, tuples and dicts of any depth.

    What cannot be moved stays as it is; other types than strings and numbers are named once in the log.
    """
    if isinstance(data, torch.Tensor):
        return data if data.device == device else data.to(device, non_blocking=True)
    if type(data) is list:  # what most data loaders make of a batch
        return [to_device(value, device) for value in data]
    if isinstance(data, dict):
        return {key: to_device(value, device) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(to_device(value, device) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(to_device(value, device) for value in data)
    if hasattr(data, "to"):
        return data.to(device)
    if data is not None and not isinstance(data, (str, int, float)) and type(data) not in _unmoved_types:
        _unmoved_types.add(type(data))
        logger.warning("a batch holds a %s, which is not moved to %s", type(data).__name__, device)
    return data


def data_length(data: Any) -> int:
    """How many records a batch holds: the length of the first tensor (or array) in it.

    Raises TypeError where there is none: such trials override `PyTorchTrial.get_batch_length`.
    """
    if isinstance(data, (list, tuple)) and data:
        first = data[0]
        if isinstance(first, torch.Tensor) and first.ndim > 0:
            return first.shape[0]
        inner = isinstance(first, (torch.Tensor, np.ndarray, Mapping, list, tuple))
        return data_length(first) if inner else len(data)
    if isinstance(data, (torch.Tensor, np.ndarray)) and data.ndim > 0:
        return int(data.shape[0])
    if isinstance(data, Mapping) and data:
        return data_length(next(iter(data.values())))
    raise TypeError(
        f"cannot tell how many records a batch of type {type(data).__name__} holds: override get_batch_length()"
    )
