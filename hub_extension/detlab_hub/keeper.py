"""Keeps one part of the installation running: `python -m detlab_hub.keeper [options] -- command`.

The Hub manages a keeper each for the master and the agent. A keeper starts its part again when it ends on its own, and
writes its output to a file. A Hub that is killed takes nobody with it: its keepers see that it has gone and go too,
the parts run on, and the keepers of the next Hub find them by pid and start time and keep them from then on.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import psutil

LOOK_SECONDS = 0.5  # between two looks at the Hub and the part
NEED_SECONDS = 0.1  # between two looks for what the part needs
AGAIN_SECONDS = 1.0  # from an unexpected end to the next start
REFUSED_SECONDS = 10.0  # the same, where the part says that it cannot start
STOP_SECONDS = 20.0  # from asking a part to end to killing it
CANNOT_START = 1  # a part's exit code for a configuration or surroundings that it cannot run with


class Keeper:
    """Of one part.

    Args:
        name: of the part, for people.
        note: the file that says which process the part is.
        ending: the file that is there when the tasks are to end, too.
        needs: a file that must be there before the part can start.
        kill_to_keep: whether the part must be killed if its tasks are to go on, as it ends them when it is asked to end.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        note: Path,
        log: Path,
        ending: Path,
        needs: Path | None = None,
        kill_to_keep: bool = False,
    ) -> None:
        self._name = name
        self._command = command
        self._note = note
        self._log = log
        self._ending = ending
        self._needs = needs
        self._kill_to_keep = kill_to_keep
        self._hub = os.getppid()
        self._told_to_stop = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None  # the part, unless an earlier keeper started it
        self._log_began = 0  # size of the log at the part's start
        self._refused = ""  # what it said last when it could not start

    def run(self) -> None:
        """Until the Hub says so, or has gone."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._told_to_stop.set())
        part = running_part(self._note)
        if part is not None:
            self._say(f"The {self._name} (pid {part.pid}) runs already and is kept.")
        while True:
            if part is None:
                if not self._await_need():
                    return
                part = self._start()
            code = self._watch(part)
            if self._told_to_stop.is_set():
                self._stop(part)
                return
            if os.getppid() != self._hub:
                return  # the part stays, for the keeper of the next Hub
            part = None
            self._told_to_stop.wait(self._explain(code))
            if self._told_to_stop.is_set():
                return

    def _await_need(self) -> bool:
        """False where the Hub goes, or says to stop, before it is there."""
        while self._needs is not None and not self._needs.exists():
            if os.getppid() != self._hub or self._told_to_stop.wait(NEED_SECONDS):
                return False
        return True

    def _start(self) -> psutil.Process:
        # What the Hub gave its service, a token among it, is nothing for the part.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTERHUB_", "JPY_"))}
        with self._log.open("ab") as log:
            self._log_began = log.tell()
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # so that it outlives a Hub and a keeper that are killed
            )
        part = psutil.Process(self._child.pid)
        written = self._note.with_suffix(".new")
        written.write_text(json.dumps({"pid": part.pid, "create_time": part.create_time()}))
        written.replace(self._note)
        return part

    def _watch(self, part: psutil.Process) -> int | None:
        """Until the part has ended, the Hub has gone or says to stop; the exit code where it can be known."""
        while not self._told_to_stop.is_set() and os.getppid() == self._hub:
            if self._child is not None:
                if (code := self._child.poll()) is not None:
                    return code
            elif not _lives(part):
                return None
            self._told_to_stop.wait(LOOK_SECONDS)
        return None

    def _explain(self, code: int | None) -> float:
        """Say what happened; how long to wait before the next start."""
        if code != CANNOT_START:
            shown = f" (exit code {code})" if code is not None else ""
            self._say(f"The {self._name} ended unexpectedly{shown} and is started again; see {self._log}.")
            return AGAIN_SECONDS
        lines = self._log.read_bytes()[self._log_began :].decode(errors="replace").strip().splitlines()
        refused = lines[-1] if lines else "it does not say why"
        if refused != self._refused:
            self._refused = refused
            self._say(
                f"The {self._name} cannot start: {refused}\nIt is tried again every {REFUSED_SECONDS:g} s."
            )
        return REFUSED_SECONDS

    def _stop(self, part: psutil.Process) -> None:
        number = signal.SIGKILL if self._kill_to_keep and not self._ending.exists() else signal.SIGTERM
        try:
            part.send_signal(number)
            give_up = time.monotonic() + STOP_SECONDS
            while _lives(part) and time.monotonic() < give_up:
                time.sleep(0.05)
            if _lives(part):
                part.kill()
                while _lives(part):
                    time.sleep(0.05)
        except psutil.NoSuchProcess:
            pass
        self._note.unlink(missing_ok=True)

    def _say(self, text: str) -> None:
        print(text, flush=True)


def running_part(note: Path) -> psutil.Process | None:
    """The process that a keeper noted, if that very one still runs."""
    try:
        noted = json.loads(note.read_text())
        part = psutil.Process(noted["pid"])
    except (FileNotFoundError, psutil.NoSuchProcess):
        return None
    return part if part.create_time() == noted["create_time"] and _lives(part) else None


def _lives(part: psutil.Process) -> bool:
    try:
        return bool(part.is_running() and part.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(prog="detlab_hub.keeper", description="Keeps a part of Detlab running.")
    parser.add_argument("--name", required=True)
    parser.add_argument("--note", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--ending", type=Path, required=True)
    parser.add_argument("--needs", type=Path)
    parser.add_argument("--kill-to-keep", action="store_true")
    parser.add_argument("command", nargs="+")
    options = vars(parser.parse_args())
    Keeper(options.pop("name"), options.pop("command"), **options).run()


if __name__ == "__main__":
    main()
