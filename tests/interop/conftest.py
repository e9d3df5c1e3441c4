"""One cluster for each module of tests, and the official client beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from interop.commands import ROWS
from interop.driven import calls, tree_of
from interop.official import ENVIRONMENT, Forks, Official, need_official_client
from support.cluster import cluster


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    need_official_client()
    running = Forks()
    try:
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Iterator[Official]:
    with cluster(tmp_path_factory.mktemp("cluster"), slots=2) as running:
        yield Official(running, tmp_path_factory.mktemp("client"), forks)


@pytest.fixture(scope="module", autouse=True)
def the_table_is_true(request: pytest.FixtureRequest) -> Iterator[None]:
    """After the tests of a file: each has driven what the table says that it drives."""
    failed = request.session.testsfailed
    yield
    file = request.module.__name__.rpartition(".")[2]
    here = {key: test for key, (in_file, test) in ROWS.items() if in_file == file}
    ran = {item.name for item in request.session.items if getattr(item, "module", None) is request.module}
    ran |= {name.partition("[")[0] for name in ran}
    if not here or request.session.testsfailed > failed:
        return
    theirs = tree_of(ENVIRONMENT / "bin" / "python")
    for key, test in here.items():
        if test in ran and (called := calls(file, test)):
            assert key in set().union(*map(theirs.driven, called)), f"{test} has not driven {' '.join(key)}"
