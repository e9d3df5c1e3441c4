"""One look at this machine after the other. psutil and NVML are imported when it is first needed."""

import contextlib
import importlib
import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

logger = logging.getLogger("determined.core")

# Series by name: its group, the folder or GPU where it is of one, the metric.
Sample = Mapping[tuple[str, ...], float]


class SystemSampler:
    """Reads counters, and gives rates since the last look. Its first look is when it is made.

    Args:
        gpu_uuids: those to look at.
        folders: whose disks' use to tell.
        now: seconds of any clock that never goes back; that of `sample`.

    Raises:
        ImportError: there is no psutil.
    """

    def __init__(self, gpu_uuids: Sequence[str], folders: Sequence[str], now: float) -> None:
        self._psutil = importlib.import_module("psutil")
        self._folders = folders
        self._gpus = _Gpus(gpu_uuids) if gpu_uuids else None
        self._psutil.cpu_percent()
        self._at = now
        self._counters = self._read_counters()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._gpus is not None:
            self._gpus.close()

    def sample(self, now: float) -> Sample:
        """The series now."""
        values: dict[tuple[str, ...], float] = {
            ("cpu", "cpu_util_simple"): self._psutil.cpu_percent(),
            ("memory", "memory_free"): float(self._psutil.virtual_memory().available),
        }
        before, last = self._counters, self._at
        self._counters, self._at = self._read_counters(), now
        if now > last:
            for name, count in self._counters.items():
                if name in before:  # a counter that was reset, or a disk that left, is no negative rate
                    values[name] = max(0.0, count - before[name]) / (now - last)
        for folder in self._folders:
            with contextlib.suppress(OSError):  # not made yet, or not mounted
                values["disk", folder, "disk_util"] = self._psutil.disk_usage(folder).percent
        if self._gpus is not None:
            values |= self._gpus.sample()
        return values

    def _read_counters(self) -> dict[tuple[str, ...], float]:
        disk, network = self._psutil.disk_io_counters(), self._psutil.net_io_counters()
        counters: dict[tuple[str, ...], float] = {}
        if disk is not None:  # a machine may have no disk of its own
            counters["disk", "disk_iops"] = disk.read_count + disk.write_count
            counters["disk", "disk_throughput_read"] = disk.read_bytes
            counters["disk", "disk_throughput_write"] = disk.write_bytes
        if network is not None:
            counters["network", "net_throughput_sent"] = network.bytes_sent
            counters["network", "net_throughput_recv"] = network.bytes_recv
        return counters


class _Gpus:
    """NVIDIA GPUs by NVML, through its own Python binding (nvidia-ml-py)."""

    def __init__(self, uuids: Sequence[str]) -> None:
        self._handles: dict[str, Any] = {}
        self._running = False
        try:
            self._nvml = importlib.import_module("pynvml")
        except ImportError:
            logger.warning(
                "metrics of GPUs are not reported: they need nvidia-ml-py (pip install nvidia-ml-py)"
            )
            return
        try:
            self._nvml.nvmlInit()
            self._running = True
            for uuid in uuids:
                self._handles[uuid] = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except self._nvml.NVMLError as e:
            some = "some " if self._handles else ""
            logger.warning("metrics of %sGPUs are not reported: %s", some, e)

    def sample(self) -> dict[tuple[str, ...], float]:
        values: dict[tuple[str, ...], float] = {}
        for uuid, handle in self._handles.items():
            # Not every GPU can tell everything: a part of one (MIG) knows no utilisation.
            with contextlib.suppress(self._nvml.NVMLError):
                values["gpu", uuid, "gpu_free_memory"] = float(
                    self._nvml.nvmlDeviceGetMemoryInfo(handle).free
                )
                values["gpu", uuid, "gpu_util"] = float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        return values

    def close(self) -> None:
        if self._running:
            self._nvml.nvmlShutdown()
            self._running = False
