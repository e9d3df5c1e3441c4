"""The messages between master and agent: one WebSocket per agent, one JSON object per text frame.

The only module of the agent that the master imports. Rules that both sides keep:

- The agent speaks first, on every connection: `Hello`, with all containers that it knows. The master answers
  `Welcome` or `Refused`, and nothing else passes before that.
- **Everything may be repeated**, because either side may be killed between doing and saying. Starting a container
  that exists is a no-op that re-reports its state; killing one that has ended, too. Log lines carry an `offset`
  that grows within a container, so that the master drops those that it has.
- A container's states only move down `PULLING, STARTING, RUNNING, TERMINATED` (some may be left out).
- **`TERMINATED` comes last**: the agent says it (in `ContainerStateChanged` or `Hello`) only when every log line of the
  container was acknowledged with `AckLogs`. Until `AckState` the agent keeps the container and repeats the report on
  every connection; after it, the agent forgets the container and deletes its folder.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, TypeVar

PROTOCOL_VERSION: Final = 1
T = TypeVar("T")


class ProtocolError(Exception):
    """A frame that is no message: says where it is wrong and what is allowed there."""


class DeviceType(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"


class Isolation(StrEnum):
    UNIX_ACCOUNT = "unix_account"  # each user's tasks run under a uid of their own
    NONE = "none"  # all tasks run as the agent's own account: one Detlab user only


class ContainerState(StrEnum):
    PULLING = "PULLING"
    STARTING = "STARTING"  # folder made, shim being started
    RUNNING = "RUNNING"
    TERMINATED = "TERMINATED"


class FailureKind(StrEnum):
    CONTAINER_FAILED = (
        "container_failed"  # it could not be started, or ended with a non-zero exit code by itself
    )
    CONTAINER_ABORTED = "container_aborted"  # it was killed because the master asked
    CONTAINER_MISSING = "container_missing"  # its shim vanished without leaving an exit code
    AGENT_FAILED = "agent_failed"  # the agent ended it on its own account (--stop-tasks-on-exit)
    ENVIRONMENT_UNUSABLE = "environment_unusable"  # no task of this Python environment can run on this agent
    USER_MISMATCH = "user_mismatch"  # an agent that is not root serves one Detlab user, and this is another


class Stdtype(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


# ---- parts of messages -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """A slot of an agent."""

    id: int  # 0, 1, ... within the agent
    type: DeviceType
    brand: str  # model name for people
    uuid: str  # for CPU slots made up by the agent, the same across restarts


@dataclass(frozen=True)
class PythonOffer:
    """An entry of agent.yaml's `environments`: trials whose `environment.image` is `name` run with it."""

    name: str
    refusal: str = ""  # why none can, and what to do about it


@dataclass(frozen=True)
class Failure:
    """Why a container ended other than by exit code 0, in words."""

    kind: FailureKind
    message: str


@dataclass(frozen=True)
class ContainerReport:
    """What the agent knows of one container when it connects."""

    container_id: str
    allocation_id: str
    state: ContainerState
    exit_code: int | None = None  # of a TERMINATED container, 128+n for signal n; None where nobody knows it
    failure: Failure | None = None


@dataclass(frozen=True)
class LogLine:
    """One line that a container wrote. The terminator (\\n or \\r) is part of `log`."""

    offset: int  # unique and growing within the container; there may be gaps
    timestamp: str  # UTC, ISO 8601 with microseconds and "Z": when the line was complete
    stdtype: Stdtype
    log: str
    rank_id: int | None = None  # from a "[rank=N] " prefix, which is stripped
    level: str | None = (
        None  # LOG_LEVEL_DEBUG|INFO|WARNING|ERROR|CRITICAL, from a "INFO:" prefix, which is stripped
    )


@dataclass(frozen=True)
class BindMount:
    """A host path that the task can reach at `container_path` (both absolute)."""

    host_path: str
    container_path: str
    read_only: bool = False


@dataclass(frozen=True)
class ContainerSpec:
    """All that the agent must know to run a container."""

    container_id: str
    allocation_id: str
    task_id: str
    task_type: str  # TRIAL, COMMAND, ...
    owner: str  # Detlab user name
    owner_uid: int | None  # the Unix uid (and gid) that this user's tasks run under, where the agent is root
    command: tuple[str, ...]  # argv; a first word `python` or `python3` is the Python of `python_environment`
    environment: dict[str, str] = field(repr=False)  # holds secrets: never logged
    slot_ids: tuple[int, ...] = ()
    bind_mounts: tuple[BindMount, ...] = ()
    home: str | None = None  # a folder that outlives the task: made for its owner if missing, and its HOME
    shared_fs: str | None = (
        None  # folder of the host with the trial's checkpoint storage; it is bound where it is
    )
    python_environment: str | None = (
        None  # a name in agent.yaml's `environments`; None: the agent's own Python
    )


# ---- agent -> master -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    """First on every connection. `containers` are all that the agent has not been told to forget."""

    agent_id: str
    resource_pool: str
    version: str  # of Detlab
    boot_id: str  # changes when the machine was started anew
    slots: tuple[Device, ...]
    isolation: Isolation
    containers: tuple[ContainerReport, ...]
    addresses: tuple[str, ...]  # under which other machines may reach this one, best first
    environments: tuple[PythonOffer, ...] = ()
    protocol: int = PROTOCOL_VERSION


@dataclass(frozen=True)
class ContainerStateChanged:
    container_id: str
    allocation_id: str
    state: ContainerState
    exit_code: int | None
    failure: Failure | None
    at: str  # UTC, ISO 8601


@dataclass(frozen=True)
class LogBatch:
    """Up to 1,000 lines of one container, in order. Answered by `AckLogs` once they are stored."""

    container_id: str
    allocation_id: str
    task_id: str
    lines: tuple[LogLine, ...]


# ---- master -> agent -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Welcome:
    """The master took the agent in. Containers that are not in `keep` are killed."""

    master_id: str
    cluster_id: str
    keep: tuple[str, ...]  # container ids
    stored: dict[str, int]  # container id -> offset of its last line that is stored, where there is one


@dataclass(frozen=True)
class Refused:
    """The master does not take the agent in. `permanent`: trying again does not help, the agent exits."""

    reason: str
    permanent: bool = True


@dataclass(frozen=True)
class StartContainer:
    spec: ContainerSpec


@dataclass(frozen=True)
class KillContainer:
    """SIGTERM to the command's process group, SIGKILL to all its descendants after `grace_seconds`; 0: at once."""

    container_id: str
    grace_seconds: float = 0.0


@dataclass(frozen=True)
class AckState:
    """The master has taken note that the container is TERMINATED: the agent may forget it."""

    container_id: str


@dataclass(frozen=True)
class AckLogs:
    """The master has stored this container's lines up to and including `offset`."""

    container_id: str
    offset: int


AgentMessage = Hello | ContainerStateChanged | LogBatch
MasterMessage = Welcome | Refused | StartContainer | KillContainer | AckState | AckLogs
Message = AgentMessage | MasterMessage

_TYPES: Final[dict[str, type[Message]]] = {
    "hello": Hello,
    "container_state_changed": ContainerStateChanged,
    "log_batch": LogBatch,
    "welcome": Welcome,
    "refused": Refused,
    "start_container": StartContainer,
    "kill_container": KillContainer,
    "ack_state": AckState,
    "ack_logs": AckLogs,
}
_NAMES: Final = {cls: name for name, cls in _TYPES.items()}


def encode(message: Message) -> str:
    """The text frame of a message."""
    return json.dumps(
        {"type": _NAMES[type(message)], **to_json(message)}, separators=(",", ":"), allow_nan=False
    )


def decode(frame: str | bytes) -> Message:
    """The message in a text frame; ProtocolError where it is none."""
    try:
        raw = json.loads(frame)
    except ValueError as e:
        raise ProtocolError(f"the frame is not JSON: {e}") from None
    if not isinstance(raw, dict):
        raise ProtocolError(f"the frame is {_kind(raw)}, expected an object with a 'type'")
    name = raw.pop("type", None)
    cls = _TYPES.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ProtocolError(f"unknown message type {name!r}, expected one of {', '.join(sorted(_TYPES))}")
    return from_json(cls, raw, typing.cast(str, name))


def to_json(value: Any) -> dict[str, Any]:
    """A dataclass of this module as plain JSON values."""
    return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}


def from_json(cls: type[T], raw: Any, where: str) -> T:
    """The inverse of `to_json`. `where` names the place in error messages; ProtocolError on a wrong value."""
    return typing.cast(T, _read(cls, raw, where))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_json(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    return value


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _kind(raw: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(raw), "a number")


def _read(hint: Any, raw: Any, where: str) -> Any:
    if isinstance(hint, types.UnionType):  # only `X | None` is used
        if raw is None:
            return None
        return _read(next(arm for arm in hint.__args__ if arm is not types.NoneType), raw, where)
    origin = typing.get_origin(hint)
    if origin is tuple:
        if not isinstance(raw, list):
            raise ProtocolError(f"{where} is {_kind(raw)}, expected a list")
        item = typing.get_args(hint)[0]
        return tuple(_read(item, value, f"{where}[{i}]") for i, value in enumerate(raw))
    if origin is dict:
        if not isinstance(raw, dict):
            raise ProtocolError(f"{where} is {_kind(raw)}, expected an object")
        item = typing.get_args(hint)[1]
        return {key: _read(item, value, f"{where}.{key}") for key, value in raw.items()}
    if dataclasses.is_dataclass(hint):
        return _read_dataclass(typing.cast(type, hint), raw, where)
    if issubclass(hint, StrEnum):
        try:
            return hint(raw)
        except ValueError:
            raise ProtocolError(f"{where} is {raw!r}, expected one of {', '.join(hint)}") from None
    return _read_scalar(hint, raw, where)


def _read_scalar(hint: type, raw: Any, where: str) -> Any:
    if hint is bool and isinstance(raw, bool):
        return raw
    if hint is str and isinstance(raw, str):
        return raw
    if hint is int and isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if hint is float and isinstance(raw, int | float) and not isinstance(raw, bool) and math.isfinite(raw):
        return float(raw)
    raise ProtocolError(f"{where} is {_kind(raw)}, expected {hint.__name__}")


def _read_dataclass(cls: type, raw: Any, where: str) -> Any:
    if not isinstance(raw, dict):
        raise ProtocolError(f"{where} is {_kind(raw)}, expected an object")
    hints = _hints(cls)
    if unknown := sorted(raw.keys() - hints.keys()):
        raise ProtocolError(
            f"{where} has an unknown field {unknown[0]!r}, expected {', '.join(sorted(hints))}"
        )
    values = {}
    for spec in dataclasses.fields(cls):
        if spec.name in raw:
            values[spec.name] = _read(hints[spec.name], raw[spec.name], f"{where}.{spec.name}")
        elif spec.default is dataclasses.MISSING:
            raise ProtocolError(f"{where} lacks the field {spec.name!r}")
    return cls(**values)
