"""Task logs: kept in the order of arrival, and those who follow them are woken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from detlab_master.core.records import LogLine
from detlab_master.engine import clock
from detlab_master.engine.topics import Topics
from detlab_master.store.base import Store, StoreUnavailable
from detlab_master.store.writes import AppendLogs

_STORED_SECONDS = 3.0  # that an agent waits to be let in while the database hangs
Reader = Callable[[Sequence[LogLine]], Awaitable[None]]


class LogService:
    def __init__(self, store: Store, topics: Topics) -> None:
        self._store = store
        self._topics = topics
        self._reader: Reader | None = None

    def read_by(self, reader: Reader) -> None:
        """Who is shown each line that tasks print, after it was kept and before that is acknowledged."""
        self._reader = reader

    async def append(self, lines: Sequence[LogLine]) -> None:
        """Done when the lines are kept, and what they mean for their trial is."""
        if not lines:
            return
        await asyncio.wrap_future(self._store.commit([AppendLogs(tuple(lines))]))
        self._topics.notify(*{("logs", line.task_id) for line in lines})
        if self._reader is not None:
            await self._reader(lines)

    def say(self, task_id: str, allocation_id: str, text: str, *, level: str = "LOG_LEVEL_INFO") -> LogLine:
        """A line of the master's own about a task; the caller has it kept beside what it tells of."""
        return LogLine(
            task_id=task_id,
            allocation_id=allocation_id,
            timestamp=clock.now(),
            log=text + "\n",
            level=level,
            source="master",
        )

    async def stored(self, container_ids: Sequence[str]) -> dict[str, int]:
        """The offset of each container's last line that is kept, with those that are being committed just now.

        Nothing where the database is away: lines may be told again, and are dropped then.
        """
        if not container_ids:
            return {}
        try:
            async with asyncio.timeout(_STORED_SECONDS):
                await asyncio.wrap_future(self._store.commit([]))  # comes after what was handed in before
                return await asyncio.to_thread(self._store.logs.last_offsets, container_ids)
        except (StoreUnavailable, TimeoutError):
            return {}

    def kept(self, task_id: str) -> None:
        """Lines of this task were kept as a part of another transaction."""
        self._topics.notify(("logs", task_id))

    async def changed(self, task_ids: Sequence[str], timeout_s: float) -> None:
        """Returns when lines of these tasks may have arrived, or after the timeout."""
        woken = False

        def once() -> bool:
            nonlocal woken
            woken, before = True, woken
            return before

        await self._topics.wait_until([("logs", task_id) for task_id in task_ids], once, timeout_s)
