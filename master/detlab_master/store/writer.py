"""Group commit: one thread writes, and the transactions that wait together share one commit to disk.

A batch is first tried as a whole. Where something in it fails, it is rolled back and done again one by one, each
transaction under a savepoint, so that the failed ones are left out and the others stay. Futures are resolved after the
COMMIT, in the order of the calls.

A server can go away between its COMMIT and its answer. Then nobody knows whether the batch was kept, and to say either
could be a lie: the writer asks the server, as soon as that is back, by the number of the transaction. Until then only
this batch waits; what else comes is refused.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa

from detlab_master.store.applying import AddStorage, Applier
from detlab_master.store.base import StoreConflict, StoreUnavailable
from detlab_master.store.reading import translate
from detlab_master.store.writes import Write

_LARGEST_BATCH: Final = 1000  # transactions; bounds how long the first of them waits for the last
_PG_INVALID_PARAMETER: Final = "22023"
_ASK_AGAIN_SECONDS: Final = 0.2
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Transaction:
    writes: Sequence[Write | AddStorage]
    done: Future[None] = field(default_factory=Future)


class _Unclear(Exception):
    """The server went away during COMMIT."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number  # of the transaction, in the server's count
        self.failures: dict[int, Exception] = {}  # of those that were left out of the batch


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
        except _Unclear as unclear:
            failures = unclear.failures
            if not self._was_kept(unclear.number):
                lost = StoreUnavailable("the database went away before this was kept; please try again")
                failures = dict.fromkeys(range(len(batch)), lost)
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
            with self._transaction() as connection:
                self._applier.apply(connection, (write for one in batch for write in one.writes))
            return {}
        except _Unclear:
            raise
        except Exception as error:
            if isinstance(translate(error), StoreUnavailable):
                raise
            if len(batch) == 1:
                return {0: self._answer(error)}
        failures: dict[int, Exception] = {}
        try:
            with self._transaction() as connection:
                for index, one in enumerate(batch):
                    try:
                        with connection.begin_nested():
                            self._applier.apply(connection, one.writes)
                    except Exception as error:
                        if isinstance(translate(error), StoreUnavailable):
                            raise
                        failures[index] = self._answer(error)
        except _Unclear as unclear:
            unclear.failures = failures
            raise
        return failures

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """Commits at its end; _Unclear where that got no answer."""
        with self._engine.connect() as connection, connection.begin() as transaction:
            yield connection
            number = self._number(connection)
            try:
                transaction.commit()
            except Exception as error:
                if number is not None and isinstance(translate(error), StoreUnavailable):
                    raise _Unclear(number) from error
                raise

    def _number(self, connection: sa.Connection) -> int | None:
        """The transaction's number; None for a database in this process, which answers whenever it commits."""
        if self._engine.dialect.name != "postgresql":
            return None
        number = connection.scalar(sa.select(sa.func.txid_current()))
        assert isinstance(number, int)
        return number

    def _was_kept(self, number: int) -> bool:
        """What the server says of a transaction whose COMMIT it did not answer, once it is back."""
        _log.warning("the database went away during a commit: asking what became of transaction %d", number)
        status = sa.select(sa.func.txid_status(sa.cast(number, sa.BigInteger)))
        while not self._refuse_waiting():
            try:
                with self._engine.connect() as connection:
                    answer = connection.scalar(status)
            except sa.exc.SQLAlchemyError as error:
                # A number "in the future": the server crashed, and has found nothing of this transaction.
                forgotten = getattr(getattr(error, "orig", None), "pgcode", None) == _PG_INVALID_PARAMETER
                answer = "aborted" if forgotten else "unknown"
            if answer not in ("unknown", "in progress"):
                _log.warning("transaction %d was %s", number, answer)
                return bool(answer == "committed")
            time.sleep(_ASK_AGAIN_SECONDS)
        return False

    def _refuse_waiting(self) -> bool:
        """Refuse what waits behind a batch that is unclear; True when the store is being closed."""
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return False
            if item is None:
                self._queue.put(None)
                return True
            item.done.set_exception(StoreUnavailable("the database cannot be reached; please try again"))

    def _answer(self, error: Exception) -> Exception:
        """What the caller is told. What neither the data nor the database is guilty of is a bug of ours, and logged."""
        answer = translate(error)
        if not isinstance(answer, StoreConflict | StoreUnavailable):
            _log.error("a transaction failed for a reason that the store does not expect", exc_info=error)
            answer = StoreConflict(f"the store cannot carry this out: {error}")
        if answer is not error:
            answer.__cause__ = error
        return answer
