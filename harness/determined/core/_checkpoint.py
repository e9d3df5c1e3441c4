"""Saving and loading checkpoints, and telling the master about them."""

import contextlib
import datetime
import enum
import json
import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from determined.common import api
from determined.common.storage import Selector, StorageManager, copy_files
from determined.core._distributed import DummyDistributedContext
from determined.core._reports import Report
from determined.core._sender import ReportSender
from determined.errors import StorageError

logger = logging.getLogger("determined.core")

METADATA_FILE = "metadata.json"


class DownloadMode(enum.Enum):
    """How the processes of one machine share a download."""

    # One process of each machine downloads into a folder that all of them see.
    LocalWorkersShareDownload = "LOCAL_WORKERS_SHARE_DOWNLOAD"
    # Each process downloads for itself.
    NoSharedDownload = "NO_SHARED_DOWNLOAD"


class CheckpointContext:
    """Saves and loads checkpoints. Get it as `core_context.checkpoint`.

    A checkpoint is a folder of files with a uuid, and `metadata.json` in it. It can be seen in the storage
    only when it is complete, and the master hears of it only after that, and after every metric that was
    reported before.
    """

    def __init__(
        self,
        session: api.Session,
        sender: ReportSender[Report],
        storage: StorageManager,
        distributed: DummyDistributedContext,
        *,
        task_id: str,
        allocation_id: str,
        storage_id: int | None,
    ) -> None:
        self._session = session
        self._sender = sender
        self._storage = storage
        self._distributed = distributed
        self._task_id = task_id
        self._allocation_id = allocation_id
        self._storage_id = storage_id

    def upload(
        self,
        ckpt_dir: str | os.PathLike[str] | None,
        metadata: Mapping[str, Any] | None = None,
        *,
        shard: bool = False,
        selector: Selector | None = None,
    ) -> str:
        """Save the content of a folder as a checkpoint, and return its uuid.

        `metadata` must have an integer `steps_completed` in a trial. With `shard` every rank uploads its
        own files (`ckpt_dir` None: it has none); without, only the chief may call. `selector` chooses files.
        """
        source = None if ckpt_dir is None else Path(ckpt_dir)
        if source is None and not shard:
            raise ValueError("ckpt_dir is None: only a rank of a sharded upload can be without files")
        if source is not None and not source.is_dir():
            raise FileNotFoundError(f"ckpt_dir {str(source)!r} is not a folder")
        with self._new(metadata, shard) as (path, storage_id):
            if source is not None:
                copy_files(source, path, selector)
        return storage_id

    @contextlib.contextmanager
    def store_path(
        self, metadata: Mapping[str, Any] | None = None, *, shard: bool = False
    ) -> Iterator[tuple[Path, str]]:
        """Save what is written to a folder: `with checkpoint.store_path(metadata) as (path, uuid)`.

        When the context ends, the checkpoint becomes visible and is reported. An exception in it leaves
        nothing behind. `metadata` and `shard` as in `upload`.
        """
        with self._new(metadata, shard) as (path, storage_id):
            yield path, storage_id

    @contextlib.contextmanager
    def _new(self, metadata: Mapping[str, Any] | None, shard: bool) -> Iterator[tuple[Path, str]]:
        if not shard and self._distributed.rank != 0:
            raise RuntimeError(
                f"rank {self._distributed.rank} saves a checkpoint with shard=False: only the chief may do that"
            )
        content = self._checked(metadata)
        storage_id = str(uuid.uuid4())
        with self._storage.store_path(storage_id) as path:
            yield path, storage_id
            with open(path / METADATA_FILE, "w") as file:
                json.dump(content, file, indent=2)
        self._report(storage_id, content)

    def download(
        self,
        storage_id: str,
        ckpt_dir: str | os.PathLike[str],
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> None:
        """Copy a checkpoint's files, or those that `selector` chooses, into the folder `ckpt_dir`.

        Raises CheckpointNotFound when the storage does not hold it.
        """
        DownloadMode(download_mode)
        self._storage.download(storage_id, Path(ckpt_dir), selector)

    @contextlib.contextmanager
    def restore_path(
        self,
        storage_id: str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> Iterator[Path]:
        """A folder with (at least the chosen files of) a checkpoint, to be read while the context lasts."""
        DownloadMode(download_mode)
        with self._storage.restore_path(storage_id) as path:
            yield path

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        """A checkpoint's metadata, as the master has it."""
        answer = self._session.get(f"/api/v1/checkpoints/{storage_id}").json()
        return dict(answer["checkpoint"].get("metadata") or {})

    def delete(self, storage_id: str) -> None:
        """Delete a checkpoint's files, and tell the master."""
        self._storage.delete(storage_id)
        patch = {"checkpoints": [{"uuid": storage_id, "resources": {"resources": {}}}]}
        self._session.patch("/api/v1/checkpoints", json=patch)

    def _checked(self, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
        content = dict(metadata or {})
        steps = content.get("steps_completed")
        if type(steps) is not int:  # a bool is an int, too
            raise ValueError(
                "a checkpoint's metadata needs an integer steps_completed, "
                f"for example metadata={{'steps_completed': 100}}; it is {steps!r}"
            )
        return _json_object(content)

    def _report(self, storage_id: str, metadata: dict[str, Any]) -> None:
        resources = self._storage.resources(storage_id)
        self._sender.drain()
        report = {
            "uuid": storage_id,
            "taskId": self._task_id,
            "allocationId": self._allocation_id,
            "state": "STATE_COMPLETED",
            "resources": {name: str(size) for name, size in resources.items()},
            "metadata": metadata,
            "training": {},
            "reportTime": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            "storageId": self._storage_id,
        }
        self._session.post("/api/v1/checkpoints", json=report)
        logger.info("saved checkpoint %s", storage_id)


class DummyCheckpointContext(CheckpointContext):
    """Where no trial runs: checkpoints go to the storage, and nobody is told."""

    def __init__(self, storage: StorageManager, distributed: DummyDistributedContext) -> None:
        self._storage = storage
        self._distributed = distributed

    def get_metadata(self, storage_id: str) -> dict[str, Any]:
        with self._storage.restore_path(storage_id) as path:
            try:
                content = json.loads((path / METADATA_FILE).read_text())
            except (OSError, json.JSONDecodeError) as e:
                raise StorageError(f"cannot read {METADATA_FILE} of checkpoint {storage_id}: {e}") from e
        return dict(content)

    def delete(self, storage_id: str) -> None:
        self._storage.delete(storage_id)

    def _checked(self, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
        return _json_object(dict(metadata or {}))

    def _report(self, storage_id: str, metadata: dict[str, Any]) -> None:
        logger.info("saved checkpoint %s to %s", storage_id, self._storage)


def _json_object(metadata: dict[str, Any]) -> dict[str, Any]:
    try:
        copy: dict[str, Any] = json.loads(json.dumps(metadata, allow_nan=False))
    except (TypeError, ValueError) as e:
        raise ValueError(f"a checkpoint's metadata must be JSON: {e}") from None
    return copy
