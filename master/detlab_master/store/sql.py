"""The store on a SQLite file or a PostgreSQL server, by the database's URL."""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from detlab_master.store import migrations, records, tables
from detlab_master.store.applying import AddStorage
from detlab_master.store.base import HighestIds, StoreUnavailable
from detlab_master.store.checkpoints import SqlCheckpoints
from detlab_master.store.columns import dump_json
from detlab_master.store.experiments import SqlExperiments
from detlab_master.store.logs import SqlLogs
from detlab_master.store.metrics import SqlMetrics
from detlab_master.store.models import SqlModels
from detlab_master.store.projects import SqlProjects, SqlTemplates
from detlab_master.store.reading import Reader, store_errors
from detlab_master.store.trials import SqlTrials
from detlab_master.store.users import SqlUsers
from detlab_master.store.workloads import SqlWorkloads
from detlab_master.store.writer import Writer
from detlab_master.store.writes import Write

_BUSY_SECONDS: Final = 10.0  # how long a lock that another process holds (a backup, say) is waited for
_READERS: Final = 4  # connections kept open; more are opened when many threads read at once

# A server that vanished without a word is noticed within half a minute.
_POSTGRES_OPTIONS: Final = {
    "application_name": "detlab",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


def open_store(url: str) -> SqlStore:
    """The store in that database, brought up to the present tables.

    ``url``: ``sqlite:////absolute/path`` or ``postgresql+psycopg2://user:password@host:port/name``, with options of the
    driver after a ``?`` (``timeout`` in seconds for a lock on the SQLite file, ``sslmode`` and the like). Raises
    ValueError for any other, StoreUnavailable when the database cannot be opened.
    """
    return SqlStore(url)


class SqlStore:
    """Implements `detlab_master.store.base.Store`."""

    def __init__(self, url: str) -> None:
        parsed = _parse(url)
        self._writing, reading = _sqlite(parsed) if parsed.drivername == "sqlite" else _postgresql(parsed)
        self._reading = reading
        try:
            with store_errors(), self._writing.begin() as connection:
                migrations.upgrade(connection)
                self._cluster_id = _cluster_id(connection)
        except BaseException as error:
            self._dispose()
            if isinstance(error, StoreUnavailable):
                raise StoreUnavailable(f"cannot open {parsed.render_as_string()}: {error}") from error
            raise
        self._writer = Writer(self._writing)
        self._reader = Reader(reading)
        self._users = SqlUsers(self._reader)
        self._projects = SqlProjects(self._reader)
        self._templates = SqlTemplates(self._reader)
        self._experiments = SqlExperiments(self._reader)
        self._trials = SqlTrials(self._reader)
        self._metrics = SqlMetrics(self._reader)
        self._checkpoints = SqlCheckpoints(self._reader, self._add_storage)
        self._workloads = SqlWorkloads(self._reader)
        self._models = SqlModels(self._reader)
        self._logs = SqlLogs(self._reader)

    @property
    def users(self) -> SqlUsers:
        return self._users

    @property
    def projects(self) -> SqlProjects:
        return self._projects

    @property
    def templates(self) -> SqlTemplates:
        return self._templates

    @property
    def experiments(self) -> SqlExperiments:
        return self._experiments

    @property
    def trials(self) -> SqlTrials:
        return self._trials

    @property
    def metrics(self) -> SqlMetrics:
        return self._metrics

    @property
    def checkpoints(self) -> SqlCheckpoints:
        return self._checkpoints

    @property
    def workloads(self) -> SqlWorkloads:
        return self._workloads

    @property
    def models(self) -> SqlModels:
        return self._models

    @property
    def logs(self) -> SqlLogs:
        return self._logs

    def commit(self, writes: Sequence[Write]) -> Future[None]:
        return self._writer.commit(writes)

    def highest_ids(self) -> HighestIds:
        retired = dict(self._reader.rows(sa.select(tables.retired_ids.c.kind, tables.retired_ids.c.highest)))
        row = self._reader.rows(
            sa.select(
                *(
                    sa.select(sa.func.coalesce(sa.func.max(column), 0)).scalar_subquery()
                    for column in (
                        tables.experiments.c.id,
                        tables.trials.c.id,
                        tables.users.c.id,
                        tables.allocations.c.queue_order,
                        tables.models.c.id,
                        tables.model_versions.c.id,
                        tables.workspaces.c.id,
                        tables.projects.c.id,
                    )
                )
            )
        )[0]
        return HighestIds(
            experiment=max(row[0], retired.get("experiment", 0)),
            trial=max(row[1], retired.get("trial", 0)),
            user=row[2],
            queue_order=row[3],
            model=max(row[4], retired.get("model", 0)),
            model_version=max(row[5], retired.get("model_version", 0)),
            workspace=max(row[6], retired.get("workspace", 0)),
            project=max(row[7], retired.get("project", 0)),
        )

    def cluster_id(self) -> str:
        return self._cluster_id

    def close(self) -> None:
        self._writer.close()
        self._dispose()

    def _dispose(self) -> None:
        self._reading.dispose()
        self._writing.dispose()

    def _add_storage(self, digest: str, config: records.Json) -> None:
        self._writer.commit([AddStorage(digest, config)]).result()


def _parse(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise ValueError(f"the database URL cannot be read: {_ALLOWED}") from error
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg2")  # the driver that is installed with the master
    if parsed.drivername not in ("sqlite", "postgresql+psycopg2"):
        raise ValueError(f"the database URL begins with {parsed.drivername!r}: {_ALLOWED}")
    if parsed.drivername == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ValueError(f"the database URL names no file: {_ALLOWED}")
    return parsed


_ALLOWED: Final = "it is sqlite:////path/to/file or postgresql+psycopg2://user:password@host:port/name"


def _sqlite(url: sa.URL) -> tuple[sa.Engine, sa.Engine]:
    """The engine of the one writer, and that of the readers."""
    path = Path(str(url.database))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # it holds password hashes
    except OSError as error:
        raise StoreUnavailable(f"cannot open the database file {path}: {error.strerror}") from error
    # isolation_level None: the driver begins no transactions of its own.
    connect: dict[str, Any] = {"isolation_level": None, "check_same_thread": False}
    if "timeout" not in url.query:
        connect["timeout"] = _BUSY_SECONDS
    writing = sa.create_engine(
        url, pool_size=1, max_overflow=0, connect_args=connect, json_serializer=dump_json
    )
    reading = sa.create_engine(
        url,
        pool_size=_READERS,
        max_overflow=8 * _READERS,
        connect_args=connect,
        isolation_level="AUTOCOMMIT",
        json_serializer=dump_json,
    )

    @sa.event.listens_for(writing, "connect")
    def prepare_writer(connection: sqlite3.Connection, record: Any) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA journal_size_limit = {64 << 20}")

    @sa.event.listens_for(writing, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    @sa.event.listens_for(reading, "connect")
    def prepare_reader(connection: sqlite3.Connection, record: Any) -> None:
        connection.execute("PRAGMA query_only = ON")

    return writing, reading


def _postgresql(url: sa.URL) -> tuple[sa.Engine, sa.Engine]:
    """The engine of the one writer, and that of the readers. Options in the URL win over ours."""
    connect = {name: value for name, value in _POSTGRES_OPTIONS.items() if name not in url.query}
    writing = sa.create_engine(
        url,
        pool_size=1,
        max_overflow=0,
        pool_pre_ping=True,
        connect_args=connect,
        json_serializer=dump_json,
    )
    reading = sa.create_engine(
        url,
        pool_size=_READERS,
        max_overflow=2 * _READERS,
        pool_pre_ping=True,
        connect_args=connect,
        isolation_level="AUTOCOMMIT",
        json_serializer=dump_json,
    )
    return writing, reading


def _cluster_id(connection: sa.Connection) -> str:
    known = connection.scalar(sa.select(tables.cluster.c.cluster_id))
    if known is None:
        known = str(uuid.uuid4())
        connection.execute(sa.insert(tables.cluster).values(cluster_id=known))
    return str(known)
