"""Logging in and out, and who one is."""

from __future__ import annotations

from typing import ClassVar

from detlab_master.api.base import ApiHandler, Rule
from detlab_master.api.encode import users as encode
from detlab_master.core.errors import Invalid
from detlab_master.core.permissions import Access


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
        await self.services.identity.logout(self.token)
        self.clear_cookie("auth")
        self.reply({})


class Me(ApiHandler):
    rules: ClassVar = {"GET": Rule(Access.SIGNED_IN)}

    async def get(self) -> None:
        user = await self.read(self.services.store.users.get, self.principal.user_id)
        assert user is not None, "authenticate() found the user"
        self.reply({"user": encode.user(user)})
