"""How fast a training goes, for the log."""

import logging
import time
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("determined.pytorch")

LOG_SECONDS = 10.0  # a fast training need not say more often how fast it is


class Throughput:
    """Counts batches and records between two lines in the log; waiting for validations is left out.

    `length`: how many records a batch holds. When it cannot tell (TypeError), only batches are counted.
    """

    def __init__(self, length: Callable[[Any], int], now: Callable[[], float] = time.monotonic) -> None:
        self._length: Callable[[Any], int] | None = length
        self._now = now
        self._batches = self._records = 0
        self._seconds = 0.0
        self._since = now()

    def start(self) -> None:
        """The training goes on."""
        self._since = self._now()

    def count(self, batch: Any) -> None:
        self._batches += 1
        if self._length is not None:
            try:
                self._records += self._length(batch)
            except TypeError as e:
                logger.info("records per second are not shown: %s", e)
                self._length = None

    def stop(self) -> None:
        """A boundary is reached: say how fast it went if that was not done for a while."""
        now = self._now()
        self._seconds += now - self._since
        self._since = now
        if self._seconds < LOG_SECONDS:
            return
        line = f"trained on {self._batches} batches in {self._seconds:.1f} s"
        line += f" ({self._batches / self._seconds:.4g} batches/s"
        if self._length is not None:
            line += f", {self._records / self._seconds:.4g} records/s"
        logger.info("%s)", line)
        self._batches = self._records = 0
        self._seconds = 0.0
