from collections.abc import Iterator

import pytest

from harness.core_stub_master import StubMaster


@pytest.fixture
def master() -> Iterator[StubMaster]:
    with StubMaster() as stub:
        yield stub
