"""What the readers of all nouns share: a connection from the pool, records out of rows, the store's own errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from detlab_master.store.base import Page, StoreConflict, StoreFull, StoreUnavailable
from detlab_master.store.rows import R, Select, Shape

if TYPE_CHECKING:
    from sqlalchemy.sql.elements import ColumnElement


FREE: Final = "free some space there, and try again"
_PG_DISK_FULL: Final = "53100"


class Reader:
    """Reads in autocommit, so each statement sees all that was committed before it. For any thread."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self.dialect = engine.dialect.name

    def rows(
        self, statement: Select, parameters: Mapping[str, Any] | None = None
    ) -> Sequence[sa.Row[*tuple[Any, ...]]]:
        with store_errors(), self._engine.connect() as connection:
            return connection.execute(statement, parameters).all()

    def all(self, shape: Shape[R], statement: Select, **parameters: Any) -> list[R]:
        return [shape.of(row) for row in self.rows(statement, parameters)]

    def one(self, shape: Shape[R], statement: Select, **parameters: Any) -> R | None:
        """The first row's record, or None where there is no row."""
        try:
            rows = self.rows(statement, parameters)
        except ValueError:
            return None  # what a database cannot hold (an integer past 64 bits, say) is in none of its rows
        return shape.of(rows[0]) if rows else None

    def page(
        self, shape: Shape[R], where: Sequence[ColumnElement[bool]], page: Page, order_by: ColumnElement[Any]
    ) -> tuple[list[R], int]:
        """One page of the rows, and how many there are in all. Rows without a value come last, ties are by id."""
        total: int = self.rows(sa.select(sa.func.count()).select_from(shape.table).where(*where))[0][0]
        direction = order_by.desc() if page.descending else order_by.asc()
        statement = shape.select().where(*where).order_by(direction.nulls_last(), shape.c.id)
        statement = statement.offset(first_of(page, total))
        if page.limit is not None:
            statement = statement.limit(page.limit)
        return self.all(shape, statement), total

    def has_item(self, column: ColumnElement[Any], item: str) -> ColumnElement[bool]:
        """Whether the JSON list in the column holds that string."""
        if self.dialect == "postgresql":
            return sa.type_coerce(column, postgresql.JSONB()).contains([item])
        items = sa.func.json_each(column).table_valued("value")
        return sa.exists().where(items.c.value == item)

    def contains(self, column: ColumnElement[str], text: str) -> ColumnElement[bool]:
        """Whether the text stands in the column, letter for letter."""
        position = sa.func.instr if self.dialect == "sqlite" else sa.func.strpos
        return position(column, text) > 0


def first_of(page: Page, total: int) -> int:
    """Index of the page's first item in a list of that length."""
    return page.offset if page.offset >= 0 else max(0, total + page.offset)


def ordering(allowed: Mapping[str, ColumnElement[Any]], page: Page) -> ColumnElement[Any]:
    """The expression that ``page.order_by`` names; ValueError when there is none."""
    if page.order_by not in allowed:
        raise ValueError(f"cannot order by {page.order_by!r}: it is one of {', '.join(allowed)}")
    return allowed[page.order_by]


@contextmanager
def store_errors() -> Iterator[None]:
    """Around a read: turns the database's errors into the store's; ValueError for a value that it cannot even look for."""
    try:
        yield
    except OverflowError as error:
        raise ValueError(str(error)) from error
    except sa.exc.SQLAlchemyError as error:
        translated = translate(error)
        if translated is error:
            raise
        if isinstance(translated, StoreConflict):
            raise ValueError(str(translated)) from error  # noqa: TRY004 (no type is wrong here)
        raise translated from error


def translate(error: Exception) -> Exception:
    """The store's word for what the database or its driver raised; an error of ours in the SQL stays as it is."""
    cause = getattr(error, "orig", None) or error
    match error:
        case sa.exc.IntegrityError() | sa.exc.DataError():
            return StoreConflict(f"this contradicts what is stored: {_line(cause)}")
        case sa.exc.ProgrammingError():
            return error
        case sa.exc.DBAPIError() if _is_full(cause):
            return StoreFull(
                f"the disk of the master's database is full ({_line(cause)}): nothing was changed; {FREE}"
            )
        case sa.exc.DBAPIError() | sa.exc.TimeoutError():
            return StoreUnavailable(f"the database does not answer as it should: {_line(cause)}")
        case sa.exc.StatementError() | ValueError() | OverflowError() | TypeError():
            return StoreConflict(f"this value cannot be stored: {_line(cause)}")
    return error


def _is_full(cause: object) -> bool:
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
    return getattr(cause, "pgcode", None) == _PG_DISK_FULL


def _line(error: object) -> str:
    return " ".join(str(error).split())
