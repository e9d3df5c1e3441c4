"""Files moved block by block: several blocks at once, each of them checked, and what is there already left alone."""

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

from determined.common.storage.manifest import Files, Recorded, block_size_of, block_starts, digest
from determined.errors import StorageError

logger = logging.getLogger("determined.storage")

WORKERS = 8  # blocks that are moved at once, and with them the memory that a transfer takes
_ATTEMPTS = 3  # for a block that arrives damaged

# `read(name, offset, buffer)` fills the buffer with a file's content from there on.
Read = Callable[[str, int, memoryview], None]


def in_parallel(
    calls: Iterable[Callable[[], object]], stopped: threading.Event | None = None, workers: int = WORKERS
) -> None:
    """Make the calls, some at once and no further ahead than that.

    The first exception ends it, Ctrl-C too: `stopped` is set for those that are still at work, and the rest is left.
    """
    waiting: set[Future[object]] = set()
    with ThreadPoolExecutor(workers, thread_name_prefix="checkpoint-transfer") as threads:
        try:
            for call in calls:
                while len(waiting) >= 2 * workers:
                    waiting = _some_done(waiting)
                waiting.add(threads.submit(call))
            while waiting:
                waiting = _some_done(waiting)
        except BaseException:
            if stopped is not None:
                stopped.set()
            threads.shutdown(wait=True, cancel_futures=True)
            raise


def _some_done(waiting: set[Future[object]]) -> set[Future[object]]:
    done, left = wait(waiting, return_when=FIRST_COMPLETED)
    for one in done:
        one.result()
    return left


def read_block(path: Path, offset: int, buffer: memoryview) -> None:
    """Fill the buffer from a local file. Raises StorageError when the file is shorter."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _fill(descriptor, offset, buffer, path)
    finally:
        os.close(descriptor)


def _fill(descriptor: int, offset: int, buffer: memoryview, path: Path) -> None:
    done = 0
    while done < len(buffer):
        count = os.preadv(descriptor, [buffer[done:]], offset + done)
        if count == 0:
            raise StorageError(f"{path} became shorter while it was read")
        done += count


class Hashes:
    """The blocks' checksums of files, gathered from several threads in any order."""

    def __init__(self) -> None:
        self._blocks: dict[str, dict[int, str]] = {}
        self._sizes: dict[str, int] = {}

    def expect(self, name: str, size: int) -> None:
        self._sizes[name] = size
        self._blocks[name] = {}

    def add(self, name: str, offset: int, sha256: str) -> None:
        self._blocks[name][offset] = sha256

    def files(self) -> Files:
        return {
            name: Recorded(
                size, block_size_of(size), tuple(self._blocks[name][at] for at in block_starts(size))
            )
            for name, size in self._sizes.items()
        }


def record(root: Path, names: Iterable[str]) -> Files:
    """Flush what lies in a folder to the disk, and say what it is. The disk and the checksums work at the same time."""
    hashes = Hashes()

    def hash_block(name: str, offset: int, size: int) -> None:
        buffer = memoryview(bytearray(size))
        read_block(root / name, offset, buffer)
        hashes.add(name, offset, digest(buffer))

    def calls() -> Iterator[Callable[[], object]]:
        for name in names:
            path = root / name
            yield partial(fsync, path)
            size = 0 if name.endswith("/") else path.stat().st_size
            hashes.expect(name, size)
            for offset, length in _blocks(size):
                yield partial(hash_block, name, offset, length)

    in_parallel(calls())
    fsync(root)
    return hashes.files()


def flush(root: Path, names: Iterable[str]) -> None:
    """Flush what lies in a folder to the disk."""
    in_parallel(partial(fsync, root / name) for name in names)
    fsync(root)


def fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fetch(
    sizes: Mapping[str, int],
    recorded: Files,
    read: Read,
    destination: Path,
    stopped: threading.Event | None = None,
) -> Files:
    """Bring files into a folder, which exists. A file has its name once it is whole.

    What an earlier, broken off call has left there is used as far as its checksums say that it is right. Raises
    StorageError for a block that arrives damaged time and again.

    Args:
        sizes: the files to bring, in bytes; folders end with a slash.
        recorded: what they were when they were written, as far as that is known.

    Returns:
        What arrived.
    """
    there = _already_there(sizes, recorded, destination, stopped)
    hashes = Hashes()
    on_their_way: list[_Arriving] = []

    def calls() -> Iterator[Callable[[], object]]:
        for name, size in sizes.items():
            target = destination / name
            if name in there:
                continue
            hashes.expect(name, size)
            if name.endswith("/"):
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            arriving = _Arriving(name, target, size, recorded.get(name), read, hashes)
            on_their_way.append(arriving)
            if size == 0:
                yield arriving.finish
            for offset, length in _blocks(size):
                yield partial(arriving.block, offset, length)

    try:
        in_parallel(calls(), stopped)
    finally:
        for arriving in on_their_way:
            arriving.close()
    return {**hashes.files(), **{name: recorded[name] for name in there}}


def _already_there(
    sizes: Mapping[str, int], recorded: Files, destination: Path, stopped: threading.Event | None
) -> set[str]:
    """The files that are in the destination as they were written."""
    there = {
        name
        for name, size in sizes.items()
        if name in recorded and (destination / name).is_file() and (destination / name).stat().st_size == size
    }
    wrong: set[str] = set()

    def check(name: str, offset: int, length: int) -> None:
        buffer = memoryview(bytearray(length))
        read_block(destination / name, offset, buffer)
        if digest(buffer) != recorded[name].sha256[offset // recorded[name].block_size]:
            wrong.add(name)

    candidates = [name for name in there if recorded[name].block_size == block_size_of(sizes[name])]
    blocks = ((name, *block) for name in candidates for block in _blocks(sizes[name]))
    in_parallel((partial(check, *block) for block in blocks), stopped)
    return set(candidates) - wrong


def _blocks(size: int) -> Iterator[tuple[int, int]]:
    """(offset, length) of a file's blocks."""
    block = block_size_of(size)
    for offset in block_starts(size):
        yield offset, min(block, size - offset)


class _Arriving:
    """One file on its way: its blocks go into a file of another name beside it."""

    def __init__(
        self, name: str, target: Path, size: int, recorded: Recorded | None, read: Read, hashes: Hashes
    ) -> None:
        if recorded is not None and (recorded.size, recorded.block_size) != (size, block_size_of(size)):
            raise StorageError(
                f"{name!r} is damaged in the checkpoint storage: it has {size} bytes there, and had {recorded.size} when it"
                " was written"
            )
        self._name = name
        self._target = target
        # A short name: the file's own may be as long as names can be.
        self._partial = target.with_name(f".partial-{hashlib.sha256(target.name.encode()).hexdigest()[:20]}")
        self._size = size
        self._recorded = recorded
        self._read = read
        self._hashes = hashes
        self._left = len(block_starts(size))
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._there = False  # whether an earlier call has left something

    def block(self, offset: int, length: int) -> None:
        descriptor = self._opened()
        buffer = memoryview(bytearray(length))
        wanted = self._recorded.sha256[offset // self._recorded.block_size] if self._recorded else None
        found = ""
        if self._there and wanted is not None:
            _fill(descriptor, offset, buffer, self._partial)
            found = digest(buffer)
        if not found or found != wanted:
            found = self._bring(offset, buffer, wanted)
            written = 0
            while written < length:
                written += os.pwrite(descriptor, buffer[written:], offset + written)
        self._hashes.add(self._name, offset, found)
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            self.finish()

    def _bring(self, offset: int, buffer: memoryview, wanted: str | None) -> str:
        for _ in range(_ATTEMPTS):
            self._read(self._name, offset, buffer)
            found = digest(buffer)
            if wanted is None or found == wanted:
                return found
            logger.warning("the block at byte %d of %s arrived damaged", offset, self._name)
        raise StorageError(
            f"{self._name!r} is damaged in the checkpoint storage: the {len(buffer)} bytes from byte {offset} on are not what"
            " was written"
        )

    def _opened(self) -> int:
        with self._lock:
            if self._descriptor is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._there = self._partial.is_file()
                self._descriptor = os.open(self._partial, flags, 0o666)
                os.ftruncate(self._descriptor, self._size)
            return self._descriptor

    def finish(self) -> None:
        self._opened()
        self.close()
        os.replace(self._partial, self._target)

    def close(self) -> None:
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
