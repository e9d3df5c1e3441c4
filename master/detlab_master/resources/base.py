"""The resource manager's contract: it owns slots, decides who gets them, and runs containers on them.

The engine asks (`ResourceManager`) and is told (`Listener`). Both sides live on the event loop. Requests are answered
through the listener, later: `submit` by `granted`, `start` and `kill` by `container_moved`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from detlab_agent import protocol
from detlab_master.core.allocation import ContainerMoved
from detlab_master.core.records import Container, LogLine
from detlab_master.core.scheduling import Request


@dataclass(frozen=True)
class SlotSummary:
    id: int
    type: str  # cpu, cuda, rocm
    brand: str
    uuid: str
    enabled: bool
    allocation_id: str | None
    container_id: str | None


@dataclass(frozen=True)
class AgentSummary:
    id: str
    pool: str
    slots: tuple[SlotSummary, ...]
    connected: bool
    enabled: bool
    draining: bool
    registered_at: float
    version: str
    addresses: tuple[str, ...]
    containers: Mapping[str, str]  # container id -> allocation id


@dataclass(frozen=True)
class PoolSummary:
    name: str
    description: str
    slot_type: str  # of its agents: cpu, cuda, rocm, or "" without agents
    agents: int
    slots_total: int
    slots_used: int
    aux_running: int
    aux_capacity_per_agent: int
    scheduler: str
    fitting_policy: str
    preemption: bool
    default_priority: int
    queued: int
    scheduled: int
    environments: Mapping[str, str]  # Python environments of its agents -> why none can run tasks, or ""


class Listener(Protocol):
    """What a resource manager tells the engine."""

    def granted(self, allocation_id: str, containers: tuple[Container, ...]) -> None: ...
    def unplaceable(self, allocation_id: str, reason: str) -> None:
        """No agent that is known may ever run what waits, because of those that it excludes."""
        ...

    def preempt(self, allocation_id: str, reason: str) -> None: ...
    def container_moved(self, allocation_id: str, moved: ContainerMoved) -> Awaitable[None]:
        """Done when the new state is kept."""
        ...

    def agent_lost(self, agent_id: str) -> None: ...
    def container_wanted(self, allocation_id: str, container_id: str) -> bool:
        """Whether the engine still waits for this container to run or to end."""
        ...

    def containers_on(self, agent_id: str) -> Sequence[tuple[str, Container]]:
        """(allocation id, container) of all that should be on this agent and has not ended."""
        ...

    def start_again(self, allocation_id: str, container_id: str) -> None:
        """The agent never heard of this container: ask for its start once more."""
        ...

    def log_lines(self, lines: Sequence[LogLine]) -> Awaitable[None]:
        """Done when the lines are kept."""
        ...


class ResourceManager(Protocol):
    def submit(self, request: Request) -> None:
        """Queue a request for slots."""
        ...

    def restore(self, request: Request, containers: Sequence[Container]) -> None:
        """Slots that were granted before the master started again."""
        ...

    def release(self, allocation_id: str) -> None:
        """Give slots back, or leave the queue."""
        ...

    def set_priority(self, job_id: str, priority: int) -> None:
        """Of all of a job's requests, waiting and running."""
        ...

    def set_max_slots(self, job_id: str, max_slots: int | None) -> None: ...
    def jobs_ahead(self, job_id: str) -> int:
        """How many jobs wait before the first request of this one that waits; -1 when none of it waits."""
        ...

    def waits(self, allocation_id: str) -> tuple[int, str]:
        """How many requests go before this one, and why it waits, for people; (-1, "") when it does not wait."""
        ...

    def start(self, container: Container, spec: protocol.ContainerSpec) -> None: ...
    def kill(self, container: Container, grace_seconds: float) -> None: ...
    def pools(self) -> Sequence[PoolSummary]: ...
    def agents(self) -> Sequence[AgentSummary]: ...
