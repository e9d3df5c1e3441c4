"""How the processes of one trial talk to each other."""

from typing import TypeVar

T = TypeVar("T")


class DummyDistributedContext:
    """A trial of one process: it is the chief, and its messages go to itself."""

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1
    cross_rank = 0
    cross_size = 1

    def get_rank(self) -> int:
        return self.rank

    def get_local_rank(self) -> int:
        return self.local_rank

    def get_size(self) -> int:
        return self.size

    def get_num_agents(self) -> int:
        return self.cross_size

    def gather(self, stuff: T) -> list[T] | None:
        """Every rank's `stuff` in the order of the ranks on the chief, None elsewhere."""
        return [stuff]

    def gather_local(self, stuff: T) -> list[T] | None:
        return [stuff]

    def allgather(self, stuff: T) -> list[T]:
        """Every rank's `stuff` in the order of the ranks, on each rank."""
        return [stuff]

    def allgather_local(self, stuff: T) -> list[T]:
        return [stuff]

    def broadcast(self, stuff: T) -> T:
        """The chief's `stuff`, on each rank."""
        return stuff

    def broadcast_local(self, stuff: T) -> T:
        return stuff

    def close(self) -> None:
        """There is nothing to close."""
