"""What the Hub asks the master, from the Hub's event loop.

The SDK's session is synchronous. It runs here in a bounded pool of threads, so that a master that hangs makes those
wait who asked it something, and not the Hub.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from determined.common.api import Session, errors

THREADS = 16
ANSWER_SECONDS = 10.0  # for an answer of the master; short, because whoever asks asks again

_threads = ThreadPoolExecutor(THREADS, thread_name_prefix="detlab-master")


class MasterUnavailable(Exception):
    """The master cannot be asked at the moment; the text says why. Ask again later."""


class Refused(Exception):
    """The master will not do it; the text is the master's."""


class UnknownServer(Exception):
    """The master knows no such server."""


@dataclass(frozen=True)
class ServerStatus:
    """How a notebook server is doing."""

    state: str  # QUEUED, ASSIGNED, PULLING, STARTING, RUNNING or TERMINATED
    address: str  # host:port once it listens, else ""
    exit_code: int | None
    exit_reason: str
    position: int  # in the queue; -1 when it does not wait
    reason: str  # why it waits
    log: tuple[str, ...]  # the last lines

    @property
    def queued(self) -> bool:
        return self.state == "QUEUED"

    @property
    def ended(self) -> bool:
        return self.state == "TERMINATED"


class MasterClient:
    """One master, asked as the Hub.

    Every method raises MasterUnavailable when there is no usable answer, and Refused when the master says no.
    """

    def __init__(self, master_url: str, token_file: Path) -> None:
        """`token_file` is read for each request: the master may make it later than this."""
        self._url = master_url
        self._token_file = token_file

    async def put_user(self, username: str, *, admin: bool, active: bool = True) -> None:
        """Say that a user of the Hub exists, and what they are."""
        body = {"admin": admin, "active": active}
        await self._ask(
            lambda session: session.put(f"/api/v1/hub/users/{_quoted(username)}", body, ANSWER_SECONDS)
        )

    async def user_token(self, username: str) -> str:
        """A token that `det` can use for a user of the Hub; it lasts for some weeks."""
        answer = await self._ask(
            lambda session: session.post(f"/api/v1/hub/users/{_quoted(username)}/token", {}, ANSWER_SECONDS)
        )
        return str(answer["token"])

    async def create_server(self, body: Mapping[str, Any]) -> None:
        """Queue a server (spec.request_body). May be repeated."""
        await self._ask(lambda session: session.post("/api/v1/hub/servers", dict(body), ANSWER_SECONDS))

    async def server(self, task_id: str) -> ServerStatus:
        """How a server is doing.

        Raises:
            UnknownServer: the master does not know it.
        """
        answer = await self._ask(
            lambda session: session.get(f"/api/v1/hub/servers/{task_id}", timeout=ANSWER_SECONDS)
        )
        return ServerStatus(
            state=answer["state"],
            address=answer["address"],
            exit_code=answer["exitCode"],
            exit_reason=answer["exitReason"],
            position=answer["position"],
            reason=answer["reason"],
            log=tuple(answer["log"]),
        )

    async def kill_server(self, task_id: str) -> None:
        """End a server; done when the master has taken note, not when the server has ended.

        Raises:
            UnknownServer: the master does not know it.
        """
        await self._ask(
            lambda session: session.post(f"/api/v1/hub/servers/{task_id}/kill", {}, ANSWER_SECONDS)
        )

    async def resource_pools(self) -> list[dict[str, Any]]:
        answer = await self._ask(
            lambda session: session.get("/api/v1/resource-pools", timeout=ANSWER_SECONDS)
        )
        return list(answer["resourcePools"])

    async def _ask(self, request: Callable[[Session], Any]) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_threads, functools.partial(self._ask_now, request))

    def _ask_now(self, request: Callable[[Session], Any]) -> Any:
        try:
            token = self._token_file.read_text().strip()
        except FileNotFoundError:
            raise MasterUnavailable("The master has not started yet.") from None
        except OSError as error:
            raise MasterUnavailable(
                f"The Hub cannot read the master's token {self._token_file} ({error.strerror})."
            ) from None
        try:
            with Session(self._url, token=token, retries=0) as session:
                return request(session).json()
        except errors.NotFoundException as error:
            raise UnknownServer(error.message) from None
        except errors.APIException as error:
            if error.status_code >= 500 or error.status_code == 401:
                raise MasterUnavailable(f"The master cannot answer: {error.message}.") from None
            raise Refused(error.message) from None
        except errors.RequestFailed as error:
            raise MasterUnavailable(f"{str(error)[:1].upper()}{str(error)[1:]}.") from None


def _quoted(name: str) -> str:
    return quote(name, safe="")
