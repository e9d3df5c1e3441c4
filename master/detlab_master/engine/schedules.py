"""When something that repeats is due: a cron expression, or a duration between two times."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

Schedule = Callable[[float], float]  # from now to the next time, both Unix seconds


def every(seconds: float) -> Schedule:
    """At the whole multiples of a duration, whenever the master was started."""
    return lambda now: (now // seconds + 1) * seconds


def cron(expression: str) -> Schedule:
    """Five fields of cron, in this machine's time.

    Raises:
        ValueError: it cannot be read.
    """
    from cronsim import CronSim, CronSimError  # only masters with such a schedule need it

    def following(now: float) -> float:
        return next(CronSim(expression, datetime.fromtimestamp(now).astimezone())).timestamp()

    try:
        following(0.0)
    except (CronSimError, StopIteration) as error:
        raise ValueError(f"{expression!r} is no cron expression: {error or 'it never comes'}") from None
    return following
