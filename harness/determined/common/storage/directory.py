"""Checkpoints as folders of one folder: a shared file system, a mounted volume, or this machine's disk.

A checkpoint is written under a name that starts with a dot, flushed to the disk file by file, and renamed to
its own name at the very end. A reader therefore finds all of it or nothing, whenever the writer dies.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from determined.common.storage import loose, transfer
from determined.common.storage.base import Selector, checked_name
from determined.common.storage.manifest import MANIFEST, Files, decode, encode, tell_missing
from determined.errors import CheckpointNotFound, StorageError

INCOMPLETE = ".incomplete-"  # then the owner, a dash, and the checkpoint's name


class DirectoryStorage:
    """A StorageManager over the folder `base`, which is made when the first checkpoint is written."""

    def __init__(self, base: Path, *, owner: str | None = None) -> None:
        self.base = base
        self._prefix = f"{INCOMPLETE}{owner}-" if owner else INCOMPLETE

    def __repr__(self) -> str:
        return f"DirectoryStorage({str(self.base)!r})"

    def remove_incomplete(self) -> None:
        """Remove what an earlier run of the same owner, which is known to be dead, left half-written."""
        if self._prefix == INCOMPLETE:
            raise ValueError("a storage without an owner cannot tell whose half-written checkpoints are dead")
        with explained(f"cannot clean up in {self.base}"):
            for path in self.base.glob(f"{self._prefix}*"):
                shutil.rmtree(path)

    @contextlib.contextmanager
    def store_path(self, storage_id: str) -> Iterator[Path]:
        staging = self._staging(storage_id)
        with self._begin(storage_id):
            yield staging
            with self._writing(storage_id):
                self._publish(storage_id, transfer.record(staging, list_files(staging)))

    def upload(self, source: Path, storage_id: str, selector: Selector | None = None) -> None:
        with self._begin(storage_id):
            self.complete(storage_id, self.add(source, storage_id, selector))

    def add(self, source: Path, storage_id: str, selector: Selector | None = None) -> Files:
        staging = self._staging(storage_id)
        with self._writing(storage_id):
            self._make_staging(storage_id, exist_ok=True)
            files = copy_files(source, staging, selector)
            transfer.flush(staging, files)
        return files

    def complete(self, storage_id: str, files: Files) -> None:
        with self._writing(storage_id):
            self._publish(storage_id, files)

    def discard(self, storage_id: str) -> None:
        shutil.rmtree(self._staging(storage_id), ignore_errors=True)

    @contextlib.contextmanager
    def _begin(self, storage_id: str) -> Iterator[None]:
        """Make the folder in which a checkpoint is written, and remove it when that fails."""
        with self._writing(storage_id):
            self._make_staging(storage_id, exist_ok=False)
        try:
            yield
        except BaseException as e:
            full = isinstance(e, Exception) and is_full(e, self.base)
            self.discard(storage_id)
            if full:
                raise self._full(storage_id) from e
            raise

    def _make_staging(self, storage_id: str, exist_ok: bool) -> None:
        final = self._path(storage_id)
        if final.exists():
            raise StorageError(f"{final} exists already: a checkpoint is written once")
        self.base.mkdir(parents=True, exist_ok=True)
        # Closed to others: the folder around it may be shared with other users.
        self._staging(storage_id).mkdir(mode=0o700, exist_ok=exist_ok)

    def _publish(self, storage_id: str, files: Files) -> None:
        staging = self._staging(storage_id)
        (staging / MANIFEST).write_bytes(encode(files))
        transfer.fsync(staging / MANIFEST)
        transfer.fsync(staging)
        os.rename(staging, self._path(storage_id))
        transfer.fsync(self.base)

    @contextlib.contextmanager
    def restore_path(self, storage_id: str, selector: Selector | None = None) -> Iterator[Path]:
        yield self._existing(storage_id)

    def download(self, storage_id: str, destination: Path, selector: Selector | None = None) -> None:
        source = self._existing(storage_id)
        with explained(f"cannot copy the checkpoint {source} to {destination}"):
            destination.mkdir(parents=True, exist_ok=True)
            recorded = self._recorded(source)
            tell_missing(storage_id, recorded, list_files(source))
            copy_files(source, destination, selector, recorded)

    def _recorded(self, source: Path) -> Files:
        try:
            return decode((source / MANIFEST).read_bytes(), str(source / MANIFEST))
        except FileNotFoundError:
            return {}

    def put_file(self, source: Path, path: str, *, shared: int = 0) -> None:
        *folders, name = path.split("/")
        if not path or any(part in ("", ".", "..") or "\0" in part for part in (*folders, name)):
            raise StorageError(f"{path!r} cannot be the path of a file in {self.base}")
        with explained(f"cannot write {path} to {self.base}"):
            loose.put(source, self.base, folders, name, shared=shared)

    def delete(self, storage_id: str) -> None:
        path = self._path(storage_id)
        doomed = self.base / f"{self._prefix}deleted-{storage_id}"
        with explained(f"cannot delete the checkpoint {path}"):
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
        return self.base / checked_name(storage_id)

    def _staging(self, storage_id: str) -> Path:
        return self.base / f"{self._prefix}{checked_name(storage_id)}"

    @contextlib.contextmanager
    def _writing(self, storage_id: str) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            if is_full(e, self.base):
                raise self._full(storage_id) from e
            who = f" (this process runs as the user {os.geteuid()})" if isinstance(e, PermissionError) else ""
            raise StorageError(f"cannot write the checkpoint {self._path(storage_id)}: {e}{who}") from e

    def _full(self, storage_id: str) -> StorageError:
        return StorageError(
            f"cannot write the checkpoint {self._path(storage_id)}: the disk of {self.base} is full; free some space there"
        )


def check(folder: Path) -> None:
    """Compare the files of a downloaded checkpoint with the manifest that came along, and remove that.

    Raises StorageError for a file that is different; without a manifest there is nothing to compare with.
    """
    manifest = folder / MANIFEST
    try:
        recorded = decode(manifest.read_bytes(), str(manifest))
    except FileNotFoundError:
        return
    transfer.check(folder, [name for name in list_files(folder) if name in recorded], recorded)
    manifest.unlink()


def list_files(root: Path) -> list[str]:
    """The relative paths of all below `root` but its manifest, sorted; those of folders end with a slash."""
    names = []
    for folder, subfolders, files in os.walk(root, followlinks=True):
        for name in subfolders:
            if Path(folder).resolve().is_relative_to(Path(folder, name).resolve()):
                raise StorageError(f"{Path(folder, name)} is a link to a folder that it lies in")
        relative = Path(folder).relative_to(root)
        names += [f"{(relative / name).as_posix()}/" for name in subfolders]
        names += [(relative / name).as_posix() for name in files]
    return sorted(name for name in names if name != MANIFEST)


def copy_files(
    source: Path, destination: Path, selector: Selector | None = None, recorded: Files | None = None
) -> Files:
    """Copy what the selector chooses (all by default) of one folder into another, which exists; say what it was.

    Args:
        recorded: what the files were when they were written. Raises StorageError for one that is different.
    """
    names = [name for name in list_files(source) if selector is None or selector(name)]
    sizes = {name: 0 if name.endswith("/") else (source / name).stat().st_size for name in names}
    files = transfer.fetch(
        sizes,
        recorded or {},
        lambda name, offset, buffer: transfer.read_block(source / name, offset, buffer),
        destination,
    )
    for name in names:
        if not name.endswith("/"):
            shutil.copystat(source / name, destination / name)
    return files


def is_full(error: BaseException, base: Path) -> bool:
    """Whether that happened for want of room. Libraries that write files have errors of their own for it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        cause = cause.__cause__
    with contextlib.suppress(OSError):
        return shutil.disk_usage(base).free == 0
    return False


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise StorageError(f"{what}: {e}") from e
