import hashlib
import stat
from pathlib import Path

import pytest

from determined.common.api import authentication, errors
from determined.common.api.token_store import TokenStore
from harness.api_stub import PASSWORD, StubMaster


def username_of(master: StubMaster, **kwargs: object) -> str:
    with authentication.logged_in_session(**kwargs) as session:  # type: ignore[arg-type]
        return str(session.get_json("/api/v1/me")["user"]["username"])


def test_the_hash_is_the_salted_sha512_and_a_blank_stays_blank() -> None:

    expected = hashlib.sha512(b"GubPEmmotfiK9TMD6Zdwsecret").hexdigest()
    assert authentication.hash_password("secret") == expected
    assert authentication.hash_password("") == ""


def test_a_fresh_master_says_what_to_type(master: StubMaster) -> None:
    with pytest.raises(errors.NotLoggedIn, match=r"nobody is logged in .*: type `det user login <name>`"):
        authentication.logged_in_session()


def test_a_master_without_passwords_lets_the_default_user_in(master: StubMaster) -> None:
    master.passwords["determined"] = ""
    assert username_of(master) == "determined"
    assert username_of(master) == "determined"
    assert len(master.sent("POST", "/api/v1/auth/login")) == 1  # then the kept token is used


def test_a_named_user_with_a_password(master: StubMaster) -> None:
    assert username_of(master, user="ada", password=PASSWORD) == "ada"
    with pytest.raises(errors.NotLoggedIn, match=r"refused the login of 'ada': wrong name or password"):
        authentication.logged_in_session(user="ada", password="wrong")


def test_the_token_of_a_task_needs_no_login_call(master: StubMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_USER", "ada")
    monkeypatch.setenv("DET_USER_TOKEN", "ada-token")
    assert username_of(master) == "ada"
    assert [r.path for r in master.requests] == ["/api/v1/me"]


def test_user_and_password_of_the_environment(master: StubMaster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DET_USER", "ada")
    monkeypatch.setenv("DET_PASS", PASSWORD)
    TokenStore(master.url).put("bob", "bob-token", activate=True)
    assert username_of(master) == "ada"
    assert username_of(master, user="ada") == "ada"
    assert len(master.sent("POST", "/api/v1/auth/login")) == 1


def test_the_named_user_wins_over_environment_and_active_user(
    master: StubMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DET_USER", "ada")
    monkeypatch.setenv("DET_USER_TOKEN", "ada-token")
    master.tokens["bob-token"] = "bob"
    TokenStore(master.url).put("bob", "bob-token")
    assert username_of(master, user="bob") == "bob"


def test_an_expired_token_of_the_active_user(master: StubMaster) -> None:
    TokenStore(master.url).put("ada", "expired", activate=True)
    with pytest.raises(errors.NotLoggedIn, match=r"ada is not logged in .* `det user login ada`"):
        authentication.logged_in_session()
    assert username_of(master, ask=lambda url, name: (name or "", PASSWORD)) == "ada"
    assert TokenStore(master.url).token("ada") == "ada-token"


def test_a_terminal_is_asked_for_name_and_password(master: StubMaster) -> None:
    asked: list[str | None] = []

    def ask(url: str, name: str | None) -> tuple[str, str]:
        asked.append(name)
        return "ada", PASSWORD

    assert username_of(master, ask=ask) == "ada"
    assert username_of(master, ask=ask) == "ada"
    assert asked == [None]  # the second time ada is the active user


@pytest.mark.parametrize(
    ("password", "problem"),
    [
        (PASSWORD, None),
        ("Short1", "8 characters"),
        ("alllower1", "an upper-case letter"),
        ("ALLUPPER1", "a lower-case letter"),
        ("NoDigitsHere", "a digit"),
    ],
)
def test_password_problem(password: str, problem: str | None) -> None:
    found = authentication.password_problem(password)
    assert found == (None if problem is None else f"a password needs at least {problem}")


def test_the_store_is_private_and_keeps_masters_apart(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "auth.json"
    one, two = TokenStore("http://one:80", path), TokenStore("http://two:80", path)
    one.put("ada", "1", activate=True)
    two.put("ada", "2")
    assert (one.token("ada"), two.token("ada"), one.active_user(), two.active_user()) == (
        "1",
        "2",
        "ada",
        None,
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    one.drop("ada")
    one.drop("nobody")
    assert (one.token("ada"), one.active_user(), two.users()) == (None, None, {"ada": "2"})


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"version": 2, "masters": {}}', '{"format": "detlab-tokens-1"}']
)
def test_a_file_of_another_program_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "auth.json"
    path.write_text(content)
    store = TokenStore("http://one:80", path)
    for use in (store.active_user, lambda: store.put("ada", "1")):
        with pytest.raises(errors.TokenStoreError, match=r"auth.json was not written by this program"):
            use()
    assert path.read_text() == content
