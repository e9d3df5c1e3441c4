"""What JupyterHub asks, by its own token: who its users are, and servers for them. Detlab's own routes."""

from __future__ import annotations

import uuid
from typing import ClassVar

from detlab_master.api.base import ApiHandler, Rule
from detlab_master.api.encode import users as encode_user
from detlab_master.api.encode import wire
from detlab_master.core.errors import Invalid
from detlab_master.core.permissions import Access
from detlab_master.engine.servers import ServerRequest, ServerStatus


class HubUser(ApiHandler):
    rules: ClassVar = {"PUT": Rule(Access.HUB)}

    async def put(self, username: str) -> None:
        sent = await self.fields()
        user = await self.services.identity.upsert_hub_user(
            username, admin=sent.optional_flag("admin"), active=sent.flag("active", True)
        )
        self.reply({"user": encode_user.user(user)})


class HubUserToken(ApiHandler):
    """A token for a user, who proved to the Hub who they are."""

    rules: ClassVar = {"POST": Rule(Access.HUB)}

    async def post(self, username: str) -> None:
        user = await self.services.identity.upsert_hub_user(username, admin=None, active=True)
        self.reply({"token": await self.services.identity.create_token(user.id)})


class HubServers(ApiHandler):
    rules: ClassVar = {"POST": Rule(Access.HUB)}

    async def post(self) -> None:
        sent = await self.fields()
        owner = await self.services.identity.upsert_hub_user(
            sent.text("username"), admin=sent.optional_flag("admin"), active=True
        )
        environment = sent.object("environment")
        if not all(isinstance(value, str) for value in environment.values()):
            raise Invalid("environment must be an object of strings")
        asked = ServerRequest(
            name=sent.text("name", ""),
            slots=sent.integer("slots", 0),
            resource_pool=sent.text("resourcePool", ""),
            priority=sent.optional_integer("priority"),
            command=tuple(sent.texts("command")),
            environment={str(key): str(value) for key, value in environment.items()},
            home=sent.text("home", "") or None,
            task_id=_task_id(sent.optional_text("taskId")),
        )
        if asked.slots < 0:
            raise Invalid(f"slots is {asked.slots}: it must be 0 or more")
        task = await self.services.servers.create(owner, asked)
        self.reply({"taskId": task.id})


class HubServer(ApiHandler):
    rules: ClassVar = {"GET": Rule(Access.HUB)}

    async def get(self, task_id: str) -> None:
        self.reply(_status(await self.services.servers.status(task_id)))


class KillHubServer(ApiHandler):
    rules: ClassVar = {"POST": Rule(Access.HUB)}

    async def post(self, task_id: str) -> None:
        await self.services.servers.kill(task_id)
        self.reply({})


def _task_id(sent: str | None) -> str | None:
    try:
        return str(uuid.UUID(sent)) if sent else None
    except ValueError:
        raise Invalid(f"taskId is {sent!r}: it must be a UUID") from None


def _status(status: ServerStatus) -> wire.Object:
    allocation = status.allocation
    return {
        "taskId": status.task.id,
        "state": str(allocation.state),
        "address": status.task.address,
        "exitCode": allocation.exit_code,
        "exitReason": allocation.exit_reason,
        "position": status.position,
        "reason": status.reason,
        "slots": allocation.slots,
        "resourcePool": allocation.resource_pool,
        "agentId": next((c.agent_id for c in allocation.containers), ""),
        "log": list(status.log),
    }
