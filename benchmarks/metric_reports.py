"""Metric reports per second at 1 and at 16 clients, beside MLflow's tracking server.

The clients are trials of one experiment, running on a real master and agent, each with its own allocation's token
(`reporter.py`). The same processes report the same metrics to MLflow (one worker, SQLite), in turns with Detlab. Both
servers acknowledge a report once it is committed. What is found is printed and added to RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import psutil
import requests

HERE = Path(__file__).resolve().parent
REPO = HERE.parent
sys.path.insert(0, str(REPO / "tests"))

from support.cluster import Cluster, cluster, free_port, wait_for

CLIENTS = (1, 16)
MLFLOW = REPO / ".venv-mlflow"
INSTALL_MLFLOW = "python3 -m venv .venv-mlflow && .venv-mlflow/bin/pip install mlflow==3.17.2"


@dataclass(frozen=True)
class Target:
    """A server under test."""

    name: str  # as reporter.py knows it
    title: str
    host: str
    port: int
    process: psutil.Process
    runs: Sequence[str] = ()  # MLflow's, one for each client

    def cpu_seconds(self) -> float:
        """Of the server and its workers so far."""
        processes = [self.process, *self.process.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in processes)


@dataclass
class Rounds:
    """What was measured for one target and number of clients."""

    rates: list[float] = field(default_factory=list)  # reports/s, one for each round
    latencies: list[float] = field(default_factory=list)  # ms, of all rounds
    cpu: list[float] = field(default_factory=list)  # ms of the server's CPU time for a report
    refused: int = 0

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    def percentile(self, percent: int) -> float:
        return statistics.quantiles(self.latencies, n=100, method="inclusive")[percent - 1]


@dataclass(frozen=True)
class Answer:
    """What one client has seen in one round."""

    seconds: float
    latencies: list[float]  # ms, of the reports that were acknowledged
    refused: list[str]  # what the server said to the others


class Client:
    """A running trial that takes orders."""

    def __init__(self, connection: socket.socket) -> None:
        self._lines: TextIO = connection.makefile("rw")
        connection.close()  # the file keeps it open
        self.trial_id: int = json.loads(self._lines.readline())["trial"]

    def order(self, order: dict[str, Any]) -> None:
        print(json.dumps(order), file=self._lines, flush=True)

    def answer(self) -> Answer:
        line = self._lines.readline()
        done = json.loads(line) if line else {"error": "it has ended before its time"}
        if "error" in done:
            raise SystemExit(f"trial {self.trial_id}, reporting: {done['error']}")
        return Answer(**done)

    def close(self) -> None:
        self._lines.close()


def start_trials(master: Cluster, count: int, stack: ExitStack) -> tuple[int, list[Client]]:
    """An experiment with so many trials at once; its id, and the trials once all of them run."""
    control = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    control.settimeout(120)
    config = {
        "name": "metric reports",
        "entrypoint": "python3 reporter.py",
        "searcher": {"name": "grid", "metric": "loss", "max_length": {"batches": 1}},
        "hyperparameters": {"client": {"type": "int", "minval": 0, "maxval": count - 1, "count": count}},
        "environment": {"environment_variables": [f"BENCHMARK_CONTROL=127.0.0.1:{control.getsockname()[1]}"]},
        "resources": {"slots_per_trial": 1},
        "max_restarts": 0,
    }
    experiment = master.create(config, {"reporter.py": (HERE / "reporter.py").read_text()})
    return experiment, [Client(control.accept()[0]) for _ in range(count)]


@contextmanager
def mlflow_server(folder: Path, clients: int) -> Iterator[Target]:
    """MLflow's tracking server with one worker, which for one client is faster than its default of four."""
    port = free_port()
    command = [str(MLFLOW / "bin" / "mlflow"), "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    command += ["--default-artifact-root", str(folder / "artifacts")]
    environment = {
        **os.environ,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        # Its default of 15 connections is too few for 16 clients: reports time out after 30 s.
        "MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": str(clients),
    }
    with (folder / "mlflow.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder)
    server = psutil.Process(process.pid)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, (folder / "mlflow.log").read_text()
        try:
            return requests.get(f"{url}/health", timeout=5).status_code == 200
        except requests.ConnectionError:
            return False

    def post(path: str, body: dict[str, Any]) -> Any:
        answer = requests.post(f"{url}/api/2.0/mlflow/{path}", json=body, timeout=30)
        answer.raise_for_status()
        return answer.json()

    try:
        wait_for(answers, "MLflow answers", 120)
        experiment = post("experiments/create", {"name": "metric reports"})["experiment_id"]
        runs = [
            post("runs/create", {"experiment_id": experiment, "start_time": 0})["run"]["info"]["run_id"]
            for _ in range(clients)
        ]
        yield Target("mlflow", f"MLflow {mlflow_version()}", "127.0.0.1", port, server, runs)
    finally:
        workers = server.children(recursive=True)
        process.terminate()
        process.wait(20)
        for worker in psutil.wait_procs(workers, 5)[1]:
            worker.kill()


def mlflow_version() -> str:
    code = "from importlib.metadata import version; print(version('mlflow'))"
    return subprocess.check_output([str(MLFLOW / "bin" / "python"), "-c", code], text=True).strip()


def measure(target: Target, clients: Sequence[Client], seconds: float, rounds: Rounds) -> None:
    """One round: all clients report at the same time."""
    cpu = target.cpu_seconds()
    for number, client in enumerate(clients):
        run = target.runs[number] if target.runs else None
        client.order(
            {
                "target": target.name,
                "host": target.host,
                "port": target.port,
                "run": run,
                "seconds": seconds,
            }
        )
    answers = [client.answer() for client in clients]
    count = sum(len(answer.latencies) for answer in answers)
    rounds.rates.append(sum(len(answer.latencies) / answer.seconds for answer in answers))
    rounds.cpu.append(1000 * (target.cpu_seconds() - cpu) / count)
    for answer in answers:
        rounds.latencies += answer.latencies
        rounds.refused += len(answer.refused)
        for text in answer.refused[:1]:
            print(f"{target.title} refuses a report: {text}")


def wait_for_rest(targets: Sequence[Target]) -> None:
    """Servers go on starting after they have begun to answer: wait until all of them have done with it."""

    def cpu() -> float:
        return sum(target.cpu_seconds() for target in targets)

    def resting() -> bool:
        before = cpu()
        time.sleep(2)
        return cpu() - before < 0.1

    wait_for(resting, "the servers rest", 120)


def check_all_kept(master: Cluster, experiment: int, acknowledged: int) -> None:
    kept = sum(trial["summaryMetrics"]["avg_metrics"]["loss"]["count"] for trial in master.trials(experiment))
    if kept != acknowledged:
        raise SystemExit(f"the master has acknowledged {acknowledged} reports and knows of {kept}")


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def commit(*measured: str) -> str:
    """The commit, and whether the folders that are measured hold something else."""

    def git(*arguments: str) -> str:
        return subprocess.check_output(["git", "-C", str(REPO), *arguments], text=True).strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", *measured)
    return git("rev-parse", "--short", "HEAD") + (" with changes" if changed else "")


def as_markdown(
    targets: Sequence[Target], found: dict[tuple[str, int], Rounds], options: argparse.Namespace, load: float
) -> str:
    """A section of RESULTS.md."""
    titles = " and ".join(target.title for target in targets)
    date = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    lines = [
        f"## {date} UTC: {titles}",
        "",
        (
            f"Commit {commit('master', 'benchmarks')}. {os.cpu_count()} cores ({processor()}), Python {platform.python_version()},"
            f" SQLite {sqlite3.sqlite_version}; the load average before was {load:.1f}."
            f" {options.rounds} rounds of {options.seconds:g} s, in turns; medians, and the lowest and highest round."
        ),
        "",
        "| clients | server | reports/s | p50 ms | p95 ms | p99 ms | refused | server CPU, ms/report | times MLflow |",
        "|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for clients in CLIENTS:
        for target in targets:
            rounds = found[target.name, clients]
            peer = found.get(("mlflow", clients))
            ratios = [a / b for a, b in zip(rounds.rates, peer.rates, strict=True)] if peer else []
            times = f"{statistics.median(ratios):.1f}" if ratios else ""
            spread = f"{rounds.rate:.0f} ({min(rounds.rates):.0f}–{max(rounds.rates):.0f})"
            percentiles = " | ".join(f"{rounds.percentile(percent):.1f}" for percent in (50, 95, 99))
            cpu = statistics.median(rounds.cpu)
            columns = f"{clients} | {target.title} | {spread} | {percentiles} | {rounds.refused} | {cpu:.2f} | {times}"
            lines.append(f"| {columns} |")
    return "\n".join(lines) + "\n"


def run(options: argparse.Namespace) -> str:
    """Start everything, measure, end everything; returns what RESULTS.md gets."""
    load = os.getloadavg()[0]
    found: dict[tuple[str, int], Rounds] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="detlab-benchmark-")))
        folder.chmod(0o711)  # tasks run under accounts of their own
        master = stack.enter_context(cluster(folder, slots=max(CLIENTS)))
        assert master.master is not None
        title = f"Detlab {version('detlab')}"
        targets = [Target("detlab", title, "127.0.0.1", master.port, psutil.Process(master.master.pid))]
        if MLFLOW.exists() and not options.alone:
            targets.append(stack.enter_context(mlflow_server(folder, max(CLIENTS))))
        experiment, clients = start_trials(master, max(CLIENTS), stack)
        for client in clients:
            stack.callback(client.close)
        acknowledged = Rounds()
        wait_for_rest(targets)
        for target in targets:
            measure(target, clients, 1.0, acknowledged if target.name == "detlab" else Rounds())  # warm up
        for number in range(options.rounds):
            for count in CLIENTS:
                for target in targets if number % 2 == 0 else reversed(targets):
                    rounds = found.setdefault((target.name, count), Rounds())
                    measure(target, clients[:count], options.seconds, rounds)
                    print(f"round {number + 1}: {count:2} clients, {target.title}: {rounds.rates[-1]:.0f}/s")
        reports = sum(len(found["detlab", count].latencies) for count in CLIENTS)
        check_all_kept(master, experiment, reports + len(acknowledged.latencies))
        return as_markdown(targets, found, options, load)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement")
    parser.add_argument("--alone", action="store_true", help="without MLflow")
    parser.add_argument(
        "--keep-nothing", action="store_true", help="print only, and leave RESULTS.md as it is"
    )
    options = parser.parse_args()
    if not MLFLOW.exists() and not options.alone:
        print(f"MLflow is not there, so Detlab is measured alone; for both, type: {INSTALL_MLFLOW}")
    found = run(options)
    print("\n" + found)
    if not options.keep_nothing:
        with (HERE / "RESULTS.md").open("a") as file:
            file.write("\n" + found)


if __name__ == "__main__":
    main()
