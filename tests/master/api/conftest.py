"""The API over the real engine and the in-memory store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from master.api.rig import Rig, running


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running(tmp_path) as started:
        yield started
