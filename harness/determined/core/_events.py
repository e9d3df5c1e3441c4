"""Files that TensorBoard reads, with numbers in them and nothing else.

An event file is a row of records: length, check sum of the length, content, check sum of the content (the TFRecord
format). The content is a protocol buffer `Event`: wall_time = 1, step = 2, file_version = 3, summary = 5; a summary has
values = 1, and a value tag = 1 and simple_value = 2. That is little enough to write it here, so that each trial has
its charts in TensorBoard whatever is installed beside it, and no import takes the training's time.
"""

import os
import socket
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_LARGEST = 3.4028234663852886e38  # of a 32-bit float


def scalars(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers among metrics in their JSON form; those of a dict within are named `outer/inner`."""
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from scalars(value, f"{prefix}{name}/")
        elif isinstance(value, int | float):  # True is 1
            yield f"{prefix}{name}", float(value)
        elif isinstance(value, str) and value in _SPECIAL:
            yield f"{prefix}{name}", _SPECIAL[value]


class EventFile:
    """An event file in `folder`, which is made with the first numbers. Each call leaves whole records behind."""

    def __init__(self, folder: Path, wall_time: float) -> None:
        name = f"events.out.tfevents.{int(wall_time):010d}.{socket.gethostname()}.{os.getpid()}.metrics"
        self._path = folder / name
        self._opened_at = wall_time
        self._file: BinaryIO | None = None

    def add(self, wall_time: float, step: int, values: Mapping[str, float]) -> None:
        """Append the values of one step. `wall_time`: seconds since 1970."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
            self._file.write(record(_version(self._opened_at)))
        self._file.write(record(event(wall_time, step, values)))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def record(content: bytes) -> bytes:
    """A TFRecord."""
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", _masked(length)) + content + struct.pack("<I", _masked(content))


def event(wall_time: float, step: int, values: Mapping[str, float]) -> bytes:
    """An `Event` with a summary of these values."""
    summary = b"".join(_bytes(1, _bytes(1, tag.encode()) + _float(2, value)) for tag, value in values.items())
    return _double(1, wall_time) + _varint_field(2, step) + _bytes(5, summary)


def _version(wall_time: float) -> bytes:
    return _double(1, wall_time) + _bytes(3, b"brain.Event:2")


def _double(field: int, value: float) -> bytes:
    return bytes([field << 3 | 1]) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    if abs(value) > _LARGEST:
        value = float("inf") if value > 0 else float("-inf")
    return bytes([field << 3 | 5]) + struct.pack("<f", value)


def _bytes(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | 2]) + _varint(len(value)) + value


def _varint_field(field: int, value: int) -> bytes:
    return bytes([field << 3]) + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # CRC-32C (Castagnoli), reflected
        table.append(byte)
    return table


_CRC = _crc_table()


def _masked(content: bytes) -> int:
    """CRC-32C, rotated and shifted as TFRecord wants it: a check sum of data that holds check sums is a poor one."""
    crc = 0xFFFF_FFFF
    for byte in content:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFF_FFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFF_FFFF
