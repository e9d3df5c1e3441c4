import logging
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from determined import core
from determined.core._profiler import DummyProfilerContext, average
from determined.core._system import Sample, SystemSampler
from harness.core_stub_master import StubMaster

INTERVAL = 0.1


def reports(trial: StubMaster) -> list[dict[str, Any]]:
    return trial.sent("/trials/2/metrics")


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "determined-profiler"]


def test_the_groups_are_reported_without_steps_under_the_agents_name(trial: StubMaster) -> None:
    with core.init() as context:
        context.profiler.on(sampling_interval=INTERVAL, samples_per_report=2)
        context.profiler.on()  # it is on already
        assert len(threads()) == 1
        trial.wait_for(lambda: bool(trial.sent("/trials/2/metrics")))
        context.profiler.off()
        context.profiler.off()
        assert not threads()
    found = {report["group"]: report["metrics"] for report in reports(trial)}
    assert set(found) >= {"cpu", "memory", "network"}
    for metrics in found.values():
        assert "stepsCompleted" not in metrics
        assert metrics["reportTime"]
        assert (metrics["trialId"], metrics["trialRunId"]) == (2, 1)
        assert list(metrics["metrics"]["avgMetrics"]) == ["agent"]
    values = {group: metrics["metrics"]["avgMetrics"]["agent"] for group, metrics in found.items()}
    assert 0 <= values["cpu"]["cpu_util_simple"] <= 100
    assert 0 < values["memory"]["memory_free"] <= psutil.virtual_memory().total
    assert set(values["network"]) == {"net_throughput_sent", "net_throughput_recv"}
    assert 0 <= values["disk"]["/"]["disk_util"] <= 100


def test_what_is_left_is_reported_at_the_end(trial: StubMaster) -> None:
    with core.init() as context:
        context.profiler.on(sampling_interval=INTERVAL, samples_per_report=1000)
    assert {report["group"] for report in reports(trial)} >= {"cpu", "memory"}
    assert not threads()


def test_it_can_be_turned_on_again(trial: StubMaster) -> None:
    with core.init() as context:
        for _ in range(2):
            context.profiler.on(sampling_interval=INTERVAL)
            context.profiler.off()
    assert len([report for report in reports(trial) if report["group"] == "cpu"]) == 2


def test_a_master_that_refuses_costs_a_warning_and_no_trial(
    trial: StubMaster, caplog: pytest.LogCaptureFixture
) -> None:
    trial.statuses["/metrics"] = 400
    with core.init() as context:
        context.profiler.on(sampling_interval=INTERVAL, samples_per_report=1)
        trial.wait_for(lambda: sum(request.path.endswith("/metrics") for request in trial.requests) >= 3)
    told = [r.getMessage() for r in caplog.records if "system's metrics" in r.getMessage()]
    assert len(told) == 1


@pytest.mark.parametrize(
    "arguments",
    [{"sampling_interval": x} for x in (0, 0.01, float("nan"), -1)]
    + [{"samples_per_report": x} for x in (0, -1, 1.5, True)],
)
def test_senseless_settings_are_refused(trial: StubMaster, arguments: dict[str, Any]) -> None:
    with core.init() as context, pytest.raises(ValueError, match=next(iter(arguments))):
        context.profiler.on(**arguments)


def test_only_one_process_of_a_machine_profiles() -> None:
    second = core.DummyDistributedContext()
    second.local_rank = 1
    profiler = DummyProfilerContext(second)
    profiler.on()
    assert not threads()


def test_without_psutil_a_warning_says_what_to_install(
    trial: StubMaster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    with core.init() as context:
        context.profiler.on()
        assert not threads()
    assert "pip install psutil" in caplog.text


def test_elsewhere_the_series_go_to_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("DET_ALLOCATION_ID", raising=False)
    caplog.set_level(logging.INFO)
    with core.init() as context:
        context.profiler.on(sampling_interval=INTERVAL)
        context.profiler.off()
    assert "cpu_util_simple" in caplog.text


def test_averages_are_over_the_samples_that_have_the_series() -> None:
    samples: list[Sample] = [{("cpu", "a"): 1.0}, {("cpu", "a"): 3.0, ("disk", "/", "b"): 5.0}]
    assert average(samples) == {"cpu": {"a": 2.0}, "disk": {"/": {"b": 5.0}}}


class TestRates:
    @pytest.fixture
    def counters(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.SimpleNamespace]:
        at = types.SimpleNamespace(sent=0)
        network = types.SimpleNamespace

        def net_io_counters() -> types.SimpleNamespace:
            return network(bytes_sent=at.sent, bytes_recv=0)

        monkeypatch.setattr(psutil, "net_io_counters", net_io_counters)
        monkeypatch.setattr(psutil, "disk_io_counters", lambda: None)
        yield at

    def test_are_per_second_since_the_last_look(self, counters: types.SimpleNamespace) -> None:
        with SystemSampler([], [], now=10.0) as sampler:
            counters.sent = 600
            assert sampler.sample(12.0)["network", "net_throughput_sent"] == 300
            counters.sent = 100  # it began anew
            assert sampler.sample(13.0)["network", "net_throughput_sent"] == 0
            assert ("disk", "disk_iops") not in sampler.sample(14.0)


class NVMLError(Exception):
    pass


class FakeNvml(types.ModuleType):
    """Two GPUs, one of which is a part of another and tells its memory only."""

    NVMLError = NVMLError
    running = 0

    def nvmlInit(self) -> None:
        self.running += 1

    def nvmlShutdown(self) -> None:
        self.running -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid == "GPU-gone":
            raise NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> types.SimpleNamespace:
        return types.SimpleNamespace(free=1 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> types.SimpleNamespace:
        if handle.startswith("MIG"):
            raise NVMLError("Not Supported")
        return types.SimpleNamespace(gpu=42)


class TestGpus:
    @pytest.fixture
    def nvml(self, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
        fake = FakeNvml("pynvml")
        monkeypatch.setitem(sys.modules, "pynvml", fake)
        return fake

    def test_by_their_uuids(self, nvml: FakeNvml) -> None:
        with SystemSampler(["GPU-a", "MIG-b"], [], now=0.0) as sampler:
            groups = average([sampler.sample(1.0)])
            assert nvml.running == 1
        assert nvml.running == 0
        assert groups["gpu"] == {
            "GPU-a": {"gpu_free_memory": float(1 << 30), "gpu_util": 42.0},
            "MIG-b": {"gpu_free_memory": float(1 << 30)},
        }

    @pytest.mark.parametrize("uuid", ["GPU-gone"])
    def test_one_that_cannot_be_read_leaves_the_other_groups(
        self, nvml: FakeNvml, uuid: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with SystemSampler([uuid], [], now=0.0) as sampler:
            assert "gpu" not in average([sampler.sample(1.0)])
        assert nvml.running == 0
        assert "Not Found" in caplog.text

    def test_without_the_binding_a_warning_says_what_to_install(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", None)
        with SystemSampler(["GPU-a"], [], now=0.0) as sampler:
            assert "cpu" in average([sampler.sample(1.0)])
        assert "pip install nvidia-ml-py" in caplog.text
