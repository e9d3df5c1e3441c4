"""A task's output on disk: records in numbered files, bounded in size. The shim writes them, the agent reads them.

    logs/00000001.jsonl    one record a line: [offset, microseconds since 1970, "stdout"|"stderr", text]
    logs/00000002.jsonl    ...

Rules:

- Offsets are 1, 2, 3, ...; a number that is missing is a line that was lost (the bound was hit, or the disk full).
- The writer opens the next file only after its last write to the one before; so a file that has a successor is complete.
- The reader deletes files that are complete and delivered. The writer deletes the oldest one when there are too many:
  output never waits for the network and never fills the disk.
- A record counts once its newline is there, and stays from then on; what follows the last newline may be taken back.

Part of the shim: imports little.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time

SEGMENT_BYTES = 4 * 1024 * 1024
SEGMENTS = 8
MAX_LINE_BYTES = 32 * 1024  # a longer line becomes several

_TERMINATOR = re.compile(rb"\r\n|\n|\r(?!\Z)")  # a \r at the very end may be the first half of \r\n


class LineSplitter:
    """Bytes of one stream in, lines with their terminator (\\n, \\r or \\r\\n) out; invalid UTF-8 is replaced."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes."""
        data = self._rest + data
        lines: list[str] = []
        start = 0
        for match in _TERMINATOR.finditer(data):
            lines += _texts(data[start : match.end()])
            start = match.end()
        while len(data) - start > MAX_LINE_BYTES:
            cut = _character_boundary(data, start + MAX_LINE_BYTES)
            lines.append(_text(data[start:cut]))
            start = cut
        self._rest = data[start:]
        return lines

    @property
    def waiting(self) -> bool:
        """Whether a line ends in \\r and only time can tell that no \\n follows."""
        return self._rest.endswith(b"\r")

    def pause(self) -> list[str]:
        """No byte came for a while: a line that ends in \\r is complete."""
        return self.end() if self.waiting else []

    def end(self) -> list[str]:
        """What is left when the stream has ended."""
        rest, self._rest = self._rest, b""
        return _texts(rest) if rest else []


def _texts(line: bytes) -> list[str]:
    texts = []
    while len(line) > MAX_LINE_BYTES:
        cut = _character_boundary(line, MAX_LINE_BYTES)
        texts.append(_text(line[:cut]))
        line = line[cut:]
    texts.append(_text(line))
    return texts


def _character_boundary(data: bytes, at: int) -> int:
    for back in range(4):  # a UTF-8 character has at most three continuation bytes (10xxxxxx)
        if data[at - back] & 0xC0 != 0x80:
            return at - back
    return at


def _text(line: bytes) -> str:
    # NUL cannot be stored in every database.
    return line.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


class SegmentWriter:
    """Appends records to `folder` (must exist). Not thread-safe."""

    def __init__(self, folder: str, segment_bytes: int = SEGMENT_BYTES, segments: int = SEGMENTS) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._segments = segments
        self._number = 0
        self._offset = 0
        self._written: list[str] = []  # paths that may still exist, oldest first
        self._size = 0
        self._buffer: list[bytes] = []
        self._fd = -1

    def add(self, stream: str, text: str) -> None:
        self._offset += 1
        record = [self._offset, time.time_ns() // 1000, stream, text]
        self._buffer.append(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")

    @property
    def lines(self) -> int:
        """How many were added: the offset of the last one."""
        return self._offset

    def flush(self) -> None:
        """Hands what was added to the kernel; it survives this process. A write that fails loses its lines."""
        batch: list[bytes] = []
        for record in self._buffer:
            if self._fd < 0 or self._size + len(record) > self._segment_bytes:
                self._write(batch)
                batch = []
                self._next_segment()
            batch.append(record)
            self._size += len(record)
        self._write(batch)
        self._buffer = []

    def close(self) -> None:
        self.flush()
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.fsync(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _write(self, batch: list[bytes]) -> None:
        if not batch or self._fd < 0:
            return
        data = b"".join(batch)
        start = os.fstat(self._fd).st_size
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            # The disk is full: the gap in the offsets tells the loss. Half a record must not stay; whole ones must, since
            # the reader may have them already.
            os.ftruncate(self._fd, start + data.rfind(b"\n", 0, written) + 1)

    def _next_segment(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._written = [path for path in self._written if os.path.exists(path)]
        while len(self._written) >= self._segments:
            with contextlib.suppress(FileNotFoundError):  # the reader was quicker
                os.unlink(self._written[0])
            del self._written[0]
        self._number += 1
        self._size = 0
        path = os.path.join(self._folder, f"{self._number:08d}.jsonl")
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError:  # no inode left: as in _write
            return
        self._written.append(path)


class Record:
    """One line of a task's output. `lost` > 0: no line, but so many lines are missing up to this offset."""

    __slots__ = ("lost", "micros", "offset", "stream", "text")

    def __init__(self, offset: int, micros: int, stream: str, text: str, lost: int = 0) -> None:
        self.offset = offset
        self.micros = micros
        self.stream = stream
        self.text = text
        self.lost = lost


class SegmentReader:
    """Reads the records of `folder` in order, while they are being written. Not thread-safe."""

    CHUNK = 256 * 1024  # more than any record: a character of a line takes 6 bytes at most

    def __init__(self, folder: str, after: int) -> None:
        self._folder = folder
        self._fd = -1
        self._passed: list[tuple[str, int]] = []  # complete segments that were read: path, last offset
        self.seek(after)

    def seek(self, after: int) -> None:
        """Continue behind the offset `after`."""
        self.close()
        self._number = 0
        self._position = 0  # in the present segment, behind the last whole record that was read
        self._last = after
        self._ready: list[Record] = []
        self._passed = []

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def read(self, max_records: int, max_bytes: int) -> list[Record]:
        """The next records, at most so many and (but for one record) so much text; empty when there are none now."""
        while not self._ready and self._fill():
            pass
        size, count = 0, 0
        for record in self._ready[:max_records]:
            size += len(record.text)
            if count and size > max_bytes:
                break
            count += 1
        taken, self._ready = self._ready[:count], self._ready[count:]
        return taken

    def missing(self, last: int) -> list[Record]:
        """What tells that lines up to the offset `last` never came, once all that is there was read."""
        lost = last - self._last
        if lost <= 0:
            return []
        self._last = last
        return [Record(last, time.time_ns() // 1000, "stderr", "", lost)]

    def delete_delivered(self, acked: int) -> None:
        """Deletes the complete segments that hold nothing behind the offset `acked`."""
        while self._passed and self._passed[0][1] <= acked:
            with contextlib.suppress(FileNotFoundError):  # the writer dropped it
                os.unlink(self._passed[0][0])
            del self._passed[0]

    def _fill(self) -> bool:
        """Reads on; False when there is nothing more now."""
        if self._fd < 0 and not self._open_next():
            return False
        has_successor = self._successor() > 0  # asked before the read: then what is read is the whole rest
        data = os.pread(self._fd, self.CHUNK, self._position)
        if whole := data.rfind(b"\n") + 1:
            self._parse(data[: whole - 1].split(b"\n"))
            self._position += whole
            return True
        if not has_successor:
            return False
        self._passed.append((self._path(self._number), self._last))
        self.close()  # half a record may be left, of a writer that was killed
        return True

    def _parse(self, lines: list[bytes]) -> None:
        for line in lines:
            offset, micros, stream, text = json.loads(line)
            if offset <= self._last:
                continue
            if lost := offset - self._last - 1:
                self._ready.append(Record(offset - 1, micros, "stderr", "", lost))
            self._ready.append(Record(offset, micros, stream, text))
            self._last = offset

    def _open_next(self) -> bool:
        while number := self._successor():
            self._number = number
            try:
                self._fd, self._position = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC), 0
            except FileNotFoundError:  # dropped by the writer since it was listed
                continue
            return True
        return False

    def _successor(self) -> int:
        numbers = (int(name[:8]) for name in os.listdir(self._folder) if name.endswith(".jsonl"))
        return min((number for number in numbers if number > self._number), default=0)

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"{number:08d}.jsonl")
