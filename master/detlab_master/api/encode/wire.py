"""Values on the wire: proto3 JSON (reference: rest-api.md 2). 64-bit integers are strings, doubles lose their ``.0``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]
_EXACT = 2.0**53  # up to here every whole double is an integer of its own


def plain(value: Any) -> Any:
    """A value that JSON can carry: ``3.0`` becomes ``3``, NaN and infinities become strings, tuples lists."""
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value]


def _number(value: float) -> float | int | str:
    if math.isfinite(value):
        return int(value) if value.is_integer() and abs(value) <= _EXACT else value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def dumps(payload: Any, *, pretty: bool = False) -> bytes:
    """JSON text of a payload."""
    if pretty:
        return (
            json.dumps(plain(payload), indent=2, ensure_ascii=False, allow_nan=False).encode(
                "utf-8", "replace"
            )
            + b"\n"
        )
    return json.dumps(plain(payload), separators=(",", ":"), allow_nan=False).encode()


def stream_line(result: Object) -> bytes:
    """One item of a streaming response."""
    return dumps({"result": result}) + b"\n"


def timestamp(seconds: float | None, *, digits: int = 6) -> str | None:
    """RFC 3339 in UTC with 0, 3 or 6 digits of fraction.

    Args:
        seconds: Unix time; None stays None.
        digits: at most so many of the fraction.
    """
    if seconds is None:
        return None
    time = datetime.fromtimestamp(round(seconds, digits), UTC)
    if time.microsecond == 0:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ")
    spec = "milliseconds" if time.microsecond % 1000 == 0 or digits <= 3 else "microseconds"
    return time.replace(tzinfo=None).isoformat(timespec=spec) + "Z"


def sizes(resources: Mapping[str, int]) -> dict[str, str]:
    """A map of 64-bit integers."""
    return {path: str(size) for path, size in resources.items()}
