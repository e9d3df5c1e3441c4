"""What a scheduler is asked for, and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

SlotId: TypeAlias = int
Assignment: TypeAlias = Mapping[str, tuple[SlotId, ...]]  # agent -> its slots; a task without slots has ()

HIGHEST_PRIORITY, LOWEST_PRIORITY = 1, 99


@dataclass(frozen=True)
class Request:
    """Something to run, all at once or not at all."""

    allocation_id: str
    job_id: str  # the experiment or task that it belongs to; max_slots is of all of a job together
    slots: int  # 0: an auxiliary task
    priority: int  # 1 (goes first) to 99
    order: int  # of submission; the smaller goes first among equals
    preemptible: bool
    pool: str = "default"
    single_node: bool = False  # never spread over several agents
    max_slots: int | None = None  # that the job may hold at a time; the last one told counts
    weight: float = 1.0  # its job's share, for schedulers that share; the priority scheduler does not look
    excluded: frozenset[str] = frozenset()  # agents that it must not run on

    def __post_init__(self) -> None:
        if self.slots < 0:
            raise ValueError(f"{self.allocation_id} asks for {self.slots} slots; 0 or more may be asked for")
        if not HIGHEST_PRIORITY <= self.priority <= LOWEST_PRIORITY:
            raise ValueError(
                f"{self.allocation_id} has priority {self.priority}; "
                f"it must be from {HIGHEST_PRIORITY} to {LOWEST_PRIORITY}"
            )

    @property
    def rank(self) -> tuple[int, int, str]:
        """Sorts requests in the order in which they are considered."""
        return self.priority, self.order, self.allocation_id


@dataclass(frozen=True)
class Start:
    allocation_id: str
    assignment: Assignment


@dataclass(frozen=True)
class Preempt:
    """Ask a running allocation to stop; its slots are free when it has been released."""

    allocation_id: str
    reason: str = field(default="work of a higher priority goes first", compare=False, repr=False)


Decision: TypeAlias = Start | Preempt


@dataclass(frozen=True)
class PoolConfig:
    preemption: bool = False  # may a request push out preemptible ones of lower priority
    fitting: Literal["best", "worst"] = "best"  # fill agents up, or spread over them
    max_aux_per_agent: int = 100  # tasks without slots
