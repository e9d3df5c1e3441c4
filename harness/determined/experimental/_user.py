"""A user of the cluster."""

import urllib.parse
from typing import Any

from determined.common.api import Session, authentication


class User:
    """A user as of the last `reload`. Changing others needs an administrator."""

    def __init__(self, session: Session, raw: dict[str, Any]) -> None:
        self._session = session
        self._load(raw)

    def _load(self, raw: dict[str, Any]) -> None:
        agent = raw.get("agentUserGroup") or {}
        self.raw = raw
        self.user_id: int = raw["id"]
        self.username: str = raw["username"]
        self.display_name: str | None = raw.get("displayName") or None
        self.admin: bool = raw["admin"]
        self.active: bool = raw["active"]
        self.remote: bool = bool(raw.get("remote"))
        self.agent_uid: int | None = agent.get("agentUid")
        self.agent_gid: int | None = agent.get("agentGid")
        self.agent_user: str | None = agent.get("agentUser")
        self.agent_group: str | None = agent.get("agentGroup")

    def __repr__(self) -> str:
        return f"User(user_id={self.user_id}, username={self.username!r})"

    def reload(self) -> None:
        self._load(self._session.get_json(f"/api/v1/users/{self.user_id}")["user"])

    def rename(self, new_username: str) -> None:
        self._patch(username=new_username)

    def change_display_name(self, display_name: str) -> None:
        self._patch(displayName=display_name)

    def activate(self) -> None:
        self._patch(active=True)

    def deactivate(self) -> None:
        self._patch(active=False)

    def change_password(self, new_password: str) -> None:
        """Raises ValueError for a password that is too weak."""
        check_password(new_password)
        self._patch(password=authentication.hash_password(new_password), isHashed=True)

    def link_with_agent(
        self,
        agent_uid: int | None = None,
        agent_gid: int | None = None,
        agent_user: str | None = None,
        agent_group: str | None = None,
    ) -> None:
        """The Unix account that the user's tasks run under."""
        group = {
            "agentUid": agent_uid,
            "agentGid": agent_gid,
            "agentUser": agent_user,
            "agentGroup": agent_group,
        }
        self._patch(agentUserGroup={key: value for key, value in group.items() if value is not None})

    def _patch(self, **changes: Any) -> None:
        self._session.patch(f"/api/v1/users/{self.user_id}", changes)
        self.reload()


def check_password(password: str) -> None:
    problem = authentication.password_problem(password)
    if problem:
        raise ValueError(problem)


def create_user(
    session: Session, username: str, *, admin: bool, password: str | None, remote: bool = False
) -> User:
    """A remote user logs in elsewhere and has no password. Raises ValueError for a weak password."""
    body: dict[str, Any] = {"user": {"username": username, "admin": admin, "active": True, "remote": remote}}
    if remote:
        if password is not None:
            raise ValueError("a remote user has no password")
    else:
        check_password(password or "")
        body |= {"password": authentication.hash_password(password or ""), "isHashed": True}
    return User(session, session.post("/api/v1/users", body, once=True).json()["user"])


def whoami(session: Session) -> User:
    return User(session, session.get_json("/api/v1/me")["user"])


def get_user_by_name(session: Session, username: str) -> User:
    """Raises NotFoundException."""
    return User(
        session, session.get_json(f"/api/v1/users/{urllib.parse.quote(username)}/by-username")["user"]
    )
