"""The Hub's users as the master's users."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from detlab_hub.identity import UserSync
from detlab_spawner.client import MasterClient
from support.hub import Hub, running_hub


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with running_hub(tmp_path_factory.mktemp("hub") / "run") as running:
        yield running


def users(hub: Hub) -> dict[str, dict[str, object]]:
    """The master's users, as its admin sees them."""
    lines = (hub.data / "activate").read_text().splitlines()
    token = next(line.partition("=")[2] for line in lines if line.startswith("export DET_USER_TOKEN="))
    answer = requests.get(
        f"{hub.master_url}/api/v1/users", headers={"Authorization": f"Bearer {token.strip()}"}, timeout=30
    )
    assert answer.status_code == 200, answer.text
    return {user["username"]: user for user in answer.json()["users"]}


def test_a_user_is_known_to_the_master_with_the_first_server(hub: Hub) -> None:
    hub.add_user("anna")
    hub.add_user("chief", admin=True)
    for name in ("anna", "chief"):
        hub.up(name)
    known = users(hub)
    assert (known["anna"]["admin"], known["chief"]["admin"]) == (False, True)
    assert known["anna"]["active"] and known["anna"]["remote"]
    assert "determined" not in known  # the master's own users are off
    for name in ("anna", "chief"):
        hub.api("DELETE", f"/users/{name}/server")
        hub.wait_gone(name)


def test_nobody_logs_in_to_the_master_with_a_password(hub: Hub) -> None:
    for name in ("admin", "determined", "anna"):
        for password in ("", hub.passwords["admin"], hub.passwords["user"]):
            body = {"username": name, "password": password}
            answer = requests.post(f"{hub.master_url}/api/v1/auth/login", json=body, timeout=30)
            assert answer.status_code == 401, (name, answer.text)


def test_a_deleted_user_is_out_of_the_master_too(hub: Hub) -> None:
    hub.add_user("bert", admin=True)
    hub.up("bert")
    hub.api("DELETE", "/users/bert/server")
    hub.wait_gone("bert")
    assert hub.api("DELETE", "/users/bert").status_code == 204
    known = users(hub)["bert"]
    assert not known["active"] and not known["admin"]


def test_a_user_is_not_deleted_while_the_master_cannot_be_told(hub: Hub) -> None:
    hub.add_user("carl")
    token = hub.data / "master" / "hub-token"
    moved = token.rename(token.with_name("away"))
    try:
        refused = hub.api("DELETE", "/users/carl")
        assert refused.status_code == 503
        assert "carl was not deleted: the master must be told, too." in refused.json()["message"]
    finally:
        moved.rename(token)
    assert hub.api("GET", "/users/carl").status_code == 200
    assert hub.api("DELETE", "/users/carl").status_code == 204


async def test_changes_are_told_once(hub: Hub) -> None:
    told = []

    class Noting(MasterClient):
        async def put_user(self, username: str, *, admin: bool, active: bool = True) -> None:
            told.append((username, admin))
            await super().put_user(username, admin=admin, active=active)

    sync = UserSync(Noting(hub.master_url, hub.data / "master" / "hub-token"))
    await sync.tell([("dora", False), ("emil", True)])
    await sync.tell([("dora", True), ("emil", True)])
    await sync.tell([("dora", True), ("emil", True)])
    assert told == [("dora", False), ("emil", True), ("dora", True)]
    assert users(hub)["dora"]["admin"]
