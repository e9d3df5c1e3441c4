"""The priority scheduler of one resource pool.

Rules
- Waiting requests are considered by priority (1 first), then in the order of their submission. What fits
  starts.
- A request that does not fit now holds nobody up: later ones may start before it. There is no rule against
  starvation; a large request that smaller ones keep out needs a higher priority in a pool with preemption.
- No request takes its job over the job's max_slots. Where that is lowered below what the job holds, the
  latest preemptible allocations of the job are preempted.
- With `preemption`, where a request does not fit, preemptible allocations of strictly lower priority are
  preempted if that makes room, and the room is kept for it (`eviction.py`). If even that makes no room (its
  slots are held by its equals, its betters, or the non-preemptible), only preemptible requests of lower
  priority may start behind it: they can be pushed out again when it gets its chance. Requests that the pool
  could never hold are passed over.
- Tasks without slots have a pool of their own: a number of places on each agent. The same rules hold there.
- `fit.py` says which agents and slots a request gets; those that it excludes are not there for it.

The state is changed in place as things happen, and `schedule` looks at the heads of lines of alike requests
only (`queue.py`), so its cost grows with what can start and with how many kinds of requests wait, not with
how many.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from detlab_master.core.scheduling.eviction import Eviction, Running
from detlab_master.core.scheduling.fit import Inventory
from detlab_master.core.scheduling.queue import LineKey, Queue
from detlab_master.core.scheduling.requests import (
    Assignment,
    Decision,
    PoolConfig,
    Preempt,
    Request,
    SlotId,
    Start,
)


class PriorityScheduler:
    """What waits and what runs in one pool.

    Unknown agents, slots and allocations raise KeyError or ValueError and change nothing.
    """

    def __init__(self, pool: PoolConfig | None = None) -> None:
        self.pool = pool or PoolConfig()
        self.slots = _Side(self.pool)
        self.aux = _Side(self.pool)
        self._caps: dict[str, int] = {}  # max_slots of jobs that have one
        self._used: dict[str, int] = {}  # slots that jobs hold
        self._jobs: dict[str, int] = {}  # number of requests, waiting and running
        self._enabled: dict[str, bool] = {}  # of agents
        self._draining: dict[str, bool] = {}
        self._over_cap: dict[str, None] = {}  # jobs that may hold more than they may
        self._changed = False

    # Agents

    def add_agent(self, agent_id: str, slot_ids: Iterable[SlotId]) -> None:
        """An agent joins, enabled. Who holds slots of it (`restore`, or it was away) holds them on."""
        self.slots.inventory.add(agent_id, slot_ids)
        self.aux.inventory.add(agent_id, range(self.pool.max_aux_per_agent))
        self._enabled[agent_id], self._draining[agent_id] = True, False
        self._changed = True

    def remove_agent(self, agent_id: str) -> None:
        """An agent is gone. Its allocations count as running until they are released."""
        self._check_agent(agent_id)
        self.slots.inventory.remove(agent_id)
        self.aux.inventory.remove(agent_id)
        del self._enabled[agent_id], self._draining[agent_id]
        self._changed = True

    def has_agent(self, agent_id: str) -> bool:
        return agent_id in self._enabled

    def set_slot_enabled(self, agent_id: str, slot_id: SlotId, enabled: bool) -> None:
        """A disabled slot is not given out; who holds it keeps it."""
        self._check_agent(agent_id)
        self.slots.inventory.set_slot_enabled(agent_id, slot_id, enabled)
        self._changed = True

    def set_agent_enabled(self, agent_id: str, enabled: bool) -> None:
        """A disabled agent gets nothing new; what becomes of its allocations is for the caller to say."""
        self._check_agent(agent_id)
        self._enabled[agent_id] = enabled
        self._set_open(agent_id)

    def set_agent_draining(self, agent_id: str, draining: bool) -> None:
        """A draining agent gets nothing new; what it runs may end in peace."""
        self._check_agent(agent_id)
        self._draining[agent_id] = draining
        self._set_open(agent_id)

    def _set_open(self, agent_id: str) -> None:
        is_open = self._enabled[agent_id] and not self._draining[agent_id]
        self.slots.inventory.set_open(agent_id, is_open)
        self.aux.inventory.set_open(agent_id, is_open)
        self._changed = True

    def _check_agent(self, agent_id: str) -> None:
        if agent_id not in self._enabled:
            raise KeyError(f"no agent {agent_id!r} in pool; there are {', '.join(self._enabled) or 'none'}")

    # Requests

    def submit(self, request: Request) -> None:
        """A request joins the queue."""
        self._check_new(request)
        self._join(request)
        self._side(request).queue.add(request, capped=request.job_id in self._caps)
        self._changed = True

    def restore(self, request: Request, assignment: Assignment) -> None:
        """An allocation that ran before this scheduler was made. Its agents may still be away."""
        self._check_new(request)
        if sum(map(len, assignment.values())) != request.slots or not assignment:
            raise ValueError(
                f"{request.allocation_id} has {request.slots} slots, not those of {dict(assignment)}"
            )
        side = self._side(request)
        if not request.slots:
            assignment = {agent_id: side.inventory.unheld(agent_id, 1) for agent_id in assignment}
        side.start(request, assignment)
        self._join(request)
        self._use(request.job_id, request.slots)
        if request.job_id in self._caps:
            self._over_cap[request.job_id] = None
        self._changed = True

    def release(self, allocation_id: str) -> None:
        """An allocation has ended, or a waiting request is withdrawn."""
        side = self._side_of(allocation_id)
        if allocation_id in side.queue:
            request = side.queue.remove(allocation_id)
        else:
            request = side.end(allocation_id)
            self._use(request.job_id, -request.slots)
        self._jobs[request.job_id] -= 1
        if not self._jobs[request.job_id]:
            del self._jobs[request.job_id]
            self._caps.pop(request.job_id, None)
            self._over_cap.pop(request.job_id, None)
        self._changed = True

    def set_priority(self, job_id: str, priority: int) -> None:
        """Of all of a job's requests, waiting and running."""
        for side in (self.slots, self.aux):
            for request in side.queue.of_job(job_id):
                changed = replace(request, priority=priority)
                side.queue.remove(request.allocation_id)
                side.queue.add(changed, capped=job_id in self._caps)
            for allocation_id in side.running_of(job_id):
                running = side.running[allocation_id]
                side.running[allocation_id] = Running(
                    replace(running.request, priority=priority), running.assignment
                )
        self._changed = True

    def set_max_slots(self, job_id: str, max_slots: int | None) -> None:
        """How many slots a job may hold at a time (None: any), as long as it has any request here."""
        if job_id not in self._jobs or self._caps.get(job_id) == max_slots:
            return
        was_capped = job_id in self._caps
        if max_slots is None:
            del self._caps[job_id]
            self._over_cap.pop(job_id, None)
        else:
            self._caps[job_id] = max_slots
            self._over_cap[job_id] = None
        if was_capped != (max_slots is not None):
            for side in (self.slots, self.aux):
                for request in side.queue.of_job(job_id):
                    side.queue.remove(request.allocation_id)
                    side.queue.add(request, capped=not was_capped)
        self._changed = True

    def _check_new(self, request: Request) -> None:
        for side in (self.slots, self.aux):
            if request.allocation_id in side.queue or request.allocation_id in side.running:
                raise ValueError(f"allocation {request.allocation_id!r} is known already")

    def _join(self, request: Request) -> None:
        self._jobs[request.job_id] = self._jobs.get(request.job_id, 0) + 1
        self.set_max_slots(request.job_id, request.max_slots)

    def _side(self, request: Request) -> "_Side":
        return self.slots if request.slots else self.aux

    def _side_of(self, allocation_id: str) -> "_Side":
        for side in (self.slots, self.aux):
            if allocation_id in side.queue or allocation_id in side.running:
                return side
        raise KeyError(f"no allocation {allocation_id!r} waits or runs in this pool")

    def _use(self, job_id: str, slots: int) -> None:
        used = self._used.get(job_id, 0) + slots
        if used:
            self._used[job_id] = used
        else:
            self._used.pop(job_id, None)

    # Deciding

    def schedule(self) -> list[Decision]:
        """What to start and whom to preempt now. Without changes in between, a second call says nothing."""
        if not self._changed:
            return []
        self._changed = False
        decisions: list[Decision] = list(self._enforce_caps())
        for side in (self.slots, self.aux):
            decisions += self._pass(side)
        return decisions

    def _enforce_caps(self) -> list[Preempt]:
        decisions = []
        for job_id in list(self._over_cap):
            side = self.slots
            allocations = [side.running[allocation_id] for allocation_id in side.running_of(job_id)]
            over = self._used.get(job_id, 0) - self._caps[job_id]
            over -= sum(r.request.slots for r in allocations if r.request.allocation_id in side.leaving)
            for running in sorted(allocations, key=lambda r: r.request.rank, reverse=True):
                allocation_id = running.request.allocation_id
                if over > 0 and running.request.preemptible and allocation_id not in side.leaving:
                    side.leaving[allocation_id] = None
                    decisions.append(
                        Preempt(allocation_id, "its experiment holds more slots than its max_slots allows")
                    )
                    over -= running.request.slots
        self._over_cap.clear()
        return decisions

    def _pass(self, side: "_Side") -> list[Decision]:
        decisions: list[Decision] = []
        failed: set[Shape] = set()  # shapes that fit nowhere any more in this pass
        promised: dict[str, int] = {}  # slots, by job, of requests that room is being made for
        barrier: int | None = None  # priority of the first request that no room can be made for
        eviction: Eviction | None = None
        heads: list[tuple[tuple[int, int, str], LineKey]] = []
        for key in side.queue.lines():
            if (head := side.queue.head(key)) is not None:
                heads.append((head.rank, key))
        heapify(heads)
        while heads:
            _, key = heappop(heads)
            request = side.queue.head(key)
            if request is None or _shape(request) in failed:
                continue
            if barrier is not None and request.priority > barrier and not request.preemptible:
                continue
            if not self._cap_allows(request, promised.get(request.job_id, 0)):
                continue
            assignment = side.find(request)
            if assignment is not None:
                side.queue.remove(request.allocation_id)
                side.start(request, assignment)
                self._use(request.job_id, request.slots)
                decisions.append(
                    Start(request.allocation_id, assignment if request.slots else _bare(assignment))
                )
            elif not self.pool.preemption:
                failed.add(_shape(request))
                continue
            else:
                eviction = eviction or side.eviction()
                plan = eviction.plan(side.in_units(request))
                if plan is None:
                    failed.add(_shape(request))
                    if barrier is None and side.could_ever_fit(request):
                        barrier = request.priority
                    continue
                eviction.carry_out(plan, side.running)
                side.leaving.update(dict.fromkeys(plan.victims))
                decisions += map(Preempt, plan.victims)
                promised[request.job_id] = promised.get(request.job_id, 0) + request.slots
                side.queue.step_over(key)
            if (head := side.queue.head(key)) is not None:
                heappush(heads, (head.rank, key))
        side.queue.step_back()
        side.inventory.drop_holds()
        return decisions

    def _cap_allows(self, request: Request, promised: int) -> bool:
        cap = self._caps.get(request.job_id)
        return cap is None or self._used.get(request.job_id, 0) + promised + request.slots <= cap

    # Questions

    def excludes_all(self, request: Request) -> bool:
        """Whether only agents that the request excludes could hold it, of all that are in the pool.

        Agents and slots that are disabled or draining count: they may come back.
        """
        inventory = self._side(request).inventory
        shape = request.slots or 1, request.single_node or not request.slots
        return (
            bool(request.excluded)
            and inventory.could_hold(*shape)
            and not inventory.could_hold(*shape, request.excluded)
        )

    def position(self, allocation_id: str) -> int:
        """How many waiting requests are considered before this one. -1 if it runs. O(queue)."""
        side = self._side_of(allocation_id)
        if allocation_id in side.running:
            return -1
        rank = side.queue[allocation_id].rank
        return sum(other.rank < rank for side in (self.slots, self.aux) for other in side.queue)

    def jobs_ahead(self, job_id: str) -> int:
        """How many other jobs have a request that is considered before the first of this job that waits.

        -1 if none of it waits. O(queue).
        """
        sides = (self.slots, self.aux)
        first = min((request.rank for side in sides for request in side.queue.of_job(job_id)), default=None)
        if first is None:
            return -1
        return len({request.job_id for side in sides for request in side.queue if request.rank < first})

    def positions(self) -> dict[str, int]:
        """`position` of all that wait, in order."""
        waiting = sorted((*self.slots.queue, *self.aux.queue), key=lambda request: request.rank)
        return {request.allocation_id: position for position, request in enumerate(waiting)}

    def waiting(self) -> list[Request]:
        """In the order in which they are considered."""
        return sorted((*self.slots.queue, *self.aux.queue), key=lambda request: request.rank)

    def running(self) -> dict[str, tuple[Request, Assignment]]:
        """Allocation -> what it asked for and what it holds."""
        slotted = {name: (r.request, r.assignment) for name, r in self.slots.running.items()}
        return slotted | {name: (r.request, _bare(r.assignment)) for name, r in self.aux.running.items()}

    def preempting(self) -> frozenset[str]:
        """Running allocations that have been told to stop."""
        return frozenset((*self.slots.leaving, *self.aux.leaving))

    def request(self, allocation_id: str) -> Request:
        side = self._side_of(allocation_id)
        if allocation_id in side.running:
            return side.running[allocation_id].request
        return side.queue[allocation_id]

    def max_slots(self, job_id: str) -> int | None:
        return self._caps.get(job_id)

    def used_slots(self, job_id: str) -> int:
        return self._used.get(job_id, 0)


Shape: TypeAlias = tuple[int, bool, frozenset[str]]


def _shape(request: Request) -> Shape:
    return request.slots, request.single_node, request.excluded


def _bare(assignment: Assignment) -> dict[str, tuple[SlotId, ...]]:
    return {agent_id: () for agent_id in assignment}


class _Side:
    """The requests with slots; or those without, each of which takes one of an agent's places for them."""

    def __init__(self, pool: PoolConfig) -> None:
        self.inventory = Inventory(pool.fitting)
        self.queue = Queue()
        self.running: dict[str, Running] = {}
        self.leaving: dict[str, None] = {}  # those of running that have been told to stop
        self._of_job: dict[str, dict[str, None]] = {}

    def in_units(self, request: Request) -> Request:
        return request if request.slots else replace(request, slots=1, single_node=True)

    def find(self, request: Request) -> Mapping[str, tuple[SlotId, ...]] | None:
        single_node = request.single_node or not request.slots
        return self.inventory.find(request.slots or 1, single_node, request.excluded)

    def could_ever_fit(self, request: Request) -> bool:
        single_node = request.single_node or not request.slots
        return self.inventory.could_ever_fit(request.slots or 1, single_node, request.excluded)

    def start(self, request: Request, assignment: Assignment) -> None:
        self.inventory.take(request.allocation_id, assignment)
        self.running[request.allocation_id] = Running(request, assignment)
        self._of_job.setdefault(request.job_id, {})[request.allocation_id] = None

    def end(self, allocation_id: str) -> Request:
        running = self.running.pop(allocation_id)
        self.leaving.pop(allocation_id, None)
        self.inventory.give_back(running.assignment)
        of_job = self._of_job[running.request.job_id]
        del of_job[allocation_id]
        if not of_job:
            del self._of_job[running.request.job_id]
        return running.request

    def running_of(self, job_id: str) -> list[str]:
        return list(self._of_job.get(job_id, ()))

    def eviction(self) -> Eviction:
        return Eviction(
            self.inventory,
            [self.running[allocation_id] for allocation_id in self.leaving],
            [
                running
                for allocation_id, running in self.running.items()
                if running.request.preemptible and allocation_id not in self.leaving
            ],
        )
