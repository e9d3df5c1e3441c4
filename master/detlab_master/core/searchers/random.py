"""Random search: every trial is an independent draw from the space."""

from collections.abc import Mapping
from typing import Any, ClassVar

from detlab_master.core.searchers.base import ExitReason, Trials


class RandomSearch:
    """`max_trials` draws, at most `max_concurrent_trials` open at a time (0: no limit).

    An exit makes room for the next draw. A trial that reports invalid hyperparameters does not count and is
    drawn anew; other failures count.
    """

    replaces_invalid: ClassVar = True

    def __init__(self, max_trials: int, max_concurrent_trials: int) -> None:
        self._max_trials = max_trials
        self._concurrent = max_concurrent_trials or max_trials
        self._invalid = 0

    def start(self, trials: Trials) -> None:
        for _ in range(min(self._max_trials, self._concurrent)):
            trials.create()

    def validated(self, trials: Trials, request_id: int, metrics: Mapping[str, Any]) -> None:
        """Random search learns nothing from results."""

    def exited(self, trials: Trials, request_id: int, reason: ExitReason) -> None:
        if reason == "invalid_hp":
            self._invalid += 1
        if trials.created - self._invalid < self._max_trials:
            trials.create()

    def progress(self, trials: Trials, open_progress: float) -> float:
        return trials.mean_progress(open_progress)
