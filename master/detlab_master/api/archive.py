"""Files as an archive that is sent while it is made: nothing of it lies in memory as a whole."""

from __future__ import annotations

import asyncio
import tarfile
import threading
import time
import zipfile
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, Final, cast

from detlab_master.engine.storage import StoredFile

FORMATS: Final = {"application/x-tar": ".tar", "application/gzip": ".tar.gz", "application/zip": ".zip"}
_CHUNK = 256 << 10  # bytes
_WAITING = 8  # chunks that may wait for the client


class Closed(Exception):
    """Nobody reads any more."""


class Pipe:
    """A file to write to in a thread, whose content is read on the event loop. Writing waits for the reader."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = threading.Semaphore(_WAITING)
        self._closed = False
        self._buffer = bytearray()
        self._position = 0

    async def chunks(self, write: Callable[..., None], *arguments: Any) -> AsyncGenerator[bytes, None]:
        """What ``write(file, *arguments)`` writes, in a thread of its own.

        Raises:
            Exception: what `write` raised, after what it had written.
        """
        # Not one of the threads that others share: it is busy for as long as the client takes.
        threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="archive")
        writer = self._loop.run_in_executor(threads, self._run, write, arguments)
        try:
            while (chunk := await self._queue.get()) is not None:
                self._room.release()
                yield chunk
            await writer
        finally:
            self._closed = True
            self._room.release()  # a writer that waits finds out
            await asyncio.gather(writer, return_exceptions=True)
            threads.shutdown(wait=False)

    # In the thread

    def _run(self, write: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        try:
            write(cast(IO[bytes], self), *arguments)
            self._hand_over()
        finally:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, None)

    def write(self, data: bytes) -> int:
        self._buffer += data
        self._position += len(data)
        if len(self._buffer) >= _CHUNK:
            self._hand_over()
        return len(data)

    def _hand_over(self) -> None:
        if not self._buffer:
            return
        if not self._closed:
            self._room.acquire()
        if self._closed:
            raise Closed
        self._loop.call_soon_threadsafe(self._queue.put_nowait, bytes(self._buffer))
        self._buffer.clear()

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Archivers call it; chunks go out when they are full."""

    def seekable(self) -> bool:
        return False


def write_archive(file: IO[bytes], files: Iterable[StoredFile], media_type: str) -> None:
    """Write the files, at the root of the archive and in their order."""
    if media_type == "application/zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for one in files:
                _zip(archive, one)
        return
    mode = "w|gz" if media_type == "application/gzip" else "w|"
    with tarfile.open(fileobj=file, mode=mode, format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for one in files:
            member = tarfile.TarInfo(one.path)
            member.mtime, member.mode = int(one.changed), 0o755 if one.content is None else 0o644
            if one.content is None:
                member.type = tarfile.DIRTYPE
            else:
                member.size = one.size
            tar.addfile(member, one.content)


def _zip(archive: zipfile.ZipFile, one: StoredFile) -> None:
    changed = max(time.gmtime(one.changed)[:6], (1980, 1, 1, 0, 0, 0))  # zip knows nothing older
    info = zipfile.ZipInfo(one.path + ("/" if one.content is None else ""), changed)
    if one.content is None:
        archive.writestr(info, b"")
        return
    info.compress_type, info.file_size = zipfile.ZIP_DEFLATED, one.size
    with archive.open(info, "w") as target:
        while chunk := one.content.read(_CHUNK):
            target.write(chunk)
