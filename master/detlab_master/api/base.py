"""What all routes share: who asks, whether they may, what they sent, and how they are answered.

A handler's class attribute ``rules`` says for each of its methods who may call it. `ApiHandler.prepare` enforces that before
the body is read, so that nobody unknown can make the master take a large one in. Where the thing that is asked for is named
in the body or the query, the rule says ``in_body``, and the handler has to call `admit` for each: a handler that answers
without having done so is a bug, and the answer is not sent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast
from urllib.parse import urlsplit

from tornado.http1connection import HTTP1Connection
from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, RequestHandler, stream_request_body

from detlab_master.api import errors
from detlab_master.api.body import Fields, Query
from detlab_master.api.encode import wire
from detlab_master.api.received import ReceivedBody
from detlab_master.api.subjects import Found, find
from detlab_master.core.errors import Forbidden, Invalid, NotFound, Unauthenticated
from detlab_master.core.permissions import (
    NEEDS_SUBJECT,
    Access,
    Kind,
    Principal,
    Subject,
    Verdict,
    decide,
    is_own,
    may_call,
)

if TYPE_CHECKING:
    from detlab_master.engine.services import Services

logger = logging.getLogger(__name__)
T = TypeVar("T")
MAX_BODY = 32 << 20  # bytes; one route takes more
RETRY_AFTER = "1"  # seconds; what a 503 tells the client to wait
_PARSED_INLINE = 256 << 10  # bytes; larger JSON is parsed in a thread
_NUMBERED = (
    Kind.EXPERIMENT,
    Kind.TRIAL,
    Kind.USER,
    Kind.WORKSPACE,
    Kind.PROJECT,
)  # kinds whose ids are integers
_PARAMETERS = {
    Kind.EXPERIMENT: "experiment_id",
    Kind.TRIAL: "trial_id",
    Kind.TASK: "task_id",
    Kind.ALLOCATION: "allocation_id",
    Kind.CHECKPOINT: "checkpoint_uuid",
    Kind.MODEL: "model_name",
    Kind.USER: "user_id",
    Kind.WORKSPACE: "workspace_id",
    Kind.PROJECT: "project_id",
    Kind.TEMPLATE: "template_name",
}


class ClientGone(Exception):
    """The client has closed its connection: there is nobody to answer."""


@dataclass(frozen=True)
class Rule:
    """Who may call a method of a route.

    Args:
        kind: of the thing in the path that must be the caller's, by the parameter ``<kind>_id``.
        in_body: the thing is named in the body or the query, and the handler calls `ApiHandler.admit` for it.
    """

    access: Access
    kind: Kind | None = None
    in_body: bool = False


@stream_request_body
class ApiHandler(RequestHandler):
    """Base of all HTTP routes."""

    rules: ClassVar[Mapping[str, Rule]] = {}
    max_body: ClassVar[int] = MAX_BODY

    def initialize(self, services: Services, *args: Any, **kwargs: Any) -> None:
        self.services = services
        self._principal: Principal | None = None
        self._found: Found | None = None
        self._admitted = False
        self._gone = asyncio.Event()
        self._body = ReceivedBody(self.max_body, services.contexts.folder)

    def set_default_headers(self) -> None:
        self.set_header("Content-Type", "application/json")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.clear_header("Server")

    def compute_etag(self) -> str | None:
        return None  # answers are not cached, so hashing them is for nothing

    # Before the body is read

    async def prepare(self) -> None:
        self._connection.stream.set_nodelay(True)
        rule = self.rules.get(str(self.request.method))
        if rule is None:
            raise HTTPError(405)
        if rule.access not in (Access.PUBLIC, Access.AGENT):
            self._principal = await self._authenticate()
        self._raise(may_call(self._principal, rule.access))
        if rule.kind is not None and not rule.in_body and rule.access in NEEDS_SUBJECT:
            self._found = await self.admit(rule.kind, self._path_id(rule.kind), rule.access)
        length = self.request.headers.get("Content-Length", "0")
        if length.isascii() and length.isdigit() and int(length) > self.max_body:
            raise self._too_large(int(length))

    @property
    def _connection(self) -> HTTP1Connection:
        return cast(HTTP1Connection, self.request.connection)

    @property
    def token(self) -> str:
        """The token that came with the request, or "" (order: rest-api.md 1.2).

        Raises:
            Unauthenticated: an Authorization header of a kind that we do not know.
        """
        headers = self.request.headers
        for name in ("Grpc-Metadata-x-user-token", "Authorization"):
            if name in headers:
                return _bearer(headers[name])
        cookie = self.get_cookie("auth")
        if cookie and self._from_own_page():
            return cookie
        return _bearer(headers.get("Grpc-Metadata-x-allocation-token", ""))

    def _from_own_page(self) -> bool:
        """A browser sends the cookie along with requests that other sites' pages make: those may only look."""
        origin = self.request.headers.get("Origin")
        return self.request.method == "GET" or (
            origin is not None and urlsplit(origin).netloc == self.request.host
        )

    async def _authenticate(self) -> Principal:
        token = self.token
        principal = await self.services.identity.authenticate(token) if token else None
        if principal is None:
            raise Unauthenticated(
                "invalid credentials: the token is missing, unknown or has run out; log in again"
            )
        return principal

    async def admit(self, kind: Kind, thing_id: int | str, access: Access) -> Found | None:
        """Make sure that the caller may have a thing.

        Returns:
            The thing; None where a container reports about its own, which needs no look at the store.

        Raises:
            NotFound: there is none, or not for this caller.
            Forbidden: a container's token asks for what is not its own.
        """
        self._admitted = True
        by_id = access is Access.REPORT and kind is not Kind.CHECKPOINT
        if by_id and is_own(self.principal, kind, thing_id):
            return None
        found = cast(
            "Found | None",
            await self.services.read(find, self.services.store, kind, thing_id, self.principal),
        )
        self.decide(access, found.subject if found else None, f"{kind.value} '{thing_id}'")
        return found

    def decide(self, access: Access, subject: Subject | None, what: str) -> None:
        """Like `admit`, for a thing that was looked up already."""
        self._admitted = True
        self._raise(decide(self.principal, access, subject), what)

    def _raise(self, verdict: Verdict, what: str = "") -> None:
        match verdict:
            case Verdict.ALLOWED:
                return
            case Verdict.UNAUTHENTICATED:
                raise Unauthenticated("invalid credentials: log in first")
            case Verdict.ABSENT:
                raise NotFound(f"{what} not found")
            case Verdict.FORBIDDEN:
                route = f"{self.request.method} {self.request.path}"
                if self.principal.is_container:
                    allocation = self.principal.allocation_id
                    raise Forbidden(
                        f"access denied: the token of allocation {allocation} may not call {route}"
                    )
                rule = self.rules[str(self.request.method)]
                whose = "its owner and administrators" if rule.access is Access.EDIT else "administrators"
                raise Forbidden(
                    f"access denied: {route} is for {whose}, and {self.principal.username!r} is none"
                )

    def _path_id(self, kind: Kind) -> int | str:
        text = self.path_kwargs[_PARAMETERS[kind]]
        if kind not in _NUMBERED:
            return str(text)
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise Invalid(f"the {kind.value} id is {text!r}: expected an integer")
        return int(text)

    # Who asks, and for what

    @property
    def principal(self) -> Principal:
        """Who asks; only on routes that are not public."""
        assert self._principal is not None, "a public route has no principal"
        return self._principal

    @property
    def found(self) -> Found:
        """What the path names."""
        assert self._found is not None, "the rule of this route names no kind, or a container reports"
        return self._found

    def path_integer(self, kind: Kind) -> int:
        """The id in the path, checked by `prepare`."""
        return int(self._path_id(kind))

    # What was sent

    async def data_received(self, chunk: bytes) -> None:
        await self._body.add(chunk)

    @property
    def body(self) -> ReceivedBody:
        """The request's body.

        Raises:
            TooLarge: it went over the route's limit.
        """
        if self._body.too_large:
            raise self._too_large(self._body.size)
        return self._body

    def _too_large(self, size: int) -> errors.TooLarge:
        have, limit = size / 2**20, self.max_body / 2**20
        return errors.TooLarge(f"the request's body has {have:.1f} MiB: this route takes up to {limit:g} MiB")

    async def fields(self) -> Fields:
        """The fields of the JSON object in the body; an absent body is an empty one."""
        return Fields(await self.object())

    async def object(self) -> dict[str, Any]:
        """The JSON object in the body as it is."""
        parsed = await self.parsed()
        if not isinstance(parsed, dict):
            raise Invalid("the request's body must be a JSON object")
        return parsed

    async def parsed(self) -> Any:
        """The JSON in the body, of whatever kind; an absent body is an empty object."""
        data = await self.body.whole()
        return await asyncio.to_thread(parse_json, data) if len(data) > _PARSED_INLINE else parse_json(data)

    @property
    def query(self) -> Query:
        return Query(self.request.query_arguments)

    # Reads

    async def read(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function that reads the store, in a thread."""
        return cast(T, await self.services.read(function, *arguments))

    async def unless_gone(self, awaitable: Awaitable[T]) -> T:
        """Wait for something for as long as the client waits for us.

        Raises:
            ClientGone: it does not any more; what was waited for is cancelled.
        """
        waiting = asyncio.ensure_future(awaitable)
        gone = asyncio.ensure_future(self._gone.wait())
        try:
            await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise ClientGone
            return await waiting
        finally:
            for future in (waiting, gone):
                future.cancel()
            await asyncio.gather(waiting, gone, return_exceptions=True)

    # Answers

    def reply(self, payload: wire.Object) -> None:
        """Answer with 200 and a JSON object."""
        self._check_admitted()
        self.write(wire.dumps(payload, pretty=self._pretty))

    async def reply_large(self, encode: Callable[..., wire.Object], *arguments: Any) -> None:
        """The same for an object that takes time to make: it is made in a thread, by a pure function."""
        self._check_admitted()
        self.write(await asyncio.to_thread(lambda: wire.dumps(encode(*arguments), pretty=self._pretty)))

    async def stream(self, batches: AsyncGenerator[bytes, None]) -> None:
        """Answer with JSON lines as they come. An error after the first one becomes the last line."""
        self._check_admitted()
        started = False
        try:
            async with aclosing(batches) as source:
                async for batch in source:
                    self.write(batch)
                    await self.flush()
                    started = True
        except (ClientGone, StreamClosedError):
            return
        except Exception as error:
            if not started:
                raise
            self.write(wire.dumps(errors.stream_item(errors.kind_of(error), self._explain(error))) + b"\n")

    @property
    def _pretty(self) -> bool:
        return "pretty" in self.request.query_arguments

    def _check_admitted(self) -> None:
        rule = self.rules[str(self.request.method)]
        if rule.in_body and not self._admitted:
            raise AssertionError(
                f"{type(self).__name__} answers {self.request.method} without having called admit()"
            )

    # Errors and ends

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        """What we did not foresee is logged by `_explain`, unless the answer is under way: then it breaks off."""
        if not self._headers_written or value is None:
            return
        if not isinstance(value, ClientGone | StreamClosedError):
            logger.error("%s %s broke off", self.request.method, self.request.path, exc_info=value)
        self._connection.stream.close()  # so that the client sees that the answer is not whole

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs["exc_info"][1] if "exc_info" in kwargs else HTTPError(status_code)
        if isinstance(error, ClientGone | StreamClosedError):
            return
        kind = errors.kind_of(error)
        self.set_status(kind.status)
        if kind is errors.UNAVAILABLE:
            self.set_header("Retry-After", RETRY_AFTER)
        gateway = self.request.path.startswith("/api/")
        self.write(wire.dumps(errors.body(kind, self._explain(error), gateway=gateway), pretty=self._pretty))

    def _explain(self, error: BaseException) -> str:
        """The text for the client; of an unforeseen error only a number by which it is found in the log."""
        route = f"{self.request.method} {self.request.path}"
        if isinstance(error, HTTPError):
            if error.status_code == 405:
                return f"{route} is not possible: allowed are {', '.join(sorted(self.rules))}"
            return f"there is no {route}" if error.status_code == 404 else str(error)
        if errors.is_full_disk(error):
            return (
                f"the disk of the master's data folder is full: {route} changed nothing;"
                " free some space there, and try again"
            )
        if errors.kind_of(error) is not errors.INTERNAL:
            return str(error)
        number = uuid.uuid4().hex[:12]
        logger.error("request %s: %s failed", number, route, exc_info=error)
        return f"an error that should not happen: {type(error).__name__}; the master's log has it as request {number}"

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._gone.set()
        self._body.close()

    def on_finish(self) -> None:
        self._body.close()


class NoRoute(ApiHandler):
    """Whatever no other route answers."""

    async def prepare(self) -> None:
        raise HTTPError(404)


def parse_json(data: bytes) -> Any:
    """Parse a body; an empty one is an empty object. NaN and infinities, also overflowing ones, become strings.

    Raises:
        Invalid: it is no JSON.
    """
    if not data.strip():
        return {}
    try:
        return json.loads(data, parse_constant=str, parse_float=_finite)
    except RecursionError:
        raise Invalid("the request's body is nested too deeply") from None
    except ValueError as error:
        raise Invalid(f"the request's body is not JSON: {error}") from None


def _finite(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else ("Infinity" if number > 0 else "-Infinity")


def _bearer(header: str) -> str:
    if not header:
        return ""
    scheme, _, token = header.strip().partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthenticated("invalid credentials: expected the header 'Authorization: Bearer <token>'")
    return token.strip()


def distinct(ids: Sequence[T]) -> list[T]:
    """The ids without repeats, in order."""
    return list(dict.fromkeys(ids))
