"""How fast a checkpoint gets to a shared folder, beside a bare `torch.save` of the same weights.

Both write 1 GiB of random weights to one file and are done when it is on the disk: `torch.save`, fsync of the file and its
folder; and `core_context.checkpoint.store_path`, which does the same, keeps checksums of every block, and lets the checkpoint
be seen only when it is whole. In turns, with the disk at rest before each. What is found is printed and added to RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import torch
from metric_reports import commit, processor

from determined import core

TENSORS = 16
NAMES = ("torch.save and fsync", "Detlab's store_path")


def weights(mebibytes: int) -> dict[str, torch.Tensor]:
    numbers = mebibytes * (1 << 20) // 4 // TENSORS
    return {f"layer{number}.weight": torch.rand(numbers) for number in range(TENSORS)}


def bare(state: dict[str, Any], folder: Path) -> Path:
    """Save as a careful person does by hand."""
    target = folder / "by-hand"
    target.mkdir()
    torch.save(state, target / "state_dict.pth")
    for path in (target / "state_dict.pth", target, folder):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return target


def ours(state: dict[str, Any], folder: Path) -> Path:
    with (
        core.init(checkpoint_storage=folder) as context,
        context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid),
    ):
        torch.save(state, path / "state_dict.pth")
    return folder / uuid


def measure(save: Callable[[dict[str, Any], Path], Path], state: dict[str, Any], folder: Path) -> float:
    """Seconds until the checkpoint is on the disk."""
    os.sync()
    start = time.perf_counter()
    saved = save(state, folder)
    seconds = time.perf_counter() - start
    shutil.rmtree(saved)
    return seconds


def as_markdown(found: dict[str, list[float]], mebibytes: int, place: str, load: float) -> str:
    """A section of RESULTS.md; `load` is the machine's before the benchmark."""
    rates = {name: [mebibytes / seconds for seconds in times] for name, times in found.items()}
    lines = [
        "",
        f"## {datetime.now(UTC):%Y-%m-%d %H:%M} UTC: a checkpoint of {mebibytes} MiB to a folder",
        "",
        (
            f"Commit {commit('harness', 'benchmarks')}. {os.cpu_count()} cores ({processor()}), load average before {load:.1f},"
            f" Python {platform.python_version()}, PyTorch {torch.__version__}, {place}; {len(found[NAMES[0]])} saves each, in turns;"
            " medians, and the lowest and highest. The last column is the median of each round's own ratio."
        ),
        "",
        "| saved by | MiB/s, on the disk | times torch.save |",
        "|---|--:|--:|",
    ]
    for name, values in rates.items():
        times = statistics.median(one / base for one, base in zip(values, rates[NAMES[0]], strict=True))
        middle = f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"
        lines.append(f"| {name} | {middle} | {times:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--folder", type=Path, help="where to save; default: the folder for temporary files")
    parser.add_argument("--keep-nothing", action="store_true", help="print only")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    state = weights(options.mebibytes)
    contestants = dict(zip(NAMES, (bare, ours), strict=True))
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="checkpoint-rate-") as folder:
        for save in contestants.values():
            measure(save, weights(1), Path(folder))  # what is imported and made at first use is not counted
        for number in range(options.rounds):
            for name in NAMES if number % 2 == 0 else reversed(NAMES):
                seconds = measure(contestants[name], state, Path(folder))
                found[name].append(seconds)
                print(f"round {number + 1}: {name}: {options.mebibytes / seconds:.0f} MiB/s", flush=True)
    place = "the disk of temporary files" if options.folder is None else "a folder of choice"
    section = as_markdown(found, options.mebibytes, place, load)
    print(section)
    if not options.keep_nothing:
        with (HERE / "RESULTS.md").open("a") as file:
            file.write(section)


if __name__ == "__main__":
    main()
