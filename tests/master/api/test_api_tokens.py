"""Access tokens: made by one's login, good for another machine, until they run out."""

from __future__ import annotations

from typing import Any

import pytest

from detlab_master.engine import clock
from master.api.rig import ALICE, BOB, Rig


async def test_a_token_acts_as_its_user_and_outlives_a_logout(rig: Rig) -> None:
    token = (await rig.call("POST", "/api/v1/tokens", {"userId": ALICE})).json["token"]
    for _ in range(2):
        assert (await rig.call("GET", "/api/v1/me", by=token)).json["user"]["username"] == "alice"
        assert (await rig.call("POST", "/api/v1/auth/logout", by=token)).status == 200


async def test_a_token_runs_out(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    token = (await rig.call("POST", "/api/v1/tokens", {"lifespan": "1h30m"})).json["token"]
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now + 5300)
    assert (await rig.call("GET", "/api/v1/me", by=token)).status == 200
    monkeypatch.setattr(clock, "now", lambda: now + 5500)
    assert (await rig.call("GET", "/api/v1/me", by=token)).status == 401


async def test_tokens_for_others_are_made_by_administrators(rig: Rig) -> None:
    refused = await rig.call("POST", "/api/v1/tokens", {"userId": BOB})
    assert (refused.status, refused.error) == (
        403,
        "access denied: only administrators may make tokens for others",
    )
    token = (await rig.call("POST", "/api/v1/tokens", {"userId": BOB}, by="admin")).json["token"]
    assert (await rig.call("GET", "/api/v1/me", by=token)).json["user"]["username"] == "bob"


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        ({"lifespan": "soon"}, 400, "lifespan is 'soon': expected a duration such as 720h"),
        ({"lifespan": "0s"}, 400, "would last 0 days"),
        ({"lifespan": "721h"}, 400, "at most 30"),
        ({"userId": 999999}, 404, "user '999999' not found"),
    ],
)
async def test_tokens_that_cannot_be(rig: Rig, body: dict[str, Any], status: int, part: str) -> None:
    answer = await rig.call("POST", "/api/v1/tokens", body, by="admin")
    assert answer.status == status
    assert part in answer.error
