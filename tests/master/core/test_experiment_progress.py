"""Progress of an experiment is kept up event by event: it equals the sum over all trials, and costs none."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detlab_master.core import expconf, hyperparameters
from detlab_master.core import experiment_events as events
from detlab_master.core.experiment import ExperimentMachine
from detlab_master.core.progress import OpenProgress
from detlab_master.core.records import Allocation, Experiment, SearcherEvent, Trial
from detlab_master.core.searchers.make import make
from detlab_master.core.states import AllocationState, ExperimentState


class Ids:
    def __init__(self) -> None:
        self._numbers = count(1)

    def trial(self) -> int:
        return next(self._numbers)

    def task(self, experiment_id: int) -> str:
        return f"{experiment_id}.{next(self._numbers)}"


def new_machine(searcher: dict[str, Any], experiment: Experiment | None = None) -> ExperimentMachine:
    if experiment is None:
        config = expconf.resolve(
            {
                "entrypoint": "model_def:Trial",
                "hyperparameters": {"lr": {"type": "double", "minval": 0.0, "maxval": 1.0}},
                "searcher": {"metric": "loss", **searcher},
                "checkpoint_storage": {"type": "shared_fs", "host_path": "/checkpoints"},
            },
            defaults={"default_compute_resource_pool": "default", "default_aux_resource_pool": "default"},
            experiment_seed=1,
            default_name="progress",
        ).as_dict
        experiment = Experiment(
            1, "job", 1, 1, ExperimentState.ACTIVE, dict(config), "", "", 0, start_time=1.0
        )
    resolved = expconf.restore(experiment.config)
    search = make(resolved.searcher, hyperparameters.parse(resolved.hyperparameters), random.Random(1))
    return ExperimentMachine(experiment, search, max_restarts=0)


def naive(trials: list[Trial]) -> float:
    """The mean over all trials, where a closed one counts as 1."""
    known = [1.0 if trial.state.terminal else min(1.0, max(0.0, trial.progress)) for trial in trials]
    return math.fsum(known) / len(known)


@settings(max_examples=60, deadline=None)
@given(
    moves=st.lists(
        st.tuples(st.integers(0, 7), st.none() | st.floats(-0.5, 1.5, allow_nan=False)), max_size=40
    ),
    restart_at=st.integers(0, 40),
)
def test_progress_is_the_mean_over_all_trials_also_after_a_restart(
    moves: list[tuple[int, float | None]], restart_at: int
) -> None:
    """A move is the progress of one of eight trials, or its end."""
    machine, ids = new_machine({"name": "random", "max_trials": 12, "max_concurrent_trials": 8}), Ids()
    past: list[SearcherEvent] = []

    def handle(event: events.Event) -> None:
        for effect in machine.handle(event, ids, 2.0):
            if isinstance(effect, events.RecordSearcherEvent):
                past.append(effect.event)

    handle(events.Started())
    for number, (which, progress) in enumerate(moves):
        if number == restart_at:
            kept = machine
            machine = new_machine({}, kept.experiment)
            machine.restore(past, kept.trials.values())
        open_trials = [trial for trial in machine.trials.values() if not trial.state.terminal]
        if not open_trials:
            break
        trial = open_trials[which % len(open_trials)]
        handle(
            events.TrialKilled(trial.id) if progress is None else events.TrialProgressed(trial.id, progress)
        )
        if trial.allocation_id and progress is None:  # a killed run has ended
            ended = _ended(machine.trials[trial.id])
            handle(events.AllocationEnded(trial.id, ended))
        assert machine.experiment.progress == pytest.approx(naive(list(machine.trials.values())), abs=1e-9)


def _ended(trial: Trial) -> Allocation:
    assert trial.allocation_id is not None
    state = AllocationState.TERMINATED
    return Allocation(trial.allocation_id, trial.task_id, 1, trial.run_id, "default", 1, 42, state, 1.0, 1)


@given(changes=st.lists(st.tuples(st.integers(0, 5), st.none() | st.floats(0, 1))))
def test_the_sum_of_open_progress_does_not_drift(changes: list[tuple[int, float | None]]) -> None:
    kept, plain = OpenProgress(), dict[int, float]()
    for trial_id, progress in changes:
        if progress is None:
            kept.close(trial_id)
            plain.pop(trial_id, None)
        else:
            kept.set(trial_id, progress)
            plain[trial_id] = progress
        assert kept.total == pytest.approx(math.fsum(plain.values()), abs=1e-9)
    for trial_id in plain:
        kept.close(trial_id)
    assert kept.total == 0


def instructions(work: Callable[[], object]) -> int:
    """How many instructions of Python code are carried out."""
    carried_out = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal carried_out
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        carried_out += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return carried_out


@pytest.mark.parametrize(
    "searcher",
    [
        {"name": "random"},
        {"name": "async_halving", "num_rungs": 3, "max_time": 64, "time_metric": "batches"},
        {"name": "adaptive_asha", "bracket_rungs": [3, 2], "max_time": 64, "time_metric": "batches"},
    ],
    ids=lambda searcher: searcher["name"],
)
def test_an_event_takes_the_same_instructions_however_many_trials_run(searcher: dict[str, Any]) -> None:
    def cost(trials: int) -> tuple[int, int]:
        limits = {"max_trials": trials, "max_concurrent_trials": trials}
        machine, ids = new_machine({**searcher, **limits}), Ids()
        machine.handle(events.Started(), ids, 2.0)
        first, second = list(machine.trials.values())[:2]
        report = events.Reported(first, {"loss": 0.5, "batches": 1})
        killed = events.TrialKilled(second.id)
        machine.handle(killed, ids, 2.0)
        ended = events.AllocationEnded(second.id, _ended(second))
        return (
            instructions(lambda: machine.handle(report, ids, 2.0)),
            instructions(lambda: machine.handle(ended, ids, 2.0)),
        )

    few, many = cost(20), cost(1000)
    assert many[0] <= few[0] + 20
    assert many[1] <= few[1] + 20
