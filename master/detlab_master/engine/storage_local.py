"""Checkpoints in a folder that the master sees: shared_fs and directory.

Every path is confined: a checkpoint is the folder of its uuid directly inside its storage, and nothing else is touched. The
storage is of the user's choice, and so are the links inside a checkpoint, while the master may be root. So nothing is opened
by a path that could change under way, links are not followed, what is somebody else's is not read unless everybody may, and
never removed. Other programs may write into the folder meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO, Final

from determined.common.storage.directory import INCOMPLETE
from determined.common.storage.manifest import MANIFEST
from detlab_master.core.errors import NotFound
from detlab_master.core.records import Json
from detlab_master.engine.launch import FIRST_TASK_UID
from detlab_master.engine.storage import (
    StorageUnreachable,
    StorageUnsupported,
    StoredFile,
    check_glob,
    confined,
    matches,
)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_HALF_WRITTEN: Final = re.compile(
    re.escape(INCOMPLETE) + r"(?P<owner>.+?)-(deleted-)?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
)
_LEFT_OUT: Final = {errno.ELOOP, errno.ENOENT, errno.ENXIO}  # a link; gone; a socket


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


class LocalStorage:
    """A folder that the master sees.

    Args:
        uid: the account of the owner's tasks, where the agent runs as root.
    """

    def __init__(self, root: Path, uid: int) -> None:
        self._root = root
        self._uid = uid

    def read(self, checkpoint_uuid: str) -> Iterator[StoredFile]:
        return _files(self._folder(checkpoint_uuid))

    def _folder(self, checkpoint_uuid: str) -> Path:
        folder = self._root / confined(checkpoint_uuid)
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
            with _opened(confined(checkpoint_uuid), root) as folder:
                return folder is not None and self._owns(os.fstat(folder))

    def remove(self, checkpoint_uuid: str, globs: Sequence[str]) -> dict[str, int]:
        for glob in globs:
            check_glob(glob)
        name = confined(checkpoint_uuid)
        with self._explained(), self._opened_root() as root:
            if root is None:
                raise StorageUnreachable(
                    f"the storage folder {self._root} is not there: mount it where the master runs, or, if its"
                    " checkpoints are gone for good, make an empty folder in its place"
                )
            with _opened(name, root) as folder:
                if folder is None or not self._owns(os.fstat(folder)):
                    return {}
                left = _remove_matching(folder, [Path(glob).parts for glob in globs], keep=MANIFEST)
                left.pop(MANIFEST, None)
                if not globs or any(not path.endswith("/") and path != "metadata.json" for path in left):
                    return left
                _remove_matching(folder, [("**",)])
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(name, dir_fd=root)
        return {}

    def remove_incomplete(self, tasks: Collection[str]) -> None:
        with self._explained(), self._opened_root() as root:
            if root is None:
                return
            for name in os.listdir(root):
                found = _HALF_WRITTEN.fullmatch(name)
                if found is None or found["owner"] not in tasks:
                    continue
                with _opened(name, root) as folder:
                    if folder is None or not self._owns(os.fstat(folder)):
                        continue
                shutil.rmtree(name, dir_fd=root)

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


def _remove_matching(folder: int, patterns: Sequence[tuple[str, ...]], keep: str = "") -> dict[str, int]:
    """Remove what matches, folders with all that is in them; what is left. Links are removed, not followed.

    Args:
        keep: a file at the top that stays, whatever matches it.
    """
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
                if path != (keep,) and any(
                    matches(path[:end], pattern) for pattern in patterns for end in range(1, len(path) + 1)
                ):
                    (os.rmdir if is_folder else os.unlink)(name, dir_fd=descriptor)
                elif is_folder:
                    left["/".join(path) + "/"] = 0
                elif stat.S_ISREG(status.st_mode):
                    left["/".join(path)] = status.st_size
    return left


def _files(folder: Path) -> Iterator[StoredFile]:
    for parent, folders, files, descriptor in os.fwalk(folder, follow_symlinks=False):
        folders.sort()
        base = Path(parent).relative_to(folder)
        for name in folders:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                yield StoredFile((base / name).as_posix(), None, 0, status.st_mtime)
        for name in sorted(files):
            with _opened_file(name, descriptor) as content:
                if content is not None:
                    status = os.fstat(content.fileno())
                    yield StoredFile((base / name).as_posix(), content, status.st_size, status.st_mtime)


@contextlib.contextmanager
def _opened_file(name: str, folder: int) -> Iterator[IO[bytes] | None]:
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
