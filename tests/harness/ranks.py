"""The processes of a distributed training as threads of one: for what they do together, not for how they talk."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from determined.core._distributed import DummyDistributedContext

T = TypeVar("T")

DEADLINE = 20.0


class _Table:
    """Where each lays what it says, and takes what all have said."""

    def __init__(self, size: int) -> None:
        self.said: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=DEADLINE)


class ThreadRank(DummyDistributedContext):
    """All ranks are on one machine."""

    def __init__(self, rank: int, size: int, table: _Table) -> None:
        self.rank = self.local_rank = rank
        self.size = self.local_size = size
        self._table = table

    def allgather(self, stuff: T) -> list[T]:
        self._table.said[self.rank] = stuff
        self._table.barrier.wait()
        said = list(self._table.said)
        self._table.barrier.wait()
        return said

    def gather(self, stuff: T) -> list[T] | None:
        said = self.allgather(stuff)
        return said if self.rank == 0 else None

    def broadcast(self, stuff: T) -> T:
        return self.allgather(stuff)[0]

    allgather_local, gather_local, broadcast_local = allgather, gather, broadcast


def on_ranks(size: int, run: Callable[[ThreadRank], T]) -> Sequence[T | BaseException]:
    """What each rank returned, or the error that it raised."""
    table = _Table(size)
    with ThreadPoolExecutor(size) as pool:
        running = [pool.submit(run, ThreadRank(rank, size, table)) for rank in range(size)]
        return [future.exception(DEADLINE) or future.result() for future in running]
