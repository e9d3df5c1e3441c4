"""The master's memory and time to start, with much in its store beside an empty one.

Three masters take turns: an empty one; one with a thousand ended experiments of a hundred trials each (metrics, summaries,
checkpoints, searchers' events) and ten that run; and one with a single search of ten thousand trials, half of which has
happened. Stores are filled through the store's own writes with what the engine writes for such experiments. The
time counts from the start of the process to the first 200 of /health, when all running experiments are taken up again.
What is found is printed and added to RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import psutil
import requests

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from metric_reports import commit, processor
from search_events import (
    REPORTS,
    Engine,
    Led,
    Times,
    ended_run,
    experiment,
    play,
)

from detlab_master.core.records import Allocation, Checkpoint, Container, SearcherEvent, Trial
from detlab_master.core.states import AllocationState, CheckpointState
from detlab_master.store import writes
from detlab_master.store.base import Store
from detlab_master.store.memory import MemoryStore
from detlab_master.store.sql import open_store
from support.cluster import Cluster

TRIALS = 100  # of each of the many experiments
SETTLE_SECONDS = 3.0  # before memory is looked at
LOOK_SECONDS = 0.01


class Recorded(Engine):
    """An experiment whose ended trials leave an ended allocation and a checkpoint behind."""

    def end(self, request_id: int) -> Led:
        trial = self.trials[self._trial_of[request_id]]
        self._waiting += [writes.SaveAllocation(ended_run(trial)), writes.SaveCheckpoint(_checkpoint(trial))]
        return super().end(request_id)

    def close(self) -> None:
        """What has not ended runs."""
        for trial in self.trials.values():
            if not trial.state.terminal:
                self._waiting.append(writes.SaveAllocation(_running(trial)))
        super().close()


def _checkpoint(trial: Trial) -> Checkpoint:
    assert trial.allocation_id is not None
    files = {f"part-{number}.bin": 1 << 20 for number in range(5)}
    return Checkpoint(
        uuid=str(uuid4()),
        task_id=trial.task_id,
        allocation_id=trial.allocation_id,
        experiment_id=trial.experiment_id,
        trial_id=trial.id,
        state=CheckpointState.COMPLETED,
        reported_at=2000.0,
        steps_completed=trial.total_batches,
        resources={**files, "state/": 0},
        metadata={"steps_completed": trial.total_batches, "framework": "torch-2.13.0"},
        storage_id=1,
    )


def _running(trial: Trial) -> Allocation:
    return replace(
        ended_run(trial),
        state=AllocationState.RUNNING,
        containers=(Container("container", "agent-1", (trial.id,), AllocationState.RUNNING),),
        queue_order=trial.id,
        ended_at=None,
        ready=True,
        exit_code=None,
    )


def recorded(method: str, size: int, events: float) -> list[writes.Write]:
    """What the store holds of a search after so many events."""
    kept: list[writes.Write] = []
    search = Recorded(experiment(method, size), MemoryStore(), kept.extend)
    play(search, method, 0, Times(), most=events)
    search.close()
    return _last_of_each(kept)


def _last_of_each(kept: list[writes.Write]) -> list[writes.Write]:
    """Without the versions of a record that a later one replaces."""
    last: dict[object, writes.Write] = {}
    for number, write in enumerate(kept):
        match write:
            case writes.SaveExperiment(record):
                last["experiment", record.id] = write
            case writes.SaveTrial(trial):
                last["trial", trial.id] = write
            case writes.SaveTask(task):
                last["task", task.id] = write
            case writes.SaveAllocation(allocation):
                last["allocation", allocation.id] = write
            case _:
                last[number] = write
    return list(last.values())


def copied(
    template: list[writes.Write], number: int, first_trial: int, owner_id: int
) -> Iterator[writes.Write]:
    """The same experiment again, as number ``number``, with trials from ``first_trial`` on."""
    shift = first_trial - 1

    def named(task_or_allocation: str) -> str:
        return f"{number}.{task_or_allocation.partition('.')[2]}"

    for write in template:
        match write:
            case writes.SaveExperiment(e):
                e = replace(
                    e, id=number, job_id=f"job-{number}", name=f"experiment {number}", owner_id=owner_id
                )
                yield writes.SaveExperiment(e)
            case writes.SetProgress(_, progress):
                yield writes.SetProgress(number, progress)
            case writes.AppendSearcherEvent(event):
                yield writes.AppendSearcherEvent(SearcherEvent(number, event.seq, event.event))
            case writes.SaveTrial(t):
                run = None if t.allocation_id is None else named(t.allocation_id)
                t = replace(
                    t, id=t.id + shift, experiment_id=number, task_id=named(t.task_id), allocation_id=run
                )
                yield writes.SaveTrial(t)
            case writes.SaveTask(k):
                assert k.trial_id is not None
                k = replace(
                    k,
                    id=named(k.id),
                    job_id=f"job-{number}",
                    experiment_id=number,
                    trial_id=k.trial_id + shift,
                    owner_id=owner_id,
                )
                yield writes.SaveTask(k)
            case writes.SaveAllocation(a):
                containers = tuple(
                    replace(
                        c,
                        id=f"{number}.{a.id}",
                        slot_ids=tuple(slot + shift for slot in c.slot_ids),
                    )
                    for c in a.containers
                )
                a = replace(
                    a,
                    id=named(a.id),
                    task_id=named(a.task_id),
                    queue_order=a.queue_order + shift,
                    owner_id=owner_id,
                    containers=containers,
                )
                yield writes.SaveAllocation(a)
            case writes.SaveCheckpoint(c):
                c = replace(
                    c,
                    uuid=str(uuid4()),
                    experiment_id=number,
                    trial_id=c.trial_id + shift,
                    task_id=named(c.task_id),
                    allocation_id=named(c.allocation_id),
                )
                yield writes.SaveCheckpoint(c)
            case writes.InsertReport(r):
                yield writes.InsertReport(replace(r, trial_id=r.trial_id + shift))
            case _:
                raise TypeError(f"the engine writes {write!r}, which this benchmark does not know")


def fill_with_many(store: Store, owner_id: int, ended: int, running: int) -> None:
    whole = recorded("random", TRIALS, float("inf"))
    half = recorded("random", TRIALS, REPORTS * TRIALS // 2)
    for number in range(1, ended + running + 1):
        first_trial = 1 + (number - 1) * TRIALS
        template = whole if number <= ended else half
        store.commit(list(copied(template, number, first_trial, owner_id))).result()


def fill_with_one(store: Store, owner_id: int, trials: int) -> None:
    half = recorded("async_halving", trials, 4 * trials)  # of some eight reports for each of its trials
    store.commit(list(copied(half, 1, 1, owner_id))).result()


@dataclass
class Seen:
    """One master's figures, one for each start."""

    megabytes_on_disk: float
    seconds: list[float] = field(default_factory=list)  # to the first 200 of /health
    cpu: list[float] = field(default_factory=list)  # seconds of CPU time until then
    memory: list[float] = field(default_factory=list)  # MiB, resident, some seconds after that
    memory_used: list[float] = field(default_factory=list)  # MiB, resident, when lists were read
    lists: dict[str, list[float]] = field(default_factory=dict)  # ms for a page, by what it is


@dataclass
class Master:
    title: str
    cluster: Cluster
    running: int  # experiments that it must take up
    seen: Seen
    pages: dict[str, str] = field(default_factory=dict)  # paths of lists that are read, by what they are


def prepared(title: str, folder: Path, running: int, fill: Callable[[Store, int], None] | None) -> Master:
    """A master's data folder, made by a master that starts and ends, then filled."""
    folder.mkdir()
    cluster = Cluster(folder)
    try:
        cluster.start_master()
    finally:
        cluster.stop()
    database = next(cluster.master_folder.glob("*.db"))
    if fill:
        store = open_store(f"sqlite:///{database}")
        owner = store.users.by_name("determined")
        assert owner is not None
        begun = time.perf_counter()
        fill(store, owner.id)
        store.close()
        print(f"{title}: filled in {time.perf_counter() - begun:.0f} s", flush=True)
    return Master(title, cluster, running, Seen(database.stat().st_size / 1e6))


@contextmanager
def started(master: Master) -> Iterator[psutil.Process]:
    """Start it, note the time, stop it."""
    cluster = master.cluster

    def answers() -> bool:
        assert cluster.master is not None
        assert cluster.master.poll() is None, cluster.said("detlab_master")
        try:
            return requests.get(f"{cluster.url}/health", timeout=60).status_code == 200
        except requests.ConnectionError:
            time.sleep(LOOK_SECONDS)
            return False

    begun = time.perf_counter()
    try:
        cluster.launch_master()
        while not answers():
            pass
        master.seen.seconds.append(time.perf_counter() - begun)
        assert cluster.master is not None
        process = psutil.Process(cluster.master.pid)
        master.seen.cpu.append(sum(process.cpu_times()[:2]))
        yield process
    finally:
        cluster.stop()


def look(master: Master) -> None:
    """One start of one master."""
    with started(master) as process:
        time.sleep(SETTLE_SECONDS)
        seen, cluster = master.seen, master.cluster
        seen.memory.append(process.memory_info().rss / 2**20)
        states = "states=STATE_ACTIVE&states=STATE_RUNNING&limit=-1"
        found = cluster.get(f"/api/v1/experiments?{states}")["experiments"]
        assert len(found) == master.running, f"{len(found)} experiments run, not {master.running}"
        for what, path in master.pages.items():
            begun = time.perf_counter()
            cluster.get(path)
            seen.lists.setdefault(what, []).append(1000 * (time.perf_counter() - begun))
        seen.memory_used.append(process.memory_info().rss / 2**20)


def as_markdown(masters: list[Master], rounds: int, load: float) -> str:
    """A section of RESULTS.md; `load` is the machine's before the benchmark."""
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")

    def shown(values: list[float], digits: int) -> str:
        span = f"{min(values):.{digits}f} to {max(values):.{digits}f}"
        return f"{statistics.median(values):.{digits}f} ({span})"

    lines = [
        f"\n## {when}: memory and start of the master",
        "",
        (
            f"Commit {commit('master', 'benchmarks')}. {os.cpu_count()} cores ({processor()}), load average before {load:.1f},"
            f" Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}; {rounds} starts each, in turns;"
            " medians, and the lowest and highest."
        ),
        "",
        "| master | database, MB | start to /health, s | of it CPU time, s | resident after the start, MiB | and after lists were read, MiB |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for master in masters:
        seen = master.seen
        lines.append(
            f"| {master.title} | {seen.megabytes_on_disk:.0f} | {shown(seen.seconds, 2)} | {shown(seen.cpu, 2)} |"
            f" {shown(seen.memory, 0)} | {shown(seen.memory_used, 0)} |"
        )
    lines += ["", "| one page | master | ms |", "|---|---|--:|"]
    for master in masters:
        for what, times in master.seen.lists.items():
            lines.append(f"| {what} | {master.title} | {shown(times, 0)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ended", type=int, default=1000, help="experiments that have ended")
    parser.add_argument("--running", type=int, default=10, help="experiments that run")
    parser.add_argument("--search", type=int, default=10_000, help="trials of the one large search")
    parser.add_argument("--keep-nothing", action="store_true", help="print only")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    ended, running, trials = options.ended, options.running, options.search
    with tempfile.TemporaryDirectory(prefix="detlab-benchmark-") as name:
        folder = Path(name)
        many = prepared(
            f"{ended:,} ended experiments of {TRIALS} trials, {running} running",
            folder / "many",
            running,
            lambda store, owner_id: fill_with_many(store, owner_id, ended, running),
        )
        one = prepared(
            f"a running search of {trials:,} trials",
            folder / "one",
            1,
            lambda store, owner_id: fill_with_one(store, owner_id, trials),
        )
        empty = prepared("empty", folder / "empty", 0, None)
        middle = ended // 2
        many.pages = {
            "GET /experiments, 100 of them": "/api/v1/experiments?limit=100",
            "GET /experiments, the last 10": "/api/v1/experiments?limit=10&offset=-10",
            "GET /experiments/…/trials, 10 of 100": f"/api/v1/experiments/{middle}/trials?limit=10",
            "GET /trials/…/workloads, 5 of 8": f"/api/v1/trials/{middle * TRIALS}/workloads?limit=5",
        }
        one.pages = {
            "GET /experiments/…/trials, 20 of the search": "/api/v1/experiments/1/trials?limit=20",
            "GET /experiments/…/checkpoints, 20 of the search": "/api/v1/experiments/1/checkpoints?limit=20",
        }
        masters = [empty, many, one]
        for number in range(options.rounds):
            for master in masters if number % 2 == 0 else reversed(masters):
                look(master)
                print(f"round {number + 1}: {master.title}: {master.seen.seconds[-1]:.2f} s", flush=True)
        section = as_markdown(masters, options.rounds, load)
    print(section)
    if not options.keep_nothing:
        with (HERE / "RESULTS.md").open("a") as file:
            file.write(section)


if __name__ == "__main__":
    main()
