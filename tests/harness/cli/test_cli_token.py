"""`det token create`."""

import json

from harness.api_stub import StubMaster, user

from .conftest import Det

API = "/api/v1"


def test_a_token_can_be_piped(master: StubMaster, det: Det) -> None:
    master.answer("POST", f"{API}/tokens", {"token": "made-of-letters"})
    for argv in (["token"], ["token", "create"]):
        ran = det(*argv)
        assert (ran.code, ran.out) == (0, "made-of-letters\n")
        assert f"det -m {master.url} token login <token>" in ran.err
    assert [request.body for request in master.sent("POST", f"{API}/tokens")] == [{"userId": 7}] * 2


def test_for_somebody_else_and_for_some_days(master: StubMaster, det: Det) -> None:
    master.answer("GET", f"{API}/users/grace/by-username", {"user": user("grace", id=8)})
    master.answer("POST", f"{API}/tokens", {"token": "made-of-letters"})
    ran = det("token", "create", "grace", "--expiration-days", "2", "--json")
    assert json.loads(ran.out) == {"token": "made-of-letters"}
    assert master.sent("POST", f"{API}/tokens")[0].body == {"userId": 8, "lifespan": "48h"}
