"""The seam between checkpoints and the place that holds them."""

import contextlib
import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from determined.common.storage.manifest import Files
from determined.errors import StorageError

# Says whether a file belongs to an upload or download. It gets paths relative to the checkpoint, with
# forward slashes; a folder's path ends with a slash. The folders above a chosen file always come along.
Selector = Callable[[str], bool]


class StorageManager(Protocol):
    """Keeps checkpoints under names (uuids).

    A checkpoint is seen by others either whole or not at all, whenever the writer dies. Every method raises
    StorageError, with a text for people, when the storage itself fails.
    """

    def store_path(self, storage_id: str) -> AbstractContextManager[Path]:
        """An empty folder to write into; what it holds when the context ends becomes the checkpoint.

        An exception within the context leaves no checkpoint.
        """
        ...

    def upload(self, source: Path, storage_id: str, selector: Selector | None = None) -> None:
        """Copy a folder's content into a new checkpoint: `add` and `complete`."""
        ...

    def add(self, source: Path, storage_id: str, selector: Selector | None = None) -> Files:
        """Copy a folder's content into a checkpoint that nobody sees yet, and say what that was.

        Several processes may add to one checkpoint, each files of its own. Called again after it has failed, it
        goes on where it was.
        """
        ...

    def complete(self, storage_id: str, files: Files) -> None:
        """Let a checkpoint be seen: all of its `files` were added."""
        ...

    def discard(self, storage_id: str) -> None:
        """Remove what was added to a checkpoint that will not be completed."""
        ...

    def restore_path(self, storage_id: str, selector: Selector | None = None) -> AbstractContextManager[Path]:
        """A folder with (at least the chosen files of) a checkpoint, to be read only. Raises CheckpointNotFound."""
        ...

    def download(self, storage_id: str, destination: Path, selector: Selector | None = None) -> None:
        """Copy a checkpoint's content into a folder, which is made if missing, and check it on the way.

        Called again after it has failed, it goes on where it was. Raises CheckpointNotFound.
        """
        ...

    def delete(self, storage_id: str) -> None:
        """Delete a checkpoint. One that is not there is no error: deleting may be repeated."""
        ...

    def put_file(self, source: Path, path: str, *, shared: int = 0) -> None:
        """Keep a file that belongs to no checkpoint, in place of what was at `path` (relative, with slashes).

        An event file of TensorBoard (`tfevents` in its name) only grows: it may be continued where it lies. The
        first `shared` folders of the path are for all users of the storage, the rest is for the caller alone.
        """
        ...

    def remove_incomplete(self) -> None:
        """Remove what an earlier run of the same owner, which is known to be dead, left half-written."""
        ...

    def resources(self, storage_id: str) -> dict[str, int]:
        """Each file's size in bytes by its relative path; folders end with a slash and have 0."""
        ...


def from_config(config: Mapping[str, Any], *, owner: str | None = None) -> StorageManager:
    """The storage that an experiment config's `checkpoint_storage` describes.

    `owner` names the task that writes: its next run cleans up what a run that was killed left half-written.
    Raises StorageError for an unknown type, missing keys, or a client library that is not installed.
    """
    kind = config.get("type")
    if kind not in _KINDS:
        raise StorageError(f"checkpoint_storage.type is {kind!r}: this version knows {', '.join(_KINDS)}")
    return _KINDS[kind](config, owner)


def from_string(place: str | os.PathLike[str]) -> dict[str, Any]:
    """The `checkpoint_storage` config that a path or URL stands for. Raises StorageError for URLs of other kinds."""
    text = os.fspath(place)
    if "://" not in text:
        return {"type": "shared_fs", "host_path": os.path.abspath(text)}
    scheme, _, rest = text.partition("://")
    bucket, _, prefix = rest.partition("/")
    if scheme not in _SCHEMES:
        raise StorageError(
            f"the checkpoint storage {text!r} is a URL of a kind that is not known:"
            " expected the path of a folder, or s3://BUCKET/PREFIX"
        )
    if not bucket:
        raise StorageError(
            f"the checkpoint storage {text!r} names no bucket: expected {scheme}://BUCKET/PREFIX"
        )
    return {"type": _SCHEMES[scheme], "bucket": bucket, **({"prefix": prefix} if prefix else {})}


def validate(storage: StorageManager) -> None:
    """Write, read and delete a small checkpoint. Raises StorageError when any of it does not work."""
    storage_id = f"{uuid.uuid4()}"
    content = uuid.uuid4().hex
    try:
        with storage.store_path(storage_id) as path:
            (path / "validation").write_text(content)
        with storage.restore_path(storage_id) as path:
            read = (path / "validation").read_text()
        if read != content:
            raise StorageError(f"wrote {content!r} to the checkpoint storage, and read back {read!r}")
    except OSError as e:
        raise StorageError(f"the checkpoint storage cannot be used: {e}") from e
    finally:
        with contextlib.suppress(StorageError):  # the first failure is the one to tell
            storage.delete(storage_id)


def checked_name(storage_id: str) -> str:
    """A checkpoint's name, which leads nowhere else. Raises StorageError."""
    if not storage_id or storage_id.startswith(".") or "/" in storage_id or "\0" in storage_id:
        raise StorageError(f"{storage_id!r} cannot be the name of a checkpoint")
    return storage_id


def _shared_fs_folder(config: Mapping[str, Any]) -> Path:
    host_path = _absolute(config, "host_path")
    # checkpoint_path and tensorboard_path are older names of storage_path.
    names = ("storage_path", "checkpoint_path", "tensorboard_path")
    storage_path = next((config[name] for name in names if config.get(name)), None)
    if storage_path is None:
        return host_path
    folder = Path(os.path.normpath(host_path / storage_path))
    if not folder.is_relative_to(host_path):
        raise StorageError(
            f"checkpoint_storage.storage_path {str(storage_path)!r} lies outside of host_path {str(host_path)!r}"
        )
    return folder


def _absolute(config: Mapping[str, Any], key: str) -> Path:
    value = config.get(key)
    if not isinstance(value, str) or not os.path.isabs(value):
        raise StorageError(
            f"checkpoint_storage.{key} is {value!r}: type {config.get('type')} needs an absolute path there"
        )
    return Path(os.path.normpath(value))


def _folder(
    folder: Callable[[Mapping[str, Any]], Path],
) -> Callable[[Mapping[str, Any], str | None], StorageManager]:
    def opened(config: Mapping[str, Any], owner: str | None) -> StorageManager:
        from determined.common.storage.directory import DirectoryStorage

        return DirectoryStorage(folder(config), owner=owner)

    return opened


def _s3(config: Mapping[str, Any], owner: str | None) -> StorageManager:
    from determined.common.storage.bucket import Bucket
    from determined.common.storage.s3 import S3Storage

    return S3Storage(Bucket.from_config(config), owner=owner)


# Others, such as gcs and azure, are one more row and one more class that passes the same tests.
_KINDS: dict[str, Callable[[Mapping[str, Any], str | None], StorageManager]] = {
    "shared_fs": _folder(_shared_fs_folder),
    "directory": _folder(lambda config: _absolute(config, "container_path")),
    "s3": _s3,
}
_SCHEMES = {"s3": "s3", "gs": "gcs"}
