"""Random numbers of data workers: a function of what is loaded, not of who loads it.

torch seeds each worker process once. What an augmentation draws then depends on how many workers there are and
on all that one of them did before, which a training that resumes cannot repeat. Here the generators of Python,
NumPy and torch are seeded before each batch, by the training's seed, the rank and the number of the batch.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import Dataset, Sampler, get_worker_info

from determined.pytorch._random import seed_all


class NumberedBatches(Sampler[Any]):
    """The batches of a batch sampler, each with its number: pairs of int and list of indices."""

    def __init__(self, batch_sampler: Sampler[list[int]], first: int) -> None:
        self._batch_sampler = batch_sampler
        self._first = first

    def __len__(self) -> int:
        return len(self._batch_sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        yield from enumerate(self._batch_sampler, start=self._first)


class SeededDataset(Dataset[Any]):
    """A dataset as workers see it, who ask for batches by number and indices. Else it is like `dataset`."""

    def __init__(self, dataset: Dataset[Any], seed: int, rank: int) -> None:
        self.dataset = dataset
        self._seed = seed
        self._rank = rank

    def __getitems__(self, numbered: tuple[int, Sequence[int]]) -> Any:
        number, indices = numbered
        seed_all((self._seed, self._rank, number))
        batched = getattr(self.dataset, "__getitems__", None)
        return batched(indices) if batched is not None else [self.dataset[index] for index in indices]

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "dataset" not in vars(self):  # while it is being unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)


class WorkerInit:
    """Runs in a new worker: shows the user's code its own dataset, and calls its `worker_init_fn`."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None) -> None:
        self._worker_init_fn = worker_init_fn

    def __call__(self, worker_id: int) -> None:
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, SeededDataset):
            object.__setattr__(info, "dataset", info.dataset.dataset)  # torch guards against assignment
        if self._worker_init_fn is not None:
            self._worker_init_fn(worker_id)
