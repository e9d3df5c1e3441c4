"""How far the open trials of an experiment are, in sum."""

from __future__ import annotations

from typing import Final

_PARTS: Final = 1 << 32  # of a whole


class OpenProgress:
    """A sum that is kept up as trials go on, so that a report of one does not look at all of them.

    It counts in whole parts: floats would add up differently in another order, and so after a restart.
    """

    def __init__(self) -> None:
        self._parts: dict[int, int] = {}  # of each open trial
        self._sum = 0

    def set(self, trial_id: int, progress: float) -> None:
        """``progress``: 0 to 1; what lies outside is taken for the nearer end."""
        parts = round(min(1.0, max(0.0, progress)) * _PARTS)
        self._sum += parts - self._parts.get(trial_id, 0)
        self._parts[trial_id] = parts

    def close(self, trial_id: int) -> None:
        """The trial is not open any more."""
        self._sum -= self._parts.pop(trial_id, 0)

    @property
    def total(self) -> float:
        """The sum over open trials, each 0 to 1."""
        return self._sum / _PARTS
