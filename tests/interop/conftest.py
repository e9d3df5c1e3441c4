"""One cluster for each module of tests, and the official client beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interop.official import Official, need_official_client
from support.cluster import cluster


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Official]:
    need_official_client()
    with cluster(tmp_path_factory.mktemp("cluster"), slots=2) as running:
        yield Official(running, tmp_path_factory.mktemp("client"))
