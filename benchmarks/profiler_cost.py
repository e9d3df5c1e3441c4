"""What `core_context.profiler` costs: CPU time of a trial's process that only waits, with and without it.

The process is a trial of a small stand-in for the master, which runs in another process and is not counted. The
profiler runs with its defaults, as a trial would have it: a sample each second and a report of ten. Nothing else
runs in the process, so its CPU time is the profiler's, whatever the machine does beside. What is found is printed
and added to RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parent
sys.path[:0] = [str(REPO / "tests"), str(HERE)]

from metric_reports import commit, processor

from harness.core_stub_master import StubMaster, trial_environment

TRIAL = """
import sys, time
from determined import core
seconds, on = float(sys.argv[1]), sys.argv[2] == "on"
with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    time.sleep(2)  # the start is not counted
    before = time.process_time()
    if on:
        context.profiler.on()
    time.sleep(seconds)
    context.profiler.off()
    print(time.process_time() - before)
"""


def cpu_seconds(master: StubMaster, seconds: float, which: str) -> float:
    """Of one process that waits so long."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | trial_environment(master, Path(folder))
        command = [sys.executable, "-c", TRIAL, str(seconds), which]
        return float(
            subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30, help="that one process waits")
    parser.add_argument("--keep-nothing", action="store_true", help="print only")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    found: dict[str, list[float]] = {"on": [], "off": []}
    with StubMaster() as master:
        for _ in range(options.rounds):
            for which, shares in found.items():
                shares.append(100 * cpu_seconds(master, options.seconds, which) / options.seconds)
    rows = [
        f"| {which} | {statistics.median(shares):.3f} | {min(shares):.3f} | {max(shares):.3f} |"
        for which, shares in found.items()
    ]
    about = (
        f"Commit {commit('harness')}. {os.cpu_count()} cores ({processor()}), load average before {load:.1f}, Python "
        f"{platform.python_version()}, psutil {version('psutil')}; {options.rounds} rounds of {options.seconds:g} s, "
        "on and off in turns. No GPU."
    )
    head = ["| profiler | % of one core, median | lowest | highest |", "|---|--:|--:|--:|"]
    title = f"## {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC: the profiler"
    text = "\n".join([title, "", about, "", *head, *rows])
    print(text)
    if not options.keep_nothing:
        with (HERE / "RESULTS.md").open("a") as file:
            file.write(f"\n{text}\n")


if __name__ == "__main__":
    main()
