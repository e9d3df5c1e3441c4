"""What the files of a checkpoint hold: their sizes, and the CRC-32 of each block.

It lies beside the files as `.detlab-manifest.json`, and is the last that is written of a checkpoint. Blocks, because one that
arrived damaged, or was left by a transfer that broke off, is known by itself. Checkpoints of other programs have no manifest:
they are loaded without a check. CRC-32 finds damage, not forgery: whoever can change the files can change the manifest.
SHA-256 takes more than twice the time, which a training loop would wait for.
"""

import json
import logging
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from determined.errors import StorageError

logger = logging.getLogger("determined.storage")

MANIFEST = ".detlab-manifest.json"
UNFINISHED = (
    ".detlab-incomplete"  # where files cannot be renamed: the checkpoint is being written, or deleted
)
_VERSION = 1
_SMALLEST_BLOCK = 8 << 20  # bytes; S3 wants 5 MiB at least
_MOST_BLOCKS = 10_000  # of one file; S3 takes no more


@dataclass(frozen=True)
class Recorded:
    """A file as it was written. A folder, whose name ends with a slash, has no bytes and no blocks."""

    size: int  # bytes
    block_size: int  # bytes; the last block may be shorter
    crc32: tuple[str, ...]  # of each block, in hexadecimal


# By path relative to the checkpoint, with forward slashes.
Files = Mapping[str, Recorded]


def block_size_of(size: int) -> int:
    """In which blocks a file of so many bytes is hashed and sent."""
    block = _SMALLEST_BLOCK
    while block * _MOST_BLOCKS < size:
        block *= 2
    return block


def block_starts(size: int) -> range:
    """The offsets of a file's blocks."""
    return range(0, size, block_size_of(size))


def checksum(pieces: Iterable[bytes | bytearray | memoryview]) -> str:
    """Of a block that comes in pieces."""
    value = 0
    for piece in pieces:
        value = zlib.crc32(piece, value)
    return f"{value:08x}"


def tell_missing(storage_id: str, recorded: Files, there: Iterable[str]) -> None:
    """Warn of files that are gone since a checkpoint was written: somebody may have removed them on purpose."""
    gone = sorted(recorded.keys() - set(there))
    if gone:
        more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
        logger.warning(
            "checkpoint %s had a file %s%s that is not in its storage any more", storage_id, gone[0], more
        )


def encode(files: Files) -> bytes:
    rows = {
        name: {"size": one.size, "block_size": one.block_size, "crc32": list(one.crc32)}
        for name, one in sorted(files.items())
    }
    return json.dumps({"version": _VERSION, "files": rows}, indent=1).encode()


def decode(content: bytes, where: str) -> Files:
    """The opposite of `encode`. Raises StorageError, which says `where`, for what is no manifest."""
    try:
        raw = json.loads(content)
        if raw["version"] != _VERSION:
            raise StorageError(
                f"{where} is of version {raw['version']!r}, and this program knows version {_VERSION}: take a newer one"
            )
        return {
            str(name): Recorded(int(row["size"]), int(row["block_size"]), tuple(map(str, row["crc32"])))
            for name, row in raw["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise StorageError(
            f"{where} is damaged, so nobody can tell whether the checkpoint is whole;"
            " remove that file to load the checkpoint without a check"
        ) from e
