"""Pages of lists (reference: rest-api.md 2.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from detlab_master.api.body import Query
from detlab_master.api.encode.wire import Object
from detlab_master.core.errors import Invalid

T = TypeVar("T")
_ORDERS = ("ASC", "DESC")


@dataclass(frozen=True)
class Paging:
    """Which part of a list was asked for.

    Args:
        offset: of the first item; a negative one counts from the end.
        limit: None means all.
    """

    offset: int
    limit: int | None
    descending: bool

    @classmethod
    def of(cls, query: Query) -> Paging:
        """The paging of a query, where a limit of 0 means all."""
        limit = query.integer("limit", 0)
        if limit < 0:
            raise query.refuse("limit", "it must be 0 (everything) or more")
        return cls(query.integer("offset", 0), limit or None, descending(query))

    def start(self, total: int) -> int:
        """Index of the first item in a list of that length."""
        return self.offset if self.offset >= 0 else max(0, total + self.offset)

    def within(self, total: int) -> int:
        """Index of the first item in a list of that length.

        Raises:
            Invalid: the offset lies behind the end.
        """
        start = self.start(total)
        if start > total:
            raise Invalid(f"offset is {self.offset}: the list has only {total} items")
        return start

    def cut(self, items: Sequence[T]) -> tuple[Sequence[T], Object]:
        """The page of a sorted list, and its v1Pagination.

        Raises:
            Invalid: the offset lies behind the end.
        """
        start = self.within(len(items))
        page = items[start : None if self.limit is None else start + self.limit]
        return page, self.shown(len(page), len(items))

    def shown(self, count: int, total: int) -> Object:
        """v1Pagination of a page with that many items; one behind the end is empty and says so."""
        start = min(self.start(total), total)
        return {
            "offset": self.offset,
            "limit": self.limit or 0,
            "startIndex": start,
            "endIndex": start + count,
            "total": total,
        }


def descending(query: Query) -> bool:
    """The query's orderBy."""
    return query.enum("orderBy", _ORDERS, "ORDER_BY_") == "DESC"


def ordered(items: Sequence[T], key: Callable[[T], Any], descending: bool) -> list[T]:
    """Sorted by a key; items whose key is None or NaN come last in either direction, equal ones keep their order."""
    keyed = [(key(item), item) for item in items]
    known = [pair for pair in keyed if not _nothing(pair[0])]
    unknown = [item for value, item in keyed if _nothing(value)]
    return [item for _, item in sorted(known, key=lambda pair: pair[0], reverse=descending)] + unknown


def _nothing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))
