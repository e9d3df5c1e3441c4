"""What all routes share, seen from outside: errors, sizes, tokens, slashes."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from typing import Any

import pytest

from detlab_master.core.errors import Conflict
from detlab_master.store.base import StoreUnavailable
from master.api.rig import ALICE, BOB, Rig

PASSWORD = "Sesame-opens-1"


async def test_info_and_master(rig: Rig) -> None:
    info = await rig.call("GET", "/info", by=None)
    facts = rig.services.cluster
    assert info.json == {
        "version": "0.38.1",
        "master_id": facts.master_id,
        "cluster_id": facts.cluster_id,
        "cluster_name": "",
        "telemetry": {"enabled": False},
        "sso_providers": [],
    }
    master = (await rig.call("GET", "/api/v1/master", by=None)).json
    required = "clusterId clusterName hasCustomLogo masterId strictJobQueueControl version rbacEnabled"
    assert set(required.split()) <= set(master)


async def test_health(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await rig.call("GET", "/health", by=None)).json["status"] == "healthy"

    def away(number: int) -> None:
        raise StoreUnavailable("no disk")

    monkeypatch.setattr(rig.store.projects, "project", away)
    answer = await rig.call("GET", "/health", by=None)
    assert (answer.status, answer.json["database"]) == (503, "unhealthy")


@pytest.mark.parametrize("path", ["/api/v1/me/", "/api/v1/me?pretty", "/api/v1/me/?pretty=true"])
async def test_slashes_and_pretty(rig: Rig, path: str) -> None:
    answer = await rig.call("GET", path)
    assert answer.status == 200
    assert answer.json["user"]["username"] == "alice"
    assert (b"\n  " in answer.body) == ("pretty" in path)
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Cache-Control"] == "no-store"
    assert "Server" not in answer.headers


async def test_unknown_routes_and_methods(rig: Rig) -> None:
    answer = await rig.call("GET", "/api/v1/nothing", by=None)
    assert (answer.status, answer.json) == (
        404,
        {"error": {"code": 5, "reason": "NotFound", "error": "there is no GET /api/v1/nothing"}},
    )
    answer = await rig.call("GET", "/nothing", by=None)
    assert (answer.status, answer.json) == (404, {"message": "there is no GET /nothing"})
    answer = await rig.call("PUT", "/api/v1/me")
    assert (answer.status, answer.json["error"]["code"]) == (405, 12)
    assert answer.error == "PUT /api/v1/me is not possible: allowed are GET"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic YTpi"},
        {"Authorization": "Bearer"},
        {"Grpc-Metadata-x-allocation-token": "Bearer wrong"},
        {"Cookie": "auth=wrong"},
    ],
)
async def test_bad_tokens(rig: Rig, headers: dict[str, str]) -> None:
    answer = await rig.call("GET", "/api/v1/me", by=None, headers=headers)
    assert (answer.status, answer.json["error"]["reason"]) == (401, "Unauthenticated")


async def test_where_the_token_may_stand(rig: Rig) -> None:
    alice, bob = (f"Bearer {rig.tokens[name]}" for name in ("alice", "bob"))

    async def me(**headers: str) -> Any:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return (await rig.call("GET", "/api/v1/me", by=None, headers=sent)).json["user"]["username"]

    assert await me(Grpc_Metadata_x_user_token=alice, Authorization=bob) == "alice"
    assert await me(Authorization=alice, Cookie=f"auth={rig.tokens['bob']}") == "alice"
    assert await me(Cookie=f"auth={rig.tokens['bob']}") == "bob"
    assert await me(Grpc_Metadata_x_allocation_token=alice) == "alice"


async def test_another_sites_page_cannot_use_the_cookie(rig: Rig) -> None:
    things = await rig.things()
    path, cookie = (
        f"/api/v1/experiments/{things.experiment.id}/archive",
        {"Cookie": f"auth={rig.tokens['alice']}"},
    )
    for origin, status in (("http://evil.example", 401), (None, 401), (rig.url, 200)):
        headers = cookie | ({"Origin": origin} if origin else {})
        assert (await rig.call("POST", path, by=None, headers=headers)).status == status


async def test_login_and_logout(rig: Rig) -> None:
    await rig.services.identity.update_user(ALICE, password=PASSWORD)
    wrong = await rig.call("POST", "/api/v1/auth/login", {"username": "alice", "password": "no"}, by=None)
    assert wrong.status == 401
    nameless = await rig.call("POST", "/api/v1/auth/login", by=None)
    assert (nameless.status, nameless.error) == (400, "username is missing: it is required")
    answer = await rig.call(
        "POST", "/api/v1/auth/login", {"username": "alice", "password": PASSWORD}, by=None
    )
    assert answer.json["user"]["username"] == "alice"
    assert "HttpOnly" in answer.headers["Set-Cookie"]
    assert "SameSite=Strict" in answer.headers["Set-Cookie"]
    token = answer.json["token"]
    assert (await rig.call("GET", "/api/v1/me", by=token)).status == 200
    assert (await rig.call("POST", "/api/v1/auth/logout", by=token)).json == {}
    assert (await rig.call("GET", "/api/v1/me", by=token)).status == 401


async def test_a_deactivated_user(rig: Rig) -> None:
    assert (await rig.call("PATCH", f"/api/v1/users/{BOB}", {"active": False}, by="admin")).status == 200
    answer = await rig.call("GET", "/api/v1/me", by="bob")
    assert (answer.status, answer.json["error"]["reason"]) == (403, "PermissionDenied")


async def test_user_administration(rig: Rig) -> None:
    new = {"user": {"username": "carol", "admin": False, "active": True}, "password": PASSWORD}
    created = await rig.call("POST", "/api/v1/users", new, by="admin")
    assert created.json["user"]["username"] == "carol"
    assert (await rig.call("POST", "/api/v1/users", new, by="admin")).status == 400
    listed = await rig.call(
        "GET", "/api/v1/users", query={"sortBy": "SORT_BY_USER_NAME", "orderBy": "ORDER_BY_DESC"}
    )
    assert [user["username"] for user in listed.json["users"]] == ["carol", "bob", "alice", "admin"]
    assert listed.json["pagination"]["total"] == 4
    page = await rig.call("GET", "/api/v1/users", query={"name": "a", "limit": 1, "offset": 1})
    assert [user["username"] for user in page.json["users"]] == ["alice"]
    assert page.json["pagination"] == {"offset": 1, "limit": 1, "startIndex": 1, "endIndex": 2, "total": 3}
    assert (await rig.call("GET", "/api/v1/users/carol/by-username")).json["user"]["admin"] is False
    assert (await rig.call("GET", "/api/v1/users/nobody/by-username")).error == "user 'nobody' not found"
    assert (await rig.call("GET", "/api/v1/users/99")).error == "user '99' not found"
    linked = await rig.call("PATCH", f"/api/v1/users/{BOB}", {"agentUserGroup": {"agentUid": 5}}, by="admin")
    assert linked.status == 400


async def test_what_users_may_change_of_themselves(rig: Rig) -> None:
    path = f"/api/v1/users/{ALICE}"
    changed = await rig.call(
        "PATCH", path, {"display_name": "Alice A.", "password": PASSWORD, "isHashed": False}
    )
    assert changed.json["user"]["displayName"] == "Alice A."
    await rig.services.identity.login("alice", PASSWORD, False)
    for field, value in (("admin", True), ("username", "admin2"), ("active", True), ("remote", True)):
        refused = await rig.call("PATCH", path, {field: value})
        assert refused.status == 403
        assert field in refused.error
    user = rig.store.users.get(ALICE)
    assert user is not None
    assert not user.admin


@pytest.mark.parametrize(
    ("method", "path", "body", "error"),
    [
        ("GET", "/api/v1/experiments/seven", None, "the experiment id is 'seven': expected an integer"),
        ("GET", "/api/v1/experiments?limit=x", None, "limit is 'x': expected an integer"),
        ("GET", "/api/v1/experiments?limit=-3", None, "limit is '-3': it must be -2"),
        (
            "GET",
            "/api/v1/experiments?sortBy=SORT_BY_LUCK",
            None,
            "sortBy is 'SORT_BY_LUCK': expected one of SORT_BY_ID",
        ),
        ("GET", "/api/v1/users?offset=9", None, "offset is 9: the list has only 3 items"),
        ("POST", "/api/v1/runs/start", b"{", "the request's body is not JSON"),
        ("POST", "/api/v1/runs/start", b"[]", "the request's body must be a JSON object"),
        ("POST", "/api/v1/runs/start", None, "runId is missing: it is required"),
        ("POST", "/api/v1/task/logs", None, "logs is empty"),
        ("DELETE", "/api/v1/checkpoints", None, "checkpointUuids is empty"),
        ("POST", "/api/v1/experiments", None, "config is missing: it is required"),
        ("PUT", "/api/v1/trials", {"externalTrialId": ""}, "externalTrialId is '': it must not be empty"),
    ],
)
async def test_bad_requests(rig: Rig, method: str, path: str, body: Any, error: str) -> None:
    answer = await rig.call(method, path, body)
    assert answer.status == 400, answer.body
    assert answer.json["error"]["code"] == 3
    assert error in answer.error


async def test_a_body_that_is_too_large(rig: Rig) -> None:
    answer = await rig.call("POST", "/api/v1/task/logs", b"x" * (33 << 20))
    assert answer.status == 413
    assert answer.error == "the request's body has 33.0 MiB: this route takes up to 32 MiB"


async def test_a_body_that_is_too_large_and_does_not_say_so(rig: Rig) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    writer.write(
        b"POST /api/v1/auth/login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    for _ in range(3):
        writer.write(b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
    writer.write(b"0\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["reason"] == "ResourceExhausted"


async def test_nobody_unknown_makes_the_master_take_a_body_in(rig: Rig) -> None:
    """The answer comes before the body was sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    writer.write(b"POST /api/v1/experiments HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n")
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), 10)
    writer.close()
    await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 401 ")


async def test_errors_that_nobody_foresaw(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(number: int) -> None:
        raise ZeroDivisionError("the secret reason")

    monkeypatch.setattr(rig.store.users, "get", broken)
    with caplog.at_level(logging.ERROR, "detlab_master"):
        answer = await rig.call("GET", "/api/v1/users/2", by="alice")
    assert (answer.status, answer.json["error"]["code"]) == (500, 13)
    assert "secret" not in answer.error
    assert "Traceback" not in answer.error
    number = answer.error.rpartition(" ")[2]
    assert number in caplog.text
    assert "the secret reason" in caplog.text


@pytest.mark.parametrize(
    ("error", "status", "reason"), [(StoreUnavailable, 503, "Unavailable"), (Conflict, 409, "AlreadyExists")]
)
async def test_errors_of_the_engine(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: type[Exception], status: int, reason: str
) -> None:
    def refuse(number: int) -> None:
        raise error("because")

    monkeypatch.setattr(rig.store.users, "get", refuse)
    await rig.call("GET", "/api/v1/me", by="admin")  # authenticates from memory from now on
    answer = await rig.call("GET", "/api/v1/users/2", by="admin")
    assert (answer.status, answer.json["error"]["reason"], answer.error) == (status, reason, "because")


async def test_the_connection_answers_without_delay(rig: Rig) -> None:
    """Requests that come in one after the other on a connection do not wait for acknowledgements (40 ms each)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    head = (
        f"GET /api/v1/me HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {rig.tokens['alice']}\r\n\r\n".encode()
    )
    started = asyncio.get_running_loop().time()
    for _ in range(50):
        writer.write(head)
        answer = await asyncio.wait_for(reader.readuntil(b"}}"), 10)
        assert b"HTTP/1.1 200" in answer
    took = asyncio.get_running_loop().time() - started
    writer.close()
    await writer.wait_closed()
    assert took < 1.5, f"50 requests took {took:.2f} s"
