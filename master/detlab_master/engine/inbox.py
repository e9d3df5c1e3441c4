"""An inbox: events of one machine are handled one after the other, and what waits together is kept together.

The rule that everything else rests on: **effects leave after the commit**. A batch of events is applied to the machine
in memory, all that must be kept goes to the store as one transaction, and only when that is on disk are the effects
carried out and the callers answered. If it fails, nothing was acknowledged, and the machine is built anew from the
store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from detlab_master.core.errors import Invalid, RequestError
from detlab_master.core.transitions import IllegalMove
from detlab_master.store.base import Store, StoreConflict, StoreUnavailable
from detlab_master.store.writes import Write

logger = logging.getLogger(__name__)
E_contra = TypeVar("E_contra", contravariant=True)
MAX_BATCH = 256  # events that one transaction may hold


class Plan:
    """What the handling of one event led to."""

    def __init__(self, *, alone: bool) -> None:
        self.alone = alone  # nothing handled before it waits for its commit: the store says how things are
        self.writes: list[Write] = []
        self.effects: list[Callable[[], None]] = []  # carried out in order, after the commit
        self.answer: Any = None


class Closed(Invalid):
    """Whom the event is for has ended."""


class FlushFirst(Exception):
    """The event needs to read what earlier events of this batch have written: commit those, then come again."""


class Machine(Protocol[E_contra]):
    async def apply(self, event: E_contra, plan: Plan) -> None:
        """Apply one event to the state in memory, and say in ``plan`` what follows.

        Raises what the caller shall see; then nothing may have been changed.
        """
        ...

    async def reload(self) -> None:
        """Build the state anew from the store, after a commit that failed."""
        ...


@dataclass(frozen=True, eq=False)
class _Waiting(Generic[E_contra]):
    """An event in the queue."""

    event: E_contra
    future: asyncio.Future[Any]
    after: asyncio.Future[Any] | None = None  # of an event without which this one must not be kept


class Inbox(Generic[E_contra]):
    """One machine's queue, worked off by one task of the event loop."""

    def __init__(self, name: str, machine: Machine[E_contra], store: Store) -> None:
        self._name = name
        self._machine = machine
        self._store = store
        self._queue: asyncio.Queue[_Waiting[E_contra]] = asyncio.Queue()
        self._worker = asyncio.create_task(self._work(), name=f"inbox {name}")
        self._broken = False

    async def ask(self, event: E_contra) -> Any:
        """Hand in an event and wait until its result is kept.

        Raises:
            RequestError, IllegalMove: the machine refuses the event.
            Closed: there is no machine any more.
            StoreUnavailable: it could not be kept; nothing of it happened.
        """
        return await self.tell(event)

    async def ask_all(self, events: Sequence[E_contra]) -> list[Any]:
        """Hand in events in their order, and wait until they are kept: in one transaction, if that can be.

        The first that is refused is raised, as by `ask`; of those behind it none is kept.
        """
        futures: list[asyncio.Future[Any]] = []
        for event in events:
            futures.append(self.tell(event, after=futures[-1] if futures else None))
        return [await future for future in futures]

    def tell(self, event: E_contra, *, after: asyncio.Future[Any] | None = None) -> asyncio.Future[Any]:
        """Hand in an event; the future is done when its result is kept."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)
        if self._worker.done():
            _fail(future, self._closed())
            return future
        self._queue.put_nowait(_Waiting(event, future, after))
        return future

    async def close(self) -> None:
        """Stop working; who still waits is told that the change was not kept."""
        self._worker.cancel()
        await asyncio.gather(self._worker, return_exceptions=True)
        while not self._queue.empty():
            _fail(self._queue.get_nowait().future, self._closed())

    def _closed(self) -> Closed:
        return Closed(f"{self._name} has ended: it takes no changes any more")

    async def _work(self) -> None:
        while True:
            batch = [await self._queue.get()]
            while len(batch) < MAX_BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            try:
                await self._handle(batch)
            except asyncio.CancelledError:
                self._refuse(batch)
                raise

    def _refuse(self, batch: Sequence[_Waiting[E_contra]]) -> None:
        for waiting in batch:
            _fail(waiting.future, self._closed())

    async def _handle(self, batch: Sequence[_Waiting[E_contra]]) -> None:
        if not await self._mend():
            gone = StoreUnavailable("the database cannot be reached; please try again in a moment")
            for waiting in batch:
                _fail(waiting.future, gone)
            await asyncio.sleep(0.2)  # do not spin
            return
        done: list[tuple[Plan, asyncio.Future[Any]]] = []
        for waiting in batch:
            event, future = waiting.event, waiting.future
            if waiting.after is not None and _failed(waiting.after):
                _fail(future, Invalid("what was sent before it in the same request was not kept"))
                continue
            plan = Plan(alone=not done)
            try:
                try:
                    await self._machine.apply(event, plan)
                except FlushFirst:
                    await self._commit(done)
                    done = []
                    if self._broken:
                        _fail(
                            future, StoreUnavailable("an earlier change could not be kept; please try again")
                        )
                        continue
                    plan = Plan(alone=True)
                    await self._machine.apply(event, plan)
            except (RequestError, IllegalMove, StoreUnavailable) as error:
                _fail(future, error)  # the caller's business; the machine has not changed
                continue
            except Exception as error:
                logger.exception("%s: handling %r failed", self._name, type(event).__name__)
                _fail(future, error)
                await self._commit(done)
                done = []
                self._broken = True  # nobody knows how far it got: build it anew before the next event
                await self._mend()
                continue
            done.append((plan, future))
        await self._commit(done)

    async def _mend(self) -> bool:
        """Build the machine anew if it has to be; False when that is not possible now."""
        if self._broken:
            try:
                await self._machine.reload()
            except StoreUnavailable as error:
                logger.error("%s: cannot be read from the store: %s", self._name, error)
                return False
            self._broken = False
        return True

    async def _commit(self, done: Sequence[tuple[Plan, asyncio.Future[Any]]]) -> None:
        writes = [write for plan, _ in done for write in plan.writes]
        try:
            if writes:
                await asyncio.wrap_future(self._store.commit(writes))
        except (StoreUnavailable, StoreConflict) as error:
            logger.error("%s: %d changes could not be kept: %s", self._name, len(writes), error)
            self._broken = True
            for _, future in done:
                _fail(future, StoreUnavailable(f"the change could not be kept: {error}"))
            return
        for plan, future in done:
            for effect in plan.effects:
                try:
                    effect()
                except Exception:
                    logger.exception("%s: an effect failed", self._name)
            if not future.done():
                future.set_result(plan.answer)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _failed(future: asyncio.Future[Any]) -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """An event that nobody waits for may fail without a warning of the event loop; log it instead."""
    if not future.cancelled() and future.exception() is not None:
        logger.debug("event failed: %r", future.exception())
