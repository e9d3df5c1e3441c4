"""Who asks: users, passwords and tokens.

Clients send ``sha512(salt + password)`` (reference: rest-api.md 1.3); what is kept is an Argon2 hash of that. Of tokens
only the SHA-256 is kept. Sessions are looked up once and then remembered: the master is the only writer.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from dataclasses import dataclass, replace
from typing import Any

from argon2 import PasswordHasher
from argon2.exceptions import VerificationError

from detlab_master.core.errors import Conflict, Inactive, Invalid, NotFound, Unauthenticated
from detlab_master.core.permissions import HUB_TOKEN, Principal
from detlab_master.core.records import Session, User
from detlab_master.engine import clock
from detlab_master.store.base import Store
from detlab_master.store.writes import DeleteSession, SaveSession, SaveUser

ACCESS_TOKEN = "access"  # the kind of a session
_CLIENT_SALT = "GubPEmmotfiK9TMD6Zdw"  # part of the protocol, the same for everybody
USER_SESSION_SECONDS = 7 * 24 * 3600.0
ACCESS_TOKEN_SECONDS = 30 * 24 * 3600.0  # also the longest that one may last
_WRONG = "the user name or the password is wrong"


_HUB = Principal(user_id=0, username="jupyterhub", admin=False, kind=HUB_TOKEN)


@dataclass(frozen=True)
class _Known:
    session: Session
    allocation: tuple[int | None, int | None, str] | None  # experiment, trial, task of an allocation's token


class Identity:
    """The users, and what their tokens stand for.

    Args:
        agent_token: the secret that agents connect with.
        hub_token: the secret that JupyterHub asks with.
        passwords: False where the Hub alone says who somebody is.
    """

    def __init__(
        self, store: Store, ids: clock.Ids, *, agent_token: str, hub_token: str, passwords: bool = True
    ) -> None:
        self._store = store
        self._ids = ids
        self._agent_token = agent_token
        self._hub_token = hub_token
        self._passwords = passwords
        self._upserting = asyncio.Lock()
        self._hasher = PasswordHasher()
        self._sessions: dict[str, _Known] = {}
        self._users: dict[int, User] = {}

    # Tokens

    async def login(self, username: str, password: str, is_hashed: bool) -> tuple[str, User]:
        """A new session.

        Raises:
            Invalid: no user name.
            Unauthenticated: no such user, or not that password.
            Inactive: the user was deactivated.
        """
        if not username:
            raise Invalid("a user name is needed to log in")
        if not self._passwords:
            raise Unauthenticated(
                "this master belongs to a JupyterHub and takes no passwords: in a server of the Hub `det` needs no login;"
                " elsewhere log in with a token (%det token in a notebook makes one, `det token login TOKEN` takes it)"
            )
        user = await asyncio.to_thread(self._store.users.by_name, username)
        hashed = password if is_hashed else client_hash(password)
        if user is None or user.remote or not await asyncio.to_thread(self._verify, user, hashed):
            raise Unauthenticated(_WRONG)
        if not user.active:
            raise Inactive(f"the user {username!r} is deactivated: an administrator can activate it again")
        token, session = new_session(user.id, "user", USER_SESSION_SECONDS)
        user = replace(user, last_auth_at=session.created_at)
        await asyncio.wrap_future(self._store.commit([SaveSession(session), SaveUser(user)]))
        self._users[user.id] = user
        return token, user

    def _verify(self, user: User, hashed: str) -> bool:
        if user.password_hash is None:
            return hashed == ""
        try:
            return self._hasher.verify(user.password_hash, hashed)
        except VerificationError:
            return False

    async def create_token(self, user_id: int, lifetime: float = ACCESS_TOKEN_SECONDS) -> str:
        """An access token: it acts as the user until it runs out, and outlives logins and logouts.

        Args:
            lifetime: in seconds.

        Raises:
            NotFound: there is no such user.
            Invalid: it would last too long, or not at all.
        """
        if not 0 < lifetime <= ACCESS_TOKEN_SECONDS:
            raise Invalid(
                f"the token would last {lifetime / 86400:g} days: it must be more than 0, and at most"
                f" {ACCESS_TOKEN_SECONDS / 86400:g}"
            )
        if await asyncio.to_thread(self._store.users.get, user_id) is None:
            raise NotFound(f"user '{user_id}' not found")
        token, session = new_session(user_id, ACCESS_TOKEN, lifetime)
        await asyncio.wrap_future(self._store.commit([SaveSession(session)]))
        return token

    async def logout(self, token: str) -> None:
        digest = token_hash(token)
        await asyncio.wrap_future(self._store.commit([DeleteSession(digest)]))
        self._sessions.pop(digest, None)

    async def authenticate(self, token: str) -> Principal | None:
        """Who a token stands for; None when it is unknown or has run out.

        Raises:
            Inactive: the user was deactivated.
        """
        if hmac.compare_digest(token.encode(), self._hub_token.encode()):
            return _HUB
        digest = token_hash(token)
        known = self._sessions.get(digest) or await asyncio.to_thread(self._look_up, digest)
        if known is None:
            return None
        session = known.session
        if session.expires_at is not None and session.expires_at <= clock.now():
            self._sessions.pop(digest, None)
            return None
        self._sessions[digest] = known
        user = self._users.get(session.user_id) or await asyncio.to_thread(
            self._store.users.get, session.user_id
        )
        if user is None:
            return None
        self._users[user.id] = user
        if not user.active:
            raise Inactive(
                f"the user {user.username!r} is deactivated: an administrator can activate it again"
            )
        experiment_id, trial_id, task_id = known.allocation or (None, None, None)
        return Principal(
            user_id=user.id,
            username=user.username,
            admin=user.admin,
            kind=session.kind,
            allocation_id=session.allocation_id,
            experiment_id=experiment_id,
            trial_id=trial_id,
            task_id=task_id,
        )

    def _look_up(self, digest: str) -> _Known | None:
        session = self._store.users.session(digest)
        if session is None:
            return None
        if session.allocation_id is None:
            return _Known(session, None)
        allocation = self._store.trials.allocation(session.allocation_id)
        task = self._store.trials.task(allocation.task_id) if allocation else None
        if task is None:
            return None
        return _Known(session, (task.experiment_id, task.trial_id, task.id))

    def forget_allocation(self, allocation_id: str) -> None:
        """The sessions of an allocation that has ended are gone from the store."""
        for digest in [d for d, k in self._sessions.items() if k.session.allocation_id == allocation_id]:
            del self._sessions[digest]

    def agent_token_ok(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._agent_token.encode())

    # Users

    async def create_user(
        self,
        username: str,
        *,
        password: str | None,
        is_hashed: bool,
        admin: bool,
        active: bool = True,
        remote: bool = False,
        display_name: str = "",
    ) -> User:
        """Add a user.

        Raises:
            Invalid: an empty name, or no password for a user who logs in here.
            Invalid: the name is taken.
        """
        if not username.strip() or username != username.strip():
            raise Invalid(f"{username!r} is no user name: it must not be empty nor begin or end with a blank")
        if await asyncio.to_thread(self._store.users.by_name, username) is not None:
            raise Invalid(f"there is a user {username!r} already")
        if not remote and not password:
            raise Invalid(f"the user {username!r} needs a password: blank ones are not accepted")
        user = User(
            id=self._ids.user(),
            username=username,
            password_hash=None if remote else await self._hash(password or "", is_hashed),
            admin=admin,
            active=active,
            display_name=display_name,
            remote=remote,
            modified_at=clock.now(),
        )
        await self._save(user)
        return user

    async def update_user(self, user_id: int, **changes: Any) -> User:
        """Change a user: any of username, display_name, admin, active, remote, and password with is_hashed.

        Raises:
            NotFound: no such user.
            Conflict: the new name is taken.
            Invalid: a blank password.
        """
        user = await asyncio.to_thread(self._store.users.get, user_id)
        if user is None:
            raise NotFound(f"user '{user_id}' not found")
        password, is_hashed = changes.pop("password", None), bool(changes.pop("is_hashed", False))
        if password is not None:
            if not password:
                raise Invalid(f"the new password of {user.username!r} is blank: blank ones are not accepted")
            changes["password_hash"] = await self._hash(password, is_hashed)
        name = changes.get("username", user.username)
        if name != user.username and await asyncio.to_thread(self._store.users.by_name, name) is not None:
            raise Conflict(f"there is a user {name!r} already")
        user = replace(user, **changes, modified_at=clock.now())
        await self._save(user)
        return user

    async def upsert_hub_user(self, username: str, *, admin: bool | None, active: bool) -> User:
        """A user of JupyterHub is a user of the same name here, and what the Hub says of them holds.

        Args:
            admin: None leaves it as it is.

        Raises:
            Invalid: no name.
        """
        if not username:
            raise Invalid("the user has no name")
        async with self._upserting:  # the Hub repeats itself, and its repeats may arrive together
            known = await asyncio.to_thread(self._store.users.by_name, username)
            if known is None:
                return await self.create_user(
                    username, password=None, is_hashed=False, admin=bool(admin), active=active, remote=True
                )
            admin = known.admin if admin is None else admin
            if (known.admin, known.active, known.remote) == (admin, active, True):
                return known
            return await self.update_user(known.id, admin=admin, active=active, remote=True)

    async def _hash(self, password: str, is_hashed: bool) -> str:
        return await asyncio.to_thread(self._hasher.hash, password if is_hashed else client_hash(password))

    async def _save(self, user: User) -> None:
        await asyncio.wrap_future(self._store.commit([SaveUser(user)]))
        self._users[user.id] = user

    async def ensure_built_in_users(self, password: str) -> None:
        """`admin` and `determined`, on a database that has no users yet."""
        if await asyncio.to_thread(self._store.users.all):
            return
        for username, admin in (("admin", True), ("determined", False)):
            hashed = await self._hash(password, False) if password else None
            await self._save(
                User(self._ids.user(), username, hashed, admin=admin, active=True, modified_at=clock.now())
            )


def client_hash(password: str) -> str:
    """What clients send instead of the password; an empty one stays empty."""
    return hashlib.sha512((_CLIENT_SALT + password).encode()).hexdigest() if password else ""


def token_hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def new_session(
    user_id: int, kind: str, lifetime: float | None, allocation_id: str | None = None
) -> tuple[str, Session]:
    """A fresh token, and the session that is kept of it. ``lifetime`` in seconds, None until it is deleted."""
    token = secrets.token_urlsafe(32)
    created = clock.now()
    expires = None if lifetime is None else created + lifetime
    return token, Session(token_hash(token), user_id, kind, created, expires, allocation_id)
