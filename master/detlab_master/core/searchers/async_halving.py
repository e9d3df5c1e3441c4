"""Asynchronous successive halving, ASHA (Li et al., arXiv:1810.05934), in the form that stops trials early.

A trial climbs rungs. Rung i of r asks for `max_time / divisor^(r-1-i)` units of training. When a trial gets
there, its metric is ranked among those of all trials that got there before it: in the best 1/divisor it goes
on towards the next rung, otherwise it is stopped and a new trial takes its place. No trial ever waits for
another.
"""

import math
import sys
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from detlab_master.core.searchers.base import ExitReason, Trials, metric_value

WORST = sys.float_info.max  # what a trial that failed, or whose metric is no number, counts as


@dataclass
class Rung:
    units: int  # of the time metric, at which a trial is judged
    values: list[float] = field(default_factory=list)  # ascending; smaller is better


def rung_units(max_time: int, divisor: float, num_rungs: int) -> list[int]:
    """Units of training at each rung, lowest first."""
    return [max(int(max_time / divisor ** (num_rungs - 1 - i)), 1) for i in range(num_rungs)]


def initial_trials(num_rungs: int, max_trials: int, divisor: float, max_concurrent_trials: int) -> int:
    """How many trials start at once. Without a limit: as many as it takes for one to reach the top rung."""
    if max_concurrent_trials:
        return min(max_concurrent_trials, max_trials)
    return max(1, min(int(divisor ** (num_rungs - 1)), max_trials))


class AsyncHalving:
    """One bracket.

    Args:
        metric: its name in validation reports.
        smaller_is_better: its sense.
        time_metric: name of the metric that says how long a trial has trained.
        max_time: units of it at the top rung.
        num_rungs: at least 1.
        max_trials: to create in all, replacements of invalid ones not counted.
        divisor: more than 1.
        max_concurrent_trials: 0 for no limit.

    The cost of an event does not depend on the number of trials, but for moving a rung's array by one place.
    """

    replaces_invalid: ClassVar = True

    def __init__(
        self,
        *,
        metric: str,
        smaller_is_better: bool,
        time_metric: str,
        max_time: int,
        num_rungs: int,
        max_trials: int,
        divisor: float,
        max_concurrent_trials: int,
    ) -> None:
        self._metric = metric
        self._sign = 1.0 if smaller_is_better else -1.0
        self._time_metric = time_metric
        self._divisor = divisor
        self._max_trials = max_trials
        self._start_with = initial_trials(num_rungs, max_trials, divisor, max_concurrent_trials)
        self.rungs = [Rung(units) for units in rung_units(max_time, divisor, num_rungs)]
        self._rung_of: dict[int, int] = {}  # where each open trial is judged next
        self._values_of: dict[
            int, list[float]
        ] = {}  # what each open trial left in the rungs, lowest rung first
        self._created = 0
        self._closed = 0
        self._invalid = 0

    def start(self, trials: Trials) -> None:
        for _ in range(self._start_with):
            self._create(trials)

    def validated(self, trials: Trials, request_id: int, metrics: Mapping[str, Any]) -> None:
        value = metric_value(metrics, self._metric, "searcher.metric")
        time = metric_value(metrics, self._time_metric, "searcher.time_metric")
        if math.isnan(time):
            return
        value = WORST if math.isnan(value) else self._sign * value
        # A report may lie beyond several rungs: the trial is judged at each of them.
        while time >= self.rungs[self._rung_of[request_id]].units:
            if not self._goes_on(request_id, value):
                trials.stop(request_id)
                self._create_if_left(trials)
                return
            self._rung_of[request_id] += 1

    def _goes_on(self, request_id: int, value: float) -> bool:
        """Enter a value at the trial's rung; whether the trial may climb on."""
        at = self._rung_of[request_id]
        values = self.rungs[at].values
        rank = self._insert(request_id, value)
        return at + 1 < len(self.rungs) and rank < max(int(len(values) / self._divisor), 1)

    def _insert(self, request_id: int, value: float) -> int:
        values = self.rungs[self._rung_of[request_id]].values
        rank = bisect_left(values, value)
        values.insert(rank, value)
        self._values_of[request_id].append(value)
        return rank

    def exited(self, trials: Trials, request_id: int, reason: ExitReason) -> None:
        self._closed += 1
        if reason == "invalid_hp":
            # As if it had never been. It is replaced even where the search had stopped it: the budget is for
            # valid trials.
            self._invalid += 1
            for rung, value in zip(self.rungs, self._values_of[request_id], strict=False):
                del rung.values[bisect_left(rung.values, value)]
            self._create(trials)
        elif reason != "completed" and not trials.stopped(request_id):
            self._insert(request_id, WORST)
            self._create_if_left(trials)
        del self._rung_of[request_id], self._values_of[request_id]

    def progress(self, trials: Trials, open_progress: float) -> float:
        judged = len(self.rungs[0].values)
        # Trials beyond the lowest rung are still to be finished: a fifth on top for them.
        progress = judged / (1.2 * self._max_trials)
        if judged >= self._max_trials:
            progress = max(progress, (self._closed - self._invalid) / self._max_trials)
        return min(1.0, progress)

    def _create(self, trials: Trials) -> None:
        request_id = trials.create()
        self._created += 1
        self._rung_of[request_id] = 0
        self._values_of[request_id] = []

    def _create_if_left(self, trials: Trials) -> None:
        if self._created - self._invalid < self._max_trials:
            self._create(trials)
