"""A fake master and a real agent for each test; afterwards nothing may be left running."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from agent.fake_master import AgentProcess, FakeMaster
from detlab_agent.drivers.launching import tmp_folder


@pytest.fixture
async def master() -> AsyncIterator[FakeMaster]:
    fake = FakeMaster()
    yield fake
    await fake.close()


@pytest.fixture
def agent_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Where the agent lives: pytest's own folder, which only its owner may pass, or one that all may pass ("open")."""
    if getattr(request, "param", "closed") == "closed":
        yield tmp_path
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.fixture
async def agent(master: FakeMaster, agent_folder: Path) -> AsyncIterator[AgentProcess]:
    """Not started yet."""
    process = AgentProcess(master.url, agent_folder)
    yield process
    await process.close()
    for folder in (process.data_dir / "containers").glob("*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(json.loads((folder / "shim.json").read_text())["pid"], signal.SIGUSR1)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(tmp_folder(folder))
    left = [p for p in psutil.process_iter() if _belongs_to(p, process.data_dir)]
    _, alive = psutil.wait_procs(left, timeout=10)
    assert not alive, "these processes were left running"


@pytest.fixture
async def running(master: FakeMaster, agent: AgentProcess) -> AgentProcess:
    """Started, and welcomed."""
    agent.start("--slots", "2")
    await master.until(lambda: master.hellos)
    return agent


def _belongs_to(process: psutil.Process, data_dir: Path) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return process.status() != psutil.STATUS_ZOMBIE and (
            str(data_dir) in " ".join(process.cmdline())
            or process.environ().get("DET_RUN_DIR", "").startswith(str(data_dir))
        )
    return False
