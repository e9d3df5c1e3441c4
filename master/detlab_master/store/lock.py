"""The lock on the master's data folder: one master at a time, and the second is told who the first is.

The lock is the kernel's, on ``master.lock``: it goes with its process, however that ends. Who holds it stands in a file
beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


class DataFolderInUse(Exception):
    """Another process holds the folder; the message says which, and what to do."""


@contextmanager
def hold(data_dir: Path, description: str) -> Iterator[None]:
    """Hold the folder, which is made if need be, until the block ends.

    ``description`` is for whoever comes second, such as ``"port 8080"``; the pid is put before it. Raises
    DataFolderInUse, and OSError when the folder cannot be made or written to.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    holder = data_dir / "master.holder"
    lock = FileLock(data_dir / "master.lock", timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise DataFolderInUse(
            f"the data folder {data_dir} is in use by a master ({_read(holder)});"
            " stop that one first, or give this one another folder with --data-dir"
        ) from None
    try:
        written = holder.with_suffix(".new")
        written.write_text(f"pid {os.getpid()}, {description}")
        written.replace(holder)  # whole or not at all, as somebody may be reading it
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def _read(holder: Path) -> str:
    try:
        return holder.read_text()
    except FileNotFoundError:
        return "which is just starting or ending"
