"""Ships one container's output to the master: in order, at least once, with bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from detlab_agent.protocol import ContainerSpec, LogBatch, LogLine, Stdtype
from detlab_agent.segments import Record, SegmentReader

log = logging.getLogger(__name__)

BATCH_LINES = 1000
BATCH_CHARACTERS = 512 * 1024
BATCHES_IN_FLIGHT = 4
POLL_SECONDS = 0.2

_RANK = re.compile(r" ?\[rank=(\d{1,9})\] ?")
_LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL):[ \t]?")


def to_line(record: Record) -> LogLine:
    """What the master is told of a record: rank and level are taken out of the text's prefixes."""
    at = datetime.fromtimestamp(record.micros // 1_000_000, UTC).replace(
        microsecond=record.micros % 1_000_000
    )
    timestamp = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if record.lost:
        text = f"{record.lost} lines were lost here: the task wrote faster than they could be shipped\n"
        return LogLine(record.offset, timestamp, Stdtype.STDERR, text, None, "LOG_LEVEL_WARNING")
    text, rank, level = record.text, None, None
    if found := _RANK.match(text):
        rank, text = int(found[1]), text[found.end() :]
    if found := _LEVEL.match(text):
        level, text = f"LOG_LEVEL_{found[1]}", text[found.end() :]
    return LogLine(record.offset, timestamp, Stdtype(record.stream), text, rank, level)


class LogShipper:
    """Reads a container's segments and sends them while the master listens.

    The acknowledged offset is kept in the container's folder: an agent that comes up again continues there. A master that
    has stored more than it could acknowledge says so before it listens again: lines that are lost count from there.
    """

    def __init__(self, spec: ContainerSpec, folder: Path, send: Callable[[LogBatch], None]) -> None:
        self._spec = spec
        self._note = folder / "acked.json"
        self._send = send
        self._acked: int = json.loads(self._note.read_text()) if self._note.exists() else 0
        self._reader = SegmentReader(str(folder / "logs"), self._acked)
        self._in_flight: deque[int] = (
            deque()
        )  # last offsets of the batches that were sent and not acknowledged
        self._listening = False
        self._ended = False
        self._lines = 0  # that were written in all, once that is known
        self._wake = asyncio.Event()

    def resume(self) -> None:
        """The master listens (again); it may not have got what it has not acknowledged."""
        self._in_flight.clear()
        self._reader.seek(self._acked)
        self._listening = True
        self._wake.set()

    def pause(self) -> None:
        self._listening = False

    def end(self, lines: int | None) -> None:
        """Nothing more will be written; so many lines were, as far as anybody knows."""
        self._ended = True
        self._lines = lines or 0
        self._wake.set()

    def acked(self, offset: int) -> None:
        """The master has stored everything up to `offset`."""
        if offset <= self._acked:
            return
        self._acked = offset
        try:
            temporary = self._note.with_suffix(".new")
            temporary.write_text(json.dumps(offset))
            temporary.replace(self._note)
        except OSError as e:  # the disk is full: an agent that starts again sends some lines twice, no harm
            log.warning("%s cannot be written: %s", self._note, e.strerror)
        while self._in_flight and self._in_flight[0] <= offset:
            self._in_flight.popleft()
        self._reader.delete_delivered(offset)
        self._wake.set()

    async def run(self) -> None:
        """Ends when the container has ended and all its lines were acknowledged."""
        try:
            while not self.step():
                self._wake.clear()
                # Not wait_for: in Python 3.11 it forgets a cancellation that comes together with the event.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS if self._listening else None):
                        await self._wake.wait()
        finally:
            self._reader.close()

    def step(self) -> bool:
        """Sends what there is, as far as allowed; True when everything is delivered."""
        while self._listening and len(self._in_flight) < BATCHES_IN_FLIGHT:
            ended = self._ended  # asked before reading: then an empty read is the end
            records = self._reader.read(BATCH_LINES, BATCH_CHARACTERS)
            if ended and not records:
                records = self._reader.missing(self._lines)
            if not records:
                return ended and not self._in_flight
            self._in_flight.append(records[-1].offset)
            self._send(
                LogBatch(
                    self._spec.container_id,
                    self._spec.allocation_id,
                    self._spec.task_id,
                    tuple(to_line(record) for record in records),
                )
            )
        return False
