"""Checkpoints in a bucket, which the master reaches with the keys that the configuration names.

Its own credentials are for its own storage only: else whoever names a bucket without keys would read, through the master,
what is not theirs. Names are confined as in folders: a checkpoint is what lies under its uuid.
"""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from pathlib import PurePosixPath
from typing import IO, Any, cast

from determined.common.storage.bucket import Bucket, Found
from determined.common.storage.manifest import MANIFEST, UNFINISHED
from determined.common.storage.s3 import NOTES, S3Storage
from determined.errors import CheckpointNotFound, StorageError
from detlab_master.core.errors import NotFound
from detlab_master.core.records import Json
from detlab_master.engine.storage import (
    StorageUnreachable,
    StorageUnsupported,
    StoredFile,
    check_glob,
    confined,
    matches,
)

_KEYS = ("bucket", "prefix", "endpoint_url", "access_key", "secret_key")
_PATIENCE_SECONDS = 60.0
_METADATA = "metadata.json"
_READ_AHEAD = 1 << 20  # bytes


class BucketStorage:
    """
    Args:
        storage: a ``checkpoint_storage`` configuration of type s3.
        own: the one of the master's own configuration.

    Raises:
        StorageUnsupported: the master has no right to it, or cannot speak with it.
    """

    def __init__(self, storage: Json, own: Json | None) -> None:
        place = {key: storage.get(key) or "" for key in _KEYS}
        if not place["access_key"]:
            owned = own if own is not None and own.get("type") == "s3" else {}
            if place != {key: owned.get(key) or "" for key in _KEYS}:
                raise StorageUnsupported(
                    f"this master has no keys for s3://{place['bucket']}: checkpoint_storage has no access_key, and the"
                    " master's own credentials are for the storage of master.yaml only; download and remove the files"
                    " with your own (det checkpoint download --mode direct)"
                )
        try:
            self._bucket = _bucket(json.dumps(place))
        except StorageError as error:
            raise StorageUnsupported(f"this master does not reach the files: {error}") from None
        self._storage = S3Storage(self._bucket)

    def read(self, checkpoint_uuid: str) -> Iterator[StoredFile]:
        name = confined(checkpoint_uuid)
        with _explained():
            try:
                objects = self._storage.existing(name)
            except CheckpointNotFound:
                raise NotFound(
                    f"the files of checkpoint '{checkpoint_uuid}' are not in its storage any more ({self._bucket})"
                ) from None
        return self._files([objects[path] for path in sorted(objects) if path not in ("", UNFINISHED)], name)

    def _files(self, objects: Sequence[Found], name: str) -> Iterator[StoredFile]:
        for found in objects:
            path = PurePosixPath(found.name.removeprefix(f"{name}/"))
            if ".." in path.parts or path.is_absolute():
                continue  # nobody could unpack it
            if found.name.endswith("/"):
                yield StoredFile(path.as_posix(), None, 0, found.changed)
                continue
            with contextlib.closing(_Reading(self._bucket, found)) as raw:
                content = io.BufferedReader(raw, _READ_AHEAD)
                yield StoredFile(path.as_posix(), cast(IO[bytes], content), found.size, found.changed)

    def remove(self, checkpoint_uuid: str, globs: Sequence[str]) -> dict[str, int]:
        for glob in globs:
            check_glob(glob)
        patterns = [PurePosixPath(glob).parts for glob in globs]
        name = confined(checkpoint_uuid)
        with _explained():
            objects = self._storage.objects(name)
            there = [path for path in objects if path not in ("", MANIFEST, UNFINISHED)]
            doomed = {path for path in there if _any_matches(path, patterns)}
            left = {path: objects[path].size for path in there if path not in doomed}
            if globs and not any(not path.endswith("/") and path != _METADATA for path in left):
                self._storage.delete(name)
                return {}
            self._bucket.delete(f"{name}/{path}" for path in sorted(doomed))
        return left

    def remove_incomplete(self, tasks: Collection[str]) -> None:
        with _explained():
            owners = {found.name.split("/")[1] for found in self._bucket.list(f"{NOTES}/")}
            for owner in owners & set(tasks):
                S3Storage(self._bucket, owner=owner).remove_incomplete()

    def remove_tree(self, path: Sequence[str]) -> None:
        with _explained():
            start = "/".join(path) + "/"
            self._bucket.delete(found.name for found in self._bucket.list(start))


def _any_matches(path: str, patterns: Sequence[tuple[str, ...]]) -> bool:
    """Whether a glob fits a path or a folder that it is in."""
    parts = PurePosixPath(path).parts
    return any(matches(parts[:end], pattern) for pattern in patterns for end in range(1, len(parts) + 1))


@lru_cache(maxsize=32)  # a client takes a tenth of a second to make, and keeps its connections
def _bucket(place: str) -> Bucket:
    return Bucket.from_config(json.loads(place), patience=_PATIENCE_SECONDS)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except StorageError as error:
        raise StorageUnreachable(str(error)) from error


class _Reading(io.RawIOBase):
    """An object as a file to read forward. Where the connection breaks, another one goes on from there."""

    def __init__(self, bucket: Bucket, found: Found) -> None:
        self._bucket = bucket
        self._found = found
        self._position = 0
        self._body: Any = None
        self._stopped = threading.Event()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._position == self._found.size:
            return 0
        with _explained():
            count = self._bucket.patiently(lambda: self._read(buffer), self._stopped)
        self._position += count
        return count

    def _read(self, buffer: Any) -> int:
        try:
            if self._body is None:
                self._body = self._bucket.open(self._found, self._position)
            count = int(self._body.readinto(buffer))
            if not count:
                raise ConnectionError(f"{self._found.name} ended early")
        except Exception:
            self._hang_up()
            raise
        return count

    def _hang_up(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            body.close()

    def close(self) -> None:
        self._hang_up()
        super().close()
