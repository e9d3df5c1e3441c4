"""The process between a task and everything else: one per container, outlives the agent.

    python -I -S -c '...' <folder of the package> <container folder>

It runs `launch.json`'s command in a process group of its own, keeps its output in `logs/` (segments.py) and leaves
`exit.json` behind. Nobody needs to listen: the agent finds all of it in the container's folder, also later.

    lock         held (flock) as long as the shim lives
    launch.json  from the agent: argv, env, cwd, uid, mounts, ... (see drivers/process.py); secrets inside
    shim.json    who this shim is: pid, start time in clock ticks, boot id
    logs/        what the command said
    exit.json    {"exit_code": 128+n for signal n, 127/126 if it could not be executed, "message": why or null,
                  "lines": how many the command has said}

Signals: SIGTERM goes on to the command's process group. SIGUSR1 kills all descendants, whatever group or session they
moved to: the shim is their subreaper, so none can leave its tree. Descendants left when the command ends are killed.

Only the standard library, and little of it: a machine may have hundreds of these.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from detlab_agent.namespace import NamespaceRefused, enter_mount_namespace
from detlab_agent.segments import LineSplitter, SegmentWriter

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 36, 38
_BLOCKED_WHILE_STARTING = {signal.SIGTERM, signal.SIGUSR1}
_QUIET_MS = 200  # after which a line that ends in \r is taken as complete
_KILL_AGAIN_MS = 50
_ROOM_SECONDS = 1.0  # between looks whether a full disk has room again
_READ_BYTES = 64 * 1024

CANNOT_EXECUTE, NOT_FOUND = 126, 127


def start_ticks(pid: int) -> int | None:
    """When a process was started, in clock ticks since boot; None if there is none. With the boot id, a name for it."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else None


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def write_json(path: str, value: Any) -> None:
    """Writes a private file that is there as a whole or not at all, also after a power cut."""
    temporary = f"{path}.new"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(fd)
    os.replace(temporary, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def main() -> None:
    folder = sys.argv[2]
    os.chdir("/")
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # an agent that came up meanwhile found no shim and is closing the folder
    exit_path = os.path.join(folder, "exit.json")
    if os.path.exists(exit_path):
        return  # it has closed it
    write_json(
        os.path.join(folder, "shim.json"),
        {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "boot_id": boot_id()},
    )
    try:
        with open(os.path.join(folder, "launch.json")) as file:
            launch = json.load(file)
        ended = _Supervisor(folder, launch).run()
    except Exception as e:  # noqa: BLE001  whatever it is, the agent must learn that the task has ended
        kill_tree()
        message = f"the task's supervisor failed: {type(e).__name__}: {e}"
        ended = {"exit_code": CANNOT_EXECUTE, "message": message}
    _tell_the_end(exit_path, ended)


def _tell_the_end(path: str, ended: dict[str, Any]) -> None:
    """On a full disk, as soon as there is room: a task that is done must not look like one that vanished."""
    while True:
        try:
            write_json(path, ended)
            return
        except OSError as e:
            if e.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        time.sleep(_ROOM_SECONDS)


class _Supervisor:
    def __init__(self, folder: str, launch: dict[str, Any]) -> None:
        self._folder = folder
        self._launch = launch
        self._log = SegmentWriter(os.path.join(folder, "logs"), launch["segment_bytes"], launch["segments"])
        self._streams: dict[int, tuple[str, LineSplitter]] = {}
        self._pid = 0
        self._status: int | None = None  # of the command, once it has ended
        self._killing = False

    def run(self) -> dict[str, Any]:
        """Runs the command to its end and all its descendants' end; what `exit.json` says of it."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        if os.geteuid() == 0:
            _oom_score("-900")  # when memory is short, the task goes, not the one who tells about it
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        refusal = self._start()
        poller = select.poll()
        poller.register(wake_read, select.POLLIN)
        for fd in self._streams:
            poller.register(fd, select.POLLIN)
        while self._status is None or has_descendants():
            if self._status is not None or self._killing:
                kill_descendants()
                timeout: int | None = _KILL_AGAIN_MS
            elif any(splitter.waiting for _, splitter in self._streams.values()):
                timeout = _QUIET_MS
            else:
                timeout = None
            ready = {fd for fd, _ in poller.poll(timeout)}
            for fd in ready & self._streams.keys():
                if not self._read(fd):
                    poller.unregister(fd)
                    os.close(fd)
                    self._end_stream(fd)
            for fd in self._streams.keys() - ready:
                self._say(self._streams[fd][0], self._streams[fd][1].pause())
            self._log.flush()
            if wake_read in ready:
                self._on_signals(os.read(wake_read, 4096))
            self._reap()
        for fd in tuple(self._streams):
            os.set_blocking(fd, False)
            with contextlib.suppress(BlockingIOError):  # somebody outside the tree was handed the pipe
                while self._read(fd):
                    pass
            self._end_stream(fd)
        return self._finish(refusal)

    def _start(self) -> int:
        """Forks the command. Gives the read end of a pipe that holds the reason if it could not be executed."""
        refusal_read, refusal_write = os.pipe2(os.O_CLOEXEC)
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        if (uid := self._launch["uid"]) is not None:
            for fd in (out_write, err_write):  # or the task could not open its own /dev/stdout
                os.fchown(fd, uid, uid)
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_WHILE_STARTING)
        self._pid = os.fork()
        if self._pid == 0:
            _become_the_command(self._folder, self._launch, out_write, err_write, refusal_write)
        with contextlib.suppress(PermissionError, ProcessLookupError):  # the child was quicker, or is gone
            os.setpgid(self._pid, self._pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED_WHILE_STARTING)
        for fd in (refusal_write, out_write, err_write):
            os.close(fd)
        self._streams = {out_read: ("stdout", LineSplitter()), err_read: ("stderr", LineSplitter())}
        return refusal_read

    def _read(self, fd: int) -> bool:
        data = os.read(fd, _READ_BYTES)
        name, splitter = self._streams[fd]
        self._say(name, splitter.feed(data))
        return bool(data)

    def _end_stream(self, fd: int) -> None:
        name, splitter = self._streams.pop(fd)
        self._say(name, splitter.end())

    def _say(self, stream: str, lines: list[str]) -> None:
        for line in lines:
            self._log.add(stream, line)

    def _on_signals(self, numbers: bytes) -> None:
        if signal.SIGUSR1 in numbers:
            self._killing = True
        if signal.SIGTERM in numbers and self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGTERM)

    def _reap(self) -> None:
        for pid, status in reap():
            if pid == self._pid:
                self._status = os.waitstatus_to_exitcode(status)

    def _finish(self, refusal: int) -> dict[str, Any]:
        assert self._status is not None
        exit_code = self._status if self._status >= 0 else 128 - self._status
        message = None
        with open(refusal) as file:
            if refused := file.read():
                message = str(json.loads(refused))
                self._log.add("stderr", f"ERROR: {message}\n")
        self._log.close()
        return {"exit_code": exit_code, "message": message, "lines": self._log.lines}


def _become_the_command(folder: str, launch: dict[str, Any], out: int, err: int, refusal: int) -> None:
    """In the child: never returns. What cannot be done is written to `refusal`, in words."""
    code = CANNOT_EXECUTE
    try:
        os.setpgid(0, 0)
        _reset_signals()
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (out, 1), (err, 2)):
            os.dup2(source, target)
        if os.geteuid() == 0:
            _oom_score("0")
        _isolate(folder, launch)
        os.chdir(launch["cwd"])
        try:
            os.execvpe(launch["argv"][0], launch["argv"], launch["env"])
        except (FileNotFoundError, NotADirectoryError):
            code = NOT_FOUND
            reason = (
                f"{launch['argv'][0]!r} was not found on this agent (PATH={launch['env'].get('PATH', '')})"
            )
        except OSError as e:
            reason = f"{launch['argv'][0]!r} cannot be executed: {e.strerror}"
    except Exception as e:  # noqa: BLE001  this process has no other way to say it
        reason = f"the task's surroundings could not be made: {e}"
    os.write(refusal, json.dumps(reason).encode())
    os._exit(code)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these, and what it ignores is inherited
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _isolate(folder: str, launch: dict[str, Any]) -> None:
    if launch["mounts"]:
        try:
            enter_mount_namespace(launch["mounts"], os.path.join(folder, "root"))
        except NamespaceRefused as e:
            raise RuntimeError(f"{launch['without_mounts']} ({e.strerror})") from None
    if launch["uid"] is not None:
        os.setgroups([])
        os.setresgid(launch["uid"], launch["uid"], launch["uid"])
        os.setresuid(launch["uid"], launch["uid"], launch["uid"])
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    os.umask(0o022)
    supervisor = os.getppid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a new uid clears it, so it is set last
    if os.getppid() != supervisor:
        os._exit(128 + signal.SIGKILL)


# ---- the tree of processes -------------------------------------------------------------------------------------


def kill_tree() -> None:
    """Kills all descendants of this process and waits until they are gone."""
    while has_descendants():
        kill_descendants()
        for _ in reap():
            pass
        select.select([], [], [], _KILL_AGAIN_MS / 1000)


def kill_descendants() -> None:
    for pid in _descendants():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def has_descendants() -> bool:
    """Whether a child is left, living or waiting to be reaped. A subreaper without children has no descendants."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def reap() -> list[tuple[int, int]]:
    """Takes note of the children that have ended: pid and wait status."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append(found)
    return ended


def _descendants() -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat_fields(int(name))):
            children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    queue = [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _stat_fields(pid: int) -> list[bytes] | None:
    """The fields of /proc/<pid>/stat behind the command's name: state, parent, ..."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


# ---- small things ----------------------------------------------------------------------------------------------


def _prctl(option: int, value: int) -> None:
    libc: Any = ctypes.CDLL(None, use_errno=True)
    prctl: Callable[..., int] = libc.prctl
    if prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def _oom_score(value: str) -> None:
    with (
        contextlib.suppress(OSError),
        open("/proc/self/oom_score_adj", "w") as file,
    ):  # no CAP_SYS_RESOURCE: no matter
        file.write(value)
