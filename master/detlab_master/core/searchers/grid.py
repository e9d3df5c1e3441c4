"""Grid search: every point of the space once."""

from collections.abc import Mapping
from typing import Any, ClassVar

from detlab_master.core.hyperparameters import Grid, Nested
from detlab_master.core.searchers.base import ExitReason, Trials


class GridSearch:
    """The points from the last to the first, at most `max_concurrent_trials` open at a time (0: no limit).

    A point whose trial fails, or says that it is invalid, is not tried again.
    """

    replaces_invalid: ClassVar = False

    def __init__(self, space: Nested, max_concurrent_trials: int) -> None:
        self._points = Grid(space)
        self._left = len(self._points)
        self._concurrent = max_concurrent_trials or self._left

    def start(self, trials: Trials) -> None:
        for _ in range(min(self._left, self._concurrent)):
            self._next(trials)

    def validated(self, trials: Trials, request_id: int, metrics: Mapping[str, Any]) -> None:
        """The points do not depend on results."""

    def exited(self, trials: Trials, request_id: int, reason: ExitReason) -> None:
        if self._left:
            self._next(trials)

    def progress(self, trials: Trials, open_progress: float) -> float:
        return trials.mean_progress(open_progress)

    def _next(self, trials: Trials) -> None:
        self._left -= 1
        trials.create(self._points[self._left])
