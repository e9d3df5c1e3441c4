"""What a trial writes for TensorBoard, and the thread that copies it to the storage.

Files are written to a folder of this machine and copied to `<storage>/<cluster>/tensorboard/experiment/<id>/trial/<id>/`.
All of it happens beside the training. Charts are not worth a trial: where the storage fails, a warning says so and the
copy is tried again, up to the end.
"""

import contextlib
import enum
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from determined.common.storage import StorageManager
from determined.core._encode import Snapshot, encode
from determined.core._events import EventFile, scalars
from determined.core._reports import MetricsReport
from determined.errors import StorageError

logger = logging.getLogger("determined.core")

FileSelector = Callable[[Path], bool]
FileMangler = Callable[[Path, int], Path]

SYNC_SECONDS = 10.0
# Of the time at most one part in this many goes to copying, however large the files and slow the storage.
_SHARE = 10
_CAPACITY = 10_000  # reports that wait for a disk that hangs


class TensorboardMode(enum.Enum):
    """Who sees to the files in `core_context.train.get_tensorboard_path()`."""

    # Reported metrics are written there, and all files are copied to the storage now and then and at the end.
    AUTO = "AUTO"
    # The training code writes, and calls `upload_tensorboard_files`.
    MANUAL = "MANUAL"


@dataclass(frozen=True)
class _Copy:
    source: Path
    name: str  # where it goes, below the trial's folder


def _points(report: MetricsReport) -> Iterator[tuple[int, dict[str, float]]]:
    """Steps and values by tag. The tags, and the step of a batch, are those that Determined gave them."""
    steps = report.steps_completed or 0
    if report.batch_metrics is not None:
        for index, metrics in enumerate(report.batch_metrics):
            yield steps - len(report.batch_metrics) + index, _tagged(report.group, metrics)
    else:
        yield steps, _tagged(report.group, report.metrics)


def _tagged(group: str, metrics: Mapping[str, Snapshot]) -> dict[str, float]:
    return {f"Determined/{_tag(group, name)}": value for name, value in scalars(encode(metrics))}


def _tag(group: str, name: str) -> str:
    if group == "training" or (group == "validation" and name.startswith("val")):
        return name
    return f"val_{name}" if group == "validation" else f"{group}/{name}"


class TensorboardFiles:
    """The folder of one process, and its way to the storage.

    Args:
        folder: where files are written; made when somebody asks for it.
        storage: where they go; None: they stay where they are.
        place: the trial's folder in the storage, `CLUSTER/tensorboard/experiment/E/trial/T`. Its first three
            folders are shared with other users.
        rank: of this process. The chief's metrics are the trial's.
    """

    def __init__(
        self, folder: Path, storage: StorageManager | None, place: str, *, rank: int, mode: TensorboardMode
    ) -> None:
        self._folder = folder
        self._storage = storage
        self._place = place
        self._rank = rank
        self.mode = mode
        self._wanted = storage is not None  # without a storage only if somebody asked for the folder
        self._events = EventFile(folder, time.time())
        self._waiting: deque[_Copy | MetricsReport] = deque()
        self._uploads = False  # there are files among what waits
        self._dropped = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._copied: dict[
            str, tuple[int, int]
        ] = {}  # by name: time of change and size, when it was last copied
        self._failed: dict[str, _Copy] = {}  # tried again
        self._warned = ""

    @property
    def path(self) -> Path:
        """The folder, which now exists."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._wanted:
            logger.info("files for TensorBoard: tensorboard --logdir %s", self._folder)
            self._wanted = True
            self.start()
        return self._folder

    def start(self) -> None:
        """Begin to copy. Does nothing where there is nothing to do, or where it was done."""
        if self.mode is TensorboardMode.AUTO and self._wanted:
            self._ensure_thread()

    def set_mode(self, mode: TensorboardMode) -> None:
        """From now on."""
        self.mode = mode
        self.start()

    def report(self, report: MetricsReport) -> None:
        """Chart metrics, in mode AUTO: those of the batches up to the report's step, where it has them.

        They are written at the next copying: to wake the thread for each report would make the training wait.
        """
        if self.mode is TensorboardMode.AUTO and self._wanted and self._rank == 0:
            self._put(report)

    def upload(self, selector: FileSelector, mangler: FileMangler) -> None:
        """Begin to copy the files that `selector` chooses, to the names that `mangler` gives them.

        Raises:
            RuntimeError: mode AUTO does it by itself.
            ValueError: a name leads out of the trial's folder.
        """
        if self.mode is not TensorboardMode.MANUAL:
            raise RuntimeError(
                "upload_tensorboard_files() is for core.init(tensorboard_mode=TensorboardMode.MANUAL): "
                "in mode AUTO the files are copied without it"
            )
        copies = []
        for source in _files(self._folder):
            if selector(source):
                target = Path(mangler(source.relative_to(self._folder), self._rank))
                if target.is_absolute() or ".." in target.parts or not target.parts:
                    raise ValueError(
                        f"the mangler gave {str(target)!r}: it must be a relative path inside of the trial's folder"
                    )
                copies.append(_Copy(source, target.as_posix()))
        if self._storage is not None:
            self._ensure_thread()
            for copy in copies:
                self._put(copy)

    def close(self) -> None:
        """Copy what is left, and end the thread. May be called again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            if self._dropped:
                logger.warning("%d reports are missing in TensorBoard: the disk was too slow", self._dropped)

    def _put(self, item: _Copy | MetricsReport) -> None:
        with self._changed:
            if len(self._waiting) >= _CAPACITY:
                self._dropped += 1
                return
            self._waiting.append(item)
            if isinstance(item, _Copy):
                self._uploads = True
                self._changed.notify_all()

    def _ensure_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="determined-tensorboard", daemon=True)
            self._thread.start()

    # In the thread

    def _run(self) -> None:
        next_sync = time.monotonic() + SYNC_SECONDS
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._uploads or self._closed, max(0.0, next_sync - time.monotonic())
                )
                items, last = list(self._waiting), self._closed
                self._waiting.clear()
                self._uploads = False
            for item in items:
                if isinstance(item, MetricsReport):
                    self._write(item)
                else:
                    self._copy(item)
            began = time.monotonic()
            if last or began >= next_sync:
                self._sync()
                took = time.monotonic() - began
                next_sync = time.monotonic() + max(SYNC_SECONDS, _SHARE * took)
            if last:
                self._events.close()
                return

    def _write(self, item: MetricsReport) -> None:
        try:
            for step, values in _points(item):
                if values:
                    self._events.add(item.time, step, values)
        except OSError as e:
            self._warn(f"cannot write to {self._folder}: {e}")

    def _sync(self) -> None:
        """Copy what was not copied yet: all files in mode AUTO, and what failed before."""
        again, self._failed = list(self._failed.values()), {}
        for copy in again:
            self._copy(copy)
        if self.mode is TensorboardMode.AUTO:
            for source in _files(self._folder):
                self._copy(_Copy(source, source.relative_to(self._folder).as_posix()))

    def _copy(self, copy: _Copy) -> None:
        if self._storage is None:
            return
        try:
            status = copy.source.stat()
            state = (status.st_mtime_ns, status.st_size)
            if self._copied.get(copy.name) == state:
                return
            self._storage.put_file(copy.source, f"{self._place}/{copy.name}", shared=3)
        except FileNotFoundError:
            return  # whoever wrote it has removed it
        except (StorageError, OSError) as e:
            self._failed[copy.name] = copy
            self._warn(f"cannot copy files for TensorBoard: {e}")
        else:
            self._copied[copy.name] = state

    def _warn(self, text: str) -> None:
        if text != self._warned:
            logger.warning("%s; the training goes on", text)
        self._warned = text


def _files(folder: Path) -> list[Path]:
    """All files below a folder, in the order of their paths."""
    found = []
    for parent, _, names in os.walk(folder):
        with contextlib.suppress(OSError):
            found += [path for name in names if (path := Path(parent, name)).is_file()]
    return sorted(found)
