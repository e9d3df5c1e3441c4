"""Nothing of tier T1 is left out: the official `det`'s own help against the table of what the tests drive, and ours."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from interop.commands import EXCEPTIONS, OURS_LACKS, ROWS
from interop.driven import Tree, tree_of
from interop.official import ENVIRONMENT, need_official_client


@pytest.fixture(scope="module")
def theirs() -> Tree:
    need_official_client()
    return tree_of(ENVIRONMENT / "bin" / "python")


def test_each_command_and_flag_is_driven_or_excepted_with_a_reason(theirs: Tree) -> None:
    assert theirs.items - ROWS.keys() - EXCEPTIONS.keys() == set()
    assert (ROWS.keys() | EXCEPTIONS.keys()) - theirs.items == set(), "there is no such command or flag"
    assert ROWS.keys() & EXCEPTIONS.keys() == set()
    assert all(EXCEPTIONS.values())


def test_the_tests_in_the_table_are_there() -> None:
    for file, test in set(ROWS.values()):
        assert f"def {test.partition('[')[0]}(" in Path(__file__).with_name(f"{file}.py").read_text(), test


def test_our_own_det_has_them_all(theirs: Tree) -> None:
    ours = tree_of(sys.executable)
    assert theirs.items - ours.items == OURS_LACKS.keys()
    assert all(OURS_LACKS.values())
