from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.postgres import PostgresServer, Unavailable, postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    try:
        with postgres_server() as server:
            yield server
    except Unavailable as reason:
        pytest.skip(str(reason))
