"""The requests that wait, filed so that a scheduling pass looks only at those at the head of a line.

Requests that fit or fail alike stand in one line: same priority, same shape, same cap. When the first of a
line does not fit, none of the line does. There are as many lines as different kinds of requests, however long
the queue.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from detlab_master.core.scheduling.requests import Request

# priority, slots, single_node, preemptible, excluded agents, and the job where it has a cap of its own
LineKey: TypeAlias = tuple[int, int, bool, bool, frozenset[str], str | None]
Ticket: TypeAlias = tuple[int, str, int]  # order, allocation, serial number


@dataclass
class _Line:
    tickets: list[Ticket] = field(default_factory=list)  # a heap; withdrawn ones stay until they come up
    waiting: int = 0


class Queue:
    """Waiting requests. Adding and removing one costs O(log n)."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Request, int, LineKey]] = {}
        self._lines: dict[LineKey, _Line] = {}
        self._by_job: dict[str, dict[str, None]] = {}
        self._stepped_over: list[tuple[LineKey, Ticket]] = []
        self._serial = 0

    def add(self, request: Request, *, capped: bool) -> None:
        key = (
            request.priority,
            request.slots,
            request.single_node,
            request.preemptible,
            request.excluded,
            request.job_id if capped else None,
        )
        self._serial += 1
        self._waiting[request.allocation_id] = (request, self._serial, key)
        self._by_job.setdefault(request.job_id, {})[request.allocation_id] = None
        line = self._lines.setdefault(key, _Line())
        heappush(line.tickets, (request.order, request.allocation_id, self._serial))
        line.waiting += 1

    def remove(self, allocation_id: str) -> Request:
        request, _, key = self._waiting.pop(allocation_id)
        of_job = self._by_job[request.job_id]
        del of_job[allocation_id]
        if not of_job:
            del self._by_job[request.job_id]
        line = self._lines[key]
        line.waiting -= 1
        if not line.waiting:
            del self._lines[key]
        elif len(line.tickets) > 2 * line.waiting + 8:  # mostly withdrawn ones: throw them out
            line.tickets = [ticket for ticket in line.tickets if self._is_current(ticket)]
            heapify(line.tickets)
        return request

    def _is_current(self, ticket: Ticket) -> bool:
        entry = self._waiting.get(ticket[1])
        return entry is not None and entry[1] == ticket[2]

    def head(self, key: LineKey) -> Request | None:
        """The first of a line, those stepped over left out."""
        line = self._lines.get(key)
        if line is None:
            return None
        while line.tickets and not self._is_current(line.tickets[0]):
            heappop(line.tickets)
        return self._waiting[line.tickets[0][1]][0] if line.tickets else None

    def step_over(self, key: LineKey) -> None:
        """Look past the head of a line, until `step_back`."""
        self._stepped_over.append((key, heappop(self._lines[key].tickets)))

    def step_back(self) -> None:
        for key, ticket in self._stepped_over:
            heappush(self._lines[key].tickets, ticket)
        self._stepped_over.clear()

    def lines(self) -> list[LineKey]:
        return list(self._lines)

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, allocation_id: str) -> bool:
        return allocation_id in self._waiting

    def __getitem__(self, allocation_id: str) -> Request:
        return self._waiting[allocation_id][0]

    def of_job(self, job_id: str) -> list[Request]:
        return [self._waiting[allocation_id][0] for allocation_id in self._by_job.get(job_id, ())]

    def __iter__(self) -> Iterator[Request]:
        """All that wait, in no order."""
        return (request for request, _, _ in self._waiting.values())

    def in_order(self) -> Iterable[Request]:
        return sorted(self, key=lambda request: request.rank)
