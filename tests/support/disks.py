"""Small file systems that can be filled up."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BLOCK = 4096


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[None]:
    """A file system of that size at ``folder``, which is made; skips the test where nothing can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system to fill up")
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=0711", "tmpfs", str(folder)]
    mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all the room that is left on that folder's disk; it comes back when the returned file is removed."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (256 * BLOCK, BLOCK, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return filler
