"""Reads of users and their sessions."""

from __future__ import annotations

from detlab_master.store import records
from detlab_master.store.reading import Reader
from detlab_master.store.rows import SESSIONS, USERS

_BY_ID = USERS.where_equal(USERS.c.id)
_BY_NAME = USERS.where_equal(USERS.c.username)
_SESSION = SESSIONS.where_equal(SESSIONS.c.token_hash)


class SqlUsers:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def get(self, user_id: int) -> records.User | None:
        return self._reader.one(USERS, _BY_ID, key=user_id)

    def by_name(self, username: str) -> records.User | None:
        return self._reader.one(USERS, _BY_NAME, key=username)

    def all(self) -> list[records.User]:
        return self._reader.all(USERS, USERS.select().order_by(USERS.c.id))

    def session(self, token_hash: str) -> records.Session | None:
        return self._reader.one(SESSIONS, _SESSION, key=token_hash)
