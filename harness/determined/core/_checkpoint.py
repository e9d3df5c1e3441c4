"""Saving and loading checkpoints, and telling the master about them."""

import contextlib
import datetime
import enum
import functools
import json
import logging
import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from determined.common import api
from determined.common.storage import Files, Selector, StorageManager, list_files
from determined.core._distributed import DistributedContext
from determined.core._reports import Report
from determined.core._sender import ReportSender
from determined.core._sharded import check_names, in_step, merged_metadata
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
        distributed: DistributedContext,
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

        `metadata` must have an integer `steps_completed` in a trial. `selector` chooses files. With `shard` all
        ranks call it together, each with files of its own (`ckpt_dir` None: it has none), and get the same uuid;
        without, only the chief may call. The checkpoint has the files and the metadata of all ranks: raises
        ValueError, everywhere, where two of them bring the same file, or different values of one key.
        """
        source = None if ckpt_dir is None else Path(ckpt_dir)
        if self._is_sharded(shard):
            storage_id = self._distributed.broadcast(str(uuid.uuid4()))
            self._save_shard(storage_id, source, metadata, selector)
            return storage_id
        if source is None and not shard:
            raise ValueError("ckpt_dir is None: only a rank of a sharded upload can be without files")
        chosen = _Chosen(selector)
        chosen.names(source)
        content = self._checked(metadata)
        storage_id = str(uuid.uuid4())
        try:
            self._storage.complete(storage_id, self._add(storage_id, source, chosen, content))
        except BaseException:
            with contextlib.suppress(StorageError):  # the first failure is the one to tell
                self._storage.discard(storage_id)
            raise
        self._report(storage_id, content)
        return storage_id

    def _add(
        self, storage_id: str, source: Path | None, chosen: Selector, metadata: dict[str, Any] | None
    ) -> Files:
        """Give the storage a folder's files, and the metadata if there are any."""
        files = {} if source is None else self._storage.add(source, storage_id, chosen)
        if metadata is None:
            return files
        with tempfile.TemporaryDirectory(prefix="detlab-shard-") as folder:
            _write_metadata(Path(folder), metadata)
            return {**files, **self._storage.add(Path(folder), storage_id)}

    @contextlib.contextmanager
    def store_path(
        self, metadata: Mapping[str, Any] | None = None, *, shard: bool = False
    ) -> Iterator[tuple[Path, str]]:
        """Save what is written to a folder: `with checkpoint.store_path(metadata) as (path, uuid)`.

        When the context ends, the checkpoint becomes visible and is reported. An exception in it leaves
        nothing behind. `metadata` and `shard` as in `upload`; with `shard` each rank has a folder of its own.
        """
        if not self._is_sharded(shard):
            with self._new(metadata) as new:
                yield new
            return
        storage_id = self._distributed.broadcast(str(uuid.uuid4()))
        with tempfile.TemporaryDirectory(prefix="detlab-shard-") as folder:
            try:
                yield Path(folder), storage_id
            except Exception as e:  # noqa: BLE001 - raised again, when the other ranks know
                in_step(self._distributed, functools.partial(_raise, e))
            self._save_shard(storage_id, Path(folder), metadata, None)

    def _is_sharded(self, shard: bool) -> bool:
        """Whether several processes save this checkpoint."""
        if not shard and self._distributed.rank != 0:
            raise RuntimeError(
                f"rank {self._distributed.rank} saves a checkpoint with shard=False: only the chief may do that"
            )
        return shard and self._distributed.size > 1

    @contextlib.contextmanager
    def _new(self, metadata: Mapping[str, Any] | None) -> Iterator[tuple[Path, str]]:
        content = self._checked(metadata)
        storage_id = str(uuid.uuid4())
        with self._storage.store_path(storage_id) as path:
            yield path, storage_id
            _write_metadata(path, content)
        self._report(storage_id, content)

    def _save_shard(
        self,
        storage_id: str,
        source: Path | None,
        metadata: Mapping[str, Any] | None,
        selector: Selector | None,
    ) -> None:
        """This rank's part in saving a checkpoint, of which every rank brings the chosen files of a folder."""
        chosen = _Chosen(selector)
        offers = in_step(
            self._distributed, lambda: (chosen.names(source), _json_object(dict(metadata or {})))
        )
        check_names([names for names, _ in offers])
        content = self._checked(merged_metadata([of_rank for _, of_rank in offers]))
        is_chief = self._distributed.rank == 0

        def add() -> Files:
            return self._add(storage_id, source, chosen, content if is_chief else None)

        def complete(parts: list[Files]) -> None:
            self._storage.complete(storage_id, {name: file for part in parts for name, file in part.items()})

        try:
            parts = in_step(self._distributed, add)
            in_step(self._distributed, lambda: complete(parts) if is_chief else None)
        except Exception:
            if is_chief:
                with contextlib.suppress(StorageError):  # the first failure is the one to tell
                    self._storage.discard(storage_id)
            raise
        in_step(self._distributed, lambda: self._report(storage_id, content) if is_chief else None)

    def download(
        self,
        storage_id: str,
        ckpt_dir: str | os.PathLike[str],
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> None:
        """Copy a checkpoint's files, or those that `selector` chooses, into the folder `ckpt_dir`.

        In mode LocalWorkersShareDownload all processes of a machine call it together, and the first of them
        downloads. Raises CheckpointNotFound when the storage does not hold it.
        """
        if not self._is_shared(download_mode):
            self._storage.download(storage_id, Path(ckpt_dir), selector)
            return
        error: Exception | None = None
        if self._distributed.local_rank == 0:
            try:
                self._storage.download(storage_id, Path(ckpt_dir), selector)
            except Exception as e:  # noqa: BLE001 - raised below, on all of them
                error = e
        _raise_everywhere(self._distributed, error)

    @contextlib.contextmanager
    def restore_path(
        self,
        storage_id: str,
        download_mode: DownloadMode = DownloadMode.LocalWorkersShareDownload,
        *,
        selector: Selector | None = None,
    ) -> Iterator[Path]:
        """A folder with (at least the chosen files of) a checkpoint, to be read while the context lasts.

        In mode LocalWorkersShareDownload all processes of a machine enter and leave it together.
        """
        if not self._is_shared(download_mode):
            with self._storage.restore_path(storage_id, selector) as path:
                yield path
            return
        with contextlib.ExitStack() as stack:
            found: Path | None = None
            error: Exception | None = None
            if self._distributed.local_rank == 0:
                try:
                    found = stack.enter_context(self._storage.restore_path(storage_id, selector))
                except Exception as e:  # noqa: BLE001 - raised below, on all of them
                    error = e
            _raise_everywhere(self._distributed, error)
            found = self._distributed.broadcast_local(found)
            assert found is not None
            # The folder may be removed at the end: not before all are done with it.
            stack.callback(self._distributed.gather_local, None)
            yield found

    def _is_shared(self, download_mode: DownloadMode) -> bool:
        """Whether the processes of this machine download together."""
        mode = DownloadMode(download_mode)
        return mode is DownloadMode.LocalWorkersShareDownload and self._distributed.local_size > 1

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

    def __init__(self, storage: StorageManager, distributed: DistributedContext) -> None:
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


class _Chosen:
    """Which files belong to a checkpoint: those that the caller's selector chooses; its metadata we write ourselves."""

    def __init__(self, selector: Selector | None) -> None:
        self._selector = selector

    def __call__(self, name: str) -> bool:
        return name != METADATA_FILE and (self._selector is None or self._selector(name))

    def names(self, folder: Path | None) -> list[str]:
        _check_folder(folder)
        return [] if folder is None else [name for name in list_files(folder) if self(name)]


def _check_folder(folder: Path | None) -> None:
    if folder is not None and not folder.is_dir():
        raise FileNotFoundError(f"ckpt_dir {str(folder)!r} is not a folder")


def _write_metadata(folder: Path, metadata: dict[str, Any]) -> None:
    with open(folder / METADATA_FILE, "w") as file:
        json.dump(metadata, file, indent=2)


def _raise(error: Exception) -> NoReturn:
    raise error


def _raise_everywhere(distributed: DistributedContext, error: Exception | None) -> None:
    """Raise the error of a machine's first process on all of that machine's."""
    kind = (
        type(error) if isinstance(error, StorageError) else StorageError
    )  # of others one cannot be made elsewhere
    told = distributed.broadcast_local(None if error is None else (kind, str(error)))
    if error is not None:
        raise error
    if told is not None:
        raise told[0](told[1])


def _json_object(metadata: dict[str, Any]) -> dict[str, Any]:
    try:
        copy: dict[str, Any] = json.loads(json.dumps(metadata, allow_nan=False))
    except (TypeError, ValueError) as e:
        raise ValueError(f"a checkpoint's metadata must be JSON: {e}") from None
    return copy
