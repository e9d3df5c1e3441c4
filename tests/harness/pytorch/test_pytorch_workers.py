"""What data workers draw at random depends on seed and position alone."""

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import get_worker_info

from determined.pytorch import DataLoader

# torch advises against more workers than cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Draws(torch.utils.data.Dataset[Any]):
    """Items of random numbers from all three generators."""

    length = 12

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, random.random(), float(np.random.rand()), float(torch.rand(1))])


class DrawsBatches(Draws):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


def batches(loader: Any, n: int) -> list[Any]:
    return [batch.tolist() for batch, _ in zip(loader, range(n), strict=False)]


def training_batches(loader: DataLoader, n: int, start: int = 0, **arguments: Any) -> list[Any]:
    return batches(loader._training_loader(start, {}, **arguments)[0], n)


def test_the_number_of_workers_and_the_start_do_not_matter() -> None:
    whole, fewer, batched = (
        training_batches(DataLoader(data, 2, num_workers=workers), 8, worker_seed=5)
        for data, workers in ((Draws(), 3), (Draws(), 1), (DrawsBatches(), 2))
    )
    assert whole == fewer == batched
    loader = DataLoader(Draws(), 2, num_workers=2)
    assert training_batches(loader, 3, start=5, worker_seed=5) == whole[5:]
    drawn = {tuple(item[1:]) for batch in whole for item in batch}
    assert len(drawn) == 16  # also the second epoch's are others
    other_seed = training_batches(loader, 8, worker_seed=6)
    other_rank = training_batches(loader, 8, worker_seed=5, num_replicas=2, rank=1)
    for other in (other_seed, other_rank):
        assert not {tuple(item[1:]) for batch in other for item in batch} & drawn


def show_dataset(worker_id: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert type(info.dataset) is Draws
    info.dataset.length = 100 + worker_id


def first_length(items: list[Any]) -> torch.Tensor:
    info = get_worker_info()
    assert info is not None
    return torch.tensor(len(info.dataset))  # type: ignore[arg-type]


def test_the_users_code_in_workers_sees_its_own_dataset() -> None:
    loader = DataLoader(Draws(), 6, num_workers=2, worker_init_fn=show_dataset, collate_fn=first_length)
    made, _ = loader._training_loader(0, {})
    assert batches(made, 2) == [100, 101]
    assert made.dataset.length == len(made.dataset) == 12  # type: ignore[attr-defined, arg-type]
    assert made.dataset[3][0] == 3
    with pytest.raises(AttributeError, match="colour"):
        made.dataset.colour  # type: ignore[attr-defined] # noqa: B018
    spawned = DataLoader(Draws(), 6, num_workers=1, multiprocessing_context="spawn")
    assert training_batches(spawned, 2) == training_batches(DataLoader(Draws(), 6, num_workers=2), 2)
