"""A folder as an archive that is sent while it is made: nothing of it lies in memory as a whole.

Other programs may write into the folder meanwhile, and those of a user may try to lead the master elsewhere. So every file
is opened relative to its folder's descriptor and without following links; links and special files are left out.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import tarfile
import threading
import time
import zipfile
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, cast

FORMATS: Final = {"application/x-tar": ".tar", "application/gzip": ".tar.gz", "application/zip": ".zip"}
_CHUNK = 256 << 10  # bytes
_WAITING = 8  # chunks that may wait for the client
_LEFT_OUT: Final = {errno.ELOOP, errno.ENOENT, errno.ENXIO}  # a link; gone; a socket


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


def write_archive(file: IO[bytes], folder: Path, media_type: str) -> None:
    """Write the folder's files, at the root of the archive and in the order of their names."""
    if media_type == "application/zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, content, status in _files(folder):
                _zip(archive, name, content, status)
        return
    mode = "w|gz" if media_type == "application/gzip" else "w|"
    with tarfile.open(fileobj=file, mode=mode, format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
        for name, content, status in _files(folder):
            member = tarfile.TarInfo(name)
            member.mtime, member.mode = int(status.st_mtime), 0o755 if content is None else 0o644
            if content is None:
                member.type = tarfile.DIRTYPE
            else:
                member.size = status.st_size
            tar.addfile(member, content)


def _zip(archive: zipfile.ZipFile, name: str, content: IO[bytes] | None, status: os.stat_result) -> None:
    changed = max(time.gmtime(status.st_mtime)[:6], (1980, 1, 1, 0, 0, 0))  # zip knows nothing older
    info = zipfile.ZipInfo(name + ("/" if content is None else ""), changed)
    if content is None:
        archive.writestr(info, b"")
        return
    info.compress_type, info.file_size = zipfile.ZIP_DEFLATED, status.st_size
    with archive.open(info, "w") as target:
        while chunk := content.read(_CHUNK):
            target.write(chunk)


def _files(folder: Path) -> Iterator[tuple[str, IO[bytes] | None, os.stat_result]]:
    """(relative path, opened content or None for a folder, status) of everything below a folder."""
    for parent, folders, files, descriptor in os.fwalk(folder, follow_symlinks=False):
        folders.sort()
        base = Path(parent).relative_to(folder)
        for name in folders:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                yield (base / name).as_posix(), None, status
        for name in sorted(files):
            with _opened(name, descriptor) as content:
                if content is not None:
                    yield (base / name).as_posix(), content, os.fstat(content.fileno())


@contextmanager
def _opened(name: str, folder: int) -> Iterator[IO[bytes] | None]:
    """A regular file; None for links, pipes and what has gone meanwhile."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno not in _LEFT_OUT:
            raise
        yield None
        return
    with open(descriptor, "rb") as content:
        yield content if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
