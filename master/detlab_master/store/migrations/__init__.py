"""Brings a database up to the present tables. Alembic does the work; the steps are in versions/."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.util import CommandError

from detlab_master.store.base import StoreUnavailable

_LOCK: Final = 0x6465_746C_6162  # any number, the same in every master


def configuration(connection: sa.Connection | None = None) -> Config:
    """What Alembic's commands want; env.py takes the connection from it."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def upgrade(connection: sa.Connection) -> None:
    """Inside the caller's transaction: all steps that are missing, or none of them.

    Raises StoreUnavailable when the database was written by a newer version, whose tables this one does not know.
    """
    if connection.dialect.name == "postgresql":
        # Two masters that start at once: the second waits, and then finds nothing to do.
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    try:
        command.upgrade(configuration(connection), "head")
    except CommandError as error:
        raise StoreUnavailable(
            f"it was written by another version of Detlab, with tables that this one does not know ({error});"
            " start that version, or a newer one"
        ) from error
