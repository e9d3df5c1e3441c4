"""The master's own log, for administrators, and the cleanup of tasks' logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import ClassVar

from detlab_master.api.base import ApiHandler, Rule
from detlab_master.api.encode import wire
from detlab_master.core.permissions import Access
from detlab_master.engine.master_logs import Entry

_BATCH = 500  # entries sent at once
_POLL = 0.5  # seconds after which a follower looks again
_LEVELS = {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}


class MasterLogs(ApiHandler):
    """Streams entries: those from ``offset`` on (a negative one counts from the end), ``limit`` of them, or for ever."""

    rules: ClassVar = {"GET": Rule(Access.ADMIN)}

    async def get(self) -> None:
        query = self.query
        offset, limit = query.integer("offset", 0), query.integer("limit", 0)
        if limit < 0:
            raise query.refuse("limit", "it must be 0 (everything) or more")
        if offset < 0:
            offset = max(0, self.services.master_logs.count + offset)
        await self.stream(self._entries(offset, limit or None, query.flag("follow")))

    async def _entries(self, last_id: int, left: int | None, follow: bool) -> AsyncGenerator[bytes, None]:
        while left is None or left > 0:
            wanted = _BATCH if left is None else min(left, _BATCH)
            entries = self.services.master_logs.after(last_id, wanted)
            if entries:
                yield _lines(entries)
                last_id = entries[-1].id
                left = None if left is None else left - len(entries)
            if len(entries) < wanted:
                if not follow:
                    return
                await self.unless_gone(asyncio.sleep(_POLL))


def _lines(entries: Sequence[Entry]) -> bytes:
    return b"".join(
        wire.stream_line(
            {
                "logEntry": {
                    "id": entry.id,
                    "level": f"LOG_LEVEL_{entry.level if entry.level in _LEVELS else 'UNSPECIFIED'}",
                    "message": entry.message,
                    "timestamp": wire.timestamp(entry.timestamp),
                }
            }
        )
        for entry in entries
    )


class CleanupLogs(ApiHandler):
    """Removes the logs whose time is over, now; the answer says how many lines."""

    rules: ClassVar = {"POST": Rule(Access.ADMIN)}

    async def post(self) -> None:
        removed = await self.services.log_retention.clean()
        self.reply({"removedCount": str(removed)})
