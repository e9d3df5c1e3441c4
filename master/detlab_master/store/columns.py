"""Column types: how the values of records lie in SQLite and PostgreSQL, and compare the same in both."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # SQLite's INTEGER has 64 bits, and may be a rowid
TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")  # sorts by code point, as SQLite
JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def dump_json(value: Any) -> str:
    """JSON text of a value; ValueError where it holds a NaN or an infinity, which PostgreSQL would not take."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be kept as JSON")


class EnumText(TypeDecorator[StrEnum]):
    """A member of an enum, kept by its name."""

    impl = sa.Text
    cache_ok = True

    def __init__(self, enum: type[StrEnum]) -> None:
        super().__init__()
        self.enum = enum

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.TEXT(collation="C"))
        return dialect.type_descriptor(sa.Text())

    def process_bind_param(self, value: StrEnum | None, dialect: Dialect) -> str | None:
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> StrEnum | None:
        return None if value is None else self.enum(value)


class ConvertedJson(TypeDecorator[Any]):
    """A value that JSON has no word for, such as a tuple, kept as JSON and given back as it was."""

    impl = sa.JSON
    cache_ok = True

    def __init__(self, to_json: Callable[[Any], Any], from_json: Callable[[Any], Any]) -> None:
        super().__init__(none_as_null=True)
        self.to_json = to_json
        self.from_json = from_json

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "postgresql":
            return dialect.type_descriptor(postgresql.JSONB(none_as_null=True))
        return dialect.type_descriptor(sa.JSON(none_as_null=True))

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else self.to_json(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else self.from_json(value)
