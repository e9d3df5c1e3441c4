"""What happens in the Hub's process besides the Hub: signals, the greeting, and what the master must be told.

SIGINT (Ctrl-C) ends everything, tasks included. SIGTERM and SIGHUP end the Hub, the master and the agent, but no task:
servers and trials go on and are found again at the next start, so that the Hub can be restarted at any time.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import signal
from typing import Any

from jupyterhub import orm  # type: ignore[import-untyped]

from detlab_hub import greeting
from detlab_hub.identity import UserSync
from detlab_hub.logins import Logins
from detlab_hub.place import Place, secret
from detlab_spawner.client import MasterClient, MasterUnavailable, Refused, UnknownServer

READY_SECONDS = 60.0
SYNC_SECONDS = 15.0


def _say(text: str) -> None:
    """To the terminal, if there still is one: in `make up | tee log`, Ctrl-C ends `tee` first."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


class Supervision:
    """Of one Hub (a jupyterhub.app.JupyterHub)."""

    def __init__(self, hub: Any, place: Place, who: Logins) -> None:
        self._hub = hub
        self._who = who
        self._place = place
        self._client = MasterClient(place.master_url, place.master / "hub-token")
        self._ending: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """To be called in the Hub's event loop, before its services start."""
        self._listen()
        for work in (self._greet(), self._sync()):
            task = asyncio.create_task(work)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._end, number)

    def _end(self, number: signal.Signals) -> None:
        if self._ending is None:
            self._ending = asyncio.create_task(self._end_all(number))

    async def _end_all(self, number: signal.Signals) -> None:
        await self._hub._start_future  # what has not started yet could not be ended
        if number is signal.SIGINT:
            _say("\nDetlab ends, with all servers and tasks...")
            self._place.ending.touch()
            await asyncio.gather(*(self._stop(user, name) for user, name in self._active()))
            atexit.register(_say, greeting.ENDED)
        else:
            atexit.register(_say, greeting.RESTARTING)
        await self._hub.shutdown_cancel_tasks(number)

    def _active(self) -> list[tuple[Any, str]]:
        return [
            (user, name)
            for user in list(self._hub.users.values())
            for name, spawner in list(user.spawners.items())
            if spawner.active
        ]

    async def _stop(self, user: Any, name: str) -> None:
        """A server that cannot be stopped ends with the agent."""
        try:
            await asyncio.wait_for(user.stop(name), 15)
        except Exception as error:  # noqa: BLE001  # whatever the Hub raises, the others are to end too
            self._hub.log.warning("The server %s of %s was not stopped: %s", name, user.name, error)

    async def _greet(self) -> None:
        await self._hub._start_future
        self._listen()  # the Hub has put its own handlers there meanwhile
        loop = asyncio.get_running_loop()
        give_up = loop.time() + READY_SECONDS
        while (slots := await self._slots()) == 0 and loop.time() < give_up:
            await asyncio.sleep(0.2)
        await self._write_activation()
        _say(greeting.banner(self._place, self._who, slots))

    async def _write_activation(self) -> None:
        """For who runs the Hub: a terminal of this machine is theirs, too."""
        try:
            await self._client.put_user(self._who.admin, admin=True)
            token = await self._client.user_token(self._who.admin)
        except (MasterUnavailable, Refused, UnknownServer) as error:
            self._hub.log.warning("%s was not written: %s", self._place.activate, error)
            return
        self._place.activate.unlink(missing_ok=True)
        secret(self._place.activate, greeting.activation(self._place, self._who.admin, token))

    async def _slots(self) -> int:
        try:
            return sum(pool["slotsAvailable"] for pool in await self._client.resource_pools())
        except (MasterUnavailable, Refused, UnknownServer):
            return 0

    async def _sync(self) -> None:
        users = UserSync(self._client)
        while True:
            await asyncio.sleep(SYNC_SECONDS)
            try:
                await users.tell(
                    [(user.name, bool(user.admin)) for user in self._hub.db.query(orm.User).all()]
                )
            except (MasterUnavailable, Refused, UnknownServer) as error:
                self._hub.log.warning("The master was not told of all users: %s", error)
