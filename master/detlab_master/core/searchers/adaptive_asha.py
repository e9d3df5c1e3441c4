"""Adaptive ASHA: a tournament of ASHA brackets that stop trials more or less eagerly.

One bracket alone has to guess how early a metric can be trusted. Brackets with more rungs judge trials
earlier; those with fewer let them train longer first. `mode` says how many of the careful ones there are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Mode: TypeAlias = Literal["aggressive", "standard", "conservative"]


@dataclass(frozen=True)
class Bracket:
    num_rungs: int
    max_trials: int
    max_concurrent_trials: int


def bracket_rungs(max_time: int, max_trials: int, divisor: float, max_rungs: int, mode: Mode) -> list[int]:
    """Numbers of rungs of the brackets, most first.

    No bracket has more rungs than its lowest rung's training length, or the number of trials, can be divided.
    The quotients of logarithms are taken in double precision and not corrected, as Determined does: 1000 and
    divisor 10 give three rungs.
    """
    most = min(
        max_rungs,
        math.floor(math.log(max_time) / math.log(divisor)) + 1,
        math.floor(math.log(max_trials) / math.log(divisor)) + 1,
    )
    match mode:
        case "aggressive":
            fewest = most
        case "standard":
            fewest = (most - 1) // 2 + 1
        case "conservative":
            fewest = 1
    return list(range(most, fewest - 1, -1))


def brackets(
    rungs: Sequence[int], max_trials: int, divisor: float, max_concurrent_trials: int
) -> list[Bracket]:
    """Share trials and concurrency out among brackets with these numbers of rungs.

    A bracket's share of the trials is in proportion to `divisor^(rungs-1) / rungs`, which gives each about
    the same amount of training. A concurrency of 0 means no limit of the user's.
    """
    rungs = sorted(rungs, reverse=True)
    weights = [divisor ** (r - 1) / r for r in rungs]
    trials = [max(int(weight / sum(weights) * max_trials), 1) for weight in weights]
    trials[0] += max(max_trials - sum(trials), 0)
    if max_concurrent_trials == 0:
        concurrent = [max(trials[-1], int(divisor))] * len(rungs)
    else:
        each, rest = divmod(max(max_concurrent_trials, len(rungs)), len(rungs))
        concurrent = [each + (i < rest) for i in range(len(rungs))]
    return [Bracket(*bracket) for bracket in zip(rungs, trials, concurrent, strict=True)]
