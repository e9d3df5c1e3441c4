"""When the log of a task may go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detlab_master.core import log_retention as core
from detlab_master.core.log_retention import DAY, FOREVER

T0 = 1_800_000_000.0


@pytest.mark.parametrize(
    ("own", "default", "counts"),
    [(None, None, FOREVER), (None, 7, 7), (3, 7, 3), (-1, 7, FOREVER), (0, 7, 0), (None, -1, FOREVER)],
)
def test_whose_days_count(own: int | None, default: int | None, counts: int) -> None:
    assert core.days(own, default) == counts


@pytest.mark.parametrize(
    ("ended_at", "days", "now", "due", "remaining"),
    [
        (T0, 7, T0, False, 7),
        (T0, 7, T0 + 1, False, 7),
        (T0, 7, T0 + 6 * DAY, False, 1),
        (T0, 7, T0 + 7 * DAY - 1, False, 1),
        (T0, 7, T0 + 7 * DAY, True, 0),
        (T0, 0, T0, True, 0),
        (T0, FOREVER, T0 + 9999 * DAY, False, FOREVER),
        (None, 0, T0, False, 0),
        (None, 7, T0, False, 7),
        (T0 + DAY, 7, T0, False, 7),  # a clock that went back
    ],
)
def test_what_is_due(ended_at: float | None, days: int, now: float, due: bool, remaining: int) -> None:
    assert core.due(ended_at, days, now) is due
    assert core.remaining(ended_at, days, now) == remaining


@given(st.integers(0, core.LONGEST), st.integers(0, 40_000 * 86400))
def test_a_log_is_due_when_no_day_remains_and_stays_so(days: int, seconds: int) -> None:
    now = T0 + seconds
    assert core.due(T0, days, now) == (core.remaining(T0, days, now) == 0)
    assert core.due(T0, days, now + 1) or not core.due(T0, days, now)
    assert core.remaining(T0, days, now + DAY) in {core.remaining(T0, days, now) - 1, 0}


@pytest.mark.parametrize(
    ("days", "fine"), [(-2, False), (-1, True), (0, True), (32767, True), (32768, False)]
)
def test_which_numbers_of_days_there_are(days: int, fine: bool) -> None:
    assert (core.check(days) is None) is fine
