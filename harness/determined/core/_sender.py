"""The thread that sends reports to the master, in order, while training goes on."""

import collections
import logging
import threading
from collections.abc import Callable

logger = logging.getLogger("determined.core")

Send = Callable[[], object]


class ReportSender:
    """Sends reports one after the other, each before the next is begun.

    Reports wait in a queue of `capacity`; `put` blocks while it is full. A report that fails for good stops
    everything behind it (a later report must not arrive without an earlier one), and its error is raised by
    the next call of `put`, `drain` or `close`, and by every one after that.
    """

    def __init__(self, capacity: int = 1000) -> None:
        self._capacity = capacity
        self._waiting: collections.deque[Send] = collections.deque()
        self._sending = False
        self._closed = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="determined-reports", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, send: Send) -> None:
        """Queue a report: a call without arguments that does the sending."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or len(self._waiting) < self._capacity)
            self._raise_error()
            if self._closed:
                raise RuntimeError("core.Context is closed: nothing can be reported any more")
            self._waiting.append(send)
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until all that was put before has been sent."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or not (self._waiting or self._sending))
            self._raise_error()

    def close(self) -> None:
        """Send what is left, and end the thread. May be called again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                send = self._waiting.popleft()
                self._sending = True
                self._changed.notify_all()
            error: BaseException | None = None
            try:
                send()
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
