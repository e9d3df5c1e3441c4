"""The thread that sends reports to the master, in order, while training goes on."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

logger = logging.getLogger("determined.core")

R = TypeVar("R")

CAPACITY = 1000  # reports that may wait
PERIOD = 0.25  # seconds between two deliveries


class ReportSender(Generic[R]):
    """Hands reports to `deliver`, in the order in which they were put, in a thread of its own.

    The first report leaves at once. What comes within `period` seconds of a delivery leaves together with the
    next one: whenever this thread works, Python makes the training wait, so it should not work for each report.
    `put` costs its caller microseconds, and blocks only while `capacity` reports wait.

    A delivery that fails for good stops everything behind it (a later report must not arrive without an earlier
    one), and its error is raised by the next call of `put`, `drain` or `close`, and by every one after that.
    """

    def __init__(
        self, deliver: Callable[[Sequence[R]], object], *, capacity: int = CAPACITY, period: float = PERIOD
    ) -> None:
        self._deliver = deliver
        self._capacity = capacity
        self._period = period
        self._waiting: list[R] = []
        self._sending = False
        self._idle = False  # the thread waits for something to do, not for the period to end
        self._urgent = False  # somebody waits: the next delivery leaves at once
        self._closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="determined-reports", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, report: R, *, urgent: bool = False) -> None:
        """Queue a report; an urgent one does not wait for the period to end."""
        with self._changed:
            if len(self._waiting) >= self._capacity:
                self._hurry()
                self._changed.wait_for(lambda: self._error or len(self._waiting) < self._capacity)
            self._raise_error()
            if self._closed:
                raise RuntimeError("core.Context is closed: nothing can be reported any more")
            self._waiting.append(report)
            if urgent:
                self._hurry()
            elif self._idle:
                self._changed.notify_all()

    def drain(self) -> None:
        """Wait until all that was put before has been delivered."""
        with self._changed:
            self._hurry()
            self._changed.wait_for(lambda: self._error or not (self._waiting or self._sending))
            self._raise_error()

    def close(self) -> None:
        """Deliver what is left, and end the thread. May be called again."""
        with self._changed:
            self._closed = True
            self._hurry()
        if self._thread.ident is not None:
            self._thread.join()
        self._raise_error()

    def _hurry(self) -> None:
        self._urgent = bool(self._waiting)
        self._changed.notify_all()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while reports := self._next():
            began = time.monotonic()
            error: BaseException | None = None
            try:
                self._deliver(reports)
            except BaseException as e:  # noqa: BLE001 - raised again in the thread that reports
                error = e
            with self._changed:
                self._sending = False
                if error is not None:
                    self._error = error
                    self._waiting.clear()
                self._changed.notify_all()
                if error is not None:
                    logger.error("a report to the master failed: %s", error)
                    return
                rest = self._period - (time.monotonic() - began)
                self._changed.wait_for(lambda: self._urgent or self._closed, timeout=max(0.0, rest))

    def _next(self) -> list[R]:
        """All that waits, as soon as something does; nothing when the sender is closed."""
        with self._changed:
            self._idle = True
            self._changed.wait_for(lambda: self._waiting or self._closed)
            self._idle = self._urgent = False
            reports, self._waiting = self._waiting, []
            self._sending = bool(reports)
            self._changed.notify_all()
            return reports
