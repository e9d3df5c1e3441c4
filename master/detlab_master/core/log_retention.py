"""How long the logs of tasks are kept.

Days count from the end of a task; what still runs keeps its whole log. A trial's own setting goes before the cluster's.
"""

from __future__ import annotations

import math

FOREVER = -1
LONGEST = 32767  # days
DAY = 86400.0  # seconds


def check(days: int) -> str | None:
    """What is wrong with a number of days, for people."""
    if FOREVER <= days <= LONGEST:
        return None
    return f"it must be a number of days from 0 to {LONGEST}, or {FOREVER} for ever"


def days(own: int | None, default: int | None) -> int:
    """The days that count: those of the trial, else the cluster's, else `FOREVER`."""
    return next((value for value in (own, default) if value is not None), FOREVER)


def due(ended_at: float | None, kept_days: int, now: float) -> bool:
    """Whether the log of a task may go.

    Args:
        ended_at: Unix seconds; None: it still runs.
        kept_days: as of `days`.
        now: Unix seconds.
    """
    return ended_at is not None and kept_days != FOREVER and now >= ended_at + kept_days * DAY


def remaining(ended_at: float | None, kept_days: int, now: float) -> int:
    """Days that the log is still kept, begun ones whole; 0: it goes at the next cleanup; `FOREVER`: it stays."""
    if kept_days == FOREVER or ended_at is None:
        return kept_days
    return min(kept_days, max(0, math.ceil((ended_at + kept_days * DAY - now) / DAY)))
