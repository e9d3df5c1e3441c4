"""A request's body while it comes in: small ones stay in memory, large ones go to a file without a name."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import IO

IN_MEMORY = 1 << 20  # bytes


class ReceivedBody:
    """Collects a body.

    Args:
        limit: bytes that the route takes; what comes beyond is counted and dropped.
        folder: where a large body waits.
    """

    def __init__(self, limit: int, folder: Path) -> None:
        self.size = 0
        self._limit = limit
        self._folder = folder
        self._buffer = bytearray()
        self._file: IO[bytes] | None = None
        self._failure: OSError | None = None

    @property
    def too_large(self) -> bool:
        return self.size > self._limit

    async def add(self, chunk: bytes) -> None:
        """Take the next piece; writes to the disk in a thread. What cannot be written is told to who reads it."""
        self.size += len(chunk)
        if self.too_large or self._failure is not None:
            self.close()
            return
        self._buffer += chunk
        if len(self._buffer) > IN_MEMORY:
            try:
                await self._spill()
            except OSError as error:  # here, it would only break off the connection
                self._failure = error
                self.close()

    async def whole(self) -> bytes:
        """All of it, in memory.

        Raises:
            OSError: it could not be written to the disk while it came in.
        """
        self._raise_failure()
        if self._file is None:
            return bytes(self._buffer)
        return await asyncio.to_thread((await self.file()).read)

    async def file(self) -> IO[bytes]:
        """All of it, as a file at its beginning. Raises what `whole` raises."""
        self._raise_failure()
        await self._spill()
        assert self._file is not None  # _spill
        self._file.seek(0)
        return self._file

    @property
    def is_large(self) -> bool:
        """True when it did not stay in memory."""
        return self._file is not None

    def close(self) -> None:
        """Forget the body. May be called several times."""
        self._buffer.clear()
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk: what was buffered is not wanted any more
                self._file.close()
            self._file = None

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _spill(self) -> None:
        piece, self._buffer = self._buffer, bytearray()
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - lives as long as the request
        await asyncio.to_thread(self._file.write, piece)
