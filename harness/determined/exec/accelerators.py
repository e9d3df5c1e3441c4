"""The GPUs that this task may use."""

import os
import subprocess
from collections.abc import Mapping

QUERY = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]


def visible_gpu_uuids(env: Mapping[str, str] = os.environ) -> list[str]:
    """The uuids of the NVIDIA GPUs that `CUDA_VISIBLE_DEVICES` leaves to this task; empty without any."""
    try:
        output = subprocess.run(QUERY, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return []  # no driver, or one that does not answer: the task then finds no GPU either
    rows = [
        [cell.strip() for cell in line.split(",")] for line in output.splitlines() if line.count(",") == 1
    ]
    uuids = dict(rows)
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return list(uuids.values())
    chosen = []
    for device in (part.strip() for part in visible.split(",")):
        match = uuids.get(device) or next(
            (u for u in uuids.values() if device and u.startswith(device)), None
        )
        if match is None:
            break  # CUDA, too, stops at the first that it does not know
        chosen.append(match)
    return chosen
