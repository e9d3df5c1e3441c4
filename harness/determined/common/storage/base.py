"""The seam between checkpoints and the place that holds them."""

import contextlib
import os
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

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
        """Copy a folder's content into a new checkpoint."""
        ...

    def restore_path(self, storage_id: str) -> AbstractContextManager[Path]:
        """A folder with the checkpoint's content, to be read only. Raises CheckpointNotFound."""
        ...

    def download(self, storage_id: str, destination: Path, selector: Selector | None = None) -> None:
        """Copy a checkpoint's content into a folder, which is made if missing. Raises CheckpointNotFound."""
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
    Raises StorageError for an unknown type or missing keys.
    """
    from determined.common.storage.directory import DirectoryStorage

    kind = config.get("type")
    if kind == "shared_fs":
        return DirectoryStorage(_shared_fs_folder(config), owner=owner)
    if kind == "directory":
        return DirectoryStorage(_absolute(config, "container_path"), owner=owner)
    raise StorageError(f"checkpoint_storage.type is {kind!r}: this version knows shared_fs and directory")


def from_string(place: str | os.PathLike[str]) -> dict[str, Any]:
    """The `checkpoint_storage` config that a plain path stands for. Raises StorageError for other URLs."""
    text = os.fspath(place)
    if "://" in text:
        raise StorageError(
            f"the checkpoint storage {text!r} is a URL: this version takes the path of a folder"
        )
    return {"type": "shared_fs", "host_path": os.path.abspath(text)}


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
