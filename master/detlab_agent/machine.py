"""What the agent does when something happens: (state, event, now) -> (state, effects). No I/O, clock or randomness.

A container moves

    STARTING -> RUNNING -> DRAINING -> TERMINATED

DRAINING: no process is left, but the master has not acknowledged all log lines yet. To the master it is still running:
so whoever sees TERMINATED has all the output. The table is `_MOVES`; every change of phase passes `_move`.

Events from the master may be repeated and may come late; they never fail. Events from the driver and the log shipper
are facts about containers that this machine knows: anything else is a bug, and raises IllegalEvent.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from detlab_agent.drivers.base import Ended, KillReason
from detlab_agent.protocol import (
    AckLogs,
    AckState,
    AgentMessage,
    ContainerReport,
    ContainerSpec,
    ContainerState,
    ContainerStateChanged,
    Device,
    Failure,
    FailureKind,
    Hello,
    Isolation,
    KillContainer,
    MasterMessage,
    PythonOffer,
    Refused,
    StartContainer,
    Welcome,
)

STOP_GRACE_SECONDS = 10.0  # for the tasks of an agent that takes them along


class IllegalEvent(Exception):
    """An event that cannot happen in this state."""


# ---- state -----------------------------------------------------------------------------------------------------


class Phase(Enum):
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    TERMINATED = "terminated"


_MOVES: Mapping[Phase, frozenset[Phase]] = {
    Phase.STARTING: frozenset({Phase.RUNNING, Phase.TERMINATED}),  # TERMINATED: it could not be started
    Phase.RUNNING: frozenset({Phase.DRAINING}),
    Phase.DRAINING: frozenset({Phase.TERMINATED}),
    Phase.TERMINATED: frozenset(),
}

_TOLD_AS: Mapping[Phase, ContainerState] = {
    Phase.STARTING: ContainerState.STARTING,
    Phase.RUNNING: ContainerState.RUNNING,
    Phase.DRAINING: ContainerState.RUNNING,
    Phase.TERMINATED: ContainerState.TERMINATED,
}


@dataclass(frozen=True)
class Container:
    container_id: str
    allocation_id: str
    phase: Phase
    killed_by: KillReason | None = None
    exit_code: int | None = None
    failure: Failure | None = None
    told: ContainerState | None = None  # the state that the master was last told on this connection


@dataclass(frozen=True)
class Identity:
    """What the agent says of itself."""

    agent_id: str
    resource_pool: str
    version: str
    boot_id: str
    slots: tuple[Device, ...]
    isolation: Isolation
    environments: tuple[PythonOffer, ...] = ()
    shared_trust: bool = False  # without isolation: other users' tasks are taken all the same


@dataclass(frozen=True)
class State:
    identity: Identity
    owner: str | None = None  # without isolation: the one Detlab user whose tasks this agent takes
    containers: Mapping[str, Container] = field(default_factory=dict)
    welcomed: bool = False  # the connection is up and the master has answered
    stopping: bool = False  # takes its tasks along and starts no more

    @property
    def alive(self) -> int:
        """How many containers have processes."""
        return sum(c.phase in (Phase.STARTING, Phase.RUNNING) for c in self.containers.values())


# ---- events ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Adopted:
    """A container of an earlier agent is there, running or ended."""

    spec: ContainerSpec
    killed_by: KillReason | None


@dataclass(frozen=True)
class Connected:
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Disconnected:
    pass


@dataclass(frozen=True)
class Received:
    message: MasterMessage


@dataclass(frozen=True)
class Started:
    container_id: str


@dataclass(frozen=True)
class StartFailed:
    container_id: str
    failure: Failure


@dataclass(frozen=True)
class ContainerEnded:
    container_id: str
    ended: Ended


@dataclass(frozen=True)
class LogsDelivered:
    """The container has ended and the master has all its lines."""

    container_id: str


@dataclass(frozen=True)
class StopRequested:
    """The agent is to end, and its tasks with it."""


Event = (
    Adopted
    | Connected
    | Disconnected
    | Received
    | Started
    | StartFailed
    | ContainerEnded
    | LogsDelivered
    | StopRequested
)

# ---- effects ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    message: AgentMessage


@dataclass(frozen=True)
class Start:
    """Start it, and watch it as in Watch. Answered by Started or StartFailed."""

    spec: ContainerSpec


@dataclass(frozen=True)
class Watch:
    """Wait for its end (ContainerEnded) and ship its logs (LogsDelivered)."""

    spec: ContainerSpec


@dataclass(frozen=True)
class Kill:
    container_id: str
    grace_seconds: float
    reason: KillReason


@dataclass(frozen=True)
class Forget:
    """Delete all that is left of the container."""

    container_id: str


@dataclass(frozen=True)
class RememberOwner:
    """From now on, and after restarts, this agent belongs to this Detlab user."""

    owner: str


@dataclass(frozen=True)
class ResumeLogs:
    """The master takes log lines; whatever it has not acknowledged is sent again."""


@dataclass(frozen=True)
class PauseLogs:
    pass


@dataclass(frozen=True)
class NoteAckedLogs:
    container_id: str
    offset: int


@dataclass(frozen=True)
class Leave:
    """The master does not take this agent. `permanent`: exit; else try again later."""

    reason: str
    permanent: bool


Effect = Send | Start | Watch | Kill | Forget | RememberOwner | ResumeLogs | PauseLogs | NoteAckedLogs | Leave
Step = tuple[State, list[Effect]]


# ---- steps -----------------------------------------------------------------------------------------------------


def step(state: State, event: Event, now: str) -> Step:
    """What follows from `event` at `now` (UTC, ISO 8601). IllegalEvent changes nothing."""
    match event:
        case Adopted(spec, killed_by):
            container = Container(spec.container_id, spec.allocation_id, Phase.RUNNING, killed_by)
            return _put(state, container), [Watch(spec)]
        case Connected(addresses):
            return _on_connected(state, addresses)
        case Disconnected():
            return replace(state, welcomed=False), [PauseLogs()]
        case Received(message):
            return _on_message(state, message, now)
        case Started(container_id):
            return _tell(_move(state, container_id, Phase.RUNNING), container_id, now)
        case StartFailed(container_id, failure):
            return _fail_start(state, container_id, failure, now)
        case ContainerEnded(container_id, ended):
            return _on_ended(state, container_id, ended)
        case LogsDelivered(container_id):
            return _tell(_move(state, container_id, Phase.TERMINATED), container_id, now)
        case StopRequested():
            stopped = replace(state, stopping=True)
            effects: list[Effect] = []
            for container in state.containers.values():
                stopped, killed = _kill(stopped, container, STOP_GRACE_SECONDS, KillReason.AGENT)
                effects += killed
            return stopped, effects


def _on_connected(state: State, addresses: tuple[str, ...]) -> Step:
    me = state.identity
    reports = tuple(
        ContainerReport(c.container_id, c.allocation_id, _TOLD_AS[c.phase], *_outcome(c))
        for c in state.containers.values()
    )
    containers = {c.container_id: replace(c, told=_TOLD_AS[c.phase]) for c in state.containers.values()}
    hello = Hello(
        agent_id=me.agent_id,
        resource_pool=me.resource_pool,
        version=me.version,
        boot_id=me.boot_id,
        slots=me.slots,
        isolation=me.isolation,
        containers=reports,
        addresses=addresses,
        environments=me.environments,
    )
    return replace(state, containers=containers, welcomed=False), [Send(hello)]


def _on_message(state: State, message: MasterMessage, now: str) -> Step:
    match message:
        case Welcome():
            return _on_welcome(state, message, now)
        case Refused(reason, permanent):
            return state, [Leave(reason, permanent)]
        case StartContainer(spec):
            return _on_start(state, spec, now)
        case KillContainer(container_id, grace_seconds):
            container = state.containers.get(container_id)
            if container is None:  # it has ended and was forgotten
                return state, []
            return _kill(state, container, grace_seconds, KillReason.MASTER)
        case AckState(container_id):
            container = state.containers.get(container_id)
            if container is None or container.phase is not Phase.TERMINATED:
                return state, []
            return _remove(state, container_id), [Forget(container_id)]
        case AckLogs(container_id, offset):
            return state, [NoteAckedLogs(container_id, offset)] if container_id in state.containers else []


def _on_welcome(state: State, welcome: Welcome, now: str) -> Step:
    welcomed, keep = replace(state, welcomed=True), frozenset(welcome.keep)
    effects: list[Effect] = [NoteAckedLogs(*stored) for stored in welcome.stored.items()]
    effects.append(ResumeLogs())
    for container in state.containers.values():
        container_id = container.container_id
        if container_id in keep:
            if _TOLD_AS[container.phase] is not container.told:  # something happened since Hello
                welcomed, told = _tell(welcomed, container_id, now)
                effects += told
        elif container.phase in (Phase.STARTING, Phase.RUNNING):
            unwanted = replace(container, killed_by=KillReason.UNWANTED)
            welcomed = _put(welcomed, unwanted)
            effects.append(Kill(container_id, 0.0, KillReason.UNWANTED))
        else:
            welcomed = _remove(welcomed, container_id)
            effects.append(Forget(container_id))
    return welcomed, effects


def _on_start(state: State, spec: ContainerSpec, now: str) -> Step:
    container_id = spec.container_id
    if container_id in state.containers:
        return _tell(state, container_id, now)
    started = _put(state, Container(container_id, spec.allocation_id, Phase.STARTING))
    if state.stopping:
        failure = Failure(FailureKind.AGENT_FAILED, f"agent {state.identity.agent_id} is stopping")
        return _fail_start(started, container_id, failure, now)
    effects: list[Effect] = []
    if state.identity.isolation is Isolation.NONE and not state.identity.shared_trust:
        if state.owner is None:
            started = replace(started, owner=spec.owner)
            effects.append(RememberOwner(spec.owner))
        elif state.owner != spec.owner:
            message = (
                f"agent {state.identity.agent_id} does not run as root, so it cannot keep users' files apart: it"
                f" takes tasks of {state.owner!r} only, not of {spec.owner!r}. Run it as root, or set"
                " DETLAB_SHARED_TRUST=1 where all users trust each other"
            )
            return _fail_start(started, container_id, Failure(FailureKind.USER_MISMATCH, message), now)
    started, told = _tell(started, container_id, now)
    return started, [*effects, *told, Start(spec)]


def _fail_start(state: State, container_id: str, failure: Failure, now: str) -> Step:
    moved = _move(state, container_id, Phase.TERMINATED)
    failed = _put(moved, replace(moved.containers[container_id], failure=failure))
    return _tell(failed, container_id, now)


def _on_ended(state: State, container_id: str, ended: Ended) -> Step:
    moved = _move(state, container_id, Phase.DRAINING)
    container = moved.containers[container_id]
    if container.killed_by is KillReason.UNWANTED:
        return _remove(moved, container_id), [Forget(container_id)]
    failure = _failure(ended, container.killed_by)
    return _put(moved, replace(container, exit_code=ended.exit_code, failure=failure)), []


def _failure(ended: Ended, killed_by: KillReason | None) -> Failure | None:
    if killed_by is KillReason.AGENT:  # whatever the exit code: it was not left to finish
        return Failure(FailureKind.AGENT_FAILED, "the agent was stopped and ended its tasks")
    if ended.kind is not None:
        return Failure(ended.kind, ended.message or "the container ended in an unknown way")
    if ended.exit_code == 0:
        return None
    if killed_by is not None:
        return Failure(
            FailureKind.CONTAINER_ABORTED, f"the container was killed (exit code {ended.exit_code})"
        )
    return Failure(
        FailureKind.CONTAINER_FAILED,
        ended.message
        or f"the container failed with exit code {ended.exit_code}{_signal_of(ended.exit_code)}",
    )


def _signal_of(exit_code: int | None) -> str:
    """ " (killed by SIGKILL)" for 137, as shells count; empty where the code stands for no signal."""
    try:
        return f" (killed by {signal.Signals((exit_code or 0) - 128).name})"
    except ValueError:
        return ""


def _kill(state: State, container: Container, grace_seconds: float, reason: KillReason) -> Step:
    if container.phase not in (Phase.STARTING, Phase.RUNNING):
        return state, []
    first = container.killed_by or reason
    killed = _put(state, replace(state.containers[container.container_id], killed_by=first))
    return killed, [Kill(container.container_id, grace_seconds, first)]


def _tell(state: State, container_id: str, now: str) -> Step:
    """Reports the container's state, if anybody listens; else the next Hello does."""
    if not state.welcomed:
        return state, []
    container = state.containers[container_id]
    told = _TOLD_AS[container.phase]
    message = ContainerStateChanged(container_id, container.allocation_id, told, *_outcome(container), now)
    return _put(state, replace(container, told=told)), [Send(message)]


def _outcome(container: Container) -> tuple[int | None, Failure | None]:
    if container.phase is not Phase.TERMINATED:
        return None, None
    return container.exit_code, container.failure


def _move(state: State, container_id: str, phase: Phase) -> State:
    container = state.containers.get(container_id)
    if container is None:
        raise IllegalEvent(f"container {container_id} is to be {phase.value}, but the agent does not know it")
    if phase not in _MOVES[container.phase]:
        allowed = ", ".join(sorted(p.value for p in _MOVES[container.phase])) or "nothing"
        raise IllegalEvent(
            f"container {container_id} is {container.phase.value} and cannot be {phase.value}, only {allowed}"
        )
    return _put(state, replace(container, phase=phase))


def _put(state: State, container: Container) -> State:
    return replace(state, containers={**state.containers, container.container_id: container})


def _remove(state: State, container_id: str) -> State:
    return replace(state, containers={k: c for k, c in state.containers.items() if k != container_id})
