"""One trial: the hyperparameters as they are, or one draw where they are ranges."""

from collections.abc import Mapping
from typing import Any, ClassVar

from detlab_master.core.searchers.base import ExitReason, Trials


class SingleSearch:
    """Its trial's end is the end of the search, whatever the reason: a failure is final."""

    replaces_invalid: ClassVar = False

    def start(self, trials: Trials) -> None:
        trials.create()

    def validated(self, trials: Trials, request_id: int, metrics: Mapping[str, Any]) -> None:
        """There is nothing to decide."""

    def exited(self, trials: Trials, request_id: int, reason: ExitReason) -> None:
        """There is nothing to replace it with."""

    def progress(self, trials: Trials, open_progress: float) -> float:
        return trials.mean_progress(open_progress)
