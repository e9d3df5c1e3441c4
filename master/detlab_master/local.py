"""Detlab on one machine: a master and an agent, for `make up`.

Both are started anew when they end on their own. Ctrl-C ends the master, then the agent with all tasks; experiments go
on from their checkpoints at the next start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from detlab_master.store.lock import DataFolderInUse, hold

READY_SECONDS = 60.0
RESTART_SECONDS = 1.0  # between an unexpected end of a part and its next start


@dataclass(frozen=True)
class Place:
    """Where this installation listens, and where it keeps what it keeps."""

    port: int
    folder: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def master_folder(self) -> Path:
        return self.folder / "master"

    @property
    def activate(self) -> Path:
        return self.folder / "activate"


def main() -> None:
    """Run until Ctrl-C. Exits with 1 and one readable message when it cannot start."""
    parser = argparse.ArgumentParser(prog="make up", description="Detlab on this machine.")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--data-dir", type=Path, default=Path(".detlab"))
    arguments = parser.parse_args()
    place = Place(arguments.port, arguments.data_dir.absolute())
    place.folder.mkdir(parents=True, exist_ok=True)
    try:
        with hold(place.folder, f"Detlab at {place.url}"):
            sys.exit(asyncio.run(_run(place)))
    except DataFolderInUse as error:
        print(f"{error}\nIt goes on running; nothing was changed. In another terminal, in this folder:")
        print(_next_steps(place))
        print(
            "A second copy beside it needs a port and a folder of its own: make up PORT=9000 DATA=.detlab-9000"
        )


async def _run(place: Place) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    failed: asyncio.Future[str] = loop.create_future()
    if (problem := _port_problem(place.port)) is not None:
        failed.set_result(problem)
        return _say_failure(failed)
    master = _Part("master", [*_master_command(place)], place.folder / "master.log", failed)
    agent = _Part("agent", [*_agent_command(place)], place.folder / "agent.log", failed)
    try:
        master.start()
        if not await _until(lambda: _get(f"{place.url}/health") is not None, stop, failed):
            return _say_failure(failed)
        agent.start()
        if not await _until(lambda: _slots(place) > 0, stop, failed):
            return _say_failure(failed)
        _write_activate(place)
        print(_banner(place), flush=True)
        await _first(stop, failed)
        return _say_failure(failed)
    finally:
        # The master first: it must not take the end of the tasks for failures of theirs.
        await master.stop()
        await agent.stop()
        print(
            "Detlab has ended. Experiments that were running go on from their checkpoints at the next `make up`."
        )


def _port_problem(port: int) -> str | None:
    """Why the port cannot be used. Asked first, for what listens there already may answer like a master of ours."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
            return f"port {port} cannot be used: {why}. Choose another, for example: make up PORT=9000"
    return None


def _master_command(place: Place) -> Sequence[str]:
    return (
        *(sys.executable, "-m", "detlab_master"),
        *("--port", str(place.port), "--data-dir", str(place.master_folder)),
    )


def _agent_command(place: Place) -> Sequence[str]:
    return (
        *(sys.executable, "-m", "detlab_agent", "--master-url", place.url, "--stop-tasks-on-exit"),
        *("--agent-id", "local", "--data-dir", str(place.folder / "agent")),
        *("--token-file", str(place.master_folder / "agent-token")),
    )


class _Part:
    """A child process that is started again when it ends on its own; its output goes to a file."""

    def __init__(self, name: str, command: list[str], log: Path, failed: asyncio.Future[str]) -> None:
        self._name = name
        self._command = command
        self._log = log
        self._failed = failed
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._keeper = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        while True:
            with self._log.open("ab") as log:
                start = log.tell()
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C reaches us; we end the parts in their order
                )
            code = await self._process.wait()
            said = self._log.read_bytes()[start:].decode(errors="replace").strip()
            if code == 1:  # it says that it cannot run like this: another try would not help
                if not self._failed.done():
                    self._failed.set_result(
                        said.splitlines()[-1] if said else f"the {self._name} cannot start"
                    )
                return
            print(f"The {self._name} ended unexpectedly (exit code {code}) and is started again.", flush=True)
            await asyncio.sleep(RESTART_SECONDS)

    async def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), 20)
        except TimeoutError:
            process.kill()
            await process.wait()


async def _until(condition: object, stop: asyncio.Event, failed: asyncio.Future[str]) -> bool:
    """Wait for a condition that is cheap to look at; False when the user or a part gave up first."""
    assert callable(condition)
    deadline = asyncio.get_running_loop().time() + READY_SECONDS
    while not stop.is_set() and not failed.done():
        if await asyncio.to_thread(condition):
            return True
        if asyncio.get_running_loop().time() > deadline:
            failed.set_result(
                f"no answer within {READY_SECONDS:g} s; the log files in the data folder say why"
            )
        await asyncio.sleep(0.1)
    return False


async def _first(stop: asyncio.Event, failed: asyncio.Future[str]) -> None:
    failed.add_done_callback(lambda _: stop.set())
    await stop.wait()


def _say_failure(failed: asyncio.Future[str]) -> int:
    if not failed.done():
        return 0
    print(f"Detlab cannot run: {failed.result()}", file=sys.stderr)
    return 1


def _get(url: str, token: str | None = None, body: object = None) -> dict[str, object] | None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=2) as answer:
            parsed = json.load(answer)
            return parsed if isinstance(parsed, dict) else {}
    except (urllib.error.URLError, OSError, ValueError):
        return None


def _slots(place: Place) -> int:
    """Slots of the agents that are connected."""
    login = {"username": "determined", "password": _password(place)}
    session = _get(f"{place.url}/api/v1/auth/login", body=login) or {}
    listed = _get(f"{place.url}/api/v1/agents", token=str(session.get("token"))) or {}
    agents = listed.get("agents")
    return sum(len(agent["slots"]) for agent in agents) if isinstance(agents, list) else 0


def _password(place: Place) -> str:
    return (place.master_folder / "initial-password").read_text().strip()


def _write_activate(place: Place) -> None:
    """A file to source: `det` on the path, and who and where to be; readable by its owner only."""
    lines = [
        f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH",
        f"export DET_MASTER={place.url}",
        "export DET_USER=determined",
        f"export DET_PASS={shlex.quote(_password(place))}",
    ]
    place.activate.unlink(missing_ok=True)
    descriptor = os.open(place.activate, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write("\n".join(lines) + "\n")


def _next_steps(place: Place) -> str:
    shown = os.path.relpath(place.activate)
    return f"    source {shown}\n    det experiment create examples/digits/adaptive.yaml examples/digits -f\n"


def _banner(place: Place) -> str:
    one_user = (
        ""
        if os.geteuid() == 0 or os.environ.get("DETLAB_SHARED_TRUST") == "1"
        else "Not started as root, so users' tasks cannot be kept apart: this Detlab runs tasks of one user only"
        " (DETLAB_SHARED_TRUST=1 admits all).\n"
    )
    return (
        f"\nDetlab is up at {place.url} with {_slots(place)} slots. Ctrl-C ends it.\n"
        f"Log in as determined (or admin), password {_password(place)}\n"
        f"{one_user}Kept in {os.path.relpath(place.folder)}: logs, database, checkpoints, the password.\n\n"
        "Next, in another terminal, in this folder:\n"
        f"{_next_steps(place)}"
    )


if __name__ == "__main__":
    main()
