"""Group commit: one thread writes, and the transactions that wait together share one commit to disk.

A batch is first tried as a whole. Where something in it fails, it is rolled back and done again one by one, each
transaction under a savepoint, so that the failed ones are left out and the others stay. Futures are resolved after the
COMMIT, in the order of the calls.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa

from detlab_master.store.applying import AddStorage, Applier
from detlab_master.store.base import StoreConflict, StoreUnavailable
from detlab_master.store.reading import translate
from detlab_master.store.writes import Write

_LARGEST_BATCH: Final = 1000  # transactions; bounds how long the first of them waits for the last
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Transaction:
    writes: Sequence[Write | AddStorage]
    done: Future[None] = field(default_factory=Future)


class Writer:
    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._applier = Applier(engine.dialect.name)
        self._queue: queue.SimpleQueue[_Transaction | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # nothing may be put behind the end of the queue
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def commit(self, writes: Sequence[Write | AddStorage]) -> Future[None]:
        transaction = _Transaction(tuple(writes))
        # From here on it cannot be cancelled: somebody who gives up waiting does not undo what was asked for.
        transaction.done.set_running_or_notify_cancel()
        with self._lock:
            if not self._closed:
                self._queue.put(transaction)
                return transaction.done
        transaction.done.set_exception(StoreUnavailable("the store is closed"))
        return transaction.done

    def close(self) -> None:
        """Waits until all that was handed over is committed."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        ended = False
        while not ended:
            batch: list[_Transaction] = []
            item = self._queue.get()
            while item is not None:
                batch.append(item)
                if len(batch) == _LARGEST_BATCH:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            ended = item is None
            if batch:
                self._commit(batch)

    def _commit(self, batch: list[_Transaction]) -> None:
        failures: dict[int, Exception] = {}
        try:
            failures = self._write(batch)
        except Exception as error:  # noqa: BLE001 (the futures carry it)
            failures = dict.fromkeys(range(len(batch)), self._answer(error))
        for index, transaction in enumerate(batch):
            if index in failures:
                transaction.done.set_exception(failures[index])
            else:
                transaction.done.set_result(None)

    def _write(self, batch: list[_Transaction]) -> dict[int, Exception]:
        """Commits the batch but for those that fail by their own fault, which it returns by their index."""
        try:
            with self._engine.begin() as connection:
                self._applier.apply(connection, (write for one in batch for write in one.writes))
            return {}
        except Exception as error:
            if isinstance(translate(error), StoreUnavailable):
                raise
            if len(batch) == 1:
                return {0: self._answer(error)}
        failures: dict[int, Exception] = {}
        with self._engine.begin() as connection:
            for index, one in enumerate(batch):
                try:
                    with connection.begin_nested():
                        self._applier.apply(connection, one.writes)
                except Exception as error:
                    if isinstance(translate(error), StoreUnavailable):
                        raise
                    failures[index] = self._answer(error)
        return failures

    def _answer(self, error: Exception) -> Exception:
        """What the caller is told. What neither the data nor the database is guilty of is a bug of ours, and logged."""
        answer = translate(error)
        if not isinstance(answer, StoreConflict | StoreUnavailable):
            _log.error("a transaction failed for a reason that the store does not expect", exc_info=error)
            answer = StoreConflict(f"the store cannot carry this out: {error}")
        if answer is not error:
            answer.__cause__ = error
        return answer
