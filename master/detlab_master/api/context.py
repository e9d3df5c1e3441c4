"""A submitted model folder (context) out of a request's JSON, and into the tar.gz file that tasks get.

A large one is megabytes of base64 in JSON: parsing and packing it takes seconds and holds the interpreter. So this file
is also a program of its own, which imports nothing but the standard library: the request on standard input, the
folder for the archive as argument, the outcome as one line of JSON on standard output.

What is accepted: files and folders, with paths that stay inside the context. The archive depends on nothing but the
context: sorted, owned by root, modes without set-uid bits.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

LIMIT = 95 << 20  # bytes of files, decoded
FIELDS_LIMIT = 4 << 20  # bytes of everything else in the request
_FILE, _FOLDER = 48, 53  # tar's type flags "0" and "5"
_OTHER_TYPES = {49: "a hard link", 50: "a symbolic link", 51: "a device", 52: "a device", 54: "a pipe"}


class BadContext(Exception):
    """The request or its context cannot be accepted; says which file and why."""


@dataclass(frozen=True)
class Entry:
    """A file or folder of the context."""

    path: PurePosixPath
    content: bytes | None  # None: a folder
    mode: int
    mtime: int  # Unix seconds


@dataclass(frozen=True)
class Unpacked:
    """What became of a request."""

    fields: dict[str, Any]  # without the model definition
    archive: str = ""  # file name within the folder; "": there was no model definition
    sha256: str = ""  # of the archive
    size: int = 0  # of the archive, bytes


def unpack(data: bytes, folder: Path) -> Unpacked:
    """Split a request to create an experiment, and pack its context into a file of a temporary name.

    Args:
        data: the request's body.
        folder: where the archive goes.

    Raises:
        BadContext: the request is no JSON object, or the context is too large or has a bad entry.
    """
    try:
        fields = json.loads(data) if data.strip() else {}
    except (ValueError, RecursionError) as error:
        raise BadContext(f"the request's body is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadContext("the request's body must be a JSON object")
    files = fields.pop("modelDefinition", None) or fields.pop("model_definition", None) or []
    rest = len(json.dumps(fields))
    if rest > FIELDS_LIMIT:
        raise BadContext(
            f"the configuration has {rest / 2**20:.1f} MiB: the limit is {FIELDS_LIMIT >> 20} MiB"
        )
    context = entries(files)
    if not context:
        return Unpacked(fields)
    return pack(fields, context, folder)


def entries(files: Any) -> list[Entry]:
    """The checked entries of a model definition, sorted by path.

    Raises:
        BadContext: an entry that is not allowed, or more than `LIMIT` bytes in all.
    """
    if not isinstance(files, list) or not all(isinstance(file, dict) for file in files):
        raise BadContext("modelDefinition must be a list of objects with path, type and content")
    contents = [file.get("content") for file in files]
    total = sum(len(content) * 3 // 4 for content in contents if isinstance(content, str))
    if total > LIMIT + 2 * len(files):  # the padding of base64 counts up to two bytes a file
        raise _too_large(total)
    found = sorted((_entry(file) for file in files), key=lambda entry: entry.path.parts)
    total = sum(len(entry.content or b"") for entry in found)
    if total > LIMIT:
        raise _too_large(total)
    _check_tree(found)
    return found


def _too_large(total: int) -> BadContext:
    return BadContext(
        f"the context has {total / 2**20:.1f} MiB of files: the limit is {LIMIT >> 20} MiB;"
        " leave data and outputs out of it, for example with a .detignore file"
    )


def _entry(file: dict[str, Any]) -> Entry:
    path = _path(file.get("path"))
    kind, mode, mtime = (_integer(file.get(key), key, path) for key in ("type", "mode", "mtime"))
    if kind not in (_FILE, _FOLDER):
        raise BadContext(
            f"{str(path)!r} in the context is {_OTHER_TYPES.get(kind, f'of type {kind}')}:"
            " only files (type 48) and folders (type 53) are accepted"
        )
    permissions = mode & 0o777
    if kind == _FOLDER:
        return Entry(path, None, permissions or 0o755, mtime)
    content = file.get("content") or ""
    try:
        return Entry(path, base64.b64decode(content, validate=True), permissions or 0o644, mtime)
    except (ValueError, TypeError):
        raise BadContext(f"the content of {str(path)!r} in the context is not base64") from None


def _path(raw: Any) -> PurePosixPath:
    if not isinstance(raw, str):
        raise BadContext(f"the path {raw!r} in the context is not a string")
    path = PurePosixPath(raw)
    if not path.parts or "\0" in raw:
        raise BadContext(f"{raw!r} is no path of a file in the context")
    if path.is_absolute() or ".." in path.parts:
        raise BadContext(f"the path {raw!r} leaves the context: paths must be relative and without '..'")
    try:
        raw.encode()
    except UnicodeEncodeError:
        raise BadContext(f"the path {raw!r} in the context is not valid Unicode") from None
    return path


def _integer(raw: Any, key: str, path: PurePosixPath) -> int:
    try:
        number = int(raw or 0)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < 2**33:
        raise BadContext(
            f"{key} of {str(path)!r} in the context is {raw!r}: expected an integer of 0 or more"
        )
    return number


def _check_tree(found: Sequence[Entry]) -> None:
    seen: dict[PurePosixPath, Entry] = {}
    for entry in found:
        if entry.path in seen:
            raise BadContext(f"{str(entry.path)!r} is in the context twice")
        for parent in entry.path.parents:
            if parent in seen and seen[parent].content is not None:
                raise BadContext(
                    f"{str(parent)!r} in the context is a file, and yet {str(entry.path)!r} is inside it"
                )
        seen[entry.path] = entry


def pack(fields: dict[str, Any], context: Sequence[Entry], folder: Path) -> Unpacked:
    """Write the archive; the same context gives the same bytes."""
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=".incoming-", suffix=".tgz")
    try:
        with open(descriptor, "w+b") as file:
            # Level 1: what makes a context large is data, and data hardly shrinks.
            with (
                gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as zipped,
                tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
            ):
                for entry in context:
                    archive.addfile(_member(entry), io.BytesIO(entry.content or b""))
            size = file.tell()
            file.seek(0)
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except BaseException:
        os.unlink(name)
        raise
    return Unpacked(fields, Path(name).name, sha256, size)


def _member(entry: Entry) -> tarfile.TarInfo:
    member = tarfile.TarInfo(str(entry.path))
    member.mode, member.mtime = entry.mode, entry.mtime
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    if entry.content is None:
        member.type = tarfile.DIRTYPE
    else:
        member.size = len(entry.content)
    return member


def main(folder: str) -> None:
    """The program: see the top of the file."""
    os.nice(10)  # the master itself goes first
    try:
        outcome = asdict(unpack(sys.stdin.buffer.read(), Path(folder)))
    except BadContext as error:
        outcome = {"refused": str(error)}
    json.dump(outcome, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
