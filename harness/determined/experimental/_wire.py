"""Reading what the master sends: times, metric values."""

import datetime
from typing import Any


def time(text: str | None) -> datetime.datetime | None:
    """A timestamp of the master (RFC 3339) as an aware datetime; None and "" are None."""
    return datetime.datetime.fromisoformat(text) if text else None


def integer(value: Any) -> int:
    """An int64 travels as a string; an absent one is 0."""
    return int(value or 0)


def metrics_of(workload: dict[str, Any] | None) -> dict[str, Any]:
    """The averaged metrics of a validation or training record, `{}` where there are none."""
    return dict(((workload or {}).get("metrics") or {}).get("avgMetrics") or {})


def number(value: Any) -> float | None:
    """A metric as a float ("NaN" and "Infinity" travel as strings); None when it is no number."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
