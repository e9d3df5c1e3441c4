"""A checkpoint: the files that a trial saved, and where they came from."""

import contextlib
import enum
import fcntl
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from determined.common.api import Session
from determined.common.storage import check, from_config
from determined.common.tar import tarfile
from determined.errors import StorageError
from determined.experimental import _metrics, _wire
from determined.experimental._enums import CheckpointSortBy, CheckpointState, DownloadMode, OrderBy


@dataclass(frozen=True)
class CheckpointTrainingMetadata:
    """The training that wrote a checkpoint."""

    experiment_config: dict[str, Any]
    experiment_id: int | None
    trial_id: int | None
    hparams: dict[str, Any]
    validation_metrics: dict[str, Any]  # {"avgMetrics": {name: value}}, as the master sends it
    searcher_metric: float | None = None

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "CheckpointTrainingMetadata":
        return cls(
            experiment_config=raw.get("experimentConfig") or {},
            experiment_id=raw.get("experimentId"),
            trial_id=raw.get("trialId"),
            hparams=raw.get("hparams") or {},
            validation_metrics=raw.get("validationMetrics") or {},
            searcher_metric=_wire.number(raw.get("searcherMetric")),
        )


_DIRECT, _MASTER = "direct", "master"  # folders into which files are fetched


class CheckpointNotAvailable(Exception):
    """A checkpoint's files cannot be fetched. The text says from where and why."""


class Checkpoint:
    """A checkpoint as of the last `reload`.

    `resources` is the size in bytes by path (folders end in "/"), `metadata` what the training code attached.
    """

    def __init__(self, session: Session, raw: dict[str, Any]) -> None:
        self._session = session
        self._load(raw)

    def _load(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.uuid: str = raw["uuid"]
        self.task_id: str | None = raw.get("taskId")
        self.allocation_id: str | None = raw.get("allocationId")
        self.report_time = _wire.time(raw.get("reportTime"))
        self.resources = {path: _wire.integer(size) for path, size in (raw["resources"] or {}).items()}
        self.metadata: dict[str, Any] = raw["metadata"] or {}
        self.state = CheckpointState(raw["state"])
        self.training = CheckpointTrainingMetadata.from_json(raw["training"] or {})

    def __repr__(self) -> str:
        return f"Checkpoint(uuid={self.uuid!r}, trial_id={self.training.trial_id}, state={self.state.name})"

    @property
    def steps_completed(self) -> int | None:
        steps = self.metadata.get("steps_completed")
        return None if steps is None else int(steps)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(self.resources.values())

    def reload(self) -> None:
        self._load(self._session.get_json(f"/api/v1/checkpoints/{self.uuid}")["checkpoint"])

    def download(
        self, path: str | os.PathLike[str] | None = None, mode: DownloadMode = DownloadMode.AUTO
    ) -> str:
        """Fetch the files into `path` (default `checkpoints/<uuid>`) and return that path.

        Files that are there already with their right sizes are not fetched again. What is fetched is checked
        against the checksums that were written with it, and a download from storage that broke off goes on where
        it was. The metadata is written beside the files as metadata.json where the training did not do so.
        Raises CheckpointNotAvailable.
        """
        if self.state not in (CheckpointState.COMPLETED, CheckpointState.PARTIALLY_DELETED):
            raise CheckpointNotAvailable(
                f"checkpoint {self.uuid} is {self.state.name} and has no files to download"
            )
        target = Path(path) if path is not None else Path("checkpoints") / self.uuid
        if self._missing_in(target) is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            # Fetched beside the target and moved, so that nobody takes half a checkpoint for a whole one.
            with _scratch(target.parent, self.uuid) as scratch:
                _move(self._fetch(scratch, mode), target)
        if not (target / "metadata.json").exists():
            self.write_metadata_file(str(target / "metadata.json"))
        return str(target)

    def write_metadata_file(self, path: str) -> None:
        """Write the metadata as JSON to a file."""
        Path(path).write_text(json.dumps(self.metadata, indent=2))

    def add_metadata(self, metadata: dict[str, Any]) -> None:
        """Add or replace entries of the metadata."""
        self._set_metadata({**self.metadata, **metadata})

    def remove_metadata(self, keys: Sequence[str]) -> None:
        """Remove entries of the metadata; a key that is not there is no error."""
        self._set_metadata({k: v for k, v in self.metadata.items() if k not in keys})

    def remove_files(self, globs: Sequence[str]) -> None:
        """Delete the files that match these patterns from storage. An empty list looks at storage afresh."""
        body = {"checkpointUuids": [self.uuid], "checkpointGlobs": list(globs)}
        self._session.post("/api/v1/checkpoints/rm", body)

    def delete(self) -> None:
        """Delete all the files. The record of the checkpoint stays, in state DELETED."""
        self._session.delete("/api/v1/checkpoints", {"checkpointUuids": [self.uuid]})

    def get_metrics(self, group: str | None = None) -> Iterator[_metrics.TrialMetrics]:
        """What trials reported that said they work with this checkpoint, such as a batch inference.

        They say so by `core_context.experimental.report_task_using_checkpoint()`.
        """
        return _metrics.iter_metrics_of(self._session, f"/api/v1/checkpoints/{self.uuid}/metrics", group)

    def _set_metadata(self, metadata: dict[str, Any]) -> None:
        body = {"checkpoint": {**self.raw, "metadata": metadata}}
        self._session.post(f"/api/v1/checkpoints/{self.uuid}/metadata", body)
        self.metadata = metadata
        self.raw = body["checkpoint"]

    def _missing_in(self, folder: Path) -> str | None:
        """The first file that is not in `folder` with its right size; None when all are."""
        if not folder.is_dir():
            return str(folder)
        for path, size in self.resources.items():
            file = folder / path
            there = file.is_dir() if path.endswith("/") else file.is_file() and file.stat().st_size == size
            if not there:
                return str(path)
        return None

    def _fetch(self, scratch: Path, mode: DownloadMode) -> Path:
        """Fetch the files into a folder in `scratch` and return that."""
        if mode is not DownloadMode.MASTER:
            into = scratch / _DIRECT
            try:
                self._copy_from_storage(into)
                return into
            except CheckpointNotAvailable:
                if mode is DownloadMode.DIRECT:
                    raise
        into = scratch / _MASTER
        into.mkdir()
        self._download_from_master(into)
        return into

    def _copy_from_storage(self, into: Path) -> None:
        try:
            from_config(self.training.experiment_config.get("checkpoint_storage") or {}).download(
                self.uuid, into
            )
        except StorageError as e:
            raise CheckpointNotAvailable(
                f"checkpoint {self.uuid} cannot be read from its storage on this machine: {e}. "
                "Fetch it through the master (mode master)"
            ) from e
        missing = self._missing_in(into)
        if missing is not None:
            shutil.rmtree(into)
            raise CheckpointNotAvailable(f"checkpoint {self.uuid} lacks {missing!r} in its storage")

    def _download_from_master(self, into: Path) -> None:
        chunks = self._session.download(f"/checkpoints/{self.uuid}", accept="application/x-tar")
        try:
            with tarfile.open(fileobj=io.BufferedReader(_Chunks(chunks)), mode="r|*") as archive:
                archive.extractall(into, filter="data")  # the filter refuses what leads out of the folder
            check(into)
        except tarfile.TarError as e:
            raise CheckpointNotAvailable(
                f"the archive of checkpoint {self.uuid} that the master sent cannot be unpacked: {e}"
            ) from e
        except StorageError as e:
            raise CheckpointNotAvailable(
                f"the archive of checkpoint {self.uuid} that the master sent is not what was saved: {e}"
            ) from e
        missing = self._missing_in(into)
        if missing is not None:
            raise CheckpointNotAvailable(
                f"the archive of checkpoint {self.uuid} that the master sent lacks {missing!r}"
            )


def get_checkpoint(session: Session, uuid: str) -> Checkpoint:
    """Raises NotFoundException."""
    return Checkpoint(session, session.get_json(f"/api/v1/checkpoints/{uuid}")["checkpoint"])


def checkpoint_order(sort_by: CheckpointSortBy | str | None, order_by: OrderBy | None) -> dict[str, Any]:
    """The query that sorts a list of checkpoints; by default the searcher's metric, the best first."""
    if (sort_by is None) != (order_by is None):
        raise ValueError("sort_by and order_by are given together or not at all")
    if sort_by is None or order_by is None:
        return {"sortByAttr": CheckpointSortBy.SEARCHER_METRIC.value}
    if isinstance(sort_by, enum.Enum):
        return {"sortByAttr": sort_by.value, "orderBy": order_by.value}
    return {"sortByMetric": sort_by, "orderBy": order_by.value}


@contextlib.contextmanager
def _scratch(parent: Path, uuid: str) -> Iterator[Path]:
    """A folder beside the target. What broke off on its way from storage stays in it, and is found by the next call."""
    folder = parent / f".{uuid}.partial"
    folder.mkdir(exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # another process fetches the same
        os.close(descriptor)
        with tempfile.TemporaryDirectory(dir=parent, prefix=f".{uuid}-") as own:
            yield Path(own)
        return
    try:
        yield folder
        shutil.rmtree(folder)
    finally:
        shutil.rmtree(folder / _MASTER, ignore_errors=True)
        with contextlib.suppress(OSError):  # not empty: there is something to go on with
            folder.rmdir()
        os.close(descriptor)


def _move(source: Path, target: Path) -> None:
    if target.exists():  # a folder of the user's own: what is in it stays
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        os.replace(source, target)


class _Chunks(io.RawIOBase):
    """Chunks of bytes as a file that can be read forward."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = chunk
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size
