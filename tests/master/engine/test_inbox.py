"""Effects leave after the commit; what could not be kept was not acknowledged, and the machine is built anew."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from detlab_master.core.errors import Invalid
from detlab_master.engine.inbox import FlushFirst, Inbox, Plan
from detlab_master.store.base import StoreUnavailable
from detlab_master.store.memory import MemoryStore
from detlab_master.store.writes import SetProgress, Write


class FickleStore(MemoryStore):
    """A real store whose database goes away when told so, and whose commits can be held up."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.commits: list[list[Write]] = []

    def commit(self, writes: Sequence[Write]) -> Future[None]:
        if self.away:
            failed: Future[None] = Future()
            failed.set_exception(StoreUnavailable("the disk is full"))
            return failed
        self.commits.append(list(writes))
        return super().commit(writes)


class Adder:
    """Adds up numbers: in memory at once, as it was kept after a reload."""

    def __init__(self) -> None:
        self.total = 0
        self.kept = 0
        self.reloads = 0
        self.flushes = 0

    async def apply(self, event: int | str, plan: Plan) -> None:
        if event == "bug":
            raise RuntimeError("a bug")
        if event == "flush" and not plan.alone:
            self.flushes += 1
            raise FlushFirst
        if isinstance(event, int):
            if event < 0:
                raise Invalid("only positive numbers")
            self.total += event
            plan.writes.append(SetProgress(1, float(event)))
            plan.effects.append(lambda: setattr(self, "kept", self.kept + event))
        plan.answer = self.total

    async def reload(self) -> None:
        self.reloads += 1
        self.total = self.kept


@pytest.fixture
def store() -> FickleStore:
    return FickleStore()


async def test_what_waits_together_is_one_transaction(store: FickleStore) -> None:
    adder = Adder()
    inbox: Inbox[int | str] = Inbox("test", adder, store)
    answers = await asyncio.gather(*[inbox.ask(number) for number in (1, 2, 3)])
    assert (answers, len(store.commits), adder.kept) == ([1, 3, 6], 1, 6)
    await inbox.close()


async def test_a_refused_event_does_not_touch_those_beside_it(store: FickleStore) -> None:
    inbox: Inbox[int | str] = Inbox("test", Adder(), store)
    first, bad, last = await asyncio.gather(*[inbox.tell(n) for n in (1, -1, 2)], return_exceptions=True)
    assert (first, last) == (1, 3)
    assert isinstance(bad, Invalid)
    await inbox.close()


async def test_what_is_handed_in_together_is_kept_up_to_the_first_that_is_refused(store: FickleStore) -> None:
    adder = Adder()
    inbox: Inbox[int | str] = Inbox("test", adder, store)
    await inbox.ask_all([1, "flush", 2])
    assert (adder.kept, adder.flushes) == (3, 1)
    with pytest.raises(Invalid, match="only positive numbers"):
        await inbox.ask_all([4, -1, 8, 16])
    assert adder.kept == 7
    store.away = True
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        await inbox.ask_all([32, "flush", 64])
    store.away = False
    assert await inbox.ask(1) == 8
    await inbox.close()


async def test_what_cannot_be_kept_never_happened(store: FickleStore) -> None:
    adder = Adder()
    inbox: Inbox[int | str] = Inbox("test", adder, store)
    await inbox.ask(5)
    store.away = True
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        await inbox.ask(100)
    assert adder.kept == 5
    store.away = False
    assert await inbox.ask(1) == 6
    assert adder.reloads == 1
    await inbox.close()


async def test_an_event_that_must_read_comes_after_the_commit_of_those_before(store: FickleStore) -> None:
    adder = Adder()
    inbox: Inbox[int | str] = Inbox("test", adder, store)
    await asyncio.gather(inbox.ask(1), inbox.ask("flush"), inbox.ask(2))
    assert (adder.flushes, len(store.commits)) == (1, 2)
    await inbox.close()


async def test_after_a_bug_the_machine_is_built_anew(store: FickleStore) -> None:
    adder = Adder()
    inbox: Inbox[int | str] = Inbox("test", adder, store)
    with pytest.raises(RuntimeError):
        await inbox.ask("bug")
    assert (adder.reloads, await inbox.ask(1)) == (1, 1)
    await inbox.close()


async def test_who_waits_at_the_end_is_told(store: FickleStore) -> None:
    inbox: Inbox[int | str] = Inbox("the search", Adder(), store)
    waiting = inbox.tell(1)
    await inbox.close()
    with pytest.raises((Invalid, asyncio.CancelledError)):
        await waiting
