"""Templates: everybody may read and use them; who made one, and whose workspace it is in, change it."""

from __future__ import annotations

from typing import ClassVar

from detlab_master.api.base import ApiHandler, Rule
from detlab_master.api.encode import workspaces as encode
from detlab_master.api.encode.wire import Object
from detlab_master.api.paging import Paging, ordered
from detlab_master.core.errors import NotFound
from detlab_master.core.permissions import Access, Kind, may_see
from detlab_master.core.records import Template
from detlab_master.engine.destinations import UNCATEGORIZED

_SORTS = ("NAME",)


class TemplateHandler(ApiHandler):
    def shown(self, template: Template) -> Object:
        return encode.template(template, secrets=may_see(self.principal, template.owner_id))


class Templates(TemplateHandler):
    rules: ClassVar = {"GET": Rule(Access.SIGNED_IN)}

    async def get(self) -> None:
        query = self.query
        paging = Paging.of(query)
        query.enum("sortBy", _SORTS, "SORT_BY_")
        part, workspaces = query.text("name", "").casefold(), query.integers("workspaceIds")
        found = [
            template
            for template in await self.read(self.services.store.templates.all)
            if part in template.name.casefold() and (not workspaces or template.workspace_id in workspaces)
        ]
        page, pagination = paging.cut(ordered(found, lambda one: one.name, paging.descending))
        self.reply({"templates": [self.shown(one) for one in page], "pagination": pagination})


class OneTemplate(TemplateHandler):
    rules: ClassVar = {
        "GET": Rule(Access.SIGNED_IN),
        "POST": Rule(Access.SIGNED_IN),
        "PATCH": Rule(Access.EDIT, Kind.TEMPLATE),
        "DELETE": Rule(Access.EDIT, Kind.TEMPLATE),
    }

    async def get(self, template_name: str) -> None:
        found = await self.read(self.services.store.templates.get, template_name)
        if found is None:
            raise NotFound(f"template '{template_name}' not found")
        self.reply({"template": self.shown(found)})

    async def post(self, template_name: str) -> None:
        fields = await self.fields()
        if fields.text("name", "") not in ("", template_name):
            raise fields.refuse("name", f"the path names the template {template_name!r}")
        created = await self.services.templates.create(
            self.principal,
            template_name,
            fields.integer("workspaceId", 0) or UNCATEGORIZED,
            fields.object("config"),
        )
        self.reply({"template": self.shown(created)})

    async def patch(self, template_name: str) -> None:
        """The body is the configuration itself."""
        config = await self.object()
        edited = await self.services.templates.set_config(template_name, config)
        self.reply({"template": self.shown(edited)})

    async def delete(self, template_name: str) -> None:
        await self.services.templates.delete(template_name)
        self.reply({})
