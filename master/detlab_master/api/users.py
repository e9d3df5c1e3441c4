"""Users: everybody may see who is there; administrators create and change them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from detlab_master.api.base import ApiHandler, Rule
from detlab_master.api.body import Fields
from detlab_master.api.encode import users as encode
from detlab_master.api.paging import Paging, ordered
from detlab_master.core.errors import Forbidden, NotFound
from detlab_master.core.permissions import Access, Kind
from detlab_master.core.records import User

_SORTS: dict[str, Callable[[User], Any]] = {
    "DISPLAY_NAME": lambda user: user.display_name.lower(),
    "USER_NAME": lambda user: user.username.lower(),
    "ADMIN": lambda user: user.admin,
    "ACTIVE": lambda user: user.active,
    "MODIFIED_TIME": lambda user: user.modified_at,
    "NAME": lambda user: (user.display_name or user.username).lower(),
    "LAST_AUTH_TIME": lambda user: user.last_auth_at,
    "REMOTE": lambda user: user.remote,
}
_OWN_FIELDS = {"displayName", "password", "isHashed"}


class Users(ApiHandler):
    rules: ClassVar = {"GET": Rule(Access.SIGNED_IN), "POST": Rule(Access.ADMIN)}

    async def get(self) -> None:
        query = self.query
        paging = Paging.of(query)
        active, admin = query.optional_flag("active"), query.optional_flag("admin")
        name = query.text("name", "").lower()
        if query.items("roleIdAssignedDirectlyToUser"):
            raise query.refuse("roleIdAssignedDirectlyToUser", "this master has no roles to filter by")
        sort = query.enum("sortBy", list(_SORTS), "SORT_BY_")
        found = [
            user
            for user in await self.read(self.services.store.users.all)
            if (active is None or user.active == active)
            and (admin is None or user.admin == admin)
            and (name in user.username.lower() or name in user.display_name.lower())
        ]
        key = _SORTS[sort] if sort else lambda user: user.id
        page, pagination = paging.cut(ordered(found, key, paging.descending))
        self.reply({"users": [encode.user(user) for user in page], "pagination": pagination})

    async def post(self) -> None:
        fields = await self.fields()
        user = fields.child("user")
        _refuse_account(user)
        created = await self.services.identity.create_user(
            user.text("username", ""),
            password=fields.optional_text("password"),
            is_hashed=fields.flag("isHashed"),
            admin=user.flag("admin"),
            active=user.flag("active", True),
            remote=user.flag("remote"),
            display_name=user.text("displayName", ""),
        )
        self.reply({"user": encode.user(created)})


class OneUser(ApiHandler):
    rules: ClassVar = {"GET": Rule(Access.SIGNED_IN), "PATCH": Rule(Access.SELF, Kind.USER)}

    async def get(self, user_id: str) -> None:
        user = await self.read(self.services.store.users.get, self.path_integer(Kind.USER))
        if user is None:
            raise NotFound(f"user '{user_id}' not found")
        self.reply({"user": encode.user(user)})

    async def patch(self, user_id: str) -> None:
        fields = await self.fields()
        _refuse_account(fields)
        changes: dict[str, Any] = {
            "username": fields.optional_text("username"),
            "displayName": fields.optional_text("displayName"),
            "admin": fields.optional_flag("admin"),
            "active": fields.optional_flag("active"),
            "remote": fields.optional_flag("remote"),
            "password": fields.optional_text("password"),
        }
        changes = {name: value for name, value in changes.items() if value is not None}
        others = sorted(changes.keys() - _OWN_FIELDS)
        if others and not self.principal.admin:
            raise Forbidden(
                f"access denied: only administrators may change {', '.join(others)}; you may change your"
                " displayName and your password"
            )
        if "displayName" in changes:
            changes["display_name"] = changes.pop("displayName")
        if "password" in changes:
            changes["is_hashed"] = fields.flag("isHashed")
        user = await self.services.identity.update_user(self.path_integer(Kind.USER), **changes)
        self.reply({"user": encode.user(user)})


class UserByName(ApiHandler):
    rules: ClassVar = {"GET": Rule(Access.SIGNED_IN)}

    async def get(self, username: str) -> None:
        user = await self.read(self.services.store.users.by_name, username)
        if user is None:
            raise NotFound(f"user '{username}' not found")
        self.reply({"user": encode.user(user)})


def _refuse_account(fields: Fields) -> None:
    if fields.object("agentUserGroup"):
        raise fields.refuse(
            "agentUserGroup",
            "users are not linked with Unix accounts by hand; tasks get an account of the agent's",
        )
