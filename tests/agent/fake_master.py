"""The master's side of the agent's WebSocket for tests, and a real agent process to talk to."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, HTTPError
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from detlab_agent.protocol import (
    AckLogs,
    AckState,
    ContainerReport,
    ContainerSpec,
    ContainerState,
    ContainerStateChanged,
    Hello,
    KillContainer,
    LogBatch,
    LogLine,
    MasterMessage,
    Message,
    Refused,
    StartContainer,
    Welcome,
    decode,
    encode,
)
from support.run_as import run_as

TOKEN = "the-agent-token"
OWNER_UID = 70001
T = TypeVar("T")


@dataclass
class Seen:
    """What the master knows of one container: what it stored, and in which order things came."""

    lines: list[LogLine] = field(default_factory=list)
    states: list[ContainerState] = field(default_factory=list)
    lines_before_end: int = -1  # how many lines were there when TERMINATED came
    end: ContainerStateChanged | ContainerReport | None = None

    @property
    def text(self) -> str:
        return "".join(line.log for line in self.lines)


class FakeMaster:
    """Welcomes one agent, stores lines as the protocol says (repeats dropped by offset), acknowledges all."""

    def __init__(self) -> None:
        self.hellos: list[Hello] = []
        self.containers: dict[str, Seen] = {}
        self.wanted: set[str] = set()
        self.forgets = True  # acknowledge ends
        self.batches_before_silence: int | None = None  # acknowledge so many batches, then none
        self.refuses = False  # answer 503 to whoever connects
        self.refusal: Refused | None = None  # answer Hello with this
        self.handler: WebSocketHandler | None = None
        self._changed = asyncio.Condition()
        self._server = HTTPServer(Application([(r"/agents", _Handler, {"master": self})]))
        sock, self.port = bind_unused_port()
        self._server.add_socket(sock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def send(self, message: MasterMessage) -> None:
        assert self.handler is not None, "no agent is connected"
        self.handler.write_message(encode(message))

    def start(self, *command: str, **changes: Any) -> str:
        """Asks the agent to run a command; the container's id."""
        return self.start_spec(make_spec(*command, **changes))

    def start_spec(self, spec: ContainerSpec) -> str:
        self.expect(spec)
        self.send(StartContainer(spec))
        return spec.container_id

    def expect(self, spec: ContainerSpec) -> None:
        """The master wants this container, and has no line of it yet."""
        self.wanted.add(spec.container_id)
        self.containers[spec.container_id] = Seen()

    def kill(self, container_id: str, grace_seconds: float = 0.0) -> None:
        self.send(KillContainer(container_id, grace_seconds))

    async def until(self, condition: Callable[[], T], timeout: float = 20.0) -> T:
        """Waits until `condition` gives something true, looking again at every message."""
        async with asyncio.timeout(timeout), self._changed:
            while not (value := condition()):
                await self._changed.wait()
            return value

    async def ended(self, container_id: str, timeout: float = 20.0) -> Seen:
        seen = self.containers[container_id]
        await self.until(lambda: seen.end, timeout)
        return seen

    async def said(self, container_id: str, text: str, timeout: float = 20.0) -> str:
        """Waits until the container's output holds `text`; all of the output."""
        seen = self.containers[container_id]
        await self.until(lambda: text in seen.text, timeout)
        return seen.text

    async def close(self) -> None:
        if self.handler is not None:
            self.handler.close()
        self._server.stop()
        await self._server.close_all_connections()

    async def take(self, message: Message) -> None:
        match message:
            case Hello() if self.refusal is not None:
                self.send(self.refusal)
            case Hello():
                self.hellos.append(message)
                for report in message.containers:
                    if report.container_id in self.wanted and report.state is ContainerState.TERMINATED:
                        self._note_end(report)
                stored = {i: seen.lines[-1].offset for i, seen in self.containers.items() if seen.lines}
                self.send(Welcome("master-1", "cluster-1", tuple(sorted(self.wanted)), stored))
                for report in message.containers:
                    if report.state is ContainerState.TERMINATED and self.forgets:
                        self.send(AckState(report.container_id))
            case ContainerStateChanged():
                seen = self.containers[message.container_id]
                seen.states.append(message.state)
                if message.state is ContainerState.TERMINATED:
                    self._note_end(message)
                    if self.forgets:
                        self.send(AckState(message.container_id))
            case LogBatch():
                self._store(message)
            case _:
                raise AssertionError(f"an agent does not send {message}")
        async with self._changed:
            self._changed.notify_all()

    def _store(self, batch: LogBatch) -> None:
        seen = self.containers[batch.container_id]
        last = seen.lines[-1].offset if seen.lines else 0
        seen.lines += [line for line in batch.lines if line.offset > last]
        if self.batches_before_silence is not None:
            if self.batches_before_silence == 0:
                return
            self.batches_before_silence -= 1
        self.send(AckLogs(batch.container_id, batch.lines[-1].offset))

    def _note_end(self, report: ContainerStateChanged | ContainerReport) -> None:
        seen = self.containers[report.container_id]
        if seen.end is None:
            seen.end = report
            seen.lines_before_end = len(seen.lines)


class _Handler(WebSocketHandler):
    def initialize(self, master: FakeMaster) -> None:
        self.master = master

    def prepare(self) -> None:
        if self.request.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise HTTPError(401)
        if self.master.refuses:
            raise HTTPError(503)

    def open(self, *args: str, **kwargs: str) -> None:
        self.set_nodelay(True)
        self.master.handler = self

    async def on_message(self, message: str | bytes) -> None:
        try:
            await self.master.take(decode(message))
        except WebSocketClosedError:
            return  # the agent was killed meanwhile

    def on_close(self) -> None:
        if self.master.handler is self:
            self.master.handler = None


def make_spec(*command: str, **changes: Any) -> ContainerSpec:
    values: dict[str, Any] = {
        "container_id": str(uuid.uuid4()),
        "allocation_id": "1.t.1",
        "task_id": "1.t",
        "task_type": "COMMAND",
        "owner": "ada",
        "owner_uid": OWNER_UID,
        "command": command,
        "environment": {},
    }
    return ContainerSpec(**(values | changes))


class AgentProcess:
    """A real agent in a process of its own; `start` after `kill` is a restart on the same data folder."""

    def __init__(self, master_url: str, folder: Path) -> None:
        self.master_url = master_url
        self.data_dir = folder / "data"
        self.log = folder / "agent.log"
        self.token_file = folder / "token"
        self.token_file.write_text(TOKEN + "\n")
        self.token_file.chmod(0o600)
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, *flags: str, uid: int | None = None, user_namespaces: bool = True, **environ: str
    ) -> None:
        """`uid`: not as root, but as this one, which the kernel may be told to give no `user_namespaces`."""
        folder = self.data_dir.parent
        if uid is not None:
            for path in (folder, self.token_file):
                os.chown(path, uid, uid)
        prefix = [] if uid is None else run_as(uid, folder, user_namespaces=user_namespaces)
        with self.log.open("ab") as log:
            known = {
                "master-url": self.master_url,
                "agent-id": "agent-1",
                "data-dir": self.data_dir,
                "token-file": self.token_file,
            }
            self._process = subprocess.Popen(
                [
                    *prefix,
                    sys.executable,
                    "-m",
                    "detlab_agent",
                    *(f"--{k}={v}" for k, v in known.items()),
                    *flags,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **environ},
            )

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def wait(self) -> int:
        assert self._process is not None
        return await asyncio.wait_for(asyncio.to_thread(self._process.wait), 20)

    async def kill(self) -> None:
        """kill -9."""
        self.signal(signal.SIGKILL)
        await self.wait()

    @property
    def said(self) -> str:
        return self.log.read_text()

    def folder(self, container_id: str) -> Path:
        return self.data_dir / "containers" / container_id

    async def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            await self.kill()


async def eventually(condition: Callable[[], bool], timeout: float = 20.0) -> None:
    """Waits for something that no message tells."""
    async with asyncio.timeout(timeout):
        while not condition():
            await asyncio.sleep(0.02)
