"""The states that experiments, trials, allocations and checkpoints can be in, by the names that the API shows."""

from __future__ import annotations

from enum import StrEnum


class PlaceState(StrEnum):
    """Of workspaces and projects: whether they are there, or on their way out with what is in them."""

    NORMAL = "UNSPECIFIED"
    DELETING = "DELETING"
    DELETE_FAILED = "DELETE_FAILED"


class ExperimentState(StrEnum):
    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    STOPPING_CANCELED = "STOPPING_CANCELED"
    STOPPING_KILLED = "STOPPING_KILLED"
    STOPPING_COMPLETED = "STOPPING_COMPLETED"
    STOPPING_ERROR = "STOPPING_ERROR"
    CANCELED = "CANCELED"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"
    DELETING = "DELETING"
    DELETE_FAILED = "DELETE_FAILED"
    DELETED = "DELETED"

    @property
    def terminal(self) -> bool:
        """True when nothing of the experiment runs any more, nor ever will."""
        return self in _TERMINAL_EXPERIMENT

    @property
    def stopping(self) -> bool:
        """True when the experiment only waits for its trials to end."""
        return self.name.startswith("STOPPING_")


_TERMINAL_EXPERIMENT = frozenset(
    {
        ExperimentState.CANCELED,
        ExperimentState.COMPLETED,
        ExperimentState.ERROR,
        ExperimentState.DELETING,
        ExperimentState.DELETE_FAILED,
        ExperimentState.DELETED,
    }
)


class TrialState(StrEnum):
    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    STOPPING_CANCELED = "STOPPING_CANCELED"
    STOPPING_KILLED = "STOPPING_KILLED"
    STOPPING_COMPLETED = "STOPPING_COMPLETED"  # the searcher stopped it
    CANCELED = "CANCELED"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"

    @property
    def terminal(self) -> bool:
        """True when the trial never runs again."""
        return self in (TrialState.CANCELED, TrialState.COMPLETED, TrialState.ERROR)

    @property
    def stopping(self) -> bool:
        """True when the trial only waits for its allocation to end."""
        return self.name.startswith("STOPPING_")


class AllocationState(StrEnum):
    """In the order in which an allocation passes through them."""

    QUEUED = "QUEUED"
    ASSIGNED = "ASSIGNED"  # has slots; its containers were sent to their agents
    PULLING = "PULLING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    TERMINATED = "TERMINATED"

    @property
    def progress(self) -> int:
        """Position in the order above: a container never goes back."""
        return list(AllocationState).index(self)


class CheckpointState(StrEnum):
    ACTIVE = "ACTIVE"
    COMPLETED = "COMPLETED"
    ERROR = "ERROR"
    DELETED = "DELETED"
    PARTIALLY_DELETED = "PARTIALLY_DELETED"


class TaskType(StrEnum):
    TRIAL = "TRIAL"
    NOTEBOOK = "NOTEBOOK"
    SHELL = "SHELL"
    COMMAND = "COMMAND"
    TENSORBOARD = "TENSORBOARD"
    CHECKPOINT_GC = "CHECKPOINT_GC"
    GENERIC = "GENERIC"
