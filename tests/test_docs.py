"""What the documents point at is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]
DOCUMENTS = [*sorted(REPO.glob("*.md")), *sorted(REPO.glob("docs/*.md"))]
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
TEST = re.compile(r"`([\w/]*test_\w+\.py)`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(document: Path) -> None:
    for target in LINK.findall(document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_every_row_of_the_faults_names_tests_that_exist() -> None:
    last = None  # what "the same" stands for
    for row in (REPO / "docs" / "recovery.md").read_text().splitlines():
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        if not cells or cells[0] == "" or set(cells[0]) == {"-"} or cells[-1] == "shown by":
            continue
        named = TEST.findall(cells[-1]) or ("the same" in cells[-1] and last)
        assert named, f"no test shows: {cells[0]}"
        for name in named:
            assert (REPO / "tests" / name).is_file(), f"{name}, of: {cells[0]}"
        last = named
