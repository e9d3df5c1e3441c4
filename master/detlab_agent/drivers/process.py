"""The process runtime: a container is a shim (shim.py), a folder, and the processes below the shim.

    <data-dir>/containers/<container_id>/
        spec.json     what the master asked for (0600: secrets inside); without it nothing was started
        launch.json   the same, resolved for the shim (0600)
        kill.json     {"reason", "grace_seconds"} once the container is to end
        lock, shim.json, logs/, exit.json     the shim's, see there
        run/          the task's own: workdir/, home/, tmp/ (0700, owned by the task's uid)

As root, each Detlab user's tasks run under a uid of their own. The folders above `run` can be passed by all, but listed
and read by the agent alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

import detlab_agent
from detlab_agent import shim
from detlab_agent.devices import SlotEnvironment
from detlab_agent.drivers.base import Ended, Found, KillReason, StartError
from detlab_agent.drivers.home import lasting_home
from detlab_agent.drivers.mounts import MountError, Need, Plan, plan_mounts
from detlab_agent.protocol import BindMount, ContainerSpec, FailureKind, ProtocolError, from_json, to_json
from detlab_agent.pythons import PythonEnvironment
from detlab_agent.segments import SEGMENT_BYTES, SEGMENTS

log = logging.getLogger(__name__)

FIRST_TASK_UID = 1000  # below are the system's own accounts
_LONGEST_TMPDIR = 50  # a Unix socket's path has 107 bytes, and multiprocessing adds 40 to TMPDIR
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
        self._pythons = pythons
        self._base_environment = base_environment
        self._slot_environment = slot_environment
        self._segment_bytes = segment_bytes
        self._segments = segments
        self._separates_users = os.geteuid() == 0
        self._shims: dict[str, _Shim] = {}
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
            launch = self._prepare(spec, folder, uid)
            shim.write_json(str(folder / "launch.json"), launch)
            shim.write_json(str(folder / "spec.json"), to_json(spec))
            self._spawn(spec.container_id, folder)
        except (OSError, MountError) as e:
            self._delete(folder)
            raise StartError(f"the task cannot be started on this agent: {e}") from e
        except StartError:
            self._delete(folder)
            raise

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
        return Ended(ended["exit_code"], ended["message"], kind)

    def kill(self, container_id: str, grace_seconds: float, reason: KillReason) -> None:
        running = self._shims.get(container_id)
        if running is None:
            return
        note = self.folder(container_id) / "kill.json"
        if not note.exists():
            shim.write_json(str(note), {"reason": reason, "grace_seconds": grace_seconds})
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

    def _prepare(self, spec: ContainerSpec, folder: Path, uid: int | None) -> dict[str, object]:
        """Makes the container's folders; gives what the shim must know."""
        python = self._pythons.get(spec.python_environment)
        if python is None:
            known = ", ".join(sorted(name for name in self._pythons if name)) or "none"
            raise StartError(f"agent.yaml has no environment {spec.python_environment!r} (it has: {known})")
        for path in (folder, folder / "run"):
            path.mkdir(mode=0o700)
        for name in ("logs", "root"):
            (folder / name).mkdir(mode=0o700)
        folder.chmod(0o711 if self._separates_users else 0o700)
        run = folder / "run"
        tmp = self._tmp(folder)
        for path in (run / "workdir", run / "home", tmp):
            path.mkdir(mode=0o700)
        if uid is not None:
            for path in (run, run / "workdir", run / "home", tmp):
                os.chown(path, uid, uid)
        home = run / "home"
        if spec.home is not None:
            home = lasting_home(spec.home, uid)
            spec = replace(spec, bind_mounts=(*spec.bind_mounts, BindMount(spec.home, spec.home)))
        plan = self._mounts(spec, python, run, tmp, uid)
        command = list(spec.command)
        if not command:
            raise StartError("the master sent no command")
        if command[0] in ("python", "python3"):
            command[0] = str(python.executable)
        environment = {
            **self._base_environment,
            **self._slot_environment.defaults(spec.slot_ids),
            "PATH": f"{python.executable.parent}:{self._base_environment.get('PATH', os.defpath)}",
            "HOME": str(home),
            "TMPDIR": str(tmp),
            "USER": spec.owner,
            "LOGNAME": spec.owner,
            "PYTHONUNBUFFERED": "1",
            "PYTHONUSERBASE": str(run / "pythonuserbase"),
            **spec.environment,
            **self._slot_environment.fixed(spec.slot_ids),
            "DET_CONTAINER_ID": spec.container_id,
            "DET_RUN_DIR": str(run),
            "DET_WORKDIR": str(run / "workdir"),
        }
        return {
            "argv": command,
            "env": environment,
            "cwd": str(run / "workdir"),
            "uid": uid,
            "mounts": plan.steps,
            "without_mounts": plan.reason,
            "segment_bytes": self._segment_bytes,
            "segments": self._segments,
        }

    def _mounts(
        self, spec: ContainerSpec, python: PythonEnvironment, run: Path, tmp: Path, uid: int | None
    ) -> Plan:
        mounts = [
            mount
            if os.path.isabs(mount.container_path)
            else type(mount)(mount.host_path, str(run / "workdir" / mount.container_path), mount.read_only)
            for mount in spec.bind_mounts
        ]
        if uid is not None:
            needs = [Need(path, "the Python installation") for path in python.paths]
            needs += [Need(path, "the task's folder", read_only=False) for path in (run, tmp)]
            return plan_mounts(needs, mounts, uid)
        for mount in mounts:
            if mount.read_only or os.path.normpath(mount.container_path) != os.path.normpath(mount.host_path):
                raise StartError(
                    f"bind mount of {mount.host_path} at {mount.container_path}"
                    f"{' (read-only)' if mount.read_only else ''}: an agent that is not root can only give a task"
                    " the same path, writable; run the agent as root, or change the bind mount"
                )
            if not os.path.exists(mount.host_path):
                raise StartError(f"bind mount of {mount.host_path}: it does not exist on this agent")
        return Plan((), "")

    def _tmp(self, folder: Path) -> Path:
        """The task's TMPDIR: in its folder, unless that makes paths too long for Unix sockets."""
        inside = folder / "run" / "tmp"
        if len(str(inside)) <= _LONGEST_TMPDIR:
            return inside
        return Path(tempfile.gettempdir()) / f"detlab-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"

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
        for path in (self._tmp(folder), folder):
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
