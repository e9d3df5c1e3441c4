"""The order of the training data, round by round, as torch draws it; and the same order again after a resume.

A sampler draws the order of a round from random number generators when the round begins. Their states at that
moment are kept, and are part of a checkpoint for the round that the training is in and those begun ahead of it. A
resumed training makes the samplers draw from the same states, and so gets the same rounds, whatever sampler it is.
"""

import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler

from determined.pytorch import _random

Batches = Sampler[list[int]]
OWN_GENERATOR = "generator"


class EndlessBatches(Batches):
    """The batches of round after round that belong to one rank, from any position on.

    Args:
        batches: those of one round, over all ranks together. It must have a length.
        start: how many batches of this rank to leave out at the beginning.
        generator: the data loader's own, if it has one.
        order: what `state_dict` returned when `start` batches had been trained on; where it is empty, rounds are
            drawn anew.
    """

    def __init__(
        self,
        batches: Batches,
        *,
        start: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
        generator: torch.Generator | None = None,
        order: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._batches = batches
        self._start = start
        self._num_replicas = num_replicas
        self._rank = rank
        self._generator = generator
        self._begun: dict[int, _random.States] = dict(order.get("rounds", {}))
        self._generator_state = order.get(OWN_GENERATOR)
        sampler = batches.sampler if type(batches) is BatchSampler else None
        self._is_sequential = type(sampler) is SequentialSampler
        # Others may draw from any generator, and keep something in themselves from round to round.
        self._is_torchs = self._is_sequential or type(sampler) is RandomSampler

    def __len__(self) -> int:
        """Batches of one round for this rank."""
        return max(0, -(-(self._length() - self._rank) // self._num_replicas))

    def __iter__(self) -> Iterator[list[int]]:
        whole = self._from(self._passed(self._start))
        if self._num_replicas == 1:
            return whole
        others = self._num_replicas - 1 if self._start else self._rank
        return itertools.islice(whole, others, None, self._num_replicas)

    def state_dict(self, position: int) -> dict[str, Any]:
        """What a training that resumes after `position` batches of this rank needs to get the same data."""
        self.forget(position)
        state: dict[str, Any] = {"rounds": dict(self._begun)}
        if self._generator is not None:
            state[OWN_GENERATOR] = self._generator.get_state()
        return state

    def forget(self, position: int) -> None:
        """Drop what is known of rounds before the one that batch `position` of this rank was in, counted from 1."""
        now = max(0, self._passed(position) - 1) // self._length()
        for number in [number for number in self._begun if number < now]:
            del self._begun[number]

    def restore_generator(self) -> None:
        """Let the data loader's own generator go on where it was when the checkpoint was saved."""
        if self._generator is not None and self._generator_state is not None:
            self._generator.set_state(self._generator_state)

    def _passed(self, position: int) -> int:
        """Batches over all ranks up to and with the last one of this rank's first `position`."""
        return (position - 1) * self._num_replicas + self._rank + 1 if position else 0

    def _length(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def _from(self, start: int) -> Iterator[list[int]]:
        # Of a round that has just been used up, the end is still to come: some samplers draw there, too.
        number, offset = divmod(start - 1, self._length()) if start else (0, -1)
        if not self._is_torchs:
            now = self._states()
            for _ in range(number):
                deque(self._batches, maxlen=0)
            self._set_states(now)
        yield from self._round(number, offset + 1)
        for later in itertools.count(number + 1):
            yield from self._round(later, 0)

    def _round(self, number: int, offset: int) -> Iterator[list[int]]:
        """The batches of one round, but for the first `offset`."""
        if self._is_sequential:
            return itertools.islice(self._batches, offset, None)
        begun = self._begun.get(number)
        now = self._states()
        if begun is None:
            self._begun[number] = now
            return itertools.islice(self._batches, offset, None)
        self._set_states(begun)
        rest = iter(self._batches)
        # Samplers draw when they are asked for the first time.
        first = list(itertools.islice(rest, max(1, offset)))[offset:]
        self._set_states(now)
        return itertools.chain(first, rest)

    def _states(self) -> _random.States:
        if not self._is_torchs:
            states = _random.get_states(gpu=False)
        elif self._generator is None:
            states = {"cpu_rng_state": torch.random.get_rng_state()}
        else:
            states = {}
        if self._generator is not None:
            states[OWN_GENERATOR] = self._generator.get_state()
        return states

    def _set_states(self, states: _random.States) -> None:
        _random.set_states(states)
        if self._generator is not None and OWN_GENERATOR in states:
            self._generator.set_state(states[OWN_GENERATOR])
