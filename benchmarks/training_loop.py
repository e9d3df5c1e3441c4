"""What the training loop costs, beside a loop written by hand, the official package, Fabric, Accelerate and Lightning.

Every contestant trains the same network on the same data in a process of its own (`training_contestant.py`), in turns
within each round, so that what else the machine does meets all of them; its ratio is taken to the raw loop of the same
round. Then ours once more as a trial on a live cluster. What is found is printed and added to RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parent
sys.path[:0] = [str(REPO / "tests"), str(HERE)]

from metric_reports import commit, processor

from support.cluster import Cluster, cluster

CONTESTANT = HERE / "training_contestant.py"
TORCH = "torch==2.13.0"
PEERS = "python3 -m venv .venv-peers && .venv-peers/bin/pip install torch==2.13.0 lightning==2.6.6 accelerate==1.15.0"
OFFICIAL = "make .venv-official/.torch"
STEPS = {"small": 4000, "large": 500}


@dataclass(frozen=True)
class Contestant:
    """A way to write the loop, and the environment that it runs in."""

    name: str  # as training_contestant.py knows it
    environment: Path
    package: str  # whose version is told
    alone: bool = True  # False: as a trial on a cluster

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    @property
    def there(self) -> bool:
        command = [self.python, "-c", f"import torch, {self.package}"]
        return (
            self.python.exists() and not subprocess.run(command, capture_output=True, check=False).returncode
        )

    def title(self) -> str:
        if self.name == "raw":
            return "raw loop"
        distribution = "detlab" if self.environment.name == ".venv" else self.package
        code = f"from importlib.metadata import version; print(version('{distribution}'))"
        number = subprocess.check_output([self.python, "-c", code], text=True).strip()
        named = {"detlab": "PyTorchTrial, Detlab", "determined": "PyTorchTrial, official determined"}
        title = f"{named.get(distribution, self.name.title())} {number}"
        return title if self.alone else f"{title}, on a live cluster"


OURS = REPO / ".venv"
CONTESTANTS = (
    Contestant("raw", OURS, "torch"),
    Contestant("determined", OURS, "determined"),
    Contestant("determined", OURS, "determined", alone=False),
    Contestant("determined", REPO / ".venv-official", "determined"),
    Contestant("fabric", REPO / ".venv-peers", "lightning"),
    Contestant("accelerate", REPO / ".venv-peers", "accelerate"),
    Contestant("lightning", REPO / ".venv-peers", "lightning"),
)


@dataclass
class Rounds:
    """What was measured for one contestant, one value for each round."""

    rates: list[float] = field(default_factory=list)  # steps/s
    cpu: list[float] = field(default_factory=list)  # ms of the process's CPU time for a step

    def add(self, found: dict[str, float]) -> None:
        self.rates.append(found["steps_per_second"])
        self.cpu.append(found["cpu_ms"])


def measured(output: str, of: str) -> dict[str, float]:
    for line in output.splitlines():
        # A line of a trial's log has the time and more before it.
        if (at := line.find("MEASURED ")) >= 0:
            found: dict[str, float] = json.loads(line[at + len("MEASURED ") :])
            return found
    raise SystemExit(f"{of} has measured nothing:\n{output[-3000:]}")


def run_alone(contestant: Contestant, size: str, folder: Path) -> dict[str, float]:
    """What a process off the cluster measured."""
    # TensorBoard's and Lightning's files land in the working folder, and checkpoints of a trial's code hold all of it.
    work = folder / "work"
    work.mkdir(exist_ok=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("DET_", "DETLAB_"))}
    environment |= {"OMP_NUM_THREADS": "1", "XDG_DATA_HOME": str(folder / "data")}
    command = [contestant.python, CONTESTANT, contestant.name, "--size", size, "--steps", str(STEPS[size])]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    return measured(done.stdout + done.stderr, contestant.title())


def run_on_cluster(master: Cluster, contestant: Contestant, size: str) -> dict[str, float]:
    """What a trial measured, which reports to the master and saves to its storage."""
    config = {
        "name": f"training loop, {size}",
        "entrypoint": f"python3 {CONTESTANT.name} determined --size {size} --steps {STEPS[size]}",
        "searcher": {"name": "single", "metric": "validation_loss", "max_length": {"batches": STEPS[size]}},
        "environment": {"environment_variables": ["OMP_NUM_THREADS=1"]},
        "resources": {"slots_per_trial": 1},
        "max_restarts": 0,
    }
    experiment = master.create(config, {CONTESTANT.name: CONTESTANT.read_text()})
    state = master.wait_for_end(experiment, 300)
    log = master.logs(master.trials(experiment)[0]["id"])
    if state != "COMPLETED":
        raise SystemExit(f"the trial on the cluster ended in {state}:\n{log[-3000:]}")
    return measured(log, contestant.title())


def as_markdown(
    size: str, found: Sequence[tuple[Contestant, Rounds]], options: argparse.Namespace, load: float
) -> str:
    """A section of RESULTS.md."""
    raw = found[0][1].rates
    date = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    step = 1000 / statistics.median(raw)
    network = {"small": "64-128-10, batch 64", "large": "512-1280-1024-10, batch 256"}[size]
    lines = [
        f"## {date} UTC: the training loop, a step of {step:.2g} ms",
        "",
        (
            f"Commit {commit('harness', 'benchmarks')}. {os.cpu_count()} cores ({processor()}), Python"
            f" {platform.python_version()}, {TORCH}, one CPU thread; the load average before was {load:.1f}."
            f" Network {network}, a report every 100 steps, {STEPS[size]} steps; {options.rounds} rounds, in turns;"
            " medians, and the lowest and highest round."
        ),
        "",
        "| loop | steps/s | times the raw loop's time | times its CPU time |",
        "|---|--:|--:|--:|",
    ]
    for contestant, rounds in found:
        ratios = [a / b for a, b in zip(raw, rounds.rates, strict=True)]
        spread = f"{statistics.median(rounds.rates):.0f} ({min(rounds.rates):.0f}–{max(rounds.rates):.0f})"
        ratio = f"{statistics.median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f})"
        cpu = statistics.median(a / b for a, b in zip(rounds.cpu, found[0][1].cpu, strict=True))
        lines.append(f"| {contestant.title()} | {spread} | {ratio} | {cpu:.3f} |")
    return "\n".join(lines) + "\n"


def run(options: argparse.Namespace, contestants: Sequence[Contestant]) -> str:
    """Measure both sizes; returns what RESULTS.md gets."""
    sections = []
    with tempfile.TemporaryDirectory(prefix="detlab-benchmark-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # tasks run under accounts of their own
        with cluster(folder, slots=1) as master:
            for size in options.sizes:
                load = os.getloadavg()[0]
                found = [(contestant, Rounds()) for contestant in contestants]
                for number in range(options.rounds):
                    turn = number % len(found)
                    for contestant, rounds in found[turn:] + found[:turn]:
                        rounds.add(
                            run_alone(contestant, size, folder)
                            if contestant.alone
                            else run_on_cluster(master, contestant, size)
                        )
                        print(
                            f"round {number + 1}, {size}: {contestant.title()}: {rounds.rates[-1]:.0f} steps/s",
                            flush=True,
                        )
                sections.append(as_markdown(size, found, options, load))
    return "\n".join(sections)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--alone", action="store_true", help="leave the other packages out")
    parser.add_argument(
        "--keep-nothing", action="store_true", help="print only, and leave RESULTS.md as it is"
    )
    options = parser.parse_args()
    wanted = [contestant for contestant in CONTESTANTS if not options.alone or contestant.environment == OURS]
    contestants = [contestant for contestant in wanted if contestant.there]
    missing = {contestant.environment for contestant in wanted} - {c.environment for c in contestants}
    for environment, command in ((".venv-official", OFFICIAL), (".venv-peers", PEERS)):
        if REPO / environment in missing:
            print(
                f"{environment} is not there or without torch, so its loops are left out; for them, type: {command}"
            )
    found = run(options, contestants)
    print("\n" + found)
    if not options.keep_nothing:
        with (HERE / "RESULTS.md").open("a") as file:
            file.write("\n" + found)


if __name__ == "__main__":
    main()
