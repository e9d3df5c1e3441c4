"""Files moved block by block: several blocks at once, each of them checked, and what is there already left alone."""

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from io import FileIO
from pathlib import Path

from determined.common.storage.manifest import Files, Recorded, block_size_of, block_starts, checksum
from determined.errors import StorageError

logger = logging.getLogger("determined.storage")

WORKERS = 8  # blocks that are moved at once, and with them the memory that a transfer takes
_PIECE = 256 << 10  # bytes
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
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        _fill(file, buffer)


def _pieces(path: Path, offset: int, length: int) -> Iterator[memoryview]:
    """A block of a local file, in pieces that fit the processor's caches. Each is to be used before the next."""
    buffer = memoryview(bytearray(min(_PIECE, length)))
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        for start in range(0, length, _PIECE):
            piece = buffer[: min(_PIECE, length - start)]
            _fill(file, piece)
            yield piece


def _fill(file: FileIO, buffer: memoryview) -> None:
    done = 0
    while done < len(buffer):
        count = file.readinto(buffer[done:])
        if not count:
            raise StorageError(f"{os.fspath(file.name)} became shorter while it was read")
        done += count


class Hashes:
    """The blocks' checksums of files, gathered from several threads in any order."""

    def __init__(self) -> None:
        self._blocks: dict[str, dict[int, str]] = {}
        self._sizes: dict[str, int] = {}

    def expect(self, name: str, size: int) -> None:
        self._sizes[name] = size
        self._blocks[name] = {}

    def add(self, name: str, offset: int, crc32: str) -> None:
        self._blocks[name][offset] = crc32

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

    def check(name: str, offset: int, length: int) -> None:
        hashes.add(name, offset, checksum(_pieces(root / name, offset, length)))

    def calls() -> Iterator[Callable[[], object]]:
        for name in names:
            path = root / name
            yield partial(fsync, path)
            size = 0 if name.endswith("/") else path.stat().st_size
            hashes.expect(name, size)
            for offset, length in _blocks(size):
                yield partial(check, name, offset, length)

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
            if size == 0:
                yield arriving.finish
            for offset, length in _blocks(size):
                yield partial(arriving.block, offset, length)

    in_parallel(calls(), stopped)
    return {**hashes.files(), **{name: recorded[name] for name in there}}


def check(folder: Path, names: Iterable[str], recorded: Files) -> None:
    """Whether files of a folder are what they were. Raises StorageError for one that is not."""
    for name in sorted(_wrong(folder, [name for name in names if not name.endswith("/")], recorded)):
        raise StorageError(f"{name!r} is damaged: it is not what was written")


def _already_there(
    sizes: Mapping[str, int], recorded: Files, destination: Path, stopped: threading.Event | None
) -> set[str]:
    """The files that are in the destination as they were written."""
    there = {name for name in sizes if name in recorded and (destination / name).is_file()}
    return there - _wrong(destination, there, recorded, stopped)


def _wrong(
    folder: Path, names: Iterable[str], recorded: Files, stopped: threading.Event | None = None
) -> set[str]:
    """The files that are not what they were."""
    wrong: set[str] = set()

    def compare(name: str, offset: int, length: int) -> None:
        if (
            checksum(_pieces(folder / name, offset, length))
            != recorded[name].crc32[offset // block_size_of(recorded[name].size)]
        ):
            wrong.add(name)

    def calls() -> Iterator[Callable[[], object]]:
        for name in names:
            one, size = recorded[name], (folder / name).stat().st_size
            if (one.size, one.block_size) != (size, block_size_of(size)):
                wrong.add(name)
                continue
            for block in _blocks(size):
                yield partial(compare, name, *block)

    in_parallel(calls(), stopped)
    return wrong


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
        self._made = False
        self._there = False  # whether an earlier call has left something

    def block(self, offset: int, length: int) -> None:
        self._make()
        wanted = self._recorded.crc32[offset // self._recorded.block_size] if self._recorded else None
        found = ""
        if self._there and wanted is not None:
            found = checksum(_pieces(self._partial, offset, length))
        if not found or found != wanted:
            buffer = memoryview(bytearray(length))
            found = self._bring(offset, buffer, wanted)
            with open(self._partial, "r+b", buffering=0) as file:
                file.seek(offset)
                written = 0
                while written < length:
                    written += file.write(buffer[written:])
        self._hashes.add(self._name, offset, found)
        with self._lock:
            self._left -= 1
            last = not self._left
        if last:
            self.finish()

    def _bring(self, offset: int, buffer: memoryview, wanted: str | None) -> str:
        for _ in range(_ATTEMPTS):
            self._read(self._name, offset, buffer)
            found = checksum([buffer])
            if wanted is None or found == wanted:
                return found
            logger.warning("the block at byte %d of %s arrived damaged", offset, self._name)
        raise StorageError(
            f"{self._name!r} is damaged in the checkpoint storage: the {len(buffer)} bytes from byte {offset} on are not what"
            " was written"
        )

    def _make(self) -> None:
        with self._lock:
            if not self._made:
                self._there = self._partial.is_file()
                with open(self._partial, "ab") as file:
                    file.truncate(self._size)
                self._made = True

    def finish(self) -> None:
        self._make()
        os.replace(self._partial, self._target)
