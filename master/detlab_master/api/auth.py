"""Logging in and out, and who one is."""

from __future__ import annotations

import re
from typing import ClassVar

from detlab_master.api.base import ApiHandler, Rule
from detlab_master.api.body import Fields
from detlab_master.api.encode import users as encode
from detlab_master.core.errors import Forbidden, Invalid
from detlab_master.core.permissions import Access
from detlab_master.engine.identity import ACCESS_TOKEN, ACCESS_TOKEN_SECONDS


class Login(ApiHandler):
    rules: ClassVar = {"POST": Rule(Access.PUBLIC)}
    max_body = 64 << 10

    async def post(self) -> None:
        fields = await self.fields()
        username, password = fields.text("username", ""), fields.text("password", "")
        if not username:
            raise Invalid("username is missing: it is required")
        token, user = await self.services.identity.login(username, password, fields.flag("isHashed"))
        # A browser sends a Strict cookie only from our own pages.
        self.set_cookie(
            "auth", token, httponly=True, samesite="Strict", secure=self.request.protocol == "https"
        )
        self.reply({"token": token, "user": encode.user(user)})


class Logout(ApiHandler):
    rules: ClassVar = {"POST": Rule(Access.SIGNED_IN)}

    async def post(self) -> None:
        if self.principal.kind != ACCESS_TOKEN:  # others may log in with it; it ends by itself
            await self.services.identity.logout(self.token)
        self.clear_cookie("auth")
        self.reply({})


class Me(ApiHandler):
    rules: ClassVar = {"GET": Rule(Access.SIGNED_IN)}

    async def get(self) -> None:
        user = await self.read(self.services.store.users.get, self.principal.user_id)
        assert user is not None, "authenticate() found the user"
        self.reply({"user": encode.user(user)})


class Tokens(ApiHandler):
    rules: ClassVar = {"POST": Rule(Access.SIGNED_IN)}

    async def post(self) -> None:
        fields = await self.fields()
        user_id = fields.integer("userId", self.principal.user_id)
        if user_id != self.principal.user_id and not self.principal.admin:
            raise Forbidden("access denied: only administrators may make tokens for others")
        token = await self.services.identity.create_token(user_id, _lifespan(fields))
        self.reply({"token": token})


_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[hms])+")


def _lifespan(fields: Fields) -> float:
    """Seconds, from a duration such as 720h or 1h30m."""
    text = fields.text("lifespan", "")
    if not text:
        return ACCESS_TOKEN_SECONDS
    if not _DURATION.fullmatch(text):
        raise fields.refuse("lifespan", "expected a duration such as 720h")
    return sum(float(part[:-1]) * _UNITS[part[-1]] for part in re.findall(r"[\d.]+[hms]", text))
