"""The seam between the agent and what runs its containers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from detlab_agent.protocol import ContainerSpec, FailureKind


class StartError(Exception):
    """A container that cannot be started: why, and what to do."""

    def __init__(self, message: str, kind: FailureKind = FailureKind.CONTAINER_FAILED) -> None:
        super().__init__(message)
        self.kind = kind


class KillReason(StrEnum):
    MASTER = "master"  # the master asked
    AGENT = "agent"  # the agent stops and takes its tasks along
    UNWANTED = "unwanted"  # the master does not know the container any more


@dataclass(frozen=True)
class Ended:
    """How a container ended."""

    exit_code: int | None  # 128+n for signal n; None where nobody knows it
    message: str | None = None  # where there is more to say than the exit code
    kind: FailureKind | None = None  # where it is not an ordinary end
    lines: int | None = None  # that it has said, those that were lost among them; None where nobody knows


@dataclass(frozen=True)
class Found:
    """A container that an earlier agent started on this machine."""

    spec: ContainerSpec
    killed_by: KillReason | None  # asked for before, and perhaps not done yet


class Driver(Protocol):
    """Runs containers that outlive the agent.

    All that is needed to go on after the agent was killed is kept by the driver. Methods are called on one event loop.
    """

    def adopt(self) -> Iterable[Found]:
        """Called once, first: the containers that are there, running or ended, but not forgotten."""
        ...

    def start(self, spec: ContainerSpec) -> None:
        """Starts a container; its command may still turn out not to run. StartError leaves nothing behind."""
        ...

    async def ended(self, container_id: str) -> Ended:
        """Waits until no process of the container is left and its last output is in `logs`."""
        ...

    def kill(self, container_id: str, grace_seconds: float, reason: KillReason) -> None:
        """SIGTERM now and SIGKILL to all that is left after `grace_seconds`; repeating it can only hasten the end.

        The first reason is remembered. A no-op for a container that has ended.
        """
        ...

    def folder(self, container_id: str) -> Path:
        """Where the agent may keep its own notes on the container; `logs` in it holds the segments (segments.py)."""
        ...

    async def forget(self, container_id: str) -> None:
        """Deletes all that is left of a container that has ended."""
        ...
