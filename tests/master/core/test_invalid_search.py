"""A search in which nothing is valid: how the experiment ends, and what its owner reads."""

import random
from itertools import count

import pytest

from detlab_master.core import expconf, hyperparameters
from detlab_master.core import experiment_events as events
from detlab_master.core.experiment import ExperimentMachine
from detlab_master.core.records import Allocation, Experiment, SearcherEvent, Trial
from detlab_master.core.searchers.base import MAX_INVALID_IN_A_ROW
from detlab_master.core.searchers.make import make
from detlab_master.core.states import AllocationState, ExperimentState
from detlab_master.core.trial import INVALID_HP, StopAllocation


class Ids:
    def __init__(self) -> None:
        self._numbers = count(1)

    def trial(self) -> int:
        return next(self._numbers)

    def task(self, experiment_id: int) -> str:
        return f"{experiment_id}.{next(self._numbers)}"


def machine_of(experiment: Experiment) -> ExperimentMachine:
    config = expconf.restore(experiment.config)
    search = make(config.searcher, hyperparameters.parse(config.hyperparameters), random.Random(1))
    return ExperimentMachine(experiment, search, max_restarts=5)


def experiment() -> Experiment:
    config = expconf.resolve(
        {
            "entrypoint": "model_def:Trial",
            "hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1}},
            "searcher": {"name": "random", "metric": "loss", "max_trials": 3},
            "checkpoint_storage": {"type": "shared_fs", "host_path": "/checkpoints"},
        },
        defaults={},
        experiment_seed=1,
        default_name="invalid",
    )
    return Experiment(1, "job", 1, 1, ExperimentState.ACTIVE, config.as_dict, "", "", 0, start_time=1.0)


def ended(trial: Trial) -> Allocation:
    assert trial.allocation_id is not None
    state = AllocationState.TERMINATED
    return Allocation(trial.allocation_id, trial.task_id, 1, trial.run_id, "default", 1, 42, state, 1.0, 1)


@pytest.mark.parametrize("restart_after", [None, 1, MAX_INVALID_IN_A_ROW - 1])
def test_the_experiment_ends_and_says_why(restart_after: int | None) -> None:
    machine, ids, past = machine_of(experiment()), Ids(), list[SearcherEvent]()
    reasons: list[str] = []

    def handle(event: events.Event) -> None:
        effects = machine.handle(event, ids, 2.0)
        past.extend(each.event for each in effects if isinstance(each, events.RecordSearcherEvent))
        reasons.extend(each.reason for each in effects if isinstance(each, StopAllocation))

    def state() -> ExperimentState:
        return machine.experiment.state

    def invalid() -> None:
        trial = next(trial for trial in machine.trials.values() if not trial.state.terminal)
        handle(events.EarlyExitReported(trial.id, INVALID_HP))
        handle(events.AllocationEnded(trial.id, ended(machine.trials[trial.id])))

    handle(events.Started())
    for number in range(1, MAX_INVALID_IN_A_ROW):
        invalid()
        assert state() is ExperimentState.ACTIVE
        assert sum(not trial.state.terminal for trial in machine.trials.values()) == 3
        if number == restart_after:
            before = machine
            machine = machine_of(before.experiment)
            machine.restore(past, before.trials.values())
    invalid()
    assert state() is ExperimentState.STOPPING_ERROR
    assert reasons == [f"the search has failed: {machine.experiment.error}"] * 2, "nobody has canceled it"
    for trial in list(machine.trials.values()):
        if not trial.state.terminal:
            handle(events.AllocationEnded(trial.id, ended(trial)))
    assert state() is ExperimentState.ERROR
    assert len(machine.trials) == MAX_INVALID_IN_A_ROW + 2
    assert "100 trials in a row raised InvalidHP" in (machine.experiment.error or "")
