import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core_stub_master import StubMaster, trial_environment


@pytest.fixture
def master() -> Iterator[StubMaster]:
    with StubMaster() as stub:
        yield stub


@pytest.fixture
def trial(master: StubMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubMaster:
    """This process is the task of a trial."""
    for name, value in trial_environment(master, tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tempfile, "tempdir", None)  # it is read once and kept
    return master
