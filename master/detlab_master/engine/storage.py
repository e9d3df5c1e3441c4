"""Places where checkpoints lie, and what the master asks of them. All calls block, and are made in threads.

`LocalStorage` is a folder that the master sees: shared_fs and directory. Every path is confined: a checkpoint is the folder
of its uuid directly inside its storage, and nothing else is touched. The storage is of the user's choice, and so are the
links inside a checkpoint, while the master may be root. So nothing is opened by a path that could change under way, links
are not followed, what is somebody else's is not read unless everybody may, and never removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from determined.common.storage.manifest import MANIFEST
from detlab_master.core.errors import Invalid, NotFound
from detlab_master.core.records import Json
from detlab_master.engine.launch import FIRST_TASK_UID

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class StorageUnreachable(Invalid):
    """The master does not get at the files at the moment; nothing was removed, or not all."""


class StorageUnsupported(StorageUnreachable):
    """The master never gets at files of this kind of storage."""


class StorageElsewhere(StorageUnsupported):
    """The files of a detached experiment are where its script ran, and not where the master looks."""


class Storage(Protocol):
    """What is asked of a storage. Removing what is not there is no error."""

    def remove(self, checkpoint_uuid: str, globs: Sequence[str]) -> dict[str, int]:
        """Remove a checkpoint's files that match a glob; without globs only look.

        When nothing is left but its metadata, that goes too.

        Returns:
            What is left: path -> bytes, folders with a final "/"; without the manifest, which is no file of the user.

        Raises:
            StorageUnreachable: the storage is away, or does not let us.
        """
        ...

    def remove_tree(self, path: Sequence[str]) -> None:
        """Remove a folder of the storage with all that is in it, such as an experiment's TensorBoard files.

        Raises:
            StorageUnreachable: the storage does not let us.
        """
        ...


def open_storage(storage: Json, owner_id: int) -> Storage:
    """The storage of a ``checkpoint_storage`` configuration, with what a user may have there.

    Raises:
        StorageUnsupported: the master has no way to it.
    """
    kind = storage.get("type")
    if kind in ("shared_fs", "directory"):
        return LocalStorage(storage_root(storage), FIRST_TASK_UID + owner_id)
    place = storage.get("bucket") or storage.get("container") or "?"
    raise StorageUnsupported(
        f"this master cannot change what is in storage of type {kind!r} ({place}): remove the files there, with that"
        " storage's own tools"
    )


def storage_root(storage: Json) -> Path:
    """The folder that holds the checkpoints of a storage configuration.

    Raises:
        StorageUnsupported: it is not in a folder.
    """
    # What training code has chosen by itself was never checked.
    kind, folder = storage.get("type"), storage.get("host_path") or storage.get("container_path")
    if kind in ("shared_fs", "directory"):
        if not isinstance(folder, str) or not folder.startswith("/"):
            raise StorageUnsupported(
                f"the checkpoint storage names no folder by an absolute path: {folder!r}"
            )
        inside = storage.get("storage_path") if kind == "shared_fs" else None
        return Path(folder, str(inside)) if inside else Path(folder)
    raise StorageUnsupported(
        f"checkpoint storage of type {kind!r} is not reached through the master:"
        " download it directly (det checkpoint download --mode direct)"
    )


def check_glob(glob: str) -> None:
    """Whether a glob stays inside its checkpoint.

    Raises:
        Invalid: it is empty, absolute, or goes up.
    """
    if not glob or ".." in glob or glob.startswith("/"):
        raise Invalid(f"the glob {glob!r} cannot be taken: it must not be empty, absolute or contain '..'")


class LocalStorage:
    """A folder that the master sees.

    Args:
        uid: the account of the owner's tasks, where the agent runs as root.
    """

    def __init__(self, root: Path, uid: int) -> None:
        self._root = root
        self._uid = uid

    def folder(self, checkpoint_uuid: str) -> Path:
        """Where a checkpoint's files are, to be read.

        Raises:
            NotFound: the folder is not there, or somebody else's.
        """
        folder = self._root / _confined(checkpoint_uuid)
        try:
            status = os.lstat(folder)
        except (FileNotFoundError, NotADirectoryError):
            status = None
        if status is None or not stat.S_ISDIR(status.st_mode):
            raise NotFound(
                f"the files of checkpoint '{checkpoint_uuid}' are not in its storage any more ({folder})"
            )
        for_all = bool(status.st_mode & stat.S_IROTH and status.st_mode & stat.S_IXOTH)
        if not for_all and not self._owns(status):
            raise NotFound(
                f"the folder of checkpoint '{checkpoint_uuid}' belongs to somebody else ({folder})"
            )
        return folder

    def has(self, checkpoint_uuid: str) -> bool:
        """Whether a checkpoint's folder is here, with files that the user may remove."""
        with self._explained(), self._opened_root() as root:
            if root is None:
                return False
            with _opened(_confined(checkpoint_uuid), root) as folder:
                return folder is not None and self._owns(os.fstat(folder))

    def remove(self, checkpoint_uuid: str, globs: Sequence[str]) -> dict[str, int]:
        for glob in globs:
            check_glob(glob)
        name = _confined(checkpoint_uuid)
        with self._explained(), self._opened_root() as root:
            if root is None:
                raise StorageUnreachable(
                    f"the storage folder {self._root} is not there: mount it where the master runs, or, if its"
                    " checkpoints are gone for good, make an empty folder in its place"
                )
            with _opened(name, root) as folder:
                if folder is None or not self._owns(os.fstat(folder)):
                    return {}
                left = _remove_matching(folder, [Path(glob).parts for glob in globs])
                left.pop(MANIFEST, None)
                if not globs or any(not path.endswith("/") and path != "metadata.json" for path in left):
                    return left
                _remove_matching(folder, [("**",)])
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(name, dir_fd=root)
        return {}

    def remove_tree(self, path: Sequence[str]) -> None:
        with self._explained(), contextlib.ExitStack() as opened:
            folder = opened.enter_context(self._opened_root())
            for part in path[:-1]:
                if folder is None:
                    return
                folder = opened.enter_context(_opened(part, folder))
            if folder is None:
                return
            with _opened(path[-1], folder) as last:
                if last is None or not self._owns(os.fstat(last)):
                    return
            shutil.rmtree(path[-1], dir_fd=folder)

    def _owns(self, status: os.stat_result) -> bool:
        """Whether a folder is of the user's tasks, as far as accounts tell.

        A master that is not root can do no harm. An agent that is not root has some other account for all tasks.
        """
        return os.geteuid() != 0 or status.st_uid == self._uid or 0 < status.st_uid < FIRST_TASK_UID

    @contextlib.contextmanager
    def _opened_root(self) -> Iterator[int | None]:
        """The root; links on the way to it are those of whoever set it up."""
        try:
            descriptor = os.open(self._root, _FOLDER)
        except (FileNotFoundError, NotADirectoryError):
            yield None
            return
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageUnreachable(
                f"the files in {self._root} cannot be removed: {error.strerror}"
            ) from error


@contextlib.contextmanager
def _opened(name: str, parent: int) -> Iterator[int | None]:
    """A folder inside another; None where there is none, or a link."""
    try:
        descriptor = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove_matching(folder: int, patterns: Sequence[tuple[str, ...]]) -> dict[str, int]:
    """Remove what matches, folders with all that is in them; what is left. Links are removed, not followed."""
    left = {}
    for parent, folders, files, descriptor in os.fwalk(
        ".", topdown=False, follow_symlinks=False, dir_fd=folder
    ):
        base = Path(parent).parts
        for name in (*files, *folders):
            path = (*base, name)
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                is_folder = stat.S_ISDIR(status.st_mode)
                if any(
                    _matches(path[:end], pattern) for pattern in patterns for end in range(1, len(path) + 1)
                ):
                    (os.rmdir if is_folder else os.unlink)(name, dir_fd=descriptor)
                elif is_folder:
                    left["/".join(path) + "/"] = 0
                elif stat.S_ISREG(status.st_mode):
                    left["/".join(path)] = status.st_size
    return left


@lru_cache(maxsize=10_000)  # without it, the time for several ** would grow with their power
def _matches(path: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether a glob fits a path, part by part; ``**`` stands for any number of parts."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return _matches(path, pattern[1:]) or (bool(path) and _matches(path[1:], pattern))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and _matches(path[1:], pattern[1:])


def _confined(checkpoint_uuid: str) -> str:
    try:
        return str(uuid.UUID(checkpoint_uuid))
    except ValueError:
        raise Invalid(f"{checkpoint_uuid!r} is no checkpoint uuid") from None
