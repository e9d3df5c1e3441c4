"""Typed access to bodies and queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from detlab_master.api.base import parse_json
from detlab_master.api.body import Fields, Query, snake_case
from detlab_master.core.errors import Invalid

COLORS = ("RED", "GREEN")


def test_names_in_both_spellings() -> None:
    assert Fields({"trial_run_id": 3}).integer("trialRunId") == 3
    assert Fields({"trialRunId": "3"}).integer("trialRunId") == 3
    assert snake_case("experimentIdFilter.notIn") == "experiment_id_filter.not_in"
    assert Query({"timeout_seconds": [b"60"]}).number("timeoutSeconds") == 60
    assert Query({"experimentIdFilter.gte": [b"5"]}).integer("experimentIdFilter.gte") == 5


@pytest.mark.parametrize(
    ("value", "number"),
    [(5, 5), ("5", 5), (" -5 ", -5), (5.0, 5), (2**63 - 1, 2**63 - 1), (str(-(2**63)), -(2**63))],
)
def test_integers(value: object, number: int) -> None:
    assert Fields({"n": value}).integer("n") == number


@pytest.mark.parametrize("value", [5.5, "5.5", "x", True, [], {}, 2**63, "9" * 30, float("nan"), "", None])
def test_what_is_no_integer(value: object) -> None:
    with pytest.raises(Invalid, match=r"^n is "):
        Fields({"n": value}).integer("n")


@pytest.mark.parametrize(
    ("value", "shown"), [(1, "1.0"), ("1.5", "1.5"), ("NaN", "nan"), ("Nan", "nan"), ("-Infinity", "-inf")]
)
def test_numbers(value: object, shown: str) -> None:
    assert repr(Fields({"n": value}).number("n")) == shown


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("2026-01-31T12:00:00Z", 1769860800.0),
        ("2026-01-31T12:00:00+00:00", 1769860800.0),
        ("2026-01-31T13:00:00.25+01:00", 1769860800.25),
        ("2026-01-31T12:00:00.123456789Z", 1769860800.123456),
        (None, None),
    ],
)
def test_times(value: object, seconds: float | None) -> None:
    assert Fields({"t": value}).timestamp("t") == seconds


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("COLOR_RED", "RED"),
        ("RED", "RED"),
        (2, "GREEN"),
        (0, None),
        ("COLOR_UNSPECIFIED", None),
        (None, None),
    ],
)
def test_enums(value: object, name: str | None) -> None:
    assert Fields({"c": value}).enum("c", COLORS, "COLOR_") == name


REFUSED: list[tuple[Callable[[Fields], Any], Any, str]] = [
    (lambda f: f.enum("x", COLORS, "COLOR_"), "BLUE", "x is 'BLUE': expected one of COLOR_RED, COLOR_GREEN"),
    (lambda f: f.enum("x", COLORS, "COLOR_"), 7, "x is 7: expected one of COLOR_RED, COLOR_GREEN"),
    (lambda f: f.flag("x"), "maybe", "x is 'maybe': expected true or false"),
    (lambda f: f.text("x"), 1, "x is 1: expected a string"),
    (lambda f: f.text("x"), None, "x is missing: it is required"),
    (lambda f: f.object("x"), [], "x is []: expected an object"),
    (lambda f: f.items("x"), {}, "x is {}: expected a list"),
    (lambda f: f.texts("x"), ["a", 1], "x[1] is 1: expected a string"),
    (lambda f: f.integers("x"), [1, "a"], "x[1] is 'a': expected an integer"),
    (lambda f: f.sizes("x"), {"a/b": "big"}, "x['a/b'] is 'big': expected an integer"),
    (lambda f: f.children("x"), [1], "x[0] is 1: expected an object"),
    (lambda f: f.child("x").integer("y"), {"y": "q"}, "x.y is 'q': expected an integer"),
    (lambda f: f.children("x")[0].text("y"), [{"y": 1}], "x[0].y is 1: expected a string"),
    (lambda f: f.timestamp("x"), "noon", "x is 'noon': expected a time such as 2026-01-31T12:00:00Z"),
    (lambda f: f.number("x"), True, "x is True: expected a number"),
    (lambda f: f.text("x"), list(range(99)), "x is " + repr(list(range(99)))[:77] + "...: expected a string"),
]


@pytest.mark.parametrize(("read", "value", "message"), REFUSED)
def test_refusals_name_the_field_and_what_is_allowed(
    read: Callable[[Fields], Any], value: object, message: str
) -> None:
    with pytest.raises(Invalid) as refused:
        read(Fields({"x": value}))
    assert str(refused.value) == message


def test_queries() -> None:
    query = Query({"users": [b"a", b"b"], "limit": [b"1", b"2"], "archived": [b"true"], "empty": [b""]})
    assert query.texts("users") == ["a", "b"]
    assert query.integer("limit") == 2
    assert query.optional_flag("archived") is True
    assert query.optional_flag("empty") is None
    assert query.optional_integer("empty") is None
    assert query.texts("absent") == []
    assert query.integers("limit") == [1, 2]


def test_json_bodies() -> None:
    assert parse_json(b"") == {}
    assert parse_json(b'{"a": NaN, "b": -Infinity, "c": 1e999, "d": 1.5}') == {
        "a": "NaN",
        "b": "-Infinity",
        "c": "Infinity",
        "d": 1.5,
    }
    for bad in (b"{", b"\xff", b"[" * 100_000):
        with pytest.raises(Invalid):
            parse_json(bad)
