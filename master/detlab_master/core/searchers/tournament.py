"""Several searches side by side in one experiment; each trial belongs to one of them."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from detlab_master.core.searchers.base import ExitReason, Method, Trials


class Tournament:
    """Runs independent methods, which start in the order given and hear only of their own trials."""

    replaces_invalid: ClassVar = True

    def __init__(self, methods: Sequence[Method]) -> None:
        self._methods = list(methods)
        self._owner: dict[int, Method] = {}  # of each trial that may still be heard of

    def start(self, trials: Trials) -> None:
        for method in self._methods:
            before = trials.created
            method.start(trials)
            self._own(trials, before, method)

    def validated(self, trials: Trials, request_id: int, metrics: Mapping[str, Any]) -> None:
        method = self._owner[request_id]
        before = trials.created
        method.validated(trials, request_id, metrics)
        self._own(trials, before, method)

    def exited(self, trials: Trials, request_id: int, reason: ExitReason) -> None:
        method = self._owner.pop(request_id)
        before = trials.created
        method.exited(trials, request_id, reason)
        self._own(trials, before, method)

    def progress(self, trials: Trials, open_progress: float) -> float:
        return sum(method.progress(trials, open_progress) for method in self._methods) / len(self._methods)

    def _own(self, trials: Trials, before: int, method: Method) -> None:
        for request_id in range(before, trials.created):
            self._owner[request_id] = method
