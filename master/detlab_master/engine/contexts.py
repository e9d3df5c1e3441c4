"""Model definitions (contexts): one tar.gz file each in the data folder, named by its SHA-256, never changed."""

from __future__ import annotations

import os
import re
from pathlib import Path

_SHA256 = re.compile(r"[0-9a-f]{64}")


class Contexts:
    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir / "contexts"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in self.folder.glob(".incoming-*"):  # of a master that was killed while it took one in
            left.unlink()

    def path(self, sha256: str) -> Path:
        """Where the context of this SHA-256 is; ValueError if it is none."""
        if not _SHA256.fullmatch(sha256):
            raise ValueError(f"{sha256!r} is no SHA-256")
        return self.folder / f"{sha256}.tgz"

    def adopt(self, temporary: Path, sha256: str) -> None:
        """Keep a file that was written in `folder` for good; on disk when this returns."""
        target = self.path(sha256)
        if target.exists():
            temporary.unlink()
            return
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.rename(target)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
