"""agent.yaml, flags and environment; the slots that they lead to."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from detlab_agent.config import AgentConfig, ConfigError, load_config
from detlab_agent.devices import DeviceError, SlotEnvironment, find_devices, parse_nvidia_smi
from detlab_agent.protocol import DeviceType
from detlab_agent.pythons import PythonError, find_pythons

TOKEN = {"DET_AGENT_TOKEN": "t"}


def load(tmp_path: Path, text: str = "", flags: dict[str, Any] | None = None, **environ: str) -> AgentConfig:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    return load_config(path, flags or {}, TOKEN | environ)


def test_a_determined_agent_yaml_is_read(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        master_host: master.lab
        master_port: 8080
        agent_id: gpu-1
        resource_pool: big
        slot_type: cpu
        artificial_slots: 3
        visible_gpus: "0,GPU-abc"
        container_master_host: inner.lab
        agent_reconnect_attempts: 4
        agent_reconnect_backoff: 5s
        http_proxy: http://proxy:3128
        hooks: {on_connection_lost: [echo, lost]}
        log: {level: trace, color: true}
        bind_port: 9090
        security: {tls: {enabled: true, skip_verify: true}}
        environments: {old: /opt/old}
        """,
    )
    assert config.master_url == "https://master.lab:8080"
    assert (config.agent_id, config.resource_pool, config.slots) == ("gpu-1", "big", 3)
    assert config.visible_gpus == ("0", "GPU-abc")
    assert config.container_master_url == "https://inner.lab:8080"
    assert (config.reconnect_attempts, config.reconnect_backoff) == (4, 5.0)
    assert config.proxies == {"http_proxy": "http://proxy:3128"} and config.on_connection_lost == (
        "echo",
        "lost",
    )
    assert (
        config.log_level == "DEBUG" and config.tls.skip_verify and config.environments == {"old": "/opt/old"}
    )
    assert [w.split(": ")[1] for w in config.warnings] == [
        "log.color has no effect",
        "bind_port has no effect",
    ]


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    text = "{master_host: m, agent_id: file, resource_pool: file, slot_type: none}"
    config = load(
        tmp_path, text, {"agent_id": "flag"}, DET_AGENT_ID="env", DET_RESOURCE_POOL="env", DET_SLOTS="2"
    )
    assert (config.agent_id, config.resource_pool, config.slot_type, config.slots) == (
        "flag",
        "env",
        "none",
        2,
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("master_hots: m", "unknown key 'master_hots'; did you mean 'master_host'?"),
        (
            "security: {tls: {enabeld: true}}",
            "unknown key 'security.tls.enabeld'; did you mean 'security.tls.enabled'",
        ),
        ("master_port: many", "master_port is 'many', expected a whole number"),
        ("{master_host: m, slot_type: tpu}", "slot_type is 'tpu', expected one of auto, cuda"),
        ("{master_host: m, container_runtime: docker}", "runs tasks as processes"),
        ("{master_host: m, api_enabled: true}", "api_enabled cannot be used"),
        ("security: {tls: {master_cert_name: x}}", "must be for the name in master_host"),
        ("master_url: ftp://x", "expected http://host:port"),
        ("{}", "which master?"),
        ("[]", "must be a map of keys"),
        ("a: [", "is not YAML"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, text)
    assert says in str(error.value)


def test_the_token_does_not_show_and_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2\n")
    config = load(tmp_path, "master_host: m", {"token_file": tmp_path / "token"})
    assert config.token == "hunter2" and "hunter2" not in repr(config)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path, "master_host: m", {"token_file": tmp_path / "none"})


def test_cpu_slots_are_one_a_core_and_at_least_two() -> None:
    slots = find_devices("a", "cpu")
    assert len(slots) == max(2, len(os.sched_getaffinity(0)))
    assert [slot.id for slot in slots] == list(range(len(slots)))
    assert slots == find_devices("a", "cpu") != find_devices("b", "cpu")
    assert find_devices("a", "none") == () == find_devices("a", "auto", slots=0)


def test_a_fake_nvidia_smi_gives_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho '0, GPU-a, NVIDIA H100 80GB HBM3'\necho '1, GPU-b, NVIDIA H100, odd'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    gpus = find_devices("a")
    assert [(gpu.id, gpu.uuid, gpu.brand) for gpu in gpus] == [
        (0, "GPU-a", "NVIDIA H100 80GB HBM3"),
        (1, "GPU-b", "NVIDIA H100, odd"),
    ]
    assert {gpu.type for gpu in gpus} == {DeviceType.CUDA}
    assert [gpu.id for gpu in find_devices("a", visible_gpus=["GPU-b"])] == [1]
    with pytest.raises(DeviceError, match=r"visible_gpus names 7, but nvidia-smi shows: 0 \(GPU-a\)"):
        find_devices("a", visible_gpus=["7"])
    environment = SlotEnvironment("a", gpus, cores=16)
    assert environment.fixed((1,))["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert environment.fixed(())["CUDA_VISIBLE_DEVICES"] == ""
    assert environment.defaults((0, 1)) == {"OMP_NUM_THREADS": "16"}
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert {slot.type for slot in find_devices("a")} == {DeviceType.CPU}
    with pytest.raises(DeviceError, match="nvidia-smi shows no GPU"):
        find_devices("a", "cuda")
    assert parse_nvidia_smi("\n") == ()


def test_environments_are_pythons() -> None:
    pythons = find_pythons({"same": sys.prefix})
    assert pythons["same"].executable == Path(sys.prefix) / "bin" / "python"
    assert Path(sys.prefix) in pythons[None].paths and Path(sys.base_prefix) in pythons[None].paths
    with pytest.raises(PythonError, match=r"environments\.bad: there is no /no/such/bin/python"):
        find_pythons({"bad": "/no/such"})
