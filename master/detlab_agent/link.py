"""The agent's one connection to the master: a WebSocket that is opened again for as long as the agent lives."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

import psutil
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClientConnection, WebSocketClosedError, websocket_connect

from detlab_agent.protocol import AgentMessage, MasterMessage, ProtocolError, decode, encode

log = logging.getLogger(__name__)

_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.2, 5.0
_PING_SECONDS = 10.0  # a master that does not answer so long is gone
_COMPLAIN_SECONDS = 60.0
_MAX_FRAME_BYTES = 64 * 1024 * 1024


class LinkRefused(Exception):
    """The master will not have this agent; trying again does not help."""


@dataclass(frozen=True)
class Tls:
    """How to check the master's certificate, for a https URL."""

    skip_verify: bool = False
    master_cert: str | None = None
    client_cert: str | None = None
    client_key: str | None = None


@dataclass(frozen=True)
class LinkConfig:
    master_url: str  # http(s)://host:port
    agent_id: str
    token: str
    tls: Tls = field(default_factory=Tls)
    attempts: int | None = None  # failed ones in a row before giving up; None: for ever
    backoff: float | None = None  # seconds between attempts; None: growing from 0.2 to 5


class Link:
    """Connects, hands on messages, and connects again. Callbacks are called on the event loop."""

    def __init__(
        self,
        config: LinkConfig,
        on_connected: Callable[[tuple[str, ...]], None],
        on_message: Callable[[MasterMessage], None],
        on_disconnected: Callable[[], None],
    ) -> None:
        self._config = config
        self._on_connected = on_connected
        self._on_message = on_message
        self._on_disconnected = on_disconnected
        self._connection: WebSocketClientConnection | None = None
        self._complained = float("-inf")

    def send(self, message: AgentMessage) -> None:
        """Sends, or drops the message if the connection is just being lost: everything is said again on the next."""
        if self._connection is None:
            return
        try:
            written = asyncio.ensure_future(self._connection.write_message(encode(message)))
        except WebSocketClosedError:
            return
        written.add_done_callback(_ignore_closed)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def run(self) -> None:
        """Never returns. LinkRefused when the token is wrong or `attempts` are used up."""
        failed = 0
        while True:
            began = time.monotonic()
            try:
                await self._connect_and_read()
                # A connection that the master ends at once is no success: it may be turning this agent away.
                lasted = time.monotonic() - began > _LONGEST_BACKOFF
                failed = 0 if lasted else failed + 1
                if lasted:
                    self._complained = float("-inf")
            except (OSError, HTTPClientError, TimeoutError, ProtocolError, WebSocketClosedError) as e:
                failed += 1
                if isinstance(e, HTTPClientError) and e.code in (401, 403):
                    raise LinkRefused(
                        f"the master at {self._config.master_url} refuses this agent's token: give the token that"
                        " the master wrote, with --token-file or DET_AGENT_TOKEN"
                    ) from None
                if self._config.attempts is not None and failed >= self._config.attempts:
                    raise LinkRefused(
                        f"{self._describe(e)}; gave up after {failed} attempts (agent_reconnect_attempts)"
                    ) from None
                self.complain(f"{self._describe(e)}; trying again")
            await asyncio.sleep(self._pause(failed))

    async def _connect_and_read(self) -> None:
        """Returns when an established connection has ended."""
        config, tls = self._config, self._config.tls
        url = config.master_url.replace("http", "ws", 1).rstrip("/")
        request = HTTPRequest(
            f"{url}/agents?{urlencode({'id': config.agent_id})}",
            headers={"Authorization": f"Bearer {config.token}"},
            connect_timeout=10.0,
            request_timeout=20.0,
            validate_cert=not tls.skip_verify,
            ca_certs=tls.master_cert,
            client_cert=tls.client_cert,
            client_key=tls.client_key,
        )
        # Tornado's client sets TCP_NODELAY on the sockets that it opens.
        connection = await websocket_connect(
            request,
            ping_interval=_PING_SECONDS,
            ping_timeout=_PING_SECONDS,
            max_message_size=_MAX_FRAME_BYTES,
        )
        self._connection = connection
        log.info("connected to the master at %s", config.master_url)
        try:
            self._on_connected(addresses_towards(config.master_url))
            while (frame := await connection.read_message()) is not None:
                message = decode(frame)
                if isinstance(message, AgentMessage):
                    raise ProtocolError(
                        f"the master sent {type(message).__name__}, which is the agent's to send"
                    )
                self._on_message(message)
            log.warning("the connection to the master was lost")
        finally:
            self._connection = None
            connection.close()
            self._on_disconnected()

    def _pause(self, failed: int) -> float:
        if self._config.backoff is not None:
            return self._config.backoff
        longest: float = min(_LONGEST_BACKOFF, _FIRST_BACKOFF * 2 ** min(failed, 10))
        return longest * random.uniform(0.5, 1.0)  # a hundred agents do not come back in the same instant

    def _describe(self, error: Exception) -> str:
        url = self._config.master_url
        if isinstance(error, HTTPClientError):
            if error.code == 404:
                return f"what answers at {url} is no Detlab master (404 for /agents)"
            return f"the master at {url} answers {error.code} {error.message or ''}".rstrip()
        if isinstance(error, ProtocolError):
            return f"the master at {url} speaks another language: {error}"
        reason = error.real_error if isinstance(error, StreamClosedError) and error.real_error else error
        return f"the master at {url} cannot be reached: {reason or type(reason).__name__}"

    def complain(self, problem: str) -> None:
        """Says what is wrong with the connection, at most once a minute."""
        if time.monotonic() - self._complained >= _COMPLAIN_SECONDS:
            self._complained = time.monotonic()
            log.warning("%s", problem)


def addresses_towards(master_url: str) -> tuple[str, ...]:
    """This machine's addresses, first the one that packets to the master leave from."""
    parts = urlsplit(master_url)
    found: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((parts.hostname, parts.port or 80))  # UDP: nothing is sent
            found.append(probe.getsockname()[0])
        except OSError as e:
            log.debug("no IPv4 route to %s: %s", parts.hostname, e)
    for addresses in psutil.net_if_addrs().values():
        found += [
            a.address for a in addresses if a.family == socket.AF_INET and not a.address.startswith("127.")
        ]
    return tuple(dict.fromkeys(found))


def _ignore_closed(written: asyncio.Future[None]) -> None:
    if not written.cancelled() and (error := written.exception()):
        log.debug("a message was not sent: %s", error or type(error).__name__)
