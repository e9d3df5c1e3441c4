"""Parts that tests of several components use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.s3 import S3Server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An S3 server for the whole run, with a bucket in which every test takes a prefix of its own."""
    from support.s3 import s3_server

    with s3_server() as server:
        yield server
