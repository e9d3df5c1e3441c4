"""The master itself, in this process and without an agent, for tests of the client that need its answers."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from determined.cli import main
from harness.cli.conftest import Ran
from master.api.rig import Rig, running

RealDet = Callable[..., Awaitable[Ran]]


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """Whoever does not say otherwise is alice."""
    folder = tmp_path / "master"
    folder.mkdir()
    async with running(folder) as started:
        monkeypatch.setenv("DET_DEBUG_CONFIG_PATH", str(tmp_path / "client"))
        monkeypatch.setenv("DET_MASTER", started.url)
        monkeypatch.setenv("DET_USER", "alice")
        monkeypatch.setenv("DET_USER_TOKEN", started.tokens["alice"])
        yield started


@pytest.fixture
def real_det(rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RealDet:
    """Runs one command and checks its exit code."""
    monkeypatch.setattr("sys.stdin", io.StringIO(""))

    async def run(*argv: str | Path | int, code: int = 0) -> Ran:
        capsys.readouterr()
        ended = await asyncio.to_thread(main, [str(argument) for argument in argv])
        captured = capsys.readouterr()
        assert ended == code, captured
        return Ran(ended, captured.out, captured.err)

    return run
