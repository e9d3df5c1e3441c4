"""Walking through the master's lists, page by page."""

from collections.abc import Iterator, Mapping
from typing import Any

from determined.common.api.session import Session

PAGE_SIZE = 200


def iterate(
    session: Session,
    path: str,
    key: str,
    params: Mapping[str, Any] | None = None,
    *,
    limit: int | None = None,
    offset: int = 0,
    page_size: int = PAGE_SIZE,
) -> Iterator[dict[str, Any]]:
    """The items under `key` of a paged GET route, from `offset` on, at most `limit` of them.

    The next page is asked for only when the caller has used up the one before.
    """
    remaining = limit
    while remaining is None or remaining > 0:
        size = page_size if remaining is None else min(page_size, remaining)
        answer = session.get_json(path, {**(params or {}), "offset": offset, "limit": size})
        items: list[dict[str, Any]] = answer.get(key) or []
        yield from items
        if remaining is not None:
            remaining -= len(items)
        pagination = answer.get("pagination") or {}
        end, total = int(pagination.get("endIndex") or 0), int(pagination.get("total") or 0)
        if end >= total or end <= offset:  # a page that does not advance would be asked for without end
            return
        offset = end
