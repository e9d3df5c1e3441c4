"""The life of an allocation: one run of a task on slots that the scheduler granted.

Rules:

- States only move forward (`transitions.ALLOCATION`). The allocation is as far as the container that is least far; it
  has ended when every container has.
- A graceful stop is a signal that the task polls for, once the allocation is ready. Before that there is nobody to
  listen: the containers are killed, and that is no failure of the task.
- The first container that fails decides the exit of the allocation, and the others are killed. Containers marked as
  daemons do not keep an allocation alive.
- An agent that is lost takes its containers with it.

`step` is pure: it returns the new allocation and what is to be done, and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from detlab_master.core import transitions
from detlab_master.core.records import Allocation, Container
from detlab_master.core.states import AllocationState

KILL_GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL
# Kinds of failure, as agents report them: the task's own exit code, our kill; every other kind is the system's.
TASK_FAILED = "container_failed"
KILLED_BY_US = "container_aborted"
UNPLACEABLE = "unplaceable"  # ours: no agent of the pool may run it
UNPREPARED = "unprepared"  # ours: what it needs is gone
HOPELESS = frozenset(
    {"user_mismatch", "environment_unusable", UNPLACEABLE, UNPREPARED}
)  # no other try can help


# Events


@dataclass(frozen=True)
class Granted:
    """The scheduler gave slots: one container for each agent."""

    containers: tuple[Container, ...]


@dataclass(frozen=True)
class Unplaceable:
    """No agent that the pool knows may ever run what is queued."""

    reason: str


@dataclass(frozen=True)
class ContainerMoved:
    """An agent reports a container's state; reports may repeat and may come late."""

    container_id: str
    state: AllocationState
    exit_code: int | None = None
    failure: str | None = None
    message: str = ""
    address: str = ""


@dataclass(frozen=True)
class AgentLost:
    agent_id: str


@dataclass(frozen=True)
class BecameReady:
    """Every container called in (rendezvous), or the task said so itself."""


@dataclass(frozen=True)
class DaemonMarked:
    container_id: str


@dataclass(frozen=True)
class PreemptionRequested:
    reason: str = ""


@dataclass(frozen=True)
class PreemptionAcked:
    pass


@dataclass(frozen=True)
class PreemptionTimedOut:
    pass


@dataclass(frozen=True)
class KillRequested:
    reason: str = ""


Event = (
    Granted
    | Unplaceable
    | ContainerMoved
    | AgentLost
    | BecameReady
    | DaemonMarked
    | PreemptionRequested
    | PreemptionAcked
    | PreemptionTimedOut
    | KillRequested
)


# Effects


@dataclass(frozen=True)
class StartContainer:
    container: Container


@dataclass(frozen=True)
class KillContainer:
    container: Container
    grace_seconds: float


@dataclass(frozen=True)
class SignalPreemption:
    """Those who poll the preemption signal get an answer."""


@dataclass(frozen=True)
class ArmPreemptionTimeout:
    seconds: float  # from now on, whatever becomes of the wall clock


@dataclass(frozen=True)
class Ended:
    """Slots go back, tokens are void, the owner hears of it."""


Effect = StartContainer | KillContainer | SignalPreemption | ArmPreemptionTimeout | Ended


def step(allocation: Allocation, event: Event, now: float) -> tuple[Allocation, list[Effect]]:
    """Apply one event.

    Args:
        allocation: the allocation as it is.
        event: what happened.
        now: Unix seconds.

    Returns:
        The allocation after the event, and what is to be done. Events that repeat themselves, or come after the
        end, return the same allocation and nothing to do.

    Raises:
        IllegalMove: slots granted to an allocation that is not queued.
    """
    if allocation.state is AllocationState.TERMINATED:
        return allocation, []
    match event:
        case Granted(containers):
            return _granted(allocation, containers, now)
        case Unplaceable(reason):
            if allocation.containers:
                return allocation, []
            return _end(replace(allocation, failure=UNPLACEABLE, exit_reason=reason), now)
        case ContainerMoved():
            return _container_moved(allocation, event, now)
        case AgentLost(agent_id):
            return _agent_lost(allocation, agent_id, now)
        case BecameReady():
            return replace(allocation, ready=True), []
        case DaemonMarked(container_id):
            return _with_container(allocation, container_id, daemon=True), []
        case PreemptionRequested(reason):
            return _preempt(allocation, reason, now)
        case PreemptionAcked():
            return replace(allocation, preempt_acked=allocation.preempt_requested_at is not None), []
        case PreemptionTimedOut():
            if allocation.preempt_requested_at is None:
                return allocation, []
            return _kill(
                allocation, f"did not stop within {allocation.preemption_timeout:g} s of being asked to", now
            )
        case KillRequested(reason):
            return _kill(replace(allocation, kill_requested=True), reason or "killed", now)


def grace_left(allocation: Allocation, now: float) -> float:
    """Seconds until an allocation that was asked to stop is killed, for a master that has just started.

    Only the wall clock lasts from one master to the next. Where it went back meanwhile, the grace is not longer than
    it was at first.
    """
    assert allocation.preempt_requested_at is not None, f"allocation {allocation.id} was not asked to stop"
    left = allocation.preempt_requested_at + allocation.preemption_timeout - now
    return min(max(0.0, left), allocation.preemption_timeout)


def _granted(
    allocation: Allocation, containers: tuple[Container, ...], now: float
) -> tuple[Allocation, list[Effect]]:
    assigned = _moved(allocation, AllocationState.ASSIGNED)
    started = replace(assigned, containers=containers, started_at=now)
    return started, [StartContainer(container) for container in containers]


def _container_moved(
    allocation: Allocation, event: ContainerMoved, now: float
) -> tuple[Allocation, list[Effect]]:
    before = next((c for c in allocation.containers if c.id == event.container_id), None)
    if before is None or before.ended or event.state.progress < before.state.progress:
        return allocation, []
    allocation = _with_container(
        allocation,
        event.container_id,
        state=event.state,
        exit_code=event.exit_code,
        failure=event.failure,
        failure_message=event.message,
        address=event.address or before.address,
    )
    return _settle(allocation, now)


def _agent_lost(allocation: Allocation, agent_id: str, now: float) -> tuple[Allocation, list[Effect]]:
    lost = [c for c in allocation.containers if c.agent_id == agent_id and not c.ended]
    for container in lost:
        allocation = _with_container(
            allocation,
            container.id,
            state=AllocationState.TERMINATED,
            failure="agent_failed",
            failure_message=f"agent {agent_id} is gone",
        )
    return _settle(allocation, now) if lost else (allocation, [])


def _preempt(allocation: Allocation, reason: str, now: float) -> tuple[Allocation, list[Effect]]:
    if allocation.preempt_requested_at is not None or allocation.kill_requested:
        return allocation, []
    allocation = replace(allocation, preempt_requested_at=now, exit_reason=reason)
    if not allocation.ready:
        return _kill(replace(allocation, aborted=True), reason or "stopped before it was ready", now)
    return allocation, [SignalPreemption(), ArmPreemptionTimeout(allocation.preemption_timeout)]


def _kill(allocation: Allocation, reason: str, now: float) -> tuple[Allocation, list[Effect]]:
    allocation = replace(allocation, exit_reason=allocation.exit_reason or reason)
    if not allocation.containers:  # still in the queue
        return _end(allocation, now)
    return allocation, _kill_running(allocation)


def _kill_running(allocation: Allocation) -> list[Effect]:
    return [KillContainer(c, KILL_GRACE_SECONDS) for c in allocation.containers if not c.ended]


def _settle(allocation: Allocation, now: float) -> tuple[Allocation, list[Effect]]:
    """What follows from the states of the containers."""
    effects: list[Effect] = []
    failed = next((c for c in allocation.containers if c.ended and (c.failure or c.exit_code)), None)
    if failed is not None and allocation.failure is None:
        allocation = replace(
            allocation,
            exit_code=failed.exit_code,
            failure=failed.failure or TASK_FAILED,
            exit_reason=allocation.exit_reason
            or failed.failure_message
            or f"exited with code {failed.exit_code}",
        )
        effects = _kill_running(allocation)
    if all(c.ended for c in allocation.containers):
        ended, more = _end(allocation, now)
        return ended, more
    if all(c.ended or c.daemon for c in allocation.containers):
        effects = _kill_running(allocation)
    least = min((c.state for c in allocation.containers), key=lambda state: state.progress)
    if least.progress > allocation.state.progress:
        allocation = _moved(allocation, least)
    return allocation, effects


def _end(allocation: Allocation, now: float) -> tuple[Allocation, list[Effect]]:
    only_daemons_failed = all(c.exit_code == 0 for c in allocation.containers if not c.daemon)
    clean = (
        only_daemons_failed
        and allocation.containers
        and allocation.failure in (None, TASK_FAILED, KILLED_BY_US)
    )
    ended = replace(
        _moved(allocation, AllocationState.TERMINATED),
        ended_at=now,
        exit_code=0 if clean else allocation.exit_code,
        failure=None if clean else allocation.failure,
    )
    return ended, [Ended()]


def _moved(allocation: Allocation, to: AllocationState) -> Allocation:
    state = transitions.check(transitions.ALLOCATION, f"allocation {allocation.id}", allocation.state, to)
    return replace(allocation, state=state)


def _with_container(allocation: Allocation, container_id: str, **changes: object) -> Allocation:
    return replace(
        allocation,
        containers=tuple(
            replace(c, **changes) if c.id == container_id else c  # type: ignore[arg-type]
            for c in allocation.containers
        ),
    )
