"""Topics: those who wait for something to change are woken when it may have. The only mechanism for long polls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable


class Topics:
    """Wake-ups by key. A wake-up carries no data: who is woken looks again."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, set[asyncio.Event]] = {}

    def notify(self, *keys: Hashable) -> None:
        for key in keys:
            for event in self._waiting.get(key, ()):
                event.set()

    async def wait_until(
        self, keys: Iterable[Hashable], condition: Callable[[], bool], timeout: float
    ) -> bool:
        """Wait until ``condition`` holds; it is looked at now and whenever one of the keys is notified.

        Args:
            timeout: seconds; 0 looks once.

        Returns:
            What the condition says at the end.
        """
        keys = tuple(keys)
        event = asyncio.Event()
        for key in keys:
            self._waiting.setdefault(key, set()).add(event)
        try:
            deadline = asyncio.get_running_loop().time() + timeout
            while not condition():
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    return False
                try:
                    await asyncio.wait_for(event.wait(), left)
                except TimeoutError:
                    return condition()
                event.clear()
            return True
        finally:
            for key in keys:
                waiting = self._waiting.get(key, set())
                waiting.discard(event)
                if not waiting:
                    self._waiting.pop(key, None)
