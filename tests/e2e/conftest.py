"""A real cluster for each file of tests: a master, an agent, and the `det` command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.trials import Record
from support.cluster import PASSWORD, Cluster, cluster
from support.disks import small_disk
from support.postgres import PostgresServer, Unavailable, postgres_server


@dataclass
class Place:
    """A cluster, and a folder that its trials and the tests share."""

    cluster: Cluster
    side: Path

    def record(self, trial_id: int) -> Record:
        return Record(self.side, trial_id)

    def at_work(self) -> Iterator[Record]:
        """The trials of witnesses whose processes live."""
        for path in self.side.glob("*.pid"):
            record = self.record(int(path.stem))
            if record.process is not None:
                yield record

    def det(
        self, *arguments: str, user: str = "determined", cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run the `det` command as a user."""
        environment = {
            **self.cluster.environment,
            "DET_MASTER": self.cluster.url,
            "DET_USER": user,
            "DET_PASS": PASSWORD,
            "DET_DEBUG_CONFIG_PATH": str(self.cluster.folder / f"client-{user}"),
        }
        return subprocess.run(
            [sys.executable, "-m", "determined.cli", *arguments],
            check=False,
            env=environment,
            cwd=cwd or self.cluster.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )


@contextmanager
def running_place(slots: int, *, disks: Mapping[str, int] = {}, **options: Any) -> Iterator[Place]:
    """A place with a cluster that runs.

    Args:
        disks: subfolders of the cluster's that are file systems of their own -> MiB.
    """
    # Not below pytest's own temporary folder, which is closed to all but its owner: here, file modes alone must
    # keep users apart.
    folder = Path(tempfile.mkdtemp(prefix="detlab-e2e-"))
    folder.chmod(0o711)
    side = folder / "side"
    side.mkdir()
    side.chmod(0o1777)  # trials run under accounts of their own
    try:
        with ExitStack() as stack:
            for name, size in disks.items():
                stack.enter_context(small_disk(folder / name, size))
            yield Place(stack.enter_context(cluster(folder, slots=slots, **options)), side)
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    try:
        with postgres_server() as server:
            yield server
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.full)])
def db_url(request: pytest.FixtureRequest) -> str:
    """Of an empty database for a master."""
    if request.param == "sqlite":
        return Cluster.db_url
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture(scope="module")
def place(db_url: str) -> Iterator[Place]:
    with running_place(slots=4, db_url=db_url) as started:
        yield started


as_root = pytest.mark.skipif(
    os.geteuid() != 0,
    reason="only root can give users' tasks accounts of their own: run the tests as root, for example in Docker",
)
