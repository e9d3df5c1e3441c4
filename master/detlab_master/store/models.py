"""Reads of the model registry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

from detlab_master.store import records
from detlab_master.store.base import ModelFilter, Page
from detlab_master.store.reading import Reader, ordering
from detlab_master.store.rows import CHECKPOINTS, MODEL_VERSIONS, MODELS

_m = MODELS.c
_v = MODEL_VERSIONS.c
_BY_ID = MODELS.where_equal(_m.id)
_BY_NAME = MODELS.where_equal(_m.name).order_by(_m.id)
_VERSION = MODEL_VERSIONS.where_equal(_v.model_id).where(_v.version == sa.bindparam("number"))

_ORDERS: Final[dict[str, ColumnElement[Any]]] = {
    **{name: _m[name] for name in ("id", "name", "description", "created_at", "updated_at", "workspace_id")},
    "num_versions": sa.select(sa.func.count()).where(_v.model_id == _m.id).scalar_subquery(),
}
_VERSION_ORDERS: Final[dict[str, ColumnElement[Any]]] = {
    name: _v[name] for name in ("id", "version", "created_at")
}


class SqlModels:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def get(self, model_id: int) -> records.Model | None:
        return self._reader.one(MODELS, _BY_ID, key=model_id)

    def by_name(self, name: str) -> list[records.Model]:
        return self._reader.all(MODELS, _BY_NAME, key=name)

    def find(self, where: ModelFilter, page: Page) -> tuple[list[records.Model], int]:
        return self._reader.page(MODELS, self._conditions(where), page, ordering(_ORDERS, page))

    def version_counts(self, model_ids: Sequence[int]) -> dict[int, int]:
        counted = (
            sa.select(_v.model_id, sa.func.count()).where(_v.model_id.in_(model_ids)).group_by(_v.model_id)
        )
        return {row[0]: row[1] for row in self._reader.rows(counted)}

    def version(self, model_id: int, version: int) -> records.ModelVersion | None:
        return self._reader.one(MODEL_VERSIONS, _VERSION, key=model_id, number=version)

    def versions(self, model_id: int, page: Page) -> tuple[list[records.ModelVersion], int]:
        order = ordering(_VERSION_ORDERS, page)
        return self._reader.page(MODEL_VERSIONS, [_v.model_id == model_id], page, order)

    def registered(
        self, *, checkpoint_uuids: Sequence[str] | None = None, experiment_id: int | None = None
    ) -> list[records.ModelVersion]:
        statement = MODEL_VERSIONS.select()
        if checkpoint_uuids is not None:
            statement = statement.where(_v.checkpoint_uuid.in_(checkpoint_uuids))
        if experiment_id is not None:
            statement = statement.join(CHECKPOINTS.table, CHECKPOINTS.c.uuid == _v.checkpoint_uuid)
            statement = statement.where(CHECKPOINTS.c.experiment_id == experiment_id)
        return self._reader.all(MODEL_VERSIONS, statement.order_by(_v.id))

    def _conditions(self, where: ModelFilter) -> list[ColumnElement[bool]]:
        found: list[ColumnElement[bool]] = []
        if where.owner_ids is not None:
            found.append(_m.owner_id.in_(where.owner_ids))
        if where.ids is not None:
            found.append(_m.id.in_(where.ids))
        if where.workspace_ids is not None:
            found.append(_m.workspace_id.in_(where.workspace_ids))
        if where.archived is not None:
            found.append(_m.archived == where.archived)
        if where.name is not None:
            found.append(self._reader.contains(_m.folded_name, where.name.casefold()))
        if where.description is not None:
            found.append(self._reader.contains(_m.folded_description, where.description.casefold()))
        if where.labels is not None:
            found.extend(self._reader.has_item(_m.labels, label) for label in where.labels)
        return found
