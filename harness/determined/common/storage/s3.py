"""Checkpoints in a bucket: objects under `<prefix>/<uuid>/`, with the same names as the files.

A bucket knows no renaming. So a mark goes first, then the files, several blocks at once, and the manifest last. A checkpoint
with the mark and without the manifest is not there for a reader; one with neither is of another program, and is whole.
Folders are empty objects whose names end with a slash. What a task is writing is noted under `.incomplete/<owner>/<uuid>`
too, by which its next run finds what a killed one has left.
"""

import contextlib
import functools
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from determined.common.storage import transfer
from determined.common.storage.base import Selector, checked_name
from determined.common.storage.bucket import Bucket, Found, Multipart, etag, md5
from determined.common.storage.directory import explained, is_full, list_files
from determined.common.storage.manifest import (
    MANIFEST,
    UNFINISHED,
    Files,
    block_size_of,
    block_starts,
    checksum,
    decode,
    encode,
    tell_missing,
)
from determined.errors import CheckpointNotFound, StorageError

T = TypeVar("T")

NOTES = ".incomplete"  # then the owner, and the checkpoint's name


class S3Storage:
    """A StorageManager over a bucket. Folders to write into and read from lie where temporary files do (TMPDIR)."""

    def __init__(self, bucket: Bucket, *, owner: str | None = None) -> None:
        self._bucket = bucket
        self._owner = owner

    def __repr__(self) -> str:
        return f"S3Storage({self._bucket})"

    def remove_incomplete(self) -> None:
        if self._owner is None:
            raise ValueError("a storage without an owner cannot tell whose half-written checkpoints are dead")
        for folder in Path(tempfile.gettempdir()).glob(f"{self._scratch_prefix}*"):
            shutil.rmtree(folder, ignore_errors=True)
        start = f"{NOTES}/{self._owner}/"
        for note in list(self._bucket.list(start)):
            storage_id = note.name.removeprefix(start)
            if MANIFEST in self.objects(storage_id):
                self._bucket.delete([f"{storage_id}/{UNFINISHED}", note.name])
            else:
                self.delete(storage_id)

    @contextlib.contextmanager
    def store_path(self, storage_id: str) -> Iterator[Path]:
        checked_name(storage_id)
        with self._scratch() as folder:
            yield folder
            self.upload(folder, storage_id)

    def upload(self, source: Path, storage_id: str, selector: Selector | None = None) -> None:
        if MANIFEST in self.objects(storage_id):
            raise StorageError(f"{self._bucket}/{storage_id} exists already: a checkpoint is written once")
        try:
            self.complete(storage_id, self.add(source, storage_id, selector))
        except BaseException:
            # Where the service is away, the owner's next run removes what is there.
            with contextlib.suppress(StorageError):
                self.discard(storage_id)
            raise

    def add(self, source: Path, storage_id: str, selector: Selector | None = None) -> Files:
        stopped = threading.Event()
        there = self.objects(storage_id)
        if MANIFEST in there:
            raise StorageError(f"{self._bucket}/{storage_id} exists already: a checkpoint is written once")
        begun = {upload.name: upload for upload in self._bucket.unfinished(f"{storage_id}/")}
        for mark in self._marks(storage_id):
            self._bucket.patiently(functools.partial(self._bucket.put, mark, b""), stopped)
        hashes = transfer.Hashes()

        def calls() -> Iterator[Callable[[], object]]:
            for name in list_files(source):
                if selector is not None and not selector(name):
                    continue
                key = f"{storage_id}/{name}"
                size = 0 if name.endswith("/") else (source / name).stat().st_size
                hashes.expect(name, size)
                sending = _Sending(self._bucket, key, source / name, size, begun.get(key), stopped)
                yield from sending.calls(functools.partial(hashes.add, name), there.get(name))

        with explained(f"cannot copy {source} to {self._bucket}"):
            transfer.in_parallel(calls(), stopped)
        return hashes.files()

    def complete(self, storage_id: str, files: Files) -> None:
        stopped = threading.Event()
        manifest = functools.partial(
            self._bucket.put, f"{checked_name(storage_id)}/{MANIFEST}", encode(files)
        )
        self._bucket.patiently(manifest, stopped)
        self._bucket.delete(self._marks(storage_id))

    def discard(self, storage_id: str) -> None:
        self.delete(storage_id)

    @contextlib.contextmanager
    def restore_path(self, storage_id: str, selector: Selector | None = None) -> Iterator[Path]:
        self.existing(storage_id)
        with self._scratch() as folder:
            self.download(storage_id, folder, selector)
            yield folder

    def download(self, storage_id: str, destination: Path, selector: Selector | None = None) -> None:
        objects, stopped = self.existing(storage_id), threading.Event()
        recorded: Files = {}
        if MANIFEST in objects:
            content = self._bucket.read(f"{storage_id}/{MANIFEST}") or b""
            recorded = decode(content, f"{self._bucket}/{storage_id}/{MANIFEST}")
        files = _files(objects)
        tell_missing(storage_id, recorded, files)

        def read(name: str, offset: int, buffer: memoryview) -> None:
            self._bucket.patiently(lambda: self._bucket.read_into(files[name], offset, buffer), stopped)

        sizes = {name: found.size for name, found in files.items() if selector is None or selector(name)}
        for name in sizes:
            _confine(name, f"an object of checkpoint {storage_id}")
        with explained(f"cannot copy the checkpoint {storage_id} from {self._bucket} to {destination}"):
            destination.mkdir(parents=True, exist_ok=True)
            transfer.fetch(sizes, recorded, read, destination, stopped)

    def delete(self, storage_id: str) -> None:
        objects = self.objects(storage_id)
        if objects:
            # A deletion that is cut short must not leave what looks like a whole checkpoint.
            with self._bucket.explained():
                self._bucket.put(f"{storage_id}/{UNFINISHED}", b"")
            self._bucket.delete([f"{storage_id}/{MANIFEST}"] * (MANIFEST in objects))
            self._bucket.delete(f"{storage_id}/{name}" for name in objects if name != UNFINISHED)
        self._bucket.abort(f"{storage_id}/")
        self._bucket.delete(self._marks(storage_id))

    def put_file(self, source: Path, path: str, *, shared: int = 0) -> None:
        _confine(path, "a file beside checkpoints")
        stopped = threading.Event()
        sending = _Sending(self._bucket, path, source, source.stat().st_size, None, stopped)
        with explained(f"cannot write {path} to {self._bucket}"):
            transfer.in_parallel(sending.calls(lambda offset, crc32: None, None), stopped)

    def resources(self, storage_id: str) -> dict[str, int]:
        return {name: found.size for name, found in sorted(_files(self.existing(storage_id)).items())}

    def existing(self, storage_id: str) -> dict[str, Found]:
        """What a checkpoint consists of, by the path in it. Raises CheckpointNotFound."""
        objects = self.objects(storage_id)
        if not objects or (UNFINISHED in objects and MANIFEST not in objects):
            raise CheckpointNotFound(f"there is no checkpoint {storage_id!r} in {self._bucket}")
        return objects

    def objects(self, storage_id: str) -> dict[str, Found]:
        """What is there under a checkpoint's name, whole or not, by the path in it."""
        start = f"{checked_name(storage_id)}/"
        return {found.name.removeprefix(start): found for found in self._bucket.list(start)}

    def _marks(self, storage_id: str) -> list[str]:
        mark = f"{checked_name(storage_id)}/{UNFINISHED}"
        return [mark] if self._owner is None else [f"{NOTES}/{self._owner}/{storage_id}", mark]

    @property
    def _scratch_prefix(self) -> str:
        return f"detlab-checkpoint-{self._owner}-" if self._owner else "detlab-checkpoint-"

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix=self._scratch_prefix, ignore_cleanup_errors=True) as folder:
            try:
                yield Path(folder)
            except Exception as e:
                if is_full(e, Path(folder)):
                    raise StorageError(
                        f"the disk of {os.path.dirname(folder)} is full, where checkpoints lie on their way from and to"
                        f" {self._bucket}: free some space there, or set TMPDIR to a folder with more"
                    ) from e
                raise


def _files(objects: dict[str, Found]) -> dict[str, Found]:
    """Without what is ours, and the object by which some programs make a folder of the checkpoint itself."""
    return {name: found for name, found in objects.items() if name not in ("", MANIFEST, UNFINISHED)}


def _confine(name: str, whose: str) -> None:
    """Objects may have any names: none may lead out of the folder that they are copied to."""
    parts = name.removesuffix("/").split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise StorageError(f"{name!r} ({whose}) cannot be the path of a file")


class _Sending:
    """A file on its way into an object: as a whole if it is one block, else in parts. What is there already stays."""

    def __init__(
        self,
        bucket: Bucket,
        key: str,
        path: Path,
        size: int,
        begun: Multipart | None,
        stopped: threading.Event,
    ) -> None:
        self._bucket = bucket
        self._key = key
        self._path = path
        self._size = size
        self._stopped = stopped
        self._begun = begun
        self._lock = threading.Lock()
        self._tags: dict[int, str] = {}
        self._starts = block_starts(size)

    def calls(self, done: Callable[[int, str], None], there: Found | None) -> Iterator[Callable[[], object]]:
        """What is to be called, by any threads.

        Args:
            done: is told of each block's offset and CRC-32.
            there: the object, if there is one.
        """
        if self._size == 0:
            yield functools.partial(self._patiently, lambda: self._bucket.put(self._key, b""))
        elif there is not None and there.size == self._size:
            yield functools.partial(self._compare, done, there)
        else:
            for offset in self._starts:
                yield functools.partial(self._block, offset, done)

    def _compare(self, done: Callable[[int, str], None], there: Found) -> None:
        """Send the file unless the object is the same."""
        tags = []
        for offset in self._starts:
            block = self._read(offset)
            tags.append(md5(block))
            done(offset, checksum([block]))
        if etag(tags) != there.etag:
            for offset in self._starts:
                self._block(offset, done)

    def _block(self, offset: int, done: Callable[[int, str], None]) -> None:
        block = self._read(offset)
        done(offset, checksum([block]))
        if len(self._starts) == 1:
            self._patiently(lambda: self._bucket.put(self._key, block))
            return
        upload = self._upload()
        number = self._starts.index(offset) + 1
        tag = md5(block).hex()
        if upload.parts.get(number) == tag:
            tag = f'"{tag}"'
        else:
            tag = self._patiently(lambda: self._bucket.put_part(upload, number, block))
        with self._lock:
            self._tags[number] = tag
            last = len(self._tags) == len(self._starts)
        if last:
            tags = [self._tags[number] for number in sorted(self._tags)]
            self._patiently(lambda: self._bucket.finish(upload, tags))

    def _upload(self) -> Multipart:
        with self._lock:
            if self._begun is None:
                self._begun = self._patiently(lambda: self._bucket.begin(self._key))
            return self._begun

    def _read(self, offset: int) -> bytearray:
        block = bytearray(min(block_size_of(self._size), self._size - offset))
        transfer.read_block(self._path, offset, memoryview(block))
        return block

    def _patiently(self, request: Callable[[], T]) -> T:
        return self._bucket.patiently(request, self._stopped)
