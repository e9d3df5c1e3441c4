"""What things may be called, and the keys of projects."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detlab_master.core.errors import Invalid
from detlab_master.core.names import check_key, check_name, check_path_name, make_key, there_are


@pytest.mark.parametrize("name", ["x", "Uncategorized", "größe 2", "a/b", "x" * 80])
def test_names(name: str) -> None:
    check_name("project", name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "it is blank"),
        ("  ", "it is blank"),
        (" x", "begins or ends with a space"),
        ("x" * 81, "has 81 characters, and may have 80"),
        ("a\nb", "cannot be printed"),
    ],
)
def test_no_names(name: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        check_name("project", name)


@pytest.mark.parametrize("name", ["a/b", "a\\b", ".", "..", ""])
def test_no_names_in_paths(name: str) -> None:
    with pytest.raises(Invalid, match="cannot be the name of a template"):
        check_path_name("template", name)


def test_keys() -> None:
    assert check_key("ab1") == "AB1"
    for key in ("", "ABCDEF", "A-B", "ß"):
        with pytest.raises(Invalid, match="1 to 5 letters"):
            check_key(key)


@given(st.lists(st.text(max_size=6), max_size=60))
def test_made_keys_are_keys_and_never_taken(names: list[str]) -> None:
    taken: set[str] = set()
    for name in names:
        key = make_key(name, taken)
        assert re.fullmatch("[A-Z0-9]{1,5}", key) and key not in taken
        taken.add(key)


def test_made_keys_begin_like_the_name() -> None:
    assert make_key("vision models", ()) == "VIS"
    assert make_key("vision models", {"VIS", "VIS1"}) == "VIS2"
    assert make_key("…", ()) == "P"


def test_what_there_is() -> None:
    assert there_are([], "x", "there is none") == "there is none"
    assert there_are(["vision", "text"], "visoin", "") == "there are vision, text. Did you mean 'vision'?"
    assert there_are(map(str, range(25)), "x", "").endswith("18, 19 and 5 more")
