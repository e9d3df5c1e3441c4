"""The ranks of a distributed training as threads of one process, which talk as processes do."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from determined.core import DistributedContext
from support.cluster import free_port

T = TypeVar("T")

DEADLINE = 60.0


def on_ranks(size: int, run: Callable[[DistributedContext], T]) -> Sequence[T | BaseException]:
    """What each rank returned, or the error that it raised. All are on one machine."""
    port = free_port()  # nobody listens there: it tells these ranks from those of other tests

    def rank(number: int) -> T:
        distributed = DistributedContext(
            rank=number,
            size=size,
            local_rank=number,
            local_size=size,
            cross_rank=0,
            cross_size=1,
            pub_port=port,
        )
        try:
            return run(distributed)
        finally:
            distributed.close()

    with ThreadPoolExecutor(size) as pool:
        running = [pool.submit(rank, number) for number in range(size)]
        return [future.exception(DEADLINE) or future.result() for future in running]
