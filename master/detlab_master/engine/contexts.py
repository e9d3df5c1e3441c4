"""Model definitions (contexts): one tar.gz file each in the data folder, named by its SHA-256, never changed."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

_SHA256 = re.compile(r"[0-9a-f]{64}")


class Contexts:
    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir / "contexts"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in self.folder.glob(".incoming-*"):  # of a master that was killed while it took one in
            left.unlink()
        self._held: Counter[str] = Counter()  # by experiments that are just being created
        self._doomed: set[str] = set()  # those that somebody wants to remove, and nobody has held since

    def path(self, sha256: str) -> Path:
        """Where the context of this SHA-256 is; ValueError if it is none."""
        if not _SHA256.fullmatch(sha256):
            raise ValueError(f"{sha256!r} is no SHA-256")
        return self.folder / f"{sha256}.tgz"

    @contextmanager
    def held(self, sha256: str) -> Iterator[None]:
        """While an experiment with this context is being created, nobody removes it."""
        self._held[sha256] += 1
        try:
            yield
        finally:
            self._held[sha256] -= 1
            self._held += Counter()  # drops those at 0
            self._doomed.discard(sha256)

    def doom(self, sha256: str) -> None:
        """Call this, then look whether an experiment needs it, and if not, `remove`."""
        self._doomed.add(sha256)

    def spare(self, sha256: str) -> None:
        """An experiment needs it."""
        self._doomed.discard(sha256)

    def remove(self, sha256: str) -> None:
        """Remove a doomed context, unless an experiment was created with it in the meantime."""
        if sha256 in self._doomed and not self._held[sha256]:
            self.path(sha256).unlink(missing_ok=True)
        self._doomed.discard(sha256)

    def sweep(self, needed: Collection[str]) -> None:
        """Remove all that no experiment needs: for a master that starts, and serves nobody yet."""
        for path in self.folder.glob("*.tgz"):
            if path.stem not in needed:
                path.unlink()

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
