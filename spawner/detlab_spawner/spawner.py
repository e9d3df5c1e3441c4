"""DetlabSpawner: a user's server is a task in the master's queue.

What is easily got wrong here:

- The Hub limits the whole of `start()` by `start_timeout`. Waiting in the queue is not starting: the Hub is given no
  limit, and `start_timeout` is counted here, from the moment that the master grants the slots.
- A task must never be left behind. Its id is chosen here and is in the Hub's database before the master is asked, so
  asking again makes no second one; a cancelled `start()` still waits for a request that is under way; and `stop()`
  returns only when the master says that it is over.
- After a restart the Hub asks `poll()` before it believes that a server runs. The master may be starting itself: there
  is no answer until it has one. A server that still waits or starts is taken up again where it was.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from html import escape
from pathlib import Path
from typing import Any

from jupyterhub.spawner import Spawner, SpawnException  # type: ignore[import-untyped]
from sqlalchemy.orm import object_session
from traitlets import Callable, Dict, Integer, List, Unicode, Union, default, validate
from traitlets.utils.bunch import Bunch

from detlab_spawner import form, spec
from detlab_spawner.client import MasterClient, MasterUnavailable, Refused, ServerStatus, UnknownServer

FOREVER = 10 * 365 * 24 * 3600  # seconds; what the Hub is told in place of start_timeout
FORM_SECONDS = 3.0  # for the spawn page to learn of free slots
POLL_SECONDS = 1.0  # for an answer to the Hub, which holds pages back until it has one
MASTER_AWAY_SECONDS = 60.0  # for a request of a server while the master is away
QUICK, SLOW = 0.25, 2.0  # seconds between two looks at a server: at first and while it starts; while it waits
QUICK_SECONDS = 10.0
_PROGRESS = {"QUEUED": 10, "ASSIGNED": 30, "PULLING": 35, "STARTING": 40, "RUNNING": 60}
_SAID = {
    "ASSIGNED": "The slots are yours. The agent prepares the server.",
    "PULLING": "The agent prepares the server.",
    "STARTING": "The server's process is starting.",
    "RUNNING": "JupyterLab is starting.",
}
_SHOWN_LOG_LINES = 8


class DetlabSpawner(Spawner):  # type: ignore[misc]  # jupyterhub has no types
    """Starts servers as tasks of a Detlab master.

    `Spawner.start_timeout` counts from the grant of the slots on. `JupyterHub.concurrent_spawn_limit` counts queued
    spawns too, so it should be 0 with this spawner: the master's queue is the limit.
    """

    master_url = Unicode("http://127.0.0.1:8080", help="Where the Hub reaches the master.").tag(config=True)
    hub_token_file = Unicode(
        help="The file with the master's token for the Hub: hub-token in its data folder."
    ).tag(config=True)
    homes = Unicode(
        help="Folder on the agents in which every user gets a home that outlives the servers; empty for none."
    ).tag(config=True)
    server_command = List(
        Unicode(),
        ["python3", "-m", "detlab_spawner.server"],
        help="What the task runs; Spawner.args are added. python3 is the agent's.",
    ).tag(config=True)
    start_timeout = Integer(
        FOREVER,
        help="Seconds from the grant of the slots on in which a server must be up; 120 unless it is set.",
    ).tag(config=True)
    env_keep = List(
        Unicode(),
        ["LANG", "LC_ALL", "JUPYTERHUB_SINGLEUSER_APP"],
        help="Variables of the Hub's own environment that servers get. Its paths mean nothing on an agent.",
    ).tag(config=True)
    options_form = Union([Unicode(), Callable()]).tag(config=True)
    apply_user_options = Union([Callable(), Dict()], default_value=None, allow_none=True).tag(config=True)

    def __init__(self, **kwargs: Any) -> None:
        self.launch_timeout = 120.0
        self.task_id = ""
        self._options = spec.ServerOptions()
        self._creating: asyncio.Future[None] | None = None
        self._spawn_future: asyncio.Future[Any] | None
        self._address = ""
        self._said: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        super().__init__(**kwargs)

    # ---- configuration

    @validate("start_timeout")
    def _no_limit(self, proposal: Bunch) -> int:
        """Keep what was set for ourselves, and give the Hub no limit."""
        if proposal.value != FOREVER:
            self.launch_timeout = float(proposal.value)
        return FOREVER

    @default("options_form")
    def _default_options_form(self) -> Any:
        return _options_form

    @default("options_from_form")
    def _default_options_from_form(self) -> Any:
        return _options_from_form

    @default("apply_user_options")
    def _default_apply_user_options(self) -> Any:
        return _apply_user_options

    @property
    def client(self) -> MasterClient:
        return MasterClient(self.master_url, Path(self.hub_token_file))

    # ---- state over a restart of the Hub

    def get_state(self) -> dict[str, Any]:
        state: dict[str, Any] = super().get_state()
        if self.task_id:
            state["task_id"] = self.task_id
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.task_id = state.get("task_id", "")

    def clear_state(self) -> None:
        super().clear_state()
        self.task_id = ""
        self._address = ""

    def _keep_state(self) -> None:
        """Into the Hub's database now: the Hub does it only once a server runs."""
        self.orm_spawner.state = self.get_state()
        session = object_session(self.orm_spawner)
        assert session is not None  # the Hub's
        session.commit()

    # ---- start

    async def start(self) -> str:
        """Queue the server and wait until it listens; its URL.

        Raises:
            SpawnException: it was refused, ended, or did not come up in time; the text is for the user.
        """
        self._said.clear()
        self.task_id = str(uuid.uuid4())
        self._keep_state()
        self._creating = asyncio.ensure_future(self._create())
        await asyncio.shield(self._creating)
        self._creating = None
        return await self._until_up()

    async def _create(self) -> None:
        body = spec.request_body(
            self._options,
            task_id=self.task_id,
            username=self.user.name,
            admin=bool(self.user.admin),
            name=self.name,
            command=[*self.server_command, *self.get_args()],
            environment=self.get_env(),
            home=f"{self.homes}/{self.user.escaped_name}" if self.homes else None,
        )
        give_up = time.monotonic() + MASTER_AWAY_SECONDS
        while True:
            try:
                await self.client.create_server(body)
                return
            except Refused as error:
                raise _failed(str(error), "refused") from None
            except UnknownServer:
                raise _failed(
                    f"What answers at {self.master_url} is no Detlab master of this version.", "refused"
                ) from None
            except MasterUnavailable as error:
                if time.monotonic() > give_up:
                    raise _failed(f"{error} Try again in a while.", "master-away") from None
                self._tell(5, f"{error} Trying again.")
                await asyncio.sleep(1)

    async def _until_up(self) -> str:
        """Follow the task until its server listens."""
        began = time.monotonic()
        granted: float | None = None
        while True:
            status = await self._look()
            if status is not None:
                if status.ended:
                    raise _failed(_why_ended(status), "ended", status.log)
                if status.address:
                    self._address = status.address
                    self._tell(90, "JupyterLab has started.")
                    return f"http://{status.address}"
                if not status.queued:
                    granted = granted or time.monotonic()
                self._tell(_PROGRESS.get(status.state, 30), _what_happens(status))
                if granted and time.monotonic() - granted > self.launch_timeout:
                    raise _failed(
                        f"The server did not come up within {self.launch_timeout:g} s after it got its slots.",
                        "timeout",
                        status.log,
                    )
            quick = granted or time.monotonic() - began < QUICK_SECONDS
            await asyncio.sleep(QUICK if quick and status is not None else SLOW)

    async def _look(self) -> ServerStatus | None:
        """How the task is doing; None while the master cannot be asked."""
        try:
            return await self.client.server(self.task_id)
        except MasterUnavailable as error:
            self._tell(None, f"{error} The server is not lost by that: waiting for the master.")
            return None
        except UnknownServer:
            raise _failed("The master does not know this server any more.", "unknown") from None
        except Refused as error:
            raise _failed(str(error), "refused") from None

    # ---- progress

    def _tell(self, progress: int | None, message: str) -> None:
        if self._said and self._said[-1]["message"] == message:
            return
        event: dict[str, Any] = {"message": message}
        if progress is not None:
            event["progress"] = progress
        self.log.info("%s: %s", self._log_name, message)
        self._said.append(event)
        del self._said[:-50]
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """What has happened so far, and then what happens; ended by the Hub with the spawn."""
        last: dict[str, Any] | None = None
        while True:
            news = self._news
            said = list(self._said)
            start = next((i + 1 for i in reversed(range(len(said))) if said[i] is last), 0)
            for event in said[start:]:
                last = event
                yield dict(event)
            await news.wait()

    # ---- running

    async def poll(self) -> int | None:
        """None while the server waits, starts or runs; else its exit code.

        When the Hub has been restarted, there is no answer before the master has one, and a server that still waits or
        starts is followed until it is up.
        """
        if self._creating is not None:
            return None  # the master may have the request already
        if not self.task_id:
            return 0
        if not self._check_pending:
            try:
                status = await asyncio.wait_for(self.client.server(self.task_id), POLL_SECONDS)
            except (MasterUnavailable, TimeoutError):
                self.log.warning("%s is taken to be running: the master does not answer", self._log_name)
                return None
            except (UnknownServer, Refused):
                return 1
            return _exit_code(status)
        return await self._check_after_restart()

    async def _check_after_restart(self) -> int | None:
        task_id = self.task_id
        while True:
            try:
                status = await self.client.server(task_id)
                break
            except MasterUnavailable:
                await asyncio.sleep(1)
            except (UnknownServer, Refused):
                return 1
        self._address = status.address
        if status.ended or status.address:
            return _exit_code(status)
        self._spawn_pending = True  # so the Hub shows its progress, and lets it be cancelled
        up = self._spawn_future = asyncio.ensure_future(self._until_up())
        try:
            await up
        except (SpawnException, asyncio.CancelledError) as error:
            self.log.warning("%s, queued before the Hub's restart: %s", self._log_name, error)
            return 1
        finally:
            self._spawn_pending = False
        asyncio.get_running_loop().call_soon(asyncio.ensure_future, self._add_route())
        return None

    async def _add_route(self) -> None:
        """Once the Hub has finished its check; its own look at the routes was over by then."""
        while self._check_pending:
            await asyncio.sleep(0.1)
        if self.ready:
            await self.user.settings["proxy"].add_user(self.user, self.name)
        self._spawn_future = None

    async def get_url(self) -> str:
        """Where the server is, asked by the Hub after a restart."""
        if not self._address:
            return str(self.server.url)
        return f"http://{self._address}{self.server.base_url}"

    async def stop(self, now: bool = False) -> None:
        """End the server; returns when it has ended.

        A master that is away is waited for: if this gave up, the Hub would forget a server that runs.
        """
        if self._creating is not None:
            await asyncio.gather(self._creating, return_exceptions=True)
            self._creating = None
        if not self.task_id:
            return
        told = False
        while True:
            try:
                if not told:
                    await self.client.kill_server(self.task_id)
                    told = True
                if (await self.client.server(self.task_id)).ended:
                    return
            except UnknownServer:
                return
            except MasterUnavailable as error:
                self.log.warning("%s is being stopped, but: %s", self._log_name, error)
            await asyncio.sleep(QUICK if told else 1)


def _exit_code(status: ServerStatus) -> int | None:
    if not status.ended:
        return None
    return status.exit_code if status.exit_code is not None else 1


def _what_happens(status: ServerStatus) -> str:
    if not status.queued:
        return _SAID.get(status.state, f"The server is {status.state.lower()}.")
    place = f"In the queue at place {status.position + 1}. " if status.position >= 0 else "In the queue. "
    return place + (status.reason or "It starts as soon as the scheduler finds room.")


def _why_ended(status: ServerStatus) -> str:
    code = f" (exit code {status.exit_code})" if status.exit_code is not None else ""
    return f"The server ended before it was up{code}: {status.exit_reason or 'no reason was given'}."


def _failed(message: str, reason: str, log: tuple[str, ...] = ()) -> SpawnException:
    lines = [line.rstrip("\n") for line in log[-_SHOWN_LOG_LINES:]]
    html = ""
    if lines:
        html = f"{escape(message)}<pre>{escape(chr(10).join(lines))}</pre>"
        message = f"{message} Its last lines: {' | '.join(lines)}"
    return SpawnException(message, reason=reason, message_html=html)


async def _options_form(spawner: DetlabSpawner) -> str:
    try:
        answered = await asyncio.wait_for(spawner.client.resource_pools(), FORM_SECONDS)
    except TimeoutError:
        return form.render([], "The master does not answer at the moment.")
    except (MasterUnavailable, Refused, UnknownServer) as error:
        return form.render([], str(error))
    return form.render([form.pool(each) for each in answered])


def _options_from_form(submitted: dict[str, list[str]]) -> dict[str, Any]:
    try:
        return spec.options_from_form(submitted)
    except spec.OptionError as error:
        raise SpawnException(str(error), reason="options") from None


def _apply_user_options(spawner: DetlabSpawner, user_options: dict[str, Any]) -> None:
    try:
        spawner._options = spec.validated(user_options)
    except spec.OptionError as error:
        raise SpawnException(f"{error}.", reason="options") from None
