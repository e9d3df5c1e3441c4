"""Templates: parts of configurations that experiments start from. Changes take turns."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from detlab_master.core.errors import Conflict, NotFound
from detlab_master.core.expconf import check_template
from detlab_master.core.names import check_path_name
from detlab_master.core.permissions import Principal
from detlab_master.core.records import Json, Template
from detlab_master.store.base import Store
from detlab_master.store.writes import DeleteTemplate, SaveTemplate, Write


class TemplateService:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = asyncio.Lock()

    async def create(self, principal: Principal, name: str, workspace_id: int, config: Json) -> Template:
        """A template of the principal.

        Raises:
            Invalid: no such name is possible.
            NotFound: there is no such workspace.
            ConfigErrors: unknown keys and wrong types in it.
            Conflict: the name is taken.
        """
        check_path_name("template", name)
        await asyncio.to_thread(check_template, config)
        async with self._lock:
            if await asyncio.to_thread(self._store.projects.workspace, workspace_id) is None:
                raise NotFound(f"workspace '{workspace_id}' not found")
            if await asyncio.to_thread(self._store.templates.get, name) is not None:
                raise Conflict(
                    f"there is a template {name!r} already: choose another name, or change it"
                    f" (det template set-value config {name} FILE)"
                )
            template = Template(name, workspace_id, principal.user_id, config)
            await self._commit(SaveTemplate(template))
        return template

    async def set_config(self, name: str, config: Json) -> Template:
        """Put another configuration in place of the old; experiments that exist keep theirs.

        Raises:
            NotFound: there is no such template.
            ConfigErrors: unknown keys and wrong types in it.
        """
        await asyncio.to_thread(check_template, config)
        async with self._lock:
            template = await asyncio.to_thread(self._store.templates.get, name)
            if template is None:
                raise NotFound(f"template '{name}' not found")
            template = replace(template, config=config)
            await self._commit(SaveTemplate(template))
        return template

    async def delete(self, name: str) -> None:
        async with self._lock:
            await self._commit(DeleteTemplate(name))

    async def _commit(self, *writes: Write) -> None:
        await asyncio.wrap_future(self._store.commit(writes))
