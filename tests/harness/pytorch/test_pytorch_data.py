from collections import namedtuple
from typing import Any

import pytest
import torch
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, SequentialSampler

from determined.pytorch import Batch, DataLoader, Epoch, adapt_batch_sampler, samplers, to_device


class Numbers(torch.utils.data.Dataset[int]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


def batches(loader: Any, n: int) -> list[list[int]]:
    return [batch.tolist() for batch, _ in zip(loader, range(n), strict=False)]


@settings(max_examples=60, deadline=None)
@given(
    items=st.integers(1, 40),
    batch_size=st.integers(1, 9),
    skip=st.integers(0, 30),
    replicas=st.integers(1, 3),
    shuffle=st.booleans(),
    own_batches=st.booleans(),
)
def test_skipping_and_sharding_cut_pieces_out_of_one_sequence(
    items: int, batch_size: int, skip: int, replicas: int, shuffle: bool, own_batches: bool
) -> None:
    data = Numbers(items)
    if own_batches:
        loader = DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), batch_size, False))
    else:
        loader = DataLoader(data, batch_size=batch_size, shuffle=shuffle)
    for rank in range(replicas):
        whole = batches(loader.get_data_loader(True, 0, replicas, rank, seed=5), skip + 6)
        later = batches(loader.get_data_loader(True, skip, replicas, rank, seed=5), 6)
        assert later == whole[skip:]
    if not own_batches:
        ranks = [
            [i for b in batches(loader.get_data_loader(True, 0, replicas, rank, seed=5), 4) for i in b]
            for rank in range(replicas)
        ]
        together = [i for group in zip(*ranks, strict=True) for i in group]
        alone = [i for b in batches(loader.get_data_loader(True, seed=5), 4 * replicas) for i in b]
        assert together == alone


def test_the_seed_sets_the_order() -> None:
    loader = DataLoader(Numbers(30), batch_size=30, shuffle=True)
    orders = [batches(loader.get_data_loader(seed=seed), 1)[0] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    own = DataLoader(Numbers(30), batch_size=30, shuffle=True, generator=torch.Generator().manual_seed(2))
    assert batches(own.get_data_loader(seed=1), 1)[0] == orders[2]


def test_lengths() -> None:
    assert len(DataLoader(Numbers(10), batch_size=4)) == 3
    assert len(DataLoader(Numbers(10), batch_size=4, drop_last=True)) == 2
    assert len(DataLoader(Numbers(10), batch_size=4).get_data_loader()) == 3
    assert len(DataLoader(Numbers(10), batch_size=4).get_data_loader(num_replicas=3, rank=0)) == 1
    five = BatchSampler(range(10), 2, False)
    assert [len(adapt_batch_sampler(five, num_replicas=2, rank=rank)) for rank in (0, 1)] == [3, 2]  # type: ignore[arg-type]
    assert len(adapt_batch_sampler(five, repeat=True, skip=2)) == 3  # type: ignore[arg-type]
    shuffled = samplers.ReproducibleShuffleBatchSampler(five, 1)
    assert sorted(shuffled) == sorted(five)
    assert list(samplers.SkipSampler(SequentialSampler(range(5)), 3)) == [3, 4]
    assert len(samplers.SkipSampler(SequentialSampler(range(5)), 3)) == 2


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"shuffle": True, "sampler": SequentialSampler(range(3))}, ValueError),
        ({"batch_sampler": BatchSampler(range(3), 1, False), "batch_size": 2}, ValueError),
        ({"batch_size": 0}, ValueError),
        ({"sampler": torch.utils.data.RandomSampler(range(3))}, TypeError),
    ],
)
def test_arguments_that_contradict_each_other(arguments: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        DataLoader(Numbers(3), **arguments)


def test_iterable_datasets_are_named_with_the_way_out() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    with pytest.raises(TypeError, match="disable_dataset_reproducibility_checks"):
        DataLoader(Stream())


def test_to_device_reaches_every_tensor(caplog: pytest.LogCaptureFixture) -> None:
    Pair = namedtuple("Pair", "x y")
    moved = to_device(
        {"a": [torch.ones(2)], "b": Pair(torch.ones(1), "text"), "c": object()}, torch.device("meta")
    )
    assert moved["a"][0].device.type == "meta"
    assert isinstance(moved["b"], Pair)
    assert moved["b"].x.device.type == "meta"
    assert moved["b"].y == "text"
    assert "a batch holds a object" in caplog.text


def test_units() -> None:
    assert [step for step in range(1, 10) if Batch(3).should_stop(step)] == [3, 6, 9]
    assert [step for step in range(1, 10) if Epoch([2, 5]).should_stop(step)] == [2, 5]
    assert [step for step in range(1, 10) if Batch(lambda step: step > 7).should_stop(step)] == [8, 9]
    assert Batch(3) == Batch(3) != Epoch(3)
    with pytest.raises(ValueError, match="at least 1"):
        Batch(0)
    with pytest.raises(TypeError, match="takes an int"):
        Batch(1.5)  # type: ignore[arg-type]
