"""What the machine does while a trial trains: series of its GPUs, CPUs, memory, disks and network.

A thread samples, averages and reports. Like charts, series are not worth a trial: what cannot be read or sent is
warned of once, and left out.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from determined.common import api
from determined.common.api import errors
from determined.core._distributed import DistributedContext
from determined.core._encode import snapshot
from determined.core._reports import MetricsReport, TrialReports
from determined.core._system import Sample, SystemSampler
from determined.exec.accelerators import visible_gpu_uuids

logger = logging.getLogger("determined.core")

SHORTEST_INTERVAL = 0.1  # seconds
_LAST_REPORT_SECONDS = 10.0  # how long off() waits for it


class ProfilerContext:
    """Reports system metrics of this machine. Get it as `core_context.profiler`.

    One process of each machine (local rank 0) does it; on the others the methods do nothing. The metrics are those
    of Determined, averaged over the samples of a report, in groups of their own:

        gpu       by GPU: gpu_util (%), gpu_free_memory (bytes)
        cpu       cpu_util_simple (%, of all cores together)
        memory    memory_free (bytes)
        disk      disk_iops, disk_throughput_read and _write (bytes/s); by folder: disk_util (% full)
        network   net_throughput_sent and _recv (bytes/s)
    """

    def __init__(
        self,
        distributed: DistributedContext,
        *,
        gpu_uuids: Sequence[str] | None = None,
        folders: Sequence[str] = ("/",),
    ) -> None:
        """Args: ``gpu_uuids``: None for those that CUDA sees. ``folders``: whose disks' use to tell."""
        self._is_active = distributed.local_rank == 0
        self._gpu_uuids = gpu_uuids
        self._folders = folders
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._warned = ""

    def on(self, sampling_interval: float = 1, samples_per_report: int = 10) -> None:
        """Begin to sample every `sampling_interval` seconds (at least 0.1), and report averages of so many samples.

        Does nothing while it is on.
        """
        if isinstance(sampling_interval, bool) or not isinstance(sampling_interval, int | float):
            raise TypeError(f"sampling_interval is {sampling_interval!r}: it must be a number of seconds")
        if not sampling_interval >= SHORTEST_INTERVAL:
            raise ValueError(
                f"sampling_interval is {sampling_interval}: it must be at least {SHORTEST_INTERVAL} seconds"
            )
        if type(samples_per_report) is not int or samples_per_report < 1:
            raise ValueError(
                f"samples_per_report is {samples_per_report!r}: it must be an integer of at least 1"
            )
        if not self._is_active or self._thread is not None:
            return
        try:
            uuids = visible_gpu_uuids() if self._gpu_uuids is None else self._gpu_uuids
            sampler = SystemSampler(uuids, self._folders, time.monotonic())
        except ImportError:
            logger.warning("system metrics are not reported: they need psutil (pip install psutil)")
            return
        self._stop.clear()
        self._thread = threading.Thread(
            target=self._run,
            args=(sampler, float(sampling_interval), samples_per_report),
            name="determined-profiler",
            daemon=True,
        )
        self._thread.start()

    def off(self) -> None:
        """Report what was sampled since the last report, and stop. Does nothing while it is off."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_LAST_REPORT_SECONDS)
            self._thread = None

    def close(self) -> None:
        self.off()

    def _run(self, sampler: SystemSampler, interval: float, per_report: int) -> None:
        samples: list[Sample] = []
        due = time.monotonic()
        with sampler:
            while not self._stop.is_set():
                # By the clock, not by pauses; where a sample is missed (a laptop that slept), the next one is not early.
                due = max(due + interval, time.monotonic())
                self._stop.wait(due - time.monotonic())
                try:
                    samples.append(sampler.sample(time.monotonic()))
                except OSError as e:
                    self._warn(f"cannot read the system's metrics: {e}")
                if len(samples) >= per_report:
                    self._send(samples)
                    samples = []
            self._send(samples)

    def _send(self, samples: list[Sample]) -> None:
        try:
            if samples:
                self._report(average(samples), time.time())
        except errors.RequestFailed as e:
            if not self._stop.is_set():
                self._warn(f"cannot report the system's metrics: {e}")

    def _report(self, groups: Mapping[str, dict[str, Any]], at: float) -> None:
        """Give the averages of each group to whoever wants them. `at`: Unix seconds."""
        raise NotImplementedError

    def _warn(self, text: str) -> None:
        if text != self._warned:
            logger.warning("%s; the training goes on", text)
        self._warned = text


def average(samples: Sequence[Sample]) -> dict[str, dict[str, Any]]:
    """The mean of each series over the samples that have it, nested by the parts of its name; by group."""
    sums: dict[tuple[str, ...], tuple[float, int]] = {}
    for sample in samples:
        for name, value in sample.items():
            total, count = sums.get(name, (0.0, 0))
            sums[name] = (total + value, count + 1)
    groups: dict[str, dict[str, Any]] = {}
    for (group, *within, last), (total, count) in sums.items():
        place = groups.setdefault(group, {})
        for part in within:
            place = place.setdefault(part, {})
        place[last] = total / count
    return groups


class TrialProfilerContext(ProfilerContext):
    """In a trial: the master gets the series, by a session of their own."""

    def __init__(
        self,
        session: api.Session,
        distributed: DistributedContext,
        *,
        trial_id: int,
        run_id: int,
        agent_id: str,
        gpu_uuids: Sequence[str],
        folders: Sequence[str],
    ) -> None:
        super().__init__(distributed, gpu_uuids=gpu_uuids, folders=folders)
        self._session = session
        self._reports = TrialReports(session, trial_id=trial_id, run_id=run_id)
        self._agent_id = agent_id

    def _report(self, groups: Mapping[str, dict[str, Any]], at: float) -> None:
        self._reports.deliver(
            [
                MetricsReport(group, None, snapshot({self._agent_id: metrics}), None, at)
                for group, metrics in groups.items()
            ]
        )

    def close(self) -> None:
        super().close()
        self._session.close()


class DummyProfilerContext(ProfilerContext):
    """Where no trial runs: the series go to the log."""

    def _report(self, groups: Mapping[str, dict[str, Any]], at: float) -> None:
        for group, metrics in groups.items():
            logger.info("%s: %s", group, metrics)
