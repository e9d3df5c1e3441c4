"""The proxy as a process, before a server that shows what arrives."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from support.hub import free_ports

TOKEN = "secret"


@dataclass
class Rig:
    url: str
    api: str
    target: str  # of the server behind it
    session: aiohttp.ClientSession
    gone: asyncio.Event  # a client of /drip has left

    async def route(self, path: str, target: str | None = None) -> None:
        headers = {"Authorization": f"token {TOKEN}"}
        body = {"target": target or self.target, "jupyterhub": True, "user": "anna"}
        async with self.session.post(f"{self.api}/api/routes{path}", json=body, headers=headers) as answer:
            assert answer.status == 201


def behind(gone: asyncio.Event) -> web.Application:
    release = asyncio.Event()

    async def show(request: web.Request) -> web.StreamResponse:
        return web.json_response(
            {
                "method": request.method,
                "path": request.raw_path,
                "headers": list(map(list, request.headers.items())),
                "length": len(await request.read()),
            },
            headers={"Server": "behind"},
        )

    async def cookies(request: web.Request) -> web.StreamResponse:
        answer = web.Response(status=302, headers={"Location": "/elsewhere"})
        answer.set_cookie("one", "1")
        answer.set_cookie("two", "2")
        return answer

    async def drip(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        try:
            await answer.write(b"data: first\n\n")
            await release.wait()
            await answer.write(b"data: second\n\n")
        except asyncio.CancelledError:
            gone.set()
            raise
        return answer

    async def let_go(request: web.Request) -> web.StreamResponse:
        release.set()
        return web.Response()

    async def echo(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=["second"], autoping=False, max_msg_size=0)
        if "forbidden" in request.query:
            raise web.HTTPForbidden
        await socket.prepare(request)
        async for message in socket:
            if message.type is aiohttp.WSMsgType.PING:
                await socket.pong(message.data)
            elif message.data == "end":
                await socket.close(code=4001, message=b"because")
            elif message.type is aiohttp.WSMsgType.TEXT:
                await socket.send_str(message.data + "!")
            else:
                await socket.send_bytes(message.data[::-1])
        return socket

    app = web.Application(client_max_size=1 << 30)
    app.router.add_get("/user/anna/cookies", cookies)
    app.router.add_get("/user/anna/drip", drip)
    app.router.add_post("/user/anna/let-go", let_go)
    app.router.add_get("/user/anna/echo", echo)
    app.router.add_route("*", "/{path:.*}", show)
    return app


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    first = free_ports(3)
    gone = asyncio.Event()
    runner = web.AppRunner(behind(gone), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", first + 2).start()
    target = f"http://127.0.0.1:{first + 2}"
    command = ["--port", str(first), "--api-port", str(first + 1), "--error-target", f"{target}/hub/error"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "detlab_hub.proxy", *command, "--log-file", str(tmp_path / "log")),
        env={"CONFIGPROXY_AUTH_TOKEN": TOKEN},
    )
    try:
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            made = Rig(f"http://127.0.0.1:{first}", f"http://127.0.0.1:{first + 1}", target, session, gone)
            async with asyncio.timeout(30):
                while True:
                    try:
                        async with session.get(f"{made.api}/api/routes"):
                            break
                    except aiohttp.ClientConnectionError:
                        await asyncio.sleep(0.05)
            await made.route("/user/anna")
            yield made
    finally:
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 20) == 0
        await runner.cleanup()


async def test_a_request_arrives_as_it_was_sent(rig: Rig) -> None:
    path = "/user/anna/a%20b%2Fc/../d?x=%C3%A9&y=1%2B1"
    request = rig.session.post(
        URL(rig.url + path, encoded=True),
        data=b"x" * 10,
        headers={
            "Connection": "keep-alive, X-Hop",
            "X-Hop": "1",
            "X-Kept": "1",
            "X-Forwarded-For": "10.0.0.1",
        },
    )
    async with request as answer:
        seen = await answer.json()
        assert answer.headers["Server"] == "behind"
    headers = {key.lower(): value for key, value in seen["headers"]}
    assert (seen["method"], seen["path"], seen["length"]) == ("POST", path, 10)
    assert headers["host"] == rig.url.removeprefix("http://")
    assert headers["x-kept"] == "1" and "x-hop" not in headers
    assert headers["x-forwarded-for"] == "10.0.0.1,127.0.0.1"
    assert headers["x-forwarded-host"] == headers["host"]
    assert headers["x-forwarded-proto"] == "http"
    assert headers["x-forwarded-port"] == rig.url.rpartition(":")[2]


async def test_an_answer_arrives_as_it_was_given(rig: Rig) -> None:
    async with rig.session.get(f"{rig.url}/user/anna/cookies", allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (302, "/elsewhere")
        assert len(answer.headers.getall("Set-Cookie")) == 2
    async with rig.session.head(f"{rig.url}/user/anna/anything") as answer:
        assert answer.status == 200 and int(answer.headers["Content-Length"]) > 0


async def test_events_are_passed_on_as_they_happen(rig: Rig) -> None:
    async with rig.session.get(f"{rig.url}/user/anna/drip") as answer, asyncio.timeout(10):
        assert await answer.content.readline() == b"data: first\n"
        async with rig.session.post(f"{rig.url}/user/anna/let-go"):
            pass
        assert (await answer.content.read()).endswith(b"data: second\n\n")


async def test_a_client_that_leaves_is_left(rig: Rig) -> None:
    async with rig.session.get(f"{rig.url}/user/anna/drip") as answer:
        await answer.content.readline()
        answer.close()
    async with asyncio.timeout(10):
        await rig.gone.wait()


async def test_many_requests_at_once(rig: Rig) -> None:
    async def follow() -> bytes:
        async with rig.session.get(f"{rig.url}/user/anna/drip") as answer:
            await answer.content.readline()
            started.append(1)
            return await answer.content.read()

    started: list[int] = []
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        followers = [group.create_task(follow()) for _ in range(60)]
        while len(started) < 60:
            await asyncio.sleep(0.01)
        async with rig.session.post(f"{rig.url}/user/anna/let-go") as answer:
            assert answer.status == 200
    assert all(b"second" in follower.result() for follower in followers)


async def test_a_large_body_is_passed_on(rig: Rig) -> None:
    size = 64 << 20

    async def body() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * (1 << 20)

    async with rig.session.put(f"{rig.url}/user/anna/file", data=body()) as answer:
        assert (await answer.json())["length"] == size


async def test_websockets(rig: Rig) -> None:
    async with rig.session.ws_connect(
        f"{rig.url}/user/anna/echo", protocols=["first", "second"], autoping=False, max_msg_size=0
    ) as socket:
        assert socket.protocol == "second"  # the server's choice
        await socket.send_str("a")
        assert (await socket.receive()).data == "a!"
        await socket.send_bytes(b"ab")
        assert (await socket.receive()).data == b"ba"
        await socket.send_bytes(b"x" * (20 << 20))
        assert len((await socket.receive()).data) == 20 << 20
        await socket.ping(b"p")
        assert (await socket.receive()).type is aiohttp.WSMsgType.PONG
        await socket.send_str("end")
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert socket.close_code == 4001
    async with rig.session.ws_connect(f"{rig.url}/user/anna/echo") as socket:
        assert socket.protocol is None
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await rig.session.ws_connect(f"{rig.url}/user/anna/echo?forbidden=1")
    assert refused.value.status == 403


async def test_a_server_that_is_gone_gives_the_hubs_page(rig: Rig) -> None:
    await rig.route("/user/bert", "http://127.0.0.1:9")
    async with rig.session.get(f"{rig.url}/user/bert/lab?x=1") as answer:
        assert answer.status == 503
        assert (await answer.json())["path"] == "/hub/error/503?url=%2Fuser%2Fbert%2Flab%3Fx%3D1"
    async with rig.session.get(f"{rig.url}/nowhere") as answer:
        assert answer.status == 404
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await rig.session.ws_connect(f"{rig.url}/user/bert/echo")
    assert refused.value.status == 503


async def test_the_api(rig: Rig) -> None:
    headers = {"Authorization": f"token {TOKEN}"}
    for wrong in ({}, {"Authorization": "token other"}, {"Authorization": f"Bearer {TOKEN}"}):
        async with rig.session.get(f"{rig.api}/api/routes", headers=wrong) as answer:
            assert answer.status == 403
    await rig.route("/user/a%20b%40c")
    async with rig.session.get(f"{rig.api}/api/routes", headers=headers) as answer:
        routes = await answer.json()
    assert set(routes) == {"/user/anna", "/user/a b@c"}
    assert routes["/user/anna"]["target"] == rig.target
    assert (routes["/user/anna"]["user"], routes["/user/anna"]["jupyterhub"]) == ("anna", True)
    before = routes["/user/anna"]["last_activity"]
    async with rig.session.get(f"{rig.url}/user/anna/x") as answer:
        assert answer.status == 200
    async with rig.session.get(f"{rig.url}/user/a%20b@c/x") as answer:
        assert answer.status == 200
    async with rig.session.get(f"{rig.api}/api/routes/user/anna", headers=headers) as answer:
        assert (await answer.json())["last_activity"] > before
    for expected in (204, 404):
        async with rig.session.delete(f"{rig.api}/api/routes/user/anna", headers=headers) as answer:
            assert answer.status == expected
    async with rig.session.post(f"{rig.api}/api/routes/x", json={"user": "x"}, headers=headers) as answer:
        assert answer.status == 400
    async with rig.session.get(f"{rig.url}/user/anna/x") as answer:
        assert answer.status == 404


def test_it_wants_a_token() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "detlab_hub.proxy", "--port", "1", "--api-port", "2"],
        env={},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 1
    assert "CONFIGPROXY_AUTH_TOKEN must hold the token" in ended.stderr
