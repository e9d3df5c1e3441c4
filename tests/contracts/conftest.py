"""The stores that the conformance suite runs over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from detlab_master.store.base import Store
from detlab_master.store.memory import MemoryStore
from detlab_master.store.sql import open_store
from support.postgres import PostgresServer, Unavailable, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    try:
        with postgres_server() as server:
            yield server
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.full)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened: Store
    if request.param == "memory":
        opened = MemoryStore()
    elif request.param == "sqlite":
        opened = open_store(f"sqlite:///{tmp_path}/detlab.db")
    else:
        opened = open_store(request.getfixturevalue("postgres").new_database())
    yield opened
    opened.close()
