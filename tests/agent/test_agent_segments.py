"""Output on disk: lines, bounds, and a reader that follows, restarts and deletes."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detlab_agent.logs import LogShipper, to_line
from detlab_agent.protocol import ContainerSpec, LogLine
from detlab_agent.segments import MAX_LINE_BYTES, LineSplitter, Record, SegmentReader, SegmentWriter


def split(*chunks: bytes) -> list[str]:
    splitter = LineSplitter()
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.end()


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ((b"a\nb\n",), ["a\n", "b\n"]),
        ((b"a", b"b\nc"), ["ab\n", "c"]),
        ((b"10%\r20%\r", b"30%\n"), ["10%\r", "20%\r", "30%\n"]),
        ((b"a\r\nb\r", b"\nc\r", b"d"), ["a\r\n", "b\r\n", "c\r", "d"]),
        ((b"\xc3", b"\xa9\n"), ["é\n"]),
        ((b"\xff\x00\n",), ["\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}\n"]),
        ((b"x" * (MAX_LINE_BYTES + 1),), ["x" * MAX_LINE_BYTES, "x"]),
        ((b"x" * (MAX_LINE_BYTES - 1) + "é".encode() + b"\n",), ["x" * (MAX_LINE_BYTES - 1), "é\n"]),
    ],
)
def test_lines(chunks: tuple[bytes, ...], lines: list[str]) -> None:
    assert split(*chunks) == lines


@given(st.lists(st.text("aé\r\n").map(str.encode)))
def test_how_output_is_cut_into_reads_does_not_matter(chunks: list[bytes]) -> None:
    assert split(*chunks) == split(b"".join(chunks))
    assert "".join(split(*chunks)).encode() == b"".join(chunks)


def test_a_carriage_return_is_held_only_until_the_output_pauses() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"50%\r") == [] and splitter.waiting
    assert splitter.pause() == ["50%\r"] and not splitter.waiting
    assert splitter.feed(b"prompt> ") == [] and splitter.pause() == []


def write(folder: Path, numbers: range, writer: SegmentWriter | None = None) -> SegmentWriter:
    writer = writer or SegmentWriter(str(folder), segment_bytes=200, segments=3)
    for number in numbers:
        writer.add("stdout", f"{number}\n")
        writer.flush()
    return writer


def texts(records: list[Record]) -> list[str]:
    return [record.text for record in records]


def test_the_reader_follows_the_writer_and_deletes_what_was_delivered(tmp_path: Path) -> None:
    reader = SegmentReader(str(tmp_path), after=0)
    assert reader.read(10, 1000) == []
    writer = write(tmp_path, range(3))
    assert texts(reader.read(2, 1000)) == ["0\n", "1\n"]
    write(tmp_path, range(3, 12), writer)
    assert texts(reader.read(100, 1000)) == ["2\n"]
    rest = []
    while records := reader.read(100, 1000):
        rest += records
    assert texts(rest) == [f"{i}\n" for i in range(3, 12)]
    before = len(os.listdir(tmp_path))
    reader.delete_delivered(rest[-1].offset)
    assert len(os.listdir(tmp_path)) == 1 < before  # the one that is still written to
    reader.seek(10)
    assert texts(reader.read(100, 1000)) == ["10\n", "11\n"]
    reader.close()
    writer.close()


def test_a_batch_is_bounded_in_lines_and_in_text(tmp_path: Path) -> None:
    writer = SegmentWriter(str(tmp_path))
    for text in ("a" * 50, "b" * 50, "c" * 500, "d"):
        writer.add("stdout", text)
    writer.close()
    reader = SegmentReader(str(tmp_path), after=0)
    assert [len(reader.read(10, 100)) for _ in range(4)] == [2, 1, 1, 0]
    reader.close()


def test_the_oldest_output_goes_and_the_reader_says_how_much(tmp_path: Path) -> None:
    writer = write(tmp_path, range(100))
    writer.close()
    assert len(os.listdir(tmp_path)) == 3
    reader = SegmentReader(str(tmp_path), after=5)
    first, *rest = reader.read(1000, 10_000)
    while records := reader.read(1000, 10_000):
        rest += records
    assert first.lost == first.offset - 5 > 0
    assert [record.offset for record in rest] == list(range(first.offset + 1, 101))
    line = to_line(first)
    assert line.log.startswith(f"{first.lost} lines were lost here") and line.level == "LOG_LEVEL_WARNING"
    reader.close()


def test_half_a_record_may_be_taken_back(tmp_path: Path) -> None:
    """A writer whose disk is full removes what it has written of a record, which a reader may have seen."""
    writer = write(tmp_path, range(2))
    reader = SegmentReader(str(tmp_path), after=0)
    (path,) = tmp_path.iterdir()
    whole = path.stat().st_size
    with path.open("ab") as file:
        file.write(b'[3,1,"stdout","a line that is longer than the next')
    assert texts(reader.read(10, 1000)) == ["0\n", "1\n"] and reader.read(10, 1000) == []
    os.truncate(path, whole)
    write(tmp_path, range(2, 3), writer)
    assert texts(reader.read(10, 1000)) == ["2\n"]
    reader.close()
    writer.close()


def test_a_full_disk_loses_lines_and_the_reader_says_how_many(tmp_path: Path) -> None:
    writer = SegmentWriter(str(tmp_path))
    reader = SegmentReader(str(tmp_path), after=0)

    def say(numbers: range) -> None:
        for number in numbers:
            writer.add("stdout", f"{number}\n")
        writer.flush()

    with largest_file(1000):
        say(range(5))
        found = reader.read(1000, 10_000)
        say(range(5, 100))  # some of them fit
        found += reader.read(1000, 10_000)
    say(range(100, 110))
    with largest_file(1000):
        say(range(110, 120))  # and then it ends
    writer.close()
    while records := reader.read(1000, 10_000):
        found += records
    assert 5 < len([r for r in found if r.offset <= 100 and not r.lost]) < 100
    (rest,) = reader.missing(writer.lines)
    assert (rest.lost, rest.offset) == (10, 120) and reader.missing(writer.lines) == []
    found.append(rest)
    assert all(record.offset == int(record.text) + 1 for record in found if not record.lost)
    assert sum(record.lost or 1 for record in found) == 120
    reader.close()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """What is written to a file beyond that fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_lines_that_were_stored_and_not_acknowledged_do_not_count_as_lost(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    spec = ContainerSpec("c", "1.t.1", "1.t", "COMMAND", "ada", None, ("true",), {})
    stored: dict[int, LogLine] = {}
    shipper = LogShipper(spec, tmp_path, lambda batch: stored.update({x.offset: x for x in batch.lines}))
    writer = write(folder, range(10))
    shipper.resume()
    shipper.step()  # what is sent comes to be stored, and nothing is acknowledged
    assert len(stored) == 10
    shipper.pause()
    write(folder, range(10, 100), writer).close()
    shipper.acked(10)  # the master says so when it welcomes the agent again
    shipper.end(100)
    shipper.resume()
    shipper.step()
    markers = [line for line in stored.values() if "lines were lost here" in line.log]
    assert markers and sum(int(x.log.split()[0]) for x in markers) == 100 - (len(stored) - len(markers))


def test_half_a_record_of_a_killed_writer_is_no_record(tmp_path: Path) -> None:
    write(tmp_path, range(2)).close()
    with next(tmp_path.iterdir()).open("ab") as file:
        file.write(b'[3,1,"stdout","hal')
    reader = SegmentReader(str(tmp_path), after=0)
    assert texts(reader.read(10, 1000)) == ["0\n", "1\n"] and reader.read(10, 1000) == []
    reader.close()


@pytest.mark.parametrize(
    ("text", "rank", "level", "log"),
    [
        ("plain\n", None, None, "plain\n"),
        ("[rank=3] hello\n", 3, None, "hello\n"),
        (" [rank=0] WARNING: careful\n", 0, "LOG_LEVEL_WARNING", "careful\n"),
        ("INFO:root:text\n", None, "LOG_LEVEL_INFO", "root:text\n"),
        ("INFORMATION: x\n", None, None, "INFORMATION: x\n"),
        ("[rank=x] y", None, None, "[rank=x] y"),
        ("see ERROR: z", None, None, "see ERROR: z"),
    ],
)
def test_rank_and_level_are_taken_from_the_prefixes(
    text: str, rank: int | None, level: str | None, log: str
) -> None:
    line = to_line(Record(7, 1_767_225_600_000_001, "stdout", text))
    assert (line.rank_id, line.level, line.log, line.offset) == (rank, level, log, 7)
    assert line.timestamp == "2026-01-01T00:00:00.000001Z"
