"""What can happen to an experiment, and what follows from it: the vocabulary of `core.experiment`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from detlab_master.core import log_policies
from detlab_master.core import trial as trials
from detlab_master.core.records import Allocation, Experiment, Json, SearcherEvent, Trial

# Events


@dataclass(frozen=True)
class Started:
    """The experiment was created: the search names its first trials."""


@dataclass(frozen=True)
class Activated:
    pass


@dataclass(frozen=True)
class Paused:
    pass


@dataclass(frozen=True)
class Canceled:
    pass


@dataclass(frozen=True)
class Killed:
    pass


@dataclass(frozen=True)
class TrialKilled:
    trial_id: int


@dataclass(frozen=True)
class Reported:
    """A trial's record after a report; ``validation`` has the metrics when the search must hear of them."""

    trial: Trial
    validation: Json | None = None


@dataclass(frozen=True)
class TrialProgressed:
    trial_id: int
    progress: float


@dataclass(frozen=True)
class EarlyExitReported:
    trial_id: int
    reason: str


@dataclass(frozen=True)
class LogPolicyMatched:
    trial_id: int
    match: log_policies.Match


@dataclass(frozen=True)
class LogsRetained:
    """Logs are kept for so many days: of one trial, or (None) of all that are there and will come."""

    days: int
    trial_id: int | None = None


@dataclass(frozen=True)
class RunnerStateReported:
    trial_id: int
    state: str


@dataclass(frozen=True)
class TrialDescribed:
    """What its code notes about a trial; it takes the place of what was noted before."""

    trial_id: int
    metadata: Json


@dataclass(frozen=True)
class AllocationEnded:
    trial_id: int
    allocation: Allocation


@dataclass(frozen=True)
class Edited:
    """A person changes what may be changed at any time: name, notes, labels, settings of resources and the like."""

    change: Callable[[Experiment], Experiment]  # pure; leaves state, progress and end alone


@dataclass(frozen=True)
class Continued:
    """An experiment that has ended goes on: the trials that have not completed, or the one of a single search.

    Only of searches that do not compare trials while they run: single, random, grid.
    """

    hparams: Json | None = None  # of a single search whose hyperparameters were changed


Event = (
    Started
    | Activated
    | Paused
    | Canceled
    | Killed
    | TrialKilled
    | Reported
    | TrialProgressed
    | EarlyExitReported
    | LogPolicyMatched
    | LogsRetained
    | RunnerStateReported
    | TrialDescribed
    | AllocationEnded
    | Edited
    | Continued
)


# Effects


@dataclass(frozen=True)
class KeepExperiment:
    experiment: Experiment


@dataclass(frozen=True)
class KeepTrial:
    trial: Trial


@dataclass(frozen=True)
class KeepProgress:
    experiment_id: int
    progress: float


@dataclass(frozen=True)
class RecordSearcherEvent:
    event: SearcherEvent


@dataclass(frozen=True)
class TrialEnded:
    """The trial will not run again; its task is over."""

    trial: Trial


@dataclass(frozen=True)
class TaskOpened:
    """The task of an unmanaged trial is there, or there again."""

    trial: Trial


@dataclass(frozen=True)
class Said:
    """A line of the master's own for the log of a trial."""

    trial: Trial
    text: str


@dataclass(frozen=True)
class Finished:
    """The experiment is terminal now."""

    experiment: Experiment


Effect = (
    KeepExperiment
    | KeepTrial
    | KeepProgress
    | RecordSearcherEvent
    | TrialEnded
    | TaskOpened
    | Said
    | Finished
    | trials.RequestAllocation
    | trials.StopAllocation
    | trials.KillAllocation
    | trials.KillAllocationLater
)
