"""Samplers that repeat, shard over the ranks, skip, and shuffle by a seed of their own.

Those of batches are stacked in this order: shuffle, batch, repeat, shard, skip; `adapt_batch_sampler` does the
last three. An epoch thereby begins with a batch of its own.
"""

import itertools
from collections.abc import Iterator

import numpy as np
from torch.utils.data import BatchSampler, Sampler


class RepeatSampler(Sampler[int]):
    """Begins again whenever the sampler is used up, without end. Its length is that of one round."""

    def __init__(self, sampler: Sampler[int]) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from self._sampler


class RepeatBatchSampler(Sampler[list[int]]):
    """Begins again whenever the batch sampler is used up, without end. Its length is that of one round."""

    def __init__(self, batch_sampler: Sampler[list[int]]) -> None:
        self._batch_sampler = batch_sampler

    def __len__(self) -> int:
        return len(self._batch_sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield from self._batch_sampler


class DistributedSampler(Sampler[int]):
    """Every `num_workers`-th item from `rank` on."""

    def __init__(self, sampler: Sampler[int], num_workers: int, rank: int) -> None:
        self._sampler = sampler
        self._num_workers = num_workers
        self._rank = rank

    def __len__(self) -> int:
        return _share(len(self._sampler), self._num_workers, self._rank)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(self._sampler, self._rank, None, self._num_workers)


class DistributedBatchSampler(Sampler[list[int]]):
    """Every `num_workers`-th batch from `rank` on."""

    def __init__(self, batch_sampler: Sampler[list[int]], num_workers: int, rank: int) -> None:
        self._batch_sampler = batch_sampler
        self._num_workers = num_workers
        self._rank = rank

    def __len__(self) -> int:
        return _share(len(self._batch_sampler), self._num_workers, self._rank)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.islice(self._batch_sampler, self._rank, None, self._num_workers)


class SkipSampler(Sampler[int]):
    """Leaves out the first `skip` items. Its length stays that of the whole."""

    def __init__(self, sampler: Sampler[int], skip: int) -> None:
        self._sampler = sampler
        self._skip = skip

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(self._sampler, self._skip, None)


class SkipBatchSampler(Sampler[list[int]]):
    """Leaves out the first `skip` batches. Its length stays that of the whole."""

    def __init__(self, batch_sampler: Sampler[list[int]], skip: int) -> None:
        self._batch_sampler = batch_sampler
        self._skip = skip

    def __len__(self) -> int:
        return len(self._batch_sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.islice(self._batch_sampler, self._skip, None)


class ReproducibleShuffleSampler(Sampler[int]):
    """The sampler's items in an order drawn from `seed`; each iteration draws another one."""

    def __init__(self, sampler: Sampler[int], seed: int) -> None:
        self._sampler = sampler
        self._random = np.random.RandomState(seed % 2**32)

    def __len__(self) -> int:
        return len(self._sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[int]:
        items = list(self._sampler)
        return iter([items[i] for i in self._random.permutation(len(items))])


class ReproducibleShuffleBatchSampler(Sampler[list[int]]):
    """The sampler's batches in an order drawn from `seed`; each iteration draws another one."""

    def __init__(self, batch_sampler: Sampler[list[int]], seed: int) -> None:
        self._batch_sampler = batch_sampler
        self._random = np.random.RandomState(seed % 2**32)

    def __len__(self) -> int:
        return len(self._batch_sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[int]]:
        items = list(self._batch_sampler)
        return iter([items[i] for i in self._random.permutation(len(items))])


def adapt_batch_sampler(
    batch_sampler: Sampler[list[int]] | BatchSampler,
    repeat: bool = False,
    skip: int = 0,
    num_replicas: int = 1,
    rank: int = 0,
) -> Sampler[list[int]]:
    """A batch sampler that repeats, is sharded and skips as asked, in this order."""
    if repeat:
        batch_sampler = RepeatBatchSampler(batch_sampler)
    if num_replicas > 1:
        batch_sampler = DistributedBatchSampler(batch_sampler, num_replicas, rank)
    if skip > 0:
        batch_sampler = SkipBatchSampler(batch_sampler, skip)
    return batch_sampler


def _share(length: int, num_workers: int, rank: int) -> int:
    return max(0, -(-(length - rank) // num_workers))
