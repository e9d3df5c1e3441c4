"""A PostgreSQL server of one's own, for the tests that want one: started in a temporary folder, stopped at the end."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa


class Unavailable(Exception):
    """PostgreSQL cannot be run here; the message says what to install."""


class PostgresServer:
    def __init__(self, folder: Path, programs: Path) -> None:
        self._data = folder / "data"
        self._folder = folder
        self._programs = programs
        self._numbers = itertools.count()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        # No sync: these data need not survive a power cut.
        self._run("initdb", "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C")
        self.start()

    def start(self) -> None:
        options = f"-h 127.0.0.1 -p {self._port} -k {self._folder} -F"
        self._run("pg_ctl", "-w", "-l", str(self._folder / "log"), "-o", options, "start")

    def stop(self) -> None:
        """At once, as a crash would: connections are cut."""
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"test_{next(self._numbers)}"
        engine = sa.create_engine(self._url("postgres"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        engine.dispose()
        return self._url(name)

    def _url(self, database: str) -> str:
        return f"postgresql+psycopg2://postgres@127.0.0.1:{self._port}/{database}"

    def _run(self, program: str, *arguments: str) -> None:
        command: Sequence[str] = [str(self._programs / program), "-D", str(self._data), *arguments]
        if os.geteuid() == 0:  # which PostgreSQL refuses
            command = ["runuser", "-u", "postgres", "--", *command]
        subprocess.run(command, check=True, cwd=self._folder, stdout=subprocess.DEVNULL)


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        raise Unavailable("no PostgreSQL server here: apt-get install postgresql")
    # Not pytest's own folder: the account postgres may not pass through its parents.
    folder = Path(tempfile.mkdtemp(prefix="detlab-postgres-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        server = PostgresServer(folder, programs[-1].parent)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)
