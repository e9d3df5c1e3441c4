"""The processes of a distributed training as threads of one, with their real connections."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

from determined import core
from support.cluster import free_port

T = TypeVar("T")

DEADLINE = 30.0


def on_ranks(size: int, run: Callable[[core.DistributedContext], T]) -> Sequence[T | BaseException]:
    """What each rank returned, or the error that it raised. All are on one machine."""
    pub_port, pull_port = free_port(), free_port()

    def started(rank: int) -> T:
        distributed = core.DistributedContext(
            rank=rank,
            size=size,
            local_rank=rank,
            local_size=size,
            cross_rank=0,
            cross_size=1,
            pub_port=pub_port,
            pull_port=pull_port,
        )
        with closing(distributed):
            return run(distributed)

    with ThreadPoolExecutor(size) as pool:
        running = [pool.submit(started, rank) for rank in range(size)]
        return [future.exception(DEADLINE) or future.result() for future in running]
