"""What one event costs a search of 100, 1,000 and 10,000 trials, all of which run at once.

Whole searches are played from the first trial to the last, trials taking turns by chance, at three depths: the searcher
alone; the experiment's machine with the trial's metric sums, which is all that the core does for a report; and the
engine with the commit to a SQLite file, one report a commit, which is all but HTTP. Every search of one method takes the
same course whatever its size, so the sizes can be compared. What is found is printed and added to RESULTS.md.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import os
import platform
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from metric_reports import commit, processor

from detlab_master.core import expconf, hyperparameters, metrics
from detlab_master.core import experiment_events as events
from detlab_master.core import trial as trials
from detlab_master.core.experiment import ExperimentMachine
from detlab_master.core.records import Allocation, Container, Experiment, MetricReport, Trial
from detlab_master.core.searchers import Action, Create, Exited, Started, Stop, Validated
from detlab_master.core.searchers.make import make
from detlab_master.core.states import AllocationState, ExperimentState
from detlab_master.core.task_spec import ClusterFacts
from detlab_master.engine import clock
from detlab_master.engine.allocations import AllocationService
from detlab_master.engine.experiment_inbox import Created, Event, ExperimentAtWork, MetricsReported, Pools
from detlab_master.engine.inbox import Plan
from detlab_master.engine.logs import LogService
from detlab_master.engine.topics import Topics
from detlab_master.resources.agents import Agents, PoolConfig
from detlab_master.store import writes
from detlab_master.store.base import Store
from detlab_master.store.sql import open_store

TIME = {"max_time": 1280, "time_metric": "batches", "divisor": 4}
METHODS: dict[str, dict[str, Any]] = {
    "random": {},
    "grid": {},
    "async_halving": {**TIME, "num_rungs": 5},
    "adaptive_asha": {**TIME, "mode": "standard"},
}
PERIOD = 5  # batches between two reports: ASHA's lowest rung is the first one
REPORTS = 8  # of a trial that nobody stops; with ASHA those at the top rung send 256
BURST = 25  # events that are committed one by one and timed, after one that is not; those between two bursts share commits
BURSTS = 40  # in a search
GROUP = 500  # writes in such a shared commit


def config(method: str, size: int) -> dict[str, Any]:
    """A resolved configuration of a search that opens all of its trials at once."""
    searcher = {"name": method, "metric": "loss", "max_concurrent_trials": size, **METHODS[method]}
    if method != "grid":
        searcher["max_trials"] = size
    points = {"type": "double", "minval": 0.0, "maxval": 1.0, "count": size}
    return dict(
        expconf.resolve(
            {
                "entrypoint": "model_def:Trial",
                "hyperparameters": {"lr": points, "batch_size": 64},
                "searcher": searcher,
                "checkpoint_storage": {"type": "shared_fs", "host_path": "/checkpoints"},
            },
            defaults={"default_compute_resource_pool": "default", "default_aux_resource_pool": "default"},
            experiment_seed=1,
            default_name="search events",
        ).as_dict
    )


def experiment(method: str, size: int) -> Experiment:
    state = ExperimentState.ACTIVE
    return Experiment(1, "job", 1, 1, state, config(method, size), "", "", 0, start_time=1000.0)


@dataclass
class Led:
    """What an event led to, by request ids."""

    created: list[int] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)


class Depth(Protocol):
    """A search at one depth of the master."""

    def start(self) -> Led: ...
    def report(self, request_id: int, step: int, values: dict[str, float]) -> Led: ...
    def end(self, request_id: int) -> Led: ...
    def settle(self) -> None:
        """The next event is timed: nothing that came before it may be waiting."""


class SearcherAlone:
    def __init__(self, method: str, size: int) -> None:
        resolved = expconf.restore(config(method, size))
        self._search = make(
            resolved.searcher, hyperparameters.parse(resolved.hyperparameters), random.Random(1)
        )

    def start(self) -> Led:
        return self._led(self._search.step(Started()))

    def report(self, request_id: int, step: int, values: dict[str, float]) -> Led:
        return self._led(self._search.step(Validated(request_id, values)))

    def end(self, request_id: int) -> Led:
        return self._led(self._search.step(Exited(request_id, "completed")))

    def settle(self) -> None:
        """Nothing ever waits."""

    @staticmethod
    def _led(actions: Sequence[Action]) -> Led:
        led = Led()
        for action in actions:
            match action:
                case Create(request_id):
                    led.created.append(request_id)
                case Stop(request_id):
                    led.stopped.append(request_id)
        return led


class _Counting:
    """Ids for the core."""

    def __init__(self) -> None:
        self._last = 0

    def trial(self) -> int:
        self._last += 1
        return self._last

    def task(self, experiment_id: int) -> str:
        return f"{experiment_id}.task-{self._last}"


class Machine:
    def __init__(self, method: str, size: int) -> None:
        record = experiment(method, size)
        resolved = expconf.restore(record.config)
        space = hyperparameters.parse(resolved.hyperparameters)
        searcher = make(resolved.searcher, space, random.Random(1))
        self._machine = ExperimentMachine(record, searcher, max_restarts=5)
        self._ids = _Counting()
        self._searched = metrics.SearcherMetric("loss", smaller_is_better=True)
        self._known: dict[int, metrics.TrialMetrics] = {}
        self._trial_of: dict[int, int] = {}  # request id -> trial id

    def start(self) -> Led:
        return self._handle(events.Started())

    def report(self, request_id: int, step: int, values: dict[str, float]) -> Led:
        trial = self._machine.trials[self._trial_of[request_id]]
        report = _report(trial, step, values)
        metrics.check(report)
        known = self._known.setdefault(trial.id, metrics.TrialMetrics())
        assert known.continues(report)
        known.add(report)
        return self._handle(
            events.Reported(metrics.with_report(trial, report, known, self._searched), values)
        )

    def end(self, request_id: int) -> Led:
        trial = self._machine.trials[self._trial_of[request_id]]
        return self._handle(events.AllocationEnded(trial.id, ended_run(trial)))

    def settle(self) -> None:
        """Nothing ever waits."""

    def _handle(self, event: events.Event) -> Led:
        led = Led()
        for effect in self._machine.handle(event, self._ids, 1000.0):
            match effect:
                case trials.RequestAllocation(trial):
                    self._trial_of[trial.request_id] = trial.id
                    led.created.append(trial.request_id)
                case trials.StopAllocation(allocation_id):
                    led.stopped.append(_request_of(self._machine, allocation_id))
        return led


class Engine:
    """The engine's part of an experiment.

    Args:
        record: the experiment; all of its past is still to come.
        store: of ids that are taken; nothing is written to it.
        keep: gets what is to be written, in order.
    """

    def __init__(self, record: Experiment, store: Store, keep: Callable[[list[writes.Write]], None]) -> None:
        self._keep = keep
        self._loop = asyncio.new_event_loop()
        self._at_work = self._loop.run_until_complete(self._engine(record, store))
        self._trial_of: dict[int, int] = {}
        self._waiting: list[writes.Write] = []
        self._now = False

    async def _engine(self, record: Experiment, store: Store) -> ExperimentAtWork:
        topics = Topics()
        logs = LogService(store, topics)
        self._allocations = AllocationService(store, topics, logs)
        return ExperimentAtWork(
            record,
            store=store,
            ids=clock.Ids(store.highest_ids()),
            allocations=self._allocations,
            resources=Agents([PoolConfig("default")], ClusterFacts("", "", "", "")),
            pools=Pools(lambda pool: 42, 3600.0),
            logs=logs,
            finished=lambda experiment: None,
        )

    @property
    def trials(self) -> Mapping[int, Trial]:
        return self._at_work.trials

    def start(self) -> Led:
        return self._apply(Created())

    def report(self, request_id: int, step: int, values: dict[str, float]) -> Led:
        trial = self._at_work.trials[self._trial_of[request_id]]
        return self._apply(MetricsReported(_report(trial, step, values)))

    def end(self, request_id: int) -> Led:
        trial = self._at_work.trials[self._trial_of[request_id]]
        return self._apply(events.AllocationEnded(trial.id, ended_run(trial)))

    def settle(self) -> None:
        self._flush()
        self._now = True

    def close(self) -> None:
        self._flush()
        self._loop.run_until_complete(self._allocations.close())
        self._loop.close()

    def _apply(self, event: Event) -> Led:
        plan = Plan(alone=True)
        coroutine = self._at_work.apply(event, plan)
        try:
            coroutine.send(None)  # it waits for nothing: each report goes on from the last one
        except StopIteration:
            pass
        else:
            raise AssertionError("the engine has read from the store")
        self._waiting += plan.writes
        if self._now or len(self._waiting) > GROUP:
            self._flush()
        self._now = False
        led = Led()
        for write in plan.writes:
            match write:
                case writes.SaveTrial(trial) if trial.request_id not in self._trial_of:
                    self._trial_of[trial.request_id] = trial.id
                    led.created.append(trial.request_id)
                case writes.SaveTrial(trial) if trial.stopped_by_searcher and not trial.state.terminal:
                    led.stopped.append(trial.request_id)
        return led

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._keep(waiting)


def _report(trial: Trial, step: int, values: dict[str, float]) -> MetricReport:
    return MetricReport(trial.id, trial.run_id, metrics.VALIDATION, step, 1000.0 + step, values)


def ended_run(trial: Trial) -> Allocation:
    """The trial's run, ended by itself or as it was asked to."""
    assert trial.allocation_id is not None
    container = Container("c", "agent", (0,), AllocationState.TERMINATED, exit_code=0)
    return Allocation(
        id=trial.allocation_id,
        task_id=trial.task_id,
        owner_id=1,
        run_id=trial.run_id,
        resource_pool="default",
        slots=1,
        priority=42,
        state=AllocationState.TERMINATED,
        queued_at=1000.0,
        queue_order=1,
        started_at=1000.0,
        ended_at=2000.0,
        containers=(container,),
        exit_code=0,
    )


def _request_of(machine: ExperimentMachine, allocation_id: str) -> int:
    number = allocation_id.partition("-")[2].partition(".")[0]  # the task is called after its trial
    return machine.trials[int(number)].request_id


@dataclass
class Times:
    """Microseconds of each event that was timed."""

    reports: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)


def play(search: Depth, method: str, gap: int, times: Times, most: float = math.inf) -> int:
    """One search from its first trial to its last; returns the number of its events.

    Args:
        gap: so many events between two bursts of timed ones are not timed; 0: all are.
        most: events after which it is left as it is.
    """
    chance = random.Random(1)
    length = TIME["max_time"] if "max_time" in METHODS[method] else REPORTS * PERIOD
    assert isinstance(length, int)
    running: list[tuple[int, int]] = []  # request id, batches trained
    running += [(number, 0) for number in search.start().created]
    count = 1
    while running and count < most:
        turn = chance.randrange(len(running))
        request_id, step = running[turn]
        step += PERIOD
        values = {"loss": chance.random() + 1 / step, "accuracy": chance.random(), "batches": float(step)}
        led = _timed(search, count % (gap + BURST) - gap, times.reports, "report", request_id, step, values)
        count += 1
        running += [(number, 0) for number in led.created]
        if step < length and not led.stopped:
            running[turn] = request_id, step
            continue
        running[turn] = running[-1]
        running.pop()
        led = _timed(search, count % (gap + BURST) - gap, times.ends, "end", request_id)
        count += 1
        running += [(number, 0) for number in led.created]
    return count


def _timed(search: Depth, place: int, into: list[float], what: str, *arguments: Any) -> Led:
    """Carry an event out; ``place`` counts within a burst, from -1 for what comes right before it."""
    if place >= -1:
        search.settle()
    call = getattr(search, what)
    begun = time.perf_counter_ns()
    led: Led = call(*arguments)
    if place >= 0:
        into.append((time.perf_counter_ns() - begun) / 1000)
    return led


def _committing(store: Store) -> Callable[[list[writes.Write]], None]:
    return lambda kept: store.commit(kept).result()


DEPTHS = ("searcher", "machine", "commit")
ABOUT = {"searcher": "searcher alone", "machine": "searcher, trial and sums", "commit": "and its commit"}


def measure(depth: str, method: str, size: int, largest: int, times: Times) -> None:
    """Play searches of that size, small ones more often, so that each size has its events."""
    for _ in range(max(1, min(20, largest // size // 5))):
        gc.collect()
        if depth == "searcher":
            play(SearcherAlone(method, size), method, 0, times)
        elif depth == "machine":
            play(Machine(method, size), method, 0, times)
        else:
            gap = max(0, REPORTS * size // BURSTS - BURST)  # a search has about so many reports
            with (
                tempfile.TemporaryDirectory(prefix="detlab-benchmark-") as folder,
                closing(open_store(f"sqlite:///{folder}/store.db")) as store,
                closing(Engine(experiment(method, size), store, _committing(store))) as search,
            ):
                play(search, method, gap, times)


def as_markdown(
    found: dict[tuple[str, str, int], list[Times]], sizes: Sequence[int], rounds: int, load: float
) -> str:
    """A section of RESULTS.md; `load` is the machine's before the benchmark."""
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    titles = " | ".join(f"{size:,} trials" for size in sizes)
    lines = [
        f"\n## {when}: one event of a search",
        "",
        (
            f"Commit {commit('master', 'benchmarks')}. {os.cpu_count()} cores ({processor()}), load average before {load:.1f},"
            f" Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}; {rounds} rounds, sizes in turns;"
            " µs, the median of the rounds' p50 (and p95). The last column compares the p50 of the most and the fewest trials."
        ),
        "",
        f"| event | what is timed | method | {titles} | times |",
        "|---|---|---|" + "--:|" * (len(sizes) + 1),
    ]
    for what in ("reports", "ends"):
        for depth in DEPTHS:
            for method in METHODS:
                cells, medians = [], []
                for size in sizes:
                    rounds_of = [getattr(times, what) for times in found.get((depth, method, size), [])]
                    rounds_of = [times for times in rounds_of if len(times) > 1]
                    if not rounds_of:
                        break
                    p50, p95 = (
                        statistics.median(statistics.quantiles(times, n=20)[at] for times in rounds_of)
                        for at in (9, 18)
                    )
                    medians.append(p50)
                    cells.append(f"{p50:.1f} ({p95:.1f})")
                else:
                    title = {"reports": "a validation", "ends": "a trial's end"}[what]
                    times = f"{medians[-1] / medians[0]:.2f}"
                    lines.append(f"| {title} | {ABOUT[depth]} | {method} | {' | '.join(cells)} | {times} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--trials", type=int, nargs="+", default=[100, 1_000, 10_000], help="sizes of searches"
    )
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--depths", nargs="+", choices=DEPTHS, default=list(DEPTHS))
    parser.add_argument("--keep-nothing", action="store_true", help="print only")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    found: dict[tuple[str, str, int], list[Times]] = {}
    for number in range(options.rounds):
        for depth in options.depths:
            for method in options.methods:
                for size in options.trials if number % 2 == 0 else reversed(options.trials):
                    times = Times()
                    measure(depth, method, size, max(options.trials), times)
                    found.setdefault((depth, method, size), []).append(times)
                    p50 = statistics.median(times.reports)
                    print(f"round {number + 1}: {depth}, {method}, {size}: {p50:.1f} µs a report", flush=True)
    section = as_markdown(found, options.trials, options.rounds, load)
    print(section)
    if not options.keep_nothing:
        with (HERE / "RESULTS.md").open("a") as file:
            file.write(section)


if __name__ == "__main__":
    main()
