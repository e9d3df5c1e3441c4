"""The process runtime: a container is a shim (shim.py), a folder, and the processes below the shim.

    <data-dir>/containers/<container_id>/
        spec.json     what the master asked for (0600: secrets inside); without it nothing was started
        launch.json   the same, resolved for the shim (0600)
        kill.json     {"reason", "grace_seconds"} once the container is to end
        lock, shim.json, logs/, exit.json     the shim's, see there
        run/          the task's own, see launching.py

As root, each Detlab user's tasks run under a uid of their own. The folders above `run` can be passed by all, but listed
and read by the agent alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

import detlab_agent
from detlab_agent import shim
from detlab_agent.devices import SlotEnvironment
from detlab_agent.drivers.base import Ended, Found, KillReason, StartError
from detlab_agent.drivers.launching import Launching, tmp_folder
from detlab_agent.drivers.mounts import MountError
from detlab_agent.drivers.ports import choose_ports
from detlab_agent.protocol import ContainerSpec, FailureKind, ProtocolError, from_json, to_json
from detlab_agent.pythons import PythonEnvironment
from detlab_agent.segments import SEGMENT_BYTES, SEGMENTS

log = logging.getLogger(__name__)

FIRST_TASK_UID = 1000  # below are the system's own accounts
_SHIM_START_SECONDS = 10.0
_CONTAINER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_SHIM = "import sys; sys.path.append(sys.argv[1]); from detlab_agent.shim import main; main()"


@dataclass
class _Shim:
    """A shim that lives, or lived when it was last seen."""

    pidfd: int
    pid: int
    kill_timer: asyncio.TimerHandle | None = None
    kill_at: float = float("inf")  # event loop's clock


class ProcessDriver:
    """Runs tasks as processes of this machine. Implements drivers.base.Driver."""

    def __init__(
        self,
        data_dir: Path,
        pythons: Mapping[str | None, PythonEnvironment],
        base_environment: Mapping[str, str],
        slot_environment: SlotEnvironment,
        *,
        keep_folders: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        segments: int = SEGMENTS,
    ) -> None:
        """`pythons`: by the name in `environments`, None the agent's own. `base_environment`: what every task gets.

        `keep_folders`: ended containers' folders are moved to `<data-dir>/kept` rather than deleted.
        """
        self._containers = data_dir / "containers"
        self._kept = data_dir / "kept" if keep_folders else None
        self._launching = Launching(pythons, base_environment, slot_environment)
        self._slot_environment = slot_environment
        self._segment_bytes = segment_bytes
        self._segments = segments
        self._separates_users = os.geteuid() == 0
        self._shims: dict[str, _Shim] = {}
        self._ports: dict[str, int] = {}  # container id -> the first of its allocation's ports
        mode = 0o711 if self._separates_users else 0o700
        for folder in (data_dir, self._containers):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(mode)

    # ---- Driver

    def adopt(self) -> Iterable[Found]:
        return list(self._adopt())

    def start(self, spec: ContainerSpec) -> None:
        if not _CONTAINER_ID.fullmatch(spec.container_id):
            raise StartError(f"{spec.container_id!r} is no container id")
        if unknown := self._slot_environment.unknown(spec.slot_ids):
            raise StartError(f"this agent has no slot {unknown[0]}")
        uid = self._uid(spec)
        folder = self.folder(spec.container_id)
        try:
            first_port, ports = choose_ports(spec.allocation_id, set(self._ports.values()))
            launch = self._launching.prepare(spec, folder, uid, ports) | {
                "first_port": first_port,
                "segment_bytes": self._segment_bytes,
                "segments": self._segments,
            }
            self._ports[spec.container_id] = first_port
            shim.write_json(str(folder / "launch.json"), launch)
            shim.write_json(str(folder / "spec.json"), to_json(spec))
            self._spawn(spec.container_id, folder)
        except (OSError, MountError, StartError) as e:
            self._ports.pop(spec.container_id, None)
            self._delete(folder)
            if isinstance(e, StartError):
                raise
            raise StartError(f"the task cannot be started on this agent: {e}") from e

    async def ended(self, container_id: str) -> Ended:
        if running := self._shims.get(container_id):
            await _wait_readable(running.pidfd)
            del self._shims[container_id]
            if running.kill_timer:
                running.kill_timer.cancel()
            _reap(running.pid)
            os.close(running.pidfd)
        folder = self.folder(container_id)
        if not (folder / "exit.json").exists():
            await asyncio.to_thread(_kill_orphans, container_id)
            return Ended(
                None,
                "the task's supervisor vanished (killed, or the machine went down), its processes were ended",
                FailureKind.CONTAINER_MISSING,
            )
        ended = json.loads((folder / "exit.json").read_text())
        kind = FailureKind(ended["kind"]) if ended.get("kind") else None
        return Ended(ended["exit_code"], ended["message"], kind, ended.get("lines"))

    def kill(self, container_id: str, grace_seconds: float, reason: KillReason) -> None:
        running = self._shims.get(container_id)
        if running is None:
            return
        note = self.folder(container_id) / "kill.json"
        if not note.exists():
            try:
                shim.write_json(str(note), {"reason": reason, "grace_seconds": grace_seconds})
            except (
                OSError
            ) as e:  # the disk is full; the note is for an agent that starts again before the end
                log.warning("%s cannot be written: %s", note, e.strerror)
        loop = asyncio.get_running_loop()
        if grace_seconds <= 0:
            self._signal(running, signal.SIGUSR1)
        elif loop.time() + grace_seconds < running.kill_at:
            self._signal(running, signal.SIGTERM)
            if running.kill_timer:
                running.kill_timer.cancel()
            running.kill_at = loop.time() + grace_seconds
            running.kill_timer = loop.call_later(grace_seconds, self._signal, running, signal.SIGUSR1)

    def folder(self, container_id: str) -> Path:
        return self._containers / container_id

    async def forget(self, container_id: str) -> None:
        folder = self.folder(container_id)
        self._ports.pop(container_id, None)
        (folder / "spec.json").unlink(
            missing_ok=True
        )  # if the agent is killed now, the next one deletes the rest
        if self._kept:
            self._kept.mkdir(mode=0o700, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                folder.rename(self._kept / container_id)
        await asyncio.to_thread(self._delete, folder)

    # ---- starting

    def _uid(self, spec: ContainerSpec) -> int | None:
        if not self._separates_users:
            return None
        if spec.owner_uid is None or spec.owner_uid < FIRST_TASK_UID:
            raise StartError(
                f"this agent runs as root and gives each user's tasks a uid of their own, but the master named"
                f" {spec.owner_uid} for {spec.owner!r}: {FIRST_TASK_UID} or more is needed"
            )
        return spec.owner_uid

    def _spawn(self, container_id: str, folder: Path) -> None:
        package_root = Path(detlab_agent.__file__).parent.parent
        log_fd = os.open(folder / "shim.log", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-c", _SHIM, str(package_root), str(folder)],
                {},  # it needs none, and the agent's may hold the token
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log_fd, 1),
                    (os.POSIX_SPAWN_DUP2, log_fd, 2),
                ],
                setsid=True,
                setsigmask=[signal.SIGTERM, signal.SIGUSR1],  # until it has its handlers
            )
        finally:
            os.close(log_fd)
        self._shims[container_id] = _Shim(os.pidfd_open(pid), pid)

    # ---- finding again

    def _adopt(self) -> Iterator[Found]:
        for folder in sorted(self._containers.iterdir()):
            try:
                raw = json.loads((folder / "spec.json").read_text())
            except FileNotFoundError:  # an agent was killed while it made the folder: nothing was started
                self._delete(folder)
                continue
            try:
                spec = from_json(ContainerSpec, raw, "spec.json")
            except ProtocolError as e:
                log.error("%s was written by another version of the agent and is left alone: %s", folder, e)
                continue
            with contextlib.suppress(FileNotFoundError, KeyError):
                launch = json.loads((folder / "launch.json").read_text())
                self._ports[spec.container_id] = launch["first_port"]
            self._find_shim(folder)
            note = folder / "kill.json"
            if not note.exists():
                yield Found(spec, None)
                continue
            killed = json.loads(note.read_text())
            reason = KillReason(killed["reason"])
            self.kill(spec.container_id, killed["grace_seconds"], reason)
            yield Found(spec, reason)

    def _find_shim(self, folder: Path) -> None:
        if (folder / "exit.json").exists():
            return
        give_up = time.monotonic() + _SHIM_START_SECONDS
        while not (folder / "shim.json").exists():
            if _close_folder(folder):
                return
            if time.monotonic() > give_up:
                log.error("the supervisor of %s holds its lock, but does not say who it is", folder)
                return
            time.sleep(0.02)
        who = json.loads((folder / "shim.json").read_text())
        try:
            pidfd = os.pidfd_open(who["pid"])
        except ProcessLookupError:
            return
        # Looked at after pidfd_open: from then on the pid cannot be given to another process unnoticed.
        if who["boot_id"] == shim.boot_id() and who["start_ticks"] == shim.start_ticks(who["pid"]):
            self._shims[folder.name] = _Shim(pidfd, who["pid"])
        else:
            os.close(pidfd)

    # ---- ending

    def _signal(self, running: _Shim, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(running.pidfd, number)

    def _delete(self, folder: Path) -> None:
        for path in (tmp_folder(folder), folder):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path)


def _close_folder(folder: Path) -> bool:
    """Sees to it that no shim can start here any more; False where one has started."""
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not (folder / "shim.json").exists():
            message = "the agent was stopped before it could start the task"
            shim.write_json(
                str(folder / "exit.json"),
                {"exit_code": None, "message": message, "kind": FailureKind.AGENT_FAILED},
            )
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _reap(pid: int) -> None:
    """Takes note of a shim that has ended."""
    with contextlib.suppress(ChildProcessError):  # adopted: another process's child
        os.waitpid(pid, os.WNOHANG)


async def _wait_readable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def on_readable() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(fd, on_readable)
    try:
        await readable
    finally:
        loop.remove_reader(fd)


def _kill_orphans(container_id: str) -> None:
    """Ends what a shim left behind that was killed: found by the environment, until none is found."""
    while orphans := list(_orphans(container_id)):
        for process in orphans:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(orphans, timeout=1.0)


def _orphans(container_id: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.status() != psutil.STATUS_ZOMBIE and (
                process.environ().get("DET_CONTAINER_ID") == container_id
            ):
                yield process
