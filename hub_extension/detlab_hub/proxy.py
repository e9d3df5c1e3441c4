"""The Hub's proxy: `python -m detlab_hub.proxy`, with the options and the API of configurable-http-proxy.

The original needs Node.js, and the port of it to Python holds whole answers back (the spawn page's progress would show
nothing until its end), admits ten requests at once, and loses WebSocket subprotocols, without which JupyterLab and its
server speak different kernel protocols. This one passes on what it gets as it gets it: bodies as streams, WebSocket
messages one by one with their subprotocol, pings and close codes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import logging
import os
import signal
import ssl
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict
from yarl import URL

from detlab_hub.routes import Route, RouteTable, clean

log = logging.getLogger("detlab_hub.proxy")
CONNECT_SECONDS = 10.0
CHUNK = 1 << 16  # bytes
HEADER_LINE = 1 << 16  # bytes; cookies of many servers, and long OAuth addresses
# They hold between two neighbours only (RFC 9110, 7.6.1).
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_WEBSOCKET = frozenset(
    {"sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions", "sec-websocket-protocol"}
)


class Proxy:
    """The public side and the API, over one table."""

    def __init__(self, *, auth_token: str, error_target: str = "", host_routing: bool = False) -> None:
        """`error_target`: where the Hub serves pages for errors, asked as `<error_target>/<status>?url=<path>`."""
        self._token = auth_token
        self._error_target = error_target.rstrip("/")
        self._host_routing = host_routing
        self._routes = RouteTable()
        self._session: aiohttp.ClientSession | None = None

    def public(self) -> web.Application:
        app = web.Application()
        app.cleanup_ctx.append(self._client)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        return app

    def api(self) -> web.Application:
        app = web.Application(middlewares=[self._authorised])
        for path in ("/api/routes", "/api/routes/{path:.*}"):
            app.router.add_get(path, self._get_routes)
            app.router.add_post(path, self._add_route)
            app.router.add_delete(path, self._remove_route)
        return app

    async def _client(self, app: web.Application) -> Any:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            max_line_size=HEADER_LINE,
            max_field_size=HEADER_LINE,
        ) as self._session:
            yield

    # ---- the public side

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        path = unquote(request.rel_url.raw_path)
        if path == "/_chp_healthz":
            return web.json_response({"status": "OK"})
        found = self._routes.find(f"/{_host(request)}{path}" if self._host_routing else path)
        if found is None:
            return await self._error(request, 404)
        at, route = found
        sent = request.raw_path if request.raw_path.startswith("/") else request.rel_url.raw_path_qs
        url = URL(route.target.rstrip("/") + sent, encoded=True)
        if request.headers.get(hdrs.UPGRADE, "").lower() == "websocket":
            return await self._pass_websocket(request, url, at)
        return await self._pass_request(request, url, at)

    async def _pass_request(self, request: web.Request, url: URL, at: str) -> web.StreamResponse:
        assert self._session is not None
        try:
            asked = await self._session.request(
                request.method,
                url,
                headers=_forwarded(request),
                data=request.content if request.body_exists else None,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("%s %s: %s does not answer: %s", request.method, request.path, url.origin(), error)
            return await self._error(request, 503)
        async with asked:
            answer = web.StreamResponse(status=asked.status, reason=asked.reason)
            for key, value in asked.headers.items():
                if key.lower() not in _HOP_BY_HOP:
                    answer.headers.add(key, value)
            if asked.status < 300:
                self._routes.touch(at, datetime.now(UTC))
            try:
                await answer.prepare(request)
                async for chunk in asked.content.iter_any():
                    await answer.write(chunk)
                await answer.write_eof()
            except (aiohttp.ClientConnectionResetError, ConnectionResetError):
                log.debug("%s %s: the client has gone", request.method, request.path)
            except aiohttp.ClientError as error:  # half an answer is out: only breaking off says so
                log.warning("%s %s: broken off by %s: %s", request.method, request.path, url.origin(), error)
                if request.transport is not None:
                    request.transport.abort()
            return answer

    async def _pass_websocket(self, request: web.Request, url: URL, at: str) -> web.StreamResponse:
        assert self._session is not None
        offered = [word.strip() for word in request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "").split(",")]
        try:
            server = await self._session.ws_connect(
                url,
                protocols=[word for word in offered if word],
                headers=_forwarded(request, without=_WEBSOCKET),
                autoping=False,
                max_msg_size=0,
            )
        except aiohttp.WSServerHandshakeError as error:  # such as 403: the client is told the same
            return web.Response(status=error.status if error.status >= 400 else 502)
        except (aiohttp.ClientError, TimeoutError) as error:
            log.warning("WebSocket %s: %s does not answer: %s", request.path, url.origin(), error)
            return await self._error(request, 503)
        async with server:
            client = web.WebSocketResponse(
                protocols=[server.protocol] if server.protocol else [],
                autoping=False,
                max_msg_size=0,
                compress=False,
            )
            await client.prepare(request)
            await self._pump_both(client, server, at)
            return client

    async def _pump_both(
        self, client: web.WebSocketResponse, server: aiohttp.ClientWebSocketResponse, at: str
    ) -> None:
        pumps = [
            asyncio.create_task(self._pump(client, server, at)),
            asyncio.create_task(self._pump(server, client, at)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            code = server.close_code or client.close_code
            for end in (client, server):
                if not end.closed:
                    await end.close(
                        code=code if code and 1000 <= code < 5000 and code not in _UNSENT else 1001
                    )

    async def _pump(
        self,
        source: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
        target: web.WebSocketResponse | aiohttp.ClientWebSocketResponse,
        at: str,
    ) -> None:
        with contextlib.suppress(aiohttp.ClientError, ConnectionResetError):
            while True:
                message = await source.receive()
                if message.type is aiohttp.WSMsgType.TEXT:
                    await target.send_str(message.data)
                elif message.type is aiohttp.WSMsgType.BINARY:
                    await target.send_bytes(message.data)
                elif message.type is aiohttp.WSMsgType.PING:
                    await target.ping(message.data)
                    continue
                elif message.type is aiohttp.WSMsgType.PONG:
                    await target.pong(message.data)
                    continue
                else:
                    return
                self._routes.touch(at, datetime.now(UTC))

    async def _error(self, request: web.Request, status: int) -> web.Response:
        """The Hub's own page for it, where the Hub can be asked."""
        if self._error_target and self._session is not None:
            page = URL(f"{self._error_target}/{status}?url={quote(request.raw_path, safe='')}", encoded=True)
            try:
                async with self._session.get(page, allow_redirects=False) as answer:
                    body = await answer.read()
                    kept = {hdrs.CONTENT_TYPE: answer.headers.get(hdrs.CONTENT_TYPE, "text/html")}
                    if encoding := answer.headers.get(hdrs.CONTENT_ENCODING):
                        kept[hdrs.CONTENT_ENCODING] = encoding
                    return web.Response(status=status, body=body, headers=kept)
            except (aiohttp.ClientError, TimeoutError) as error:
                log.warning("the Hub gives no page for %d: %s", status, error)
        reason = "The Hub does not answer; try again in a moment." if status == 503 else "Nothing is here."
        return web.Response(status=status, text=f"{status}: {reason}\n")

    # ---- the API

    @web.middleware
    async def _authorised(self, request: web.Request, handler: Any) -> web.StreamResponse:
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        if scheme.lower() != "token" or not hmac.compare_digest(token.strip().encode(), self._token.encode()):
            raise web.HTTPForbidden(
                text="the proxy's API wants `Authorization: token <CONFIGPROXY_AUTH_TOKEN>`\n"
            )
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _get_routes(self, request: web.Request) -> web.Response:
        if "path" not in request.match_info:
            return web.json_response({path: _shown(route) for path, route in self._routes.all().items()})
        route = self._routes.get(_path(request))
        if route is None:
            raise web.HTTPNotFound
        return web.json_response(_shown(route))

    async def _add_route(self, request: web.Request) -> web.Response:
        sent = await request.json()
        target = sent.pop("target", None) if isinstance(sent, dict) else None
        if not isinstance(target, str):
            raise web.HTTPBadRequest(text='a route is {"target": "http://host:port", ...}\n')
        sent.pop("last_activity", None)
        self._routes.add(_path(request), Route(target, datetime.now(UTC), sent))
        return web.Response(status=201)

    async def _remove_route(self, request: web.Request) -> web.Response:
        return web.Response(status=204 if self._routes.remove(_path(request)) else 404)


_UNSENT = frozenset({1004, 1005, 1006, 1015})  # close codes that stand for "none was sent"


def _path(request: web.Request) -> str:
    """Of a route: the Hub wants to see it unescaped."""
    return clean(unquote(request.rel_url.raw_path.removeprefix("/api/routes")))


def _shown(route: Route) -> dict[str, Any]:
    return {**route.data, "target": route.target, "last_activity": route.last_activity.isoformat()}


def _host(request: web.Request) -> str:
    return request.host.rpartition(":")[0] or request.host


def _forwarded(request: web.Request, without: frozenset[str] = frozenset()) -> CIMultiDict[str]:
    """A request's headers as the target gets them."""
    named = {word.strip().lower() for word in request.headers.get(hdrs.CONNECTION, "").split(",")}
    headers = CIMultiDict(
        (key, value)
        for key, value in request.headers.items()
        if key.lower() not in _HOP_BY_HOP | without | named and key.lower() != "expect"
    )
    port = (
        request.host.rpartition(":")[2] if ":" in request.host else {"https": "443"}.get(request.scheme, "80")
    )
    for key, value in (
        ("X-Forwarded-For", request.remote or ""),
        ("X-Forwarded-Port", port),
        ("X-Forwarded-Proto", request.scheme),
    ):
        known = headers.get(key)
        headers[key] = f"{known},{value}" if known else value
    headers.setdefault("X-Forwarded-Host", request.host)
    return headers


async def serve(proxy: Proxy, options: argparse.Namespace) -> None:
    """Both sides, until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    tls = None
    if options.ssl_cert:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(options.ssl_cert, options.ssl_key)
    public = web.AppRunner(
        proxy.public(),
        access_log=None,
        handler_cancellation=True,  # an answer that nobody reads any more is not asked for any more
        max_line_size=HEADER_LINE,
        max_field_size=HEADER_LINE,
        shutdown_timeout=1.0,
    )
    api = web.AppRunner(proxy.api(), access_log=None, shutdown_timeout=1.0)
    try:
        for runner, ip, port, context in (
            (public, options.ip, options.port, tls),
            (api, options.api_ip, options.api_port, None),
        ):
            await runner.setup()
            await web.TCPSite(runner, ip or None, port, ssl_context=context).start()
        await stop.wait()
    finally:
        await public.cleanup()
        await api.cleanup()


def main(environment: Mapping[str, str] = os.environ) -> None:
    parser = argparse.ArgumentParser(prog="detlab_hub.proxy", description="The proxy of a Detlab JupyterHub.")
    parser.add_argument("--ip", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--api-ip", default="127.0.0.1")
    parser.add_argument("--api-port", type=int, required=True)
    parser.add_argument("--error-target", default="")
    parser.add_argument("--host-routing", action="store_true")
    parser.add_argument("--ssl-cert")
    parser.add_argument("--ssl-key")
    parser.add_argument("--log-file", help="where it writes what it has to say (default: stderr)")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warn", "error"))
    options = parser.parse_args()
    level = "WARNING" if options.log_level == "warn" else options.log_level.upper()
    logging.basicConfig(
        level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", filename=options.log_file
    )
    token = environment.get("CONFIGPROXY_AUTH_TOKEN")
    if not token:
        sys.exit("detlab_hub.proxy: CONFIGPROXY_AUTH_TOKEN must hold the token of its API")
    proxy = Proxy(auth_token=token, error_target=options.error_target, host_routing=options.host_routing)
    try:
        asyncio.run(serve(proxy, options))
    except OSError as error:
        sys.exit(f"detlab_hub.proxy: {error}")


if __name__ == "__main__":
    main()
