"""Configurations without experiments: what a search would do, and the schema for editors."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

from detlab_master.api.base import ApiHandler, Rule
from detlab_master.core.expconf.json_schema import json_schema
from detlab_master.core.permissions import Access
from detlab_master.core.searchers.preview import Planned


class Schema(ApiHandler):
    """The JSON Schema of experiment configurations. It is the same everywhere, and editors have no token."""

    rules: ClassVar = {"GET": Rule(Access.PUBLIC)}

    async def get(self) -> None:
        self.reply(_schema())


@cache
def _schema() -> dict[str, Any]:
    return json_schema()


class PreviewSearch(ApiHandler):
    """How many trials a search would run, and for how long."""

    rules: ClassVar = {"POST": Rule(Access.SIGNED_IN)}

    async def post(self) -> None:
        fields = await self.fields()
        config = fields.raw("config")
        if not isinstance(config, dict | str):
            raise fields.refuse("config", "expected a configuration, as an object or as YAML")
        found = await self.services.previews.search(config, fields.optional_integer("seed") or None)
        trials = [{"count": each.count, "unit": _unit(each)} for each in found.trials]
        self.reply(
            {"summary": {"config": found.searcher, "trials": trials}, "messages": found.warnings}  # ours
        )


def _unit(planned: Planned) -> dict[str, Any]:
    return {"name": planned.unit, "value": planned.units or 0, "maxLength": planned.units is None}
