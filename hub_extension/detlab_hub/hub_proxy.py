"""How the Hub runs its proxy, and with it what else belongs to the Hub's start and end."""

from __future__ import annotations

from typing import Any

import psutil
from jupyterhub.proxy import ConfigurableHTTPProxy  # type: ignore[import-untyped]
from tornado.ioloop import PeriodicCallback
from traitlets import Any as AnyTrait

from detlab_hub.supervision import Supervision


class _Adopted:
    """A proxy that an earlier Hub started; what the Hub asks of a child process."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self.pid: int = process.pid

    def poll(self) -> int | None:
        try:
            lives = self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            lives = False
        return None if lives else 1

    def terminate(self) -> None:
        self._process.terminate()


class DetlabProxy(ConfigurableHTTPProxy):  # type: ignore[misc]  # jupyterhub has no types
    """Runs detlab_hub.proxy. One that outlived a Hub that was killed is kept, and with it every open connection."""

    place = AnyTrait(help="The installation (place.Place) that this Hub is the Hub of.").tag(config=True)
    logins = AnyTrait(help="Who can log in (logins.Logins), for the greeting.").tag(config=True)
    _supervision: Supervision | None = None

    async def start(self) -> None:
        if self._supervision is None:
            self._supervision = Supervision(self.app, self.place, self.logins)
            self._supervision.begin()
        process = self._find()
        if process is None:
            self._remove_process_files()  # what it names is no proxy of ours: it must not be ended
            await super().start()
            return
        self.log.info("The proxy (pid %d) of the Hub before this one is kept", process.pid)
        self.proxy_process = _Adopted(process)
        self._check_running_callback = PeriodicCallback(self.check_running, 1e3 * self.check_running_interval)
        self._check_running_callback.start()

    def _find(self) -> psutil.Process | None:
        return find_proxy(self.pid_file, self.command)


def find_proxy(pid_file: str, command: list[str]) -> psutil.Process | None:
    """The process of this proxy command that a Hub noted, if it still runs."""
    try:
        with open(pid_file) as file:
            process = psutil.Process(int(file.read()))
        words: list[Any] = process.cmdline()
    except (FileNotFoundError, ValueError, psutil.Error):
        return None
    return process if words[: len(command)] == command else None
