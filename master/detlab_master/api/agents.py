"""The agents' connections: one WebSocket each. The messages are those of detlab_agent.protocol."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, ClassVar

from tornado.iostream import StreamClosedError
from tornado.web import HTTPError
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from detlab_agent import protocol
from detlab_master.api import errors
from detlab_master.api.base import Rule
from detlab_master.api.encode import wire
from detlab_master.core.errors import RequestError, Unauthenticated
from detlab_master.core.permissions import Access
from detlab_master.resources.agents import AgentConnection
from detlab_master.store.base import StoreUnavailable

if TYPE_CHECKING:
    from detlab_master.engine.services import Services

logger = logging.getLogger(__name__)
HELLO_SECONDS = 30.0
_POLICY, _TRY_AGAIN = 1008, 1013  # codes that say why a connection is closed


class AgentSocket(WebSocketHandler):
    """One agent's connection. Messages are handled one after the other, in their order."""

    rules: ClassVar = {"GET": Rule(Access.AGENT)}

    def initialize(self, services: Services) -> None:
        self.services = services
        self._connection_of_agent: AgentConnection | None = None
        self._name = self.get_query_argument("id", "")
        self._impatience: asyncio.TimerHandle | None = None
        self._sent_away = False

    def prepare(self) -> None:
        scheme, _, token = self.request.headers.get("Authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or not self.services.identity.agent_token_ok(token):
            raise Unauthenticated(
                "the agent's token is missing or not this master's: give the agent the file"
                " that the master wrote (detlab-agent --token-file)"
            )

    def log_exception(self, typ: object, value: BaseException | None, tb: object) -> None:
        if not isinstance(value, RequestError | HTTPError):
            logger.error("agent %s: %s failed", self._name, self.request.path, exc_info=value)

    def write_error(self, status_code: int, **kwargs: object) -> None:
        exc_info = kwargs.get("exc_info")
        error = exc_info[1] if isinstance(exc_info, tuple) else None
        kind = errors.kind_of(error) if error is not None else errors.INTERNAL
        status = status_code if isinstance(error, HTTPError) else kind.status
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        text = str(error) if isinstance(error, RequestError) else self._reason
        self.finish(wire.dumps(errors.body(kind, text, gateway=False)))

    def open(self, *args: str, **kwargs: str) -> None:
        self.set_nodelay(True)
        self._impatience = asyncio.get_running_loop().call_later(
            HELLO_SECONDS, self._refuse, f"no hello came within {HELLO_SECONDS:g} s"
        )

    async def on_message(self, message: str | bytes) -> None:
        if self._sent_away:  # what follows a message that could not be kept must not overtake it
            return
        try:
            decoded = protocol.decode(message)
            if self._connection_of_agent is None:
                await self._welcome(decoded)
            else:
                await self._connection_of_agent.received(decoded)
        except protocol.ProtocolError as error:
            logger.error("agent %s sent what it should not: %s", self._name, error)
            self._refuse(str(error))
        except StoreUnavailable as error:
            # Nothing was acknowledged: the agent says it all again when it comes back.
            logger.warning("agent %s is sent away for now: %s", self._name, error)
            self._send_away("the master cannot reach its database")
        except Exception:
            logger.exception("a message of agent %s failed", self._name)
            self._send_away("the master failed at a message")

    async def _welcome(self, message: protocol.Message) -> None:
        if not isinstance(message, protocol.Hello):
            raise protocol.ProtocolError(f"the first message is {type(message).__name__}: expected Hello")
        if self._name and message.agent_id != self._name:
            raise protocol.ProtocolError(
                f"the hello is of agent {message.agent_id!r}, the address says {self._name!r}"
            )
        self._name = message.agent_id
        if self._impatience is not None:
            self._impatience.cancel()
        containers = [report.container_id for report in message.containers]
        stored = await self.services.logs.stored(containers)
        if self.ws_connection is None:  # it has gone meanwhile
            return
        outcome = self.services.agents.connect(message, self._send, stored)
        if isinstance(outcome, protocol.Refused):
            logger.warning("agent %s is refused: %s", self._name, outcome.reason)
            self._send(outcome)
            self.close(_POLICY, "refused")
            return
        self._connection_of_agent = outcome

    def _send_away(self, reason: str) -> None:
        """Until it comes back, which it does at once, and says again what was not acknowledged."""
        self._sent_away = True
        self.close(_TRY_AGAIN, reason)

    def _refuse(self, reason: str) -> None:
        self._send(protocol.Refused(reason))
        self.close(_POLICY, "refused")

    def _send(self, message: protocol.MasterMessage) -> None:
        """Queue a message; one to a connection that has just gone is lost, and the agent's next hello makes up for it."""
        try:
            sending = self.write_message(protocol.encode(message))
        except WebSocketClosedError:
            return
        asyncio.ensure_future(sending).add_done_callback(_sent)

    def on_close(self) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
        if self._connection_of_agent is not None:
            self._connection_of_agent.closed()


def _sent(sending: asyncio.Future[None]) -> None:
    error = None if sending.cancelled() else sending.exception()
    if error is not None and not isinstance(error, WebSocketClosedError | StreamClosedError):
        logger.error("a message to an agent could not be sent: %s", error)
