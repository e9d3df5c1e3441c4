"""Notebook servers that JupyterHub asks for: tasks in the same queue as trials.

A server is never started a second time: when its allocation ends, however it ends, its task has ended, and the Hub
decides what comes next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from detlab_master.core.allocation import KillRequested
from detlab_master.core.errors import Conflict, Invalid, NotFound
from detlab_master.core.records import Allocation, Task, User
from detlab_master.core.scheduling import Request
from detlab_master.core.states import AllocationState, TaskType
from detlab_master.engine import clock
from detlab_master.engine.allocations import STORE_RETRY_SECONDS, AllocationService
from detlab_master.resources.base import ResourceManager
from detlab_master.store.base import LogFilter, Store, StoreUnavailable
from detlab_master.store.writes import SaveAllocation, SaveTask

logger = logging.getLogger(__name__)
SHOWN_LOG_LINES = 20


@dataclass(frozen=True)
class ServerRequest:
    """What the Hub wants to have run."""

    name: str  # of a named server; "" for the default one
    slots: int
    resource_pool: str  # "" for the default one
    priority: int | None
    command: tuple[str, ...]
    environment: Mapping[str, str]  # holds secrets of the Hub
    home: str | None  # folder of the user that outlives the server
    task_id: str | None = None  # chosen by who asks, so that asking again makes no second server


@dataclass(frozen=True)
class ServerStatus:
    """How a server is doing."""

    task: Task
    allocation: Allocation
    position: int  # in the queue; -1 when it does not wait
    reason: str  # why it waits, for people
    log: tuple[str, ...]  # the last lines


class ServerService:
    def __init__(
        self,
        *,
        store: Store,
        ids: clock.Ids,
        allocations: AllocationService,
        resources: ResourceManager,
        default_pool: str,
        default_priority: Mapping[str, int],
    ) -> None:
        self._store = store
        self._ids = ids
        self._allocations = allocations
        self._resources = resources
        self._default_pool = default_pool
        self._default_priority = default_priority
        self._ending: set[asyncio.Task[None]] = set()
        self._creating = asyncio.Lock()

    async def create(self, owner: User, asked: ServerRequest) -> Task:
        """Queue a server; one with this id that is there already is left as it is.

        Raises:
            Invalid: no command, no such pool, or more slots than the pool can ever give.
            Conflict: the id is another task's.
        """
        async with self._creating:
            known = None
            if asked.task_id is not None:
                known = await asyncio.to_thread(self._store.trials.task, asked.task_id)
            if known is None:
                return await self._create(owner, asked)
            if known.type is not TaskType.NOTEBOOK or known.owner_id != owner.id:
                raise Conflict(f"task {asked.task_id} is there already, and is not this server")
            return known

    async def _create(self, owner: User, asked: ServerRequest) -> Task:
        pool = asked.resource_pool or self._default_pool
        self._check(asked, pool)
        task = Task(
            id=asked.task_id or self._ids.unique(),
            type=TaskType.NOTEBOOK,
            owner_id=owner.id,
            job_id=self._ids.unique(),
            start_time=clock.now(),
            config={
                "name": asked.name,
                "command": list(asked.command),
                "environment": dict(asked.environment),
                "home": asked.home,
            },
        )
        allocation = Allocation(
            id=f"{task.id}.1",
            task_id=task.id,
            owner_id=owner.id,
            run_id=1,
            resource_pool=pool,
            slots=asked.slots,
            priority=asked.priority or self._default_priority[pool],
            state=AllocationState.QUEUED,
            queued_at=clock.now(),
            queue_order=self._ids.queue_order(),
        )
        await asyncio.wrap_future(self._store.commit([SaveTask(task), SaveAllocation(allocation)]))
        self._allocations.adopt(task, allocation, _request(task, allocation))
        return task

    def _check(self, asked: ServerRequest, pool: str) -> None:
        if not asked.command:
            raise Invalid("the server has no command")
        pools = {p.name: p for p in self._resources.pools()}
        if pool not in pools:
            raise Invalid(f"there is no resource pool {pool!r}; there are: {', '.join(sorted(pools))}")
        have = pools[pool].slots_total
        if asked.slots > have > 0:
            raise Invalid(
                f"the server asks for {asked.slots} slots, and the resource pool {pool!r} has {have} in all:"
                " it could never start. Ask for fewer, or choose another pool"
            )
        if asked.priority is not None and not 1 <= asked.priority <= 99:
            raise Invalid(f"the priority is {asked.priority}: it must be from 1 (goes first) to 99")

    async def status(self, task_id: str) -> ServerStatus:
        """How a server is doing.

        Raises:
            NotFound: there is no such server.
        """
        task = await self._task(task_id)
        kept = await asyncio.to_thread(self._store.trials.allocations, task_id)
        allocation = self._allocations.get(kept[-1].id) or kept[-1]
        position, reason = -1, ""
        if allocation.state is AllocationState.QUEUED:
            position, reason = self._resources.waits(allocation.id)
        lines = await asyncio.to_thread(
            lambda: self._store.logs.find(LogFilter([task_id]), limit=SHOWN_LOG_LINES, descending=True)
        )
        return ServerStatus(task, allocation, position, reason, tuple(line.log for line in reversed(lines)))

    async def kill(self, task_id: str) -> None:
        """End a server; one that has ended already is left as it is."""
        await self._task(task_id)
        await self._allocations.tell(f"{task_id}.1", KillRequested("stopped by JupyterHub"))

    async def set_address(self, task_id: str, address: str) -> None:
        """The server says where it serves.

        Raises:
            Invalid: that is not on the machine that it runs on.
        """
        task = await self._task(task_id)
        host, _, port = address.rpartition(":")
        allocation = self._allocations.get(f"{task_id}.1")
        own = {"127.0.0.1"} | {c.address for c in allocation.containers} if allocation else set()
        if host not in own or not port.isdecimal() or not 1024 <= int(port) <= 65535:
            raise Invalid(
                f"the server's address is {address!r}: expected HOST:PORT with a host of {', '.join(sorted(own))}"
                " and a port of 1024 or more"
            )
        await asyncio.wrap_future(self._store.commit([SaveTask(replace(task, address=address))]))

    async def _task(self, task_id: str) -> Task:
        task = await asyncio.to_thread(self._store.trials.task, task_id)
        if task is None or task.type is not TaskType.NOTEBOOK:
            raise NotFound(f"server '{task_id}' not found")
        return task

    def allocation_ended(self, task: Task, allocation: Allocation) -> None:
        ending = asyncio.create_task(self._end(task.id, allocation))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _end(self, task_id: str, allocation: Allocation) -> None:
        while True:
            try:
                task = await self._task(task_id)
                ended = replace(task, end_time=allocation.ended_at, config=_without_secrets(task.config))
                await asyncio.wrap_future(self._store.commit([SaveTask(ended)]))
                return
            except StoreUnavailable:
                await asyncio.sleep(STORE_RETRY_SECONDS)

    async def restore(self) -> None:
        """After a start of the master: servers wait or run on."""
        for allocation in await asyncio.to_thread(self._store.trials.open_allocations):
            task = await asyncio.to_thread(self._store.trials.task, allocation.task_id)
            if task is not None and task.type is TaskType.NOTEBOOK:
                self._allocations.adopt(task, allocation, _request(task, allocation))

    async def close(self) -> None:
        for ending in list(self._ending):
            ending.cancel()
        await asyncio.gather(*self._ending, return_exceptions=True)


def _request(task: Task, allocation: Allocation) -> Request:
    return Request(
        allocation_id=allocation.id,
        job_id=task.job_id,
        pool=allocation.resource_pool,
        slots=allocation.slots,
        priority=allocation.priority,
        order=allocation.queue_order,
        preemptible=False,  # there is no checkpoint to come back to
        single_node=True,
    )


def _without_secrets(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "environment"}
