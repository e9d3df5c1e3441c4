"""Checkpoints as folders of one folder: a shared file system, a mounted volume, or this machine's disk.

A checkpoint is written under a name that starts with a dot, flushed to the disk file by file, and renamed to
its own name at the very end. A reader therefore finds all of it or nothing, whenever the writer dies.
"""

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from determined.common.storage.base import Selector
from determined.errors import CheckpointNotFound, StorageError

_INCOMPLETE = ".incomplete-"


class DirectoryStorage:
    """A StorageManager over the folder `base`, which is made when the first checkpoint is written."""

    def __init__(self, base: Path, *, owner: str | None = None) -> None:
        self.base = base
        self._prefix = f"{_INCOMPLETE}{owner}-" if owner else _INCOMPLETE

    def __repr__(self) -> str:
        return f"DirectoryStorage({str(self.base)!r})"

    def remove_incomplete(self) -> None:
        """Remove what an earlier run of the same owner, which is known to be dead, left half-written."""
        if self._prefix == _INCOMPLETE:
            raise ValueError("a storage without an owner cannot tell whose half-written checkpoints are dead")
        with _explained(f"cannot clean up in {self.base}"):
            for path in self.base.glob(f"{self._prefix}*"):
                shutil.rmtree(path)

    @contextlib.contextmanager
    def store_path(self, storage_id: str) -> Iterator[Path]:
        final = self._path(storage_id)
        staging = self.base / f"{self._prefix}{storage_id}"
        with _explained(f"cannot write a checkpoint to {self.base}"):
            if final.exists():
                raise StorageError(f"{final} exists already: a checkpoint is written once")
            self.base.mkdir(parents=True, exist_ok=True)
            staging.mkdir(mode=0o700)  # the folder around it may be shared with other users
        try:
            yield staging
            with _explained(f"cannot write the checkpoint {final}"):
                _flush(staging)
                os.rename(staging, final)
                _fsync(self.base)
        except BaseException as e:
            full = isinstance(e, Exception) and _is_full(e, self.base)
            shutil.rmtree(staging, ignore_errors=True)
            if full:
                raise StorageError(
                    f"cannot write the checkpoint {final}: the disk of {self.base} is full; free some space there"
                ) from e
            raise

    def upload(self, source: Path, storage_id: str, selector: Selector | None = None) -> None:
        with self.store_path(storage_id) as staging, _explained(f"cannot copy {source} to {self.base}"):
            copy_files(source, staging, selector)

    @contextlib.contextmanager
    def restore_path(self, storage_id: str) -> Iterator[Path]:
        yield self._existing(storage_id)

    def download(self, storage_id: str, destination: Path, selector: Selector | None = None) -> None:
        source = self._existing(storage_id)
        with _explained(f"cannot copy the checkpoint {source} to {destination}"):
            destination.mkdir(parents=True, exist_ok=True)
            copy_files(source, destination, selector)

    def put_file(self, source: Path, path: str, *, shared: int = 0) -> None:
        *folders, name = path.split("/")
        if not path or any(part in ("", ".", "..") or "\0" in part for part in (*folders, name)):
            raise StorageError(f"{path!r} cannot be the path of a file in {self.base}")
        folder = self.base
        with _explained(f"cannot write {path} to {self.base}"):
            folder.mkdir(parents=True, exist_ok=True)
            for depth, part in enumerate(folders, start=1):
                folder /= part
                _own_folder(folder, shared=depth <= shared)
            _put(source, folder / name)

    def delete(self, storage_id: str) -> None:
        path = self._path(storage_id)
        doomed = self.base / f"{self._prefix}deleted-{storage_id}"
        with _explained(f"cannot delete the checkpoint {path}"):
            # Renamed first: a deletion that is cut short must not leave half a checkpoint either.
            with contextlib.suppress(FileNotFoundError):
                os.rename(path, doomed)
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(doomed)

    def resources(self, storage_id: str) -> dict[str, int]:
        root = self._existing(storage_id)
        return {name: 0 if name.endswith("/") else (root / name).stat().st_size for name in list_files(root)}

    def _existing(self, storage_id: str) -> Path:
        path = self._path(storage_id)
        if not path.is_dir():
            raise CheckpointNotFound(f"there is no checkpoint {storage_id!r} in {self.base}")
        return path

    def _path(self, storage_id: str) -> Path:
        if not storage_id or storage_id.startswith(".") or "/" in storage_id or "\0" in storage_id:
            raise StorageError(f"{storage_id!r} cannot be the name of a checkpoint")
        return self.base / storage_id


def list_files(root: Path) -> list[str]:
    """The relative paths of all below `root`, sorted; those of folders end with a slash."""
    names = []
    for folder, subfolders, files in os.walk(root, followlinks=True):
        for name in subfolders:
            if Path(folder).resolve().is_relative_to(Path(folder, name).resolve()):
                raise StorageError(f"{Path(folder, name)} is a link to a folder that it lies in")
        relative = Path(folder).relative_to(root)
        names += [f"{(relative / name).as_posix()}/" for name in subfolders]
        names += [(relative / name).as_posix() for name in files]
    return sorted(names)


def copy_files(source: Path, destination: Path, selector: Selector | None = None) -> None:
    """Copy what the selector chooses (all by default) of one folder into another, which exists."""
    for name in list_files(source):
        if selector is not None and not selector(name):
            continue
        target = destination / name
        if name.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target)


def _own_folder(folder: Path, *, shared: bool) -> None:
    """Make a folder, or see that the one that is there is what it should be."""
    try:
        folder.mkdir(mode=0o700)
        if shared:
            # Like /tmp: everybody may add, and nobody touch what is another's.
            folder.chmod(0o1777)
    except FileExistsError:
        status = os.lstat(folder)
        # Where tasks have accounts of their own, one user must not prepare a folder for another's files.
        # As root there are no such accounts, and a file server may say that the files are somebody else's.
        foreign = not shared and os.geteuid() not in (0, status.st_uid)
        if foreign or not stat.S_ISDIR(status.st_mode):
            raise StorageError(f"{folder} is not a folder of this task's user: remove it") from None


def _put(source: Path, target: Path) -> None:
    """Copy a file over another. An event file is continued, so that a TensorBoard that follows it goes on."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(source, "rb") as new, os.fdopen(os.open(target, flags, 0o644), "wb") as old:
        there = os.fstat(old.fileno()).st_size
        if "tfevents" not in target.name or there > os.fstat(new.fileno()).st_size:
            os.ftruncate(old.fileno(), 0)
            there = 0
        new.seek(there)
        old.seek(there)
        shutil.copyfileobj(new, old)


def _is_full(error: BaseException, base: Path) -> bool:
    """Whether that happened for want of room. Libraries that write files have errors of their own for it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        cause = cause.__cause__
    with contextlib.suppress(OSError):
        return shutil.disk_usage(base).free == 0
    return False


def _flush(root: Path) -> None:
    for name in list_files(root):
        _fsync(root / name)
    _fsync(root)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise StorageError(f"{what}: {e}") from e
