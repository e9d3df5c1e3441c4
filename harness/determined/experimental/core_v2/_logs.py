"""What a detached script prints, sent to the master beside being shown."""

import contextlib
import datetime
import logging
import re
import sys
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any, TextIO

from determined.common import api
from determined.common.api import errors

logger = logging.getLogger("determined.core")
FLUSH_SECONDS = 1.0
MAX_LINES = 1000  # in one request
MAX_TEXT = 1 << 20  # characters in one request, which take up to 12 bytes each there; the master takes 32 MiB
MAX_WAITING = 100_000  # lines, while the master is away; then the oldest go
MAX_WAITING_TEXT = 64 << 20  # characters
MAX_LINE = 32 << 10  # characters; a longer line becomes several
END_SECONDS = 10.0  # for what is left when the script ends
_LINE_END = re.compile(r"(?<=[\n\r])")
_LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL):\s*")


class Tee:
    """A stream that also hands its text on. All else is the stream's own."""

    def __init__(self, stream: TextIO, shipper: "LogShipper", stdtype: str) -> None:
        self._stream = stream
        self._shipper = shipper
        self._stdtype = stdtype

    def write(self, text: str) -> int:
        written = self._stream.write(text)
        self._shipper.add(text, self._stdtype)
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Begun:
    """The beginning of a line that has not ended: in the pieces in which it came, so that dots of progress cost little."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0

    def add(self, text: str) -> list[str]:
        """The lines that have ended with this text."""
        *ended, rest = _LINE_END.split(text)
        if ended:
            ended[0] = "".join((*self._pieces, ended[0]))
            self._pieces, self._size = [], 0
        if rest:
            self._pieces.append(rest)
            self._size += len(rest)
        if self._size > MAX_LINE:
            ended += self.end()
        return [line[at : at + MAX_LINE] for line in ended for at in range(0, len(line), MAX_LINE)]

    def end(self) -> list[str]:
        """What is there, as a line."""
        rest, self._pieces, self._size = "".join(self._pieces), [], 0
        return [rest] if rest else []


class LogShipper:
    """Sends stdout and stderr of this process to the log of its trial: what Python code prints, line by line.

    A line ends at a newline or a carriage return (progress bars). While the master is away lines wait.
    """

    def __init__(self, session: api.Session, task_id: str, rank: int) -> None:
        self._session = session
        self._task_id = task_id
        self._rank = rank
        self._changed = threading.Condition()
        self._lines: deque[dict[str, Any]] = deque()
        self._size = 0  # characters of these
        self._begun = {"stdout": _Begun(), "stderr": _Begun()}
        self._dropped = 0
        self._closed = False
        self._refused = False
        self._tees: list[tuple[str, Tee, TextIO]] = []
        self._thread = threading.Thread(target=self._run, name="determined-logs", daemon=True)

    def start(self) -> None:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is not None:  # a program without a console has none
                tee = Tee(stream, self, name)
                self._tees.append((name, tee, stream))
                setattr(sys, name, tee)
        self._thread.start()

    def add(self, text: str, stdtype: str) -> None:
        """Take what was written; of the shipper's own thread nothing, or its troubles would be without end."""
        if threading.current_thread() is self._thread:
            return
        with self._changed:
            if self._closed or self._refused:
                return
            self._take(self._begun[stdtype].add(text), stdtype)

    def close(self) -> None:
        """Give the streams back, and send what is left, for some seconds."""
        for name, tee, stream in self._tees:
            if getattr(sys, name) is tee:
                setattr(sys, name, stream)
        with self._changed:
            for stdtype, begun in self._begun.items():
                self._take(begun.end(), stdtype)
            self._closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(END_SECONDS)

    def _take(self, lines: Iterable[str], stdtype: str) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat()
        for text in lines:
            level = _LEVEL.match(text)
            self._lines.append(
                {
                    "task_id": self._task_id,
                    "timestamp": now,
                    "rank": str(self._rank),
                    "stdtype": stdtype,
                    "log": text[level.end() :] if level else text,
                    **({"level": f"LOG_LEVEL_{level[1]}"} if level else {}),
                }
            )
            self._size += len(self._lines[-1]["log"])
        while len(self._lines) > MAX_WAITING or self._size > MAX_WAITING_TEXT:
            self._pop()
            self._dropped += 1
        if len(self._lines) >= MAX_LINES:
            self._changed.notify_all()

    def _pop(self) -> dict[str, Any]:
        line = self._lines.popleft()
        self._size -= len(line["log"])
        return line

    def _batch(self) -> list[dict[str, Any]]:
        batch: list[dict[str, Any]] = []
        text = 0
        while self._lines and len(batch) < MAX_LINES and text < MAX_TEXT:
            batch.append(self._pop())
            text += len(batch[-1]["log"])
        return batch

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or len(self._lines) >= MAX_LINES, timeout=FLUSH_SECONDS
                )
                batch = self._batch()
                dropped, self._dropped = self._dropped, 0
                done = self._closed and not self._lines
            if dropped and batch:
                gap = f"[{dropped} lines were lost here: the master was away for too long]\n"
                batch = [{**batch[0], "log": gap, "level": "LOG_LEVEL_WARNING"}, *batch]
            if batch and not self._sent(batch):
                return
            if done:
                return

    def _sent(self, batch: list[dict[str, Any]]) -> bool:
        """False when there is no use in going on."""
        while True:
            with contextlib.suppress(errors.MasterUnreachable):
                try:
                    self._session.post("/task-logs", json=batch)
                    return True
                except errors.APIException as error:
                    if error.status_code < 500:
                        self._refused = True
                        logger.warning("the master takes no log lines of this script any more: %s", error)
                        return False
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, timeout=FLUSH_SECONDS):
                    return False  # the session has tried for long enough
