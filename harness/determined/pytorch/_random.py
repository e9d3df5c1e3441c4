"""The random number generators that training code draws from: of Python, NumPy and torch."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

# By a generator's name; what torch.load takes without pickled classes.
States = dict[str, Any]


def get_states(*, gpu: bool = True) -> States:
    """All of them."""
    algorithm, keys, *rest = np.random.get_state(legacy=True)
    states: States = {
        "cpu_rng_state": torch.random.get_rng_state(),
        "np_rng_state": (algorithm, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "random_rng_state": random.getstate(),
    }
    if gpu and torch.cuda.is_available():
        states["gpu_rng_state"] = torch.cuda.get_rng_state()
    return states


def set_states(states: Mapping[str, Any]) -> None:
    """Go on from what `get_states` returned, or a part of it."""
    if "cpu_rng_state" in states:
        torch.random.set_rng_state(states["cpu_rng_state"])
    if "np_rng_state" in states:
        algorithm, keys, *rest = states["np_rng_state"]
        np.random.set_state((algorithm, np.asarray(keys).astype(np.uint32), *rest))
    if "random_rng_state" in states:
        random.setstate(states["random_rng_state"])
    if "gpu_rng_state" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["gpu_rng_state"])


def seed_all(key: Sequence[int]) -> None:
    """Seed those on the CPU by non-negative integers."""
    words = np.random.SeedSequence(list(key)).generate_state(6)
    random.seed(int(words[0]) << 32 | int(words[1]))
    torch.default_generator.manual_seed(int(words[2]) << 32 | int(words[3]))
    np.random.seed(words[4:])
