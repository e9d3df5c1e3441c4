"""Checkpoints' files, as far as the master can reach them: those in shared_fs and directory storage.

Every path is confined: a checkpoint is the folder of its uuid directly inside its storage, and nothing else is touched.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path

from detlab_master.core.errors import Invalid, NotFound
from detlab_master.core.records import Checkpoint, Experiment, Json


class CheckpointFiles:
    def folder(self, experiment: Experiment, checkpoint: Checkpoint) -> Path:
        """Where the files are.

        Raises:
            Invalid: the storage is of a kind that the master does not read.
            NotFound: the folder is not there.
        """
        folder = storage_root(experiment.config["checkpoint_storage"]) / _confined(checkpoint.uuid)
        if folder.is_symlink() or not folder.is_dir():
            raise NotFound(
                f"the files of checkpoint '{checkpoint.uuid}' are not in its storage any more ({folder})"
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
            for path in sorted(folder.glob(glob), reverse=True):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        left = {
            path.relative_to(folder).as_posix() + ("/" if path.is_dir() else ""): 0
            if path.is_dir()
            else path.stat().st_size
            for path in folder.rglob("*")
            if not path.is_symlink()
        }
        if not left or set(left) == {"metadata.json"}:
            shutil.rmtree(folder)
            return {}
        return left


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
