"""Who a client acts as, and how it gets a token for that.

The first of these that applies is the user: one that was named (`-u`, or an argument of the SDK);
`DET_USER` with `DET_USER_TOKEN` (set in every task) or with `DET_PASS`; the user who logged in last on
this machine; `determined` with a blank password, which only masters that were set up so accept.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass

from determined.common.api import address, errors
from determined.common.api.session import Session, json_object
from determined.common.api.token_store import TokenStore

_SALT = "GubPEmmotfiK9TMD6Zdw"  # of the wire format: a password never travels as it was typed
DEFAULT_USER = "determined"
MIN_PASSWORD_LENGTH = 8

# Given the master's address and the user name where it is known: the name and the password.
Ask = Callable[[str, str | None], tuple[str, str]]


@dataclass(frozen=True)
class Trust:
    """Which certificates of the master to accept; see `Session`."""

    cert: str | bool | None = None
    cert_name: str | None = None


@dataclass(frozen=True)
class Patience:
    """How long to put up with a master that does not answer; see `Session`."""

    retries: int = 5
    read_timeout: float | None = None


def hash_password(password: str) -> str:
    """What is sent for a password: a salted SHA-512 in hex, and a blank one as it is."""
    return hashlib.sha512((_SALT + password).encode()).hexdigest() if password else ""


def password_problem(password: str) -> str | None:
    """Why a password is too weak, or None."""
    missing = [
        what
        for what, there in (
            (f"{MIN_PASSWORD_LENGTH} characters", len(password) >= MIN_PASSWORD_LENGTH),
            ("an upper-case letter", any(c.isupper() for c in password)),
            ("a lower-case letter", any(c.islower() for c in password)),
            ("a digit", any(c.isdigit() for c in password)),
        )
        if not there
    ]
    return f"a password needs at least {', '.join(missing)}" if missing else None


def login(master: str, username: str, password: str, trust: Trust | None = None) -> str:
    """A fresh token for this user. Not retried; raises UnauthenticatedException when refused."""
    trust = trust or Trust()
    with Session(master, retries=0, cert=trust.cert, cert_name=trust.cert_name) as session:
        body = {"username": username, "password": hash_password(password), "isHashed": True}
        return str(json_object(session.post("/api/v1/auth/login", body))["token"])


def logged_in_session(
    master: str | None = None,
    *,
    user: str | None = None,
    password: str | None = None,
    trust: Trust | None = None,
    ask: Ask | None = None,
    patience: Patience | None = None,
) -> Session:
    """A session that the master accepts, by the rules at the top of this file.

    `ask` is called where a name or a password is missing; without it, NotLoggedIn says what to type. Tokens
    that were got with a password are kept in the token store.
    """
    url = address.canonical_master_url(master or address.master_from_environment())
    trust, patience = trust or Trust(), patience or Patience()
    env_user, env_token = os.environ.get("DET_USER"), os.environ.get("DET_USER_TOKEN")
    if env_user and env_token and password is None and user in (None, env_user):
        return _session(url, env_token, trust, patience)

    store = TokenStore(url)
    if password is not None:  # a password that was given by hand is checked, whatever token is kept
        username = user or env_user or store.active_user() or DEFAULT_USER
        return _session(url, _new_token(store, username, password, trust), trust, patience)

    env_password = os.environ.get("DET_PASS") if user in (None, env_user) else None
    name = user or (env_user if env_password is not None else None) or store.active_user()
    if name is None:
        return _session(url, _blank_login(store, trust, ask, patience), trust, patience)
    session = _with_kept_token(store, name, trust, patience)
    if session is not None:
        return session
    if env_password is not None:
        password = env_password
    elif ask is not None:
        name, password = ask(url, name)
    else:
        raise errors.NotLoggedIn(
            f"{name} is not logged in to the master at {url}: type `det user login {name}`"
        )
    return _session(url, _new_token(store, name, password, trust), trust, patience)


def _blank_login(store: TokenStore, trust: Trust, ask: Ask | None, patience: Patience) -> str:
    """The token of the default user on a master that was set up without passwords; else somebody is asked."""
    kept = store.token(DEFAULT_USER)
    if kept is not None and _accepted(store.master, kept, trust, patience):
        return kept
    try:
        token = login(store.master, DEFAULT_USER, "", trust)
    except errors.UnauthenticatedException as e:
        if ask is None:
            raise errors.NotLoggedIn(
                f"nobody is logged in to the master at {store.master}: type `det user login <name>`"
            ) from e
    else:
        store.put(DEFAULT_USER, token)
        return token
    username, password = ask(store.master, None)
    return _new_token(store, username, password, trust, activate=True)


def _with_kept_token(store: TokenStore, username: str, trust: Trust, patience: Patience) -> Session | None:
    token = store.token(username)
    if token is None or not _accepted(store.master, token, trust, patience):
        return None
    return _session(store.master, token, trust, patience)


def _accepted(url: str, token: str, trust: Trust, patience: Patience) -> bool:
    with _session(url, token, trust, patience) as session:
        try:
            session.get("/api/v1/me")
        except (errors.UnauthenticatedException, errors.NotFoundException):
            return False
    return True


def _new_token(
    store: TokenStore, username: str, password: str, trust: Trust, *, activate: bool = False
) -> str:
    try:
        token = login(store.master, username, password, trust)
    except errors.UnauthenticatedException as e:
        raise errors.NotLoggedIn(refused(store.master, username)) from e
    store.put(username, token, activate=activate)
    return token


def refused(url: str, username: str) -> str:
    return (
        f"the master at {url} refused the login of {username!r}: wrong name or password. Users of a JupyterHub have"
        " no password here: type `det token create` in a terminal of JupyterLab"
    )


def _session(url: str, token: str, trust: Trust, patience: Patience) -> Session:
    return Session(
        url,
        token=token,
        retries=patience.retries,
        read_timeout=patience.read_timeout,
        cert=trust.cert,
        cert_name=trust.cert_name,
    )
