import itertools
import random
from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler

from determined.pytorch import Batch, DataLoader, Epoch, _random, adapt_batch_sampler, samplers, to_device


class Numbers(torch.utils.data.Dataset[int]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        return index


def batches(loader: Any, n: int) -> list[list[int]]:
    return [batch.tolist() for batch, _ in zip(loader, range(n), strict=False)]


class OwnSampler(Sampler[int]):
    """A user's: draws from Python's generator, and does something else every other time."""

    def __init__(self, items: int) -> None:
        self.items, self.rounds = items, 0

    def __len__(self) -> int:
        return self.items

    def __iter__(self) -> Iterator[int]:
        order = random.sample(range(self.items), self.items)
        self.rounds += 1
        yield from order if self.rounds % 2 else sorted(order)


SAMPLERS: dict[str, Callable[[Numbers], dict[str, Any]]] = {
    "in order": lambda data: {},
    "shuffled": lambda data: {"shuffle": True},
    "shuffled by its own generator": lambda data: {
        "shuffle": True,
        "generator": torch.Generator().manual_seed(1),
    },
    "weighted": lambda data: {
        "sampler": torch.utils.data.WeightedRandomSampler(range(1, len(data) + 1), len(data))
    },
    "random sampler": lambda data: {"sampler": RandomSampler(data)},
    "reproducible": lambda data: {"sampler": samplers.ReproducibleShuffleSampler(OwnSampler(len(data)), 5)},
    "own": lambda data: {"sampler": OwnSampler(len(data))},
}


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(sorted(SAMPLERS)),
    items=st.integers(1, 40),
    batch_size=st.integers(1, 9),
    trained=st.integers(0, 30),
    ahead=st.integers(0, 12),
    replicas=st.integers(1, 3),
    seed=st.integers(0, 5),
)
def test_a_resumed_training_gets_the_same_data(
    kind: str, items: int, batch_size: int, trained: int, ahead: int, replicas: int, seed: int
) -> None:
    """Also when the loader was `ahead` batches ahead of the training, as with workers."""

    def loader() -> DataLoader:
        data = Numbers(items)
        return DataLoader(data, batch_size=batch_size, **SAMPLERS[kind](data))

    for rank in range(replicas):
        torch.manual_seed(seed)
        random.seed(seed)
        _, order = loader()._training_loader(0, {}, replicas, rank)
        whole = iter(order)
        before = list(itertools.islice(whole, trained + ahead))[trained:]
        saved, states = order.state_dict(trained), _random.get_states()
        after = list(itertools.islice(whole, 15))

        torch.manual_seed(99)
        random.seed(99)
        _, resumed = loader()._training_loader(trained, saved, replicas, rank)
        again = iter(resumed)
        if ahead:
            assert list(itertools.islice(again, ahead)) == before
        _random.set_states(states)
        resumed.restore_generator()
        assert list(itertools.islice(again, 15)) == after


def test_what_is_kept_of_the_order_does_not_grow() -> None:
    data = Numbers(10)
    _, order = DataLoader(data, batch_size=5, shuffle=True)._training_loader(0, {})
    for position, _ in zip(range(1, 41), order, strict=False):
        order.forget(position)
    assert list(order.state_dict(40)["rounds"]) == [19]


def test_each_epoch_begins_with_a_batch_of_its_own() -> None:
    loader = DataLoader(Numbers(7), batch_size=3)
    assert batches(loader.get_data_loader(True), 5) == [[0, 1, 2], [3, 4, 5], [6], [0, 1, 2], [3, 4, 5]]
    assert batches(loader.get_data_loader(True, skip=2), 2) == [[6], [0, 1, 2]]
    second = loader.get_data_loader(True, num_replicas=2, rank=1)
    assert batches(second, 3) == [[3, 4, 5], [0, 1, 2], [6]]
    dropped = DataLoader(Numbers(7), batch_size=3, drop_last=True).get_data_loader(True)
    assert batches(dropped, 3) == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]


def test_the_shuffled_order_is_torchs() -> None:
    ours = DataLoader(Numbers(30), batch_size=4, shuffle=True).get_data_loader()
    torchs = torch.utils.data.DataLoader(Numbers(30), batch_size=4, shuffle=True)
    torch.manual_seed(7)
    first = batches(ours, 8)
    torch.manual_seed(7)
    assert batches(torchs, 8) == first


def test_reproducible_shuffling() -> None:
    """The order for a seed is that of NumPy's RandomState, as in the official package."""
    shuffled = samplers.ReproducibleShuffleSampler(SequentialSampler(range(6)), 0)
    assert [list(shuffled), list(shuffled)] == [[5, 2, 1, 3, 0, 4], [1, 3, 4, 0, 2, 5]]
    pairs = BatchSampler(SequentialSampler(range(10)), 2, False)
    by_five = samplers.ReproducibleShuffleBatchSampler(pairs, 5)
    assert list(by_five) == [[8, 9], [0, 1], [2, 3], [4, 5], [6, 7]]


def test_lengths() -> None:
    assert len(DataLoader(Numbers(10), batch_size=4)) == 3
    assert len(DataLoader(Numbers(10), batch_size=4, drop_last=True)) == 2
    assert len(DataLoader(Numbers(10), batch_size=4).get_data_loader()) == 3
    assert len(DataLoader(Numbers(10), batch_size=4).get_data_loader(num_replicas=3, rank=0)) == 1
    five = BatchSampler(range(10), 2, False)
    assert [len(adapt_batch_sampler(five, num_replicas=2, rank=rank)) for rank in (0, 1)] == [3, 2]  # type: ignore[arg-type]
    assert len(adapt_batch_sampler(five, repeat=True, skip=2)) == 5  # type: ignore[arg-type]
    shuffled = samplers.ReproducibleShuffleBatchSampler(five, 1)
    assert sorted(shuffled) == sorted(five)
    assert list(samplers.SkipSampler(SequentialSampler(range(5)), 3)) == [3, 4]
    assert len(samplers.SkipSampler(SequentialSampler(range(5)), 3)) == 5


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"shuffle": True, "sampler": SequentialSampler(range(3))}, ValueError),
        ({"batch_sampler": BatchSampler(range(3), 1, False), "batch_size": 2}, ValueError),
        ({"batch_size": 0}, ValueError),
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
