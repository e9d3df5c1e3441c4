"""Places where checkpoints lie, and what the master asks of them. All calls block, and are made in threads."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import IO, Protocol

from detlab_master.core.errors import Invalid


class StorageUnreachable(Invalid):
    """The master does not get at the files at the moment; nothing was removed, or not all."""


class StorageUnsupported(StorageUnreachable):
    """The master never gets at files of this kind of storage."""


class StorageElsewhere(StorageUnsupported):
    """The files of a detached experiment are where its script ran, and not where the master looks."""


@dataclass(frozen=True)
class StoredFile:
    path: str  # relative to the checkpoint
    content: IO[bytes] | None  # to be read before the next file is asked for; None for a folder
    size: int  # bytes
    changed: float  # seconds since 1970


class Storage(Protocol):
    """What is asked of a storage. Removing what is not there is no error."""

    def read(self, checkpoint_uuid: str) -> Iterator[StoredFile]:
        """A checkpoint's files, in the order of their names.

        Raises:
            NotFound: at once; it is not there, or somebody else's.
            StorageUnreachable: the storage is away.
        """
        ...

    def remove(self, checkpoint_uuid: str, globs: Sequence[str]) -> dict[str, int]:
        """Remove a checkpoint's files that match a glob; without globs only look.

        When nothing is left but its metadata, that goes too.

        Returns:
            What is left: path -> bytes, folders with a final "/"; without the manifest, which is no file of the user.

        Raises:
            StorageUnreachable: the storage is away, or does not let us.
        """
        ...

    def remove_incomplete(self, tasks: Collection[str]) -> None:
        """Remove what these tasks, which have ended for good, have left half-written.

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


def check_glob(glob: str) -> None:
    """Whether a glob stays inside its checkpoint.

    Raises:
        Invalid: it is empty, absolute, or goes up.
    """
    if not glob or ".." in glob or glob.startswith("/"):
        raise Invalid(f"the glob {glob!r} cannot be taken: it must not be empty, absolute or contain '..'")


@lru_cache(maxsize=10_000)  # without it, the time for several ** would grow with their power
def matches(path: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether a glob fits a path, part by part; ``**`` stands for any number of parts."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return matches(path, pattern[1:]) or (bool(path) and matches(path[1:], pattern))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and matches(path[1:], pattern[1:])


def confined(checkpoint_uuid: str) -> str:
    try:
        return str(uuid.UUID(checkpoint_uuid))
    except ValueError:
        raise Invalid(f"{checkpoint_uuid!r} is no checkpoint uuid") from None
