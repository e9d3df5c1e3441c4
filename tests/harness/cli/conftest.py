"""The stub master, and running `det` against it."""

import io
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from determined.cli import main
from determined.common.api.token_store import TokenStore
from harness.api_stub import StubMaster, master

__all__ = ["master"]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Det = Callable[..., Ran]


@pytest.fixture
def det(master: StubMaster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Det:
    """Runs one command as ada, with `typed` on standard input (which is no terminal)."""
    TokenStore(master.url).put("ada", "ada-token", activate=True)

    def run(*argv: str, typed: str = "") -> Ran:
        capsys.readouterr()
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        code = main(argv)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run
