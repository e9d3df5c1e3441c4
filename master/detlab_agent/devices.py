"""The slots of this machine, and what a task must see to use its own and no others."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path

from detlab_agent.protocol import Device, DeviceType

SLOT_TYPES = ("auto", "cuda", "gpu", "cpu", "none")


class DeviceError(Exception):
    """Slots that were asked for and are not there."""


def find_devices(
    agent_id: str,
    slot_type: str = "auto",
    slots: int | None = None,
    visible_gpus: Iterable[str] | None = None,
) -> tuple[Device, ...]:
    """`slots`: so many CPU slots, whatever the machine has. `visible_gpus`: indices or UUIDs; None: all.

    DeviceError where `slot_type` or `visible_gpus` ask for GPUs that are not there.
    """
    if slots is not None:
        return _cpu_slots(agent_id, slots)
    if slot_type == "none":
        return ()
    if slot_type in ("cuda", "gpu", "auto"):
        gpus = _select(_cuda_gpus(), visible_gpus)
        if gpus:
            return gpus
        if slot_type != "auto":
            raise DeviceError(
                f"slot_type is {slot_type}, but nvidia-smi shows no GPU; `auto` would use the CPU"
            )
    return _cpu_slots(agent_id, max(2, core_count()))


def core_count() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


class SlotEnvironment:
    """The environment variables that tell a task which slots are its own."""

    def __init__(self, agent_id: str, devices: tuple[Device, ...], cores: int) -> None:
        self._agent_id = agent_id
        self._devices = {device.id: device for device in devices}
        self._cores_per_slot = max(1, cores // max(1, len(devices)))

    def unknown(self, slot_ids: Iterable[int]) -> list[int]:
        """Those of `slot_ids` that this agent does not have."""
        return [slot_id for slot_id in slot_ids if slot_id not in self._devices]

    def defaults(self, slot_ids: tuple[int, ...]) -> dict[str, str]:
        """What the user may change."""
        return {"OMP_NUM_THREADS": str(self._cores_per_slot * max(1, len(slot_ids)))}

    def fixed(self, slot_ids: tuple[int, ...]) -> dict[str, str]:
        """What the user may not change. A task without GPU slots sees no GPU."""
        devices = [self._devices[slot_id] for slot_id in slot_ids]
        # UUIDs: CUDA counts the fastest first, nvidia-smi by bus address.
        visible = ",".join(device.uuid for device in devices if device.type is DeviceType.CUDA)
        return {
            "DET_AGENT_ID": self._agent_id,
            "DET_SLOT_IDS": json.dumps(list(slot_ids)),
            "CUDA_VISIBLE_DEVICES": visible,
        }


def _cpu_slots(agent_id: str, count: int) -> tuple[Device, ...]:
    brand = _cpu_brand()
    return tuple(
        Device(i, DeviceType.CPU, brand, str(uuid.uuid5(uuid.NAMESPACE_OID, f"{agent_id}/cpu/{i}")))
        for i in range(count)
    )


def _cpu_brand() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cuda_gpus() -> tuple[Device, ...]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    query = [tool, "--query-gpu=index,uuid,name", "--format=csv,noheader"]
    try:
        result = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"{tool} does not answer: the GPU driver hangs. Repair it, or start without GPUs: slot_type cpu"
        ) from None
    if result.returncode != 0:  # the tool is there, the driver or the GPU is not
        return ()
    return parse_nvidia_smi(result.stdout)


def parse_nvidia_smi(text: str) -> tuple[Device, ...]:
    """The answer to `nvidia-smi --query-gpu=index,uuid,name --format=csv,noheader`."""
    devices = []
    for line in text.splitlines():
        if line.strip():
            index, gpu_uuid, name = (part.strip() for part in line.split(",", 2))
            devices.append(Device(int(index), DeviceType.CUDA, name, gpu_uuid))
    return tuple(devices)


def _select(gpus: tuple[Device, ...], visible: Iterable[str] | None) -> tuple[Device, ...]:
    if visible is None:
        return gpus
    by_name: Mapping[str, Device] = {name: gpu for gpu in gpus for name in (str(gpu.id), gpu.uuid)}
    wanted = list(visible)
    if missing := [name for name in wanted if name not in by_name]:
        there = ", ".join(f"{gpu.id} ({gpu.uuid})" for gpu in gpus) or "none"
        raise DeviceError(f"visible_gpus names {', '.join(missing)}, but nvidia-smi shows: {there}")
    return tuple(dict.fromkeys(by_name[name] for name in wanted))
