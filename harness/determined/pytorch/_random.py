"""The states of the random number generators that training code draws from, in torch's and plain types."""

import random
from collections.abc import Mapping
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
