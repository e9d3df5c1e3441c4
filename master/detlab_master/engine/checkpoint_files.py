"""Checkpoints' files, as far as the master can reach them: those in shared_fs and directory storage.

Every path is confined: a checkpoint is the folder of its uuid directly inside its storage, and nothing else is touched.
The storage is of the user's choice, and so are the links inside a checkpoint, while the master may be root. So links are
not followed, and a folder that the user's own tasks could not read is not theirs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import uuid
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from detlab_master.core.errors import Invalid, NotFound
from detlab_master.core.records import Checkpoint, Experiment, Json
from detlab_master.engine.launch import FIRST_TASK_UID


class CheckpointFiles:
    def folder(self, experiment: Experiment, checkpoint: Checkpoint) -> Path:
        """Where the files are.

        Raises:
            Invalid: the storage is of a kind that the master does not read.
            NotFound: the folder is not there, or somebody else's.
        """
        folder = storage_root(experiment.config["checkpoint_storage"]) / _confined(checkpoint.uuid)
        try:
            status = os.lstat(folder)
        except (FileNotFoundError, NotADirectoryError):
            status = None
        if status is None or not stat.S_ISDIR(status.st_mode):
            raise NotFound(
                f"the files of checkpoint '{checkpoint.uuid}' are not in its storage any more ({folder})"
            )
        if os.geteuid() == 0 and not _may_be_of(status, FIRST_TASK_UID + experiment.owner_id):
            raise NotFound(
                f"the folder of checkpoint '{checkpoint.uuid}' belongs to somebody else ({folder})"
            )
        return folder

    def remove(
        self, experiment: Experiment, checkpoint: Checkpoint, globs: Sequence[str] = ("**/*",)
    ) -> dict[str, int]:
        """Remove the files that match a glob.

        Returns:
            What is left: path -> bytes, folders with a final "/".
        """
        try:
            folder = self.folder(experiment, checkpoint)
        except NotFound:
            return {}
        for glob in globs:
            if not glob or ".." in Path(glob).parts or Path(glob).is_absolute():
                raise Invalid(f"the glob {glob!r} must not be empty, absolute or contain '..'")
        left = _remove_matching(folder, [Path(glob).parts for glob in globs])
        if not left or set(left) == {"metadata.json"}:
            shutil.rmtree(folder)
            return {}
        return left


def _may_be_of(status: os.stat_result, uid: int) -> bool:
    """Whether a folder may be a checkpoint of the user whose tasks run under this account.

    Not if it is closed, and root's or of another user's tasks: then somebody points the master to what they cannot read
    themselves. An agent that is not root has some other account for all tasks.
    """
    if status.st_uid == uid or 0 < status.st_uid < FIRST_TASK_UID:
        return True
    return bool(status.st_mode & stat.S_IROTH and status.st_mode & stat.S_IXOTH)


def _remove_matching(folder: Path, patterns: Sequence[tuple[str, ...]]) -> dict[str, int]:
    """Remove what matches, folders with all that is in them; what is left. Links are removed, not followed."""
    left = {}
    for parent, folders, files, descriptor in os.fwalk(folder, topdown=False, follow_symlinks=False):
        base = Path(parent).relative_to(folder).parts
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


def storage_root(storage: Json) -> Path:
    """The folder that holds the checkpoints of a storage configuration."""
    if storage["type"] == "shared_fs":
        host_path = Path(storage["host_path"])
        return host_path / storage["storage_path"] if storage.get("storage_path") else host_path
    if storage["type"] == "directory":
        return Path(storage["container_path"])
    raise Invalid(
        f"checkpoint storage of type {storage['type']!r} is not reached through the master:"
        " download it directly (det checkpoint download --mode direct)"
    )


def _confined(checkpoint_uuid: str) -> str:
    try:
        return str(uuid.UUID(checkpoint_uuid))
    except ValueError:
        raise Invalid(f"{checkpoint_uuid!r} is no checkpoint uuid") from None
