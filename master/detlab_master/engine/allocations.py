"""Allocations: from the queue through their containers to their end, for every kind of task.

All open allocations share one inbox: their events are few, and what happens to several at once (an agent that is lost)
is one transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial

from detlab_agent import protocol
from detlab_master.core import allocation as core
from detlab_master.core.errors import Invalid, NotFound, RequestError
from detlab_master.core.records import Allocation, Container, LogLine, Task
from detlab_master.core.scheduling import Request
from detlab_master.core.states import AllocationState, TaskType
from detlab_master.engine import clock
from detlab_master.engine.inbox import Inbox, Plan
from detlab_master.engine.logs import LogService
from detlab_master.engine.topics import Topics
from detlab_master.resources.base import ResourceManager
from detlab_master.store.base import Store, StoreUnavailable
from detlab_master.store.writes import AppendLogs, DeleteSessionsOf, SaveAllocation

logger = logging.getLogger(__name__)
RENDEZVOUS_TIMEOUT = 600.0  # seconds
STORE_RETRY_SECONDS = 1.0

SpecBuilder = Callable[[Task, Allocation, Container], Awaitable[protocol.ContainerSpec]]
Owner = Callable[[Task, Allocation], None]  # hears of the end of an allocation


@dataclass(frozen=True)
class _Adopted:
    """An allocation that was kept in another transaction enters the queue (or comes back after a restart)."""

    task: Task
    allocation: Allocation
    request: Request


@dataclass(frozen=True)
class _Happened:
    allocation_id: str
    event: core.Event


@dataclass(frozen=True)
class _AgentGone:
    agent_id: str


_Event = _Adopted | _Happened | _AgentGone


class AllocationService:
    """Implements resources.base.Listener for the resource manager, and the container routes for the API."""

    def __init__(self, store: Store, topics: Topics, logs: LogService) -> None:
        self._store = store
        self._topics = topics
        self._logs = logs
        self._open: dict[str, Allocation] = {}
        self._tasks: dict[str, Task] = {}  # allocation id -> its task
        self._of_job: dict[str, set[str]] = {}  # job id -> its open allocations
        self._called_in: dict[str, set[str]] = {}  # allocation id -> containers that wait at the rendezvous
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._deadlines: dict[str, asyncio.TimerHandle] = {}  # of those that are to exit by themselves
        self._background: set[asyncio.Task[None]] = set()
        self._owners: dict[TaskType, Owner] = {}
        self._end_hooks: list[Callable[[str], None]] = []
        self._resources: ResourceManager
        self._build_spec: SpecBuilder
        self._inbox: Inbox[_Event] = Inbox("allocations", self, store)

    def wire(self, resources: ResourceManager, build_spec: SpecBuilder) -> None:
        """The parts that in their turn need this one."""
        self._resources = resources
        self._build_spec = build_spec

    def owned_by(self, task_type: TaskType, owner: Owner) -> None:
        self._owners[task_type] = owner

    def on_end(self, hook: Callable[[str], None]) -> None:
        """Called with the id of each allocation that has ended."""
        self._end_hooks.append(hook)

    # What the rest of the engine asks

    def get(self, allocation_id: str) -> Allocation | None:
        """An allocation that has not ended."""
        return self._open.get(allocation_id)

    def task_of(self, allocation_id: str) -> Task | None:
        """The task of an allocation that has not ended."""
        return self._tasks.get(allocation_id)

    def most_advanced(self, job_id: str) -> AllocationState | None:
        """The state that a job is shown in; None when nothing of it is queued or runs."""
        states = [self._open[allocation_id].state for allocation_id in self._of_job.get(job_id, ())]
        return max(states, key=lambda state: state.progress, default=None)

    def adopt(self, task: Task, allocation: Allocation, request: Request) -> None:
        """Take over an allocation that is in the store: QUEUED ones enter the queue, others keep their slots."""
        self._open[allocation.id] = allocation
        self._tasks[allocation.id] = task
        self._of_job.setdefault(task.job_id, set()).add(allocation.id)
        if allocation.state is AllocationState.QUEUED:
            self._resources.submit(request)
        else:
            self._resources.restore(request, allocation.containers)
            if allocation.kill_requested or allocation.aborted or allocation.failure is not None:
                for container in allocation.containers:  # the last master may not have come to it
                    if not container.ended:
                        self._resources.kill(container, core.KILL_GRACE_SECONDS)
        if allocation.preempt_requested_at is not None:
            self._arm(allocation.id, core.grace_left(allocation, clock.now()))

    def tell(self, allocation_id: str, event: core.Event) -> asyncio.Future[None]:
        return self._inbox.tell(_Happened(allocation_id, event))

    def insist(self, allocation_id: str, event: core.Event) -> None:
        """Hand in an event that has to be kept sooner or later, also when the database is away for a while."""
        self._in_background(self._insist(_Happened(allocation_id, event)))

    def kill_later(self, allocation_id: str, seconds: float, reason: str) -> None:
        """Kill it unless it ends by itself before; the first deadline counts."""
        if allocation_id in self._open and allocation_id not in self._deadlines:
            self._deadlines[allocation_id] = asyncio.get_running_loop().call_later(
                seconds, lambda: self.insist(allocation_id, core.KillRequested(reason))
            )

    async def close(self) -> None:
        await self._inbox.close()
        for timer in (*self._timers.values(), *self._deadlines.values()):
            timer.cancel()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    # What containers ask, through the API

    async def wait_preemption(self, allocation_id: str, timeout_s: float) -> bool:
        """Whether the task shall stop; waits up to ``timeout_s`` seconds for it. True once it has ended."""

        def asked_to_stop() -> bool:
            allocation = self._open.get(allocation_id)
            return allocation is None or allocation.preempt_requested_at is not None

        return await self._topics.wait_until([("preemption", allocation_id)], asked_to_stop, timeout_s)

    async def ack_preemption(self, allocation_id: str) -> None:
        await self.tell(allocation_id, core.PreemptionAcked())

    async def ready(self, allocation_id: str) -> None:
        await self.tell(allocation_id, core.BecameReady())

    async def mark_daemon(self, allocation_id: str, resources_id: str) -> None:
        await self.tell(allocation_id, core.DaemonMarked(resources_id))

    async def accelerator_data(self, allocation_id: str, data: dict[str, object]) -> None:
        logger.info("allocation %s runs with %s", allocation_id, data)

    async def rendezvous(self, allocation_id: str, resources_id: str) -> tuple[list[str], int, list[int]]:
        """Wait until every container of the allocation runs and has called in.

        Returns:
            The address of each container in rank order, this container's rank, the slots of each.

        Raises:
            NotFound: no such container in an allocation that runs.
            Invalid: the others did not come within ten minutes.
        """
        allocation = self._open.get(allocation_id)
        ids = [c.id for c in allocation.containers] if allocation else []
        if resources_id not in ids:
            raise NotFound(f"allocation {allocation_id} has no running container {resources_id!r}")
        called = self._called_in.setdefault(allocation_id, set())
        called.add(resources_id)
        topic = ("rendezvous", allocation_id)
        self._topics.notify(topic)

        def complete() -> bool:
            current = self._open.get(allocation_id)
            if current is None:
                return True
            running = all(c.state is AllocationState.RUNNING for c in current.containers)
            return running and called.issuperset(c.id for c in current.containers)

        if not await self._topics.wait_until([topic], complete, RENDEZVOUS_TIMEOUT):
            missing = sorted(set(ids) - called)
            raise Invalid(
                f"the containers {', '.join(missing)} did not call in within {RENDEZVOUS_TIMEOUT:g} s"
            )
        current = self._open.get(allocation_id)
        if current is None:
            raise NotFound(f"allocation {allocation_id} has ended")
        if not current.ready:
            await self.tell(allocation_id, core.BecameReady())
        addresses = [c.address or "127.0.0.1" for c in current.containers]
        slots = [max(1, len(c.slot_ids)) for c in current.containers]
        return addresses, ids.index(resources_id), slots

    # What the resource manager tells (resources.base.Listener)

    def granted(self, allocation_id: str, containers: tuple[Container, ...]) -> None:
        self.insist(allocation_id, core.Granted(containers))

    def unplaceable(self, allocation_id: str, reason: str) -> None:
        self.insist(allocation_id, core.Unplaceable(reason))

    def preempt(self, allocation_id: str, reason: str) -> None:
        self.insist(allocation_id, core.PreemptionRequested(reason))

    async def container_moved(self, allocation_id: str, moved: core.ContainerMoved) -> None:
        await self._insist(_Happened(allocation_id, moved))

    def agent_lost(self, agent_id: str) -> None:
        self._in_background(self._insist(_AgentGone(agent_id)))

    async def _insist(self, event: _Event) -> None:
        """What has happened has happened: where the database is away, keep it as soon as it is back."""
        while True:
            try:
                await self._inbox.ask(event)
                return
            except StoreUnavailable:
                await asyncio.sleep(STORE_RETRY_SECONDS)

    def container_wanted(self, allocation_id: str, container_id: str) -> bool:
        allocation = self._open.get(allocation_id)
        return allocation is not None and any(
            c.id == container_id and not c.ended for c in allocation.containers
        )

    def containers_on(self, agent_id: str) -> Sequence[tuple[str, Container]]:
        return [
            (allocation.id, container)
            for allocation in self._open.values()
            for container in allocation.containers
            if container.agent_id == agent_id and not container.ended
        ]

    def start_again(self, allocation_id: str, container_id: str) -> None:
        allocation = self._open[allocation_id]
        self._start(allocation, next(c for c in allocation.containers if c.id == container_id))

    async def log_lines(self, lines: Sequence[LogLine]) -> None:
        await self._logs.append(lines)

    # The machine of the inbox

    async def apply(self, event: _Event, plan: Plan) -> None:
        match event:
            case _Happened(allocation_id, happened):
                self._step(allocation_id, happened, plan)
            case _AgentGone(agent_id):
                for allocation_id in {allocation_id for allocation_id, _ in self.containers_on(agent_id)}:
                    self._step(allocation_id, core.AgentLost(agent_id), plan)

    async def reload(self) -> None:
        """The open allocations as they were kept; containers that moved meanwhile are reported again by agents."""
        for kept in await asyncio.to_thread(self._store.trials.open_allocations):
            if kept.id in self._open:
                self._open[kept.id] = kept

    def _step(self, allocation_id: str, event: core.Event, plan: Plan) -> None:
        before = self._open.get(allocation_id)
        if before is None:
            return
        after, effects = core.step(before, event, clock.now())
        if after != before:
            self._open[allocation_id] = after
            plan.writes.append(SaveAllocation(after))
            self._narrate(before, after, plan)
        for effect in effects:
            match effect:
                case core.StartContainer(container):
                    plan.effects.append(partial(self._start, after, container))
                case core.KillContainer(container, grace_seconds):
                    plan.effects.append(partial(self._resources.kill, container, grace_seconds))
                case core.SignalPreemption():
                    plan.effects.append(lambda: self._topics.notify(("preemption", allocation_id)))
                case core.ArmPreemptionTimeout(seconds):
                    plan.effects.append(partial(self._arm, allocation_id, seconds))
                case core.Ended():
                    plan.writes.append(DeleteSessionsOf(allocation_id))
                    plan.effects.append(lambda: self._ended(after))
        plan.effects.append(lambda: self._topics.notify(("rendezvous", allocation_id)))

    def _narrate(self, before: Allocation, after: Allocation, plan: Plan) -> None:
        """The lines about scheduling and the end that a person looks for in a task's log."""
        text = None
        if before.state is AllocationState.QUEUED and after.state is AllocationState.ASSIGNED:
            where = ", ".join(f"{c.agent_id} (slots {list(c.slot_ids)})" for c in after.containers)
            text = f"Scheduled on {where}, run {after.run_id}"
        elif after.preempt_requested_at is not None and before.preempt_requested_at is None:
            why = after.exit_reason or "other work goes first"
            text = f"Asked to stop within {after.preemption_timeout:g} s: {why}"
        elif after.state is AllocationState.TERMINATED:
            code = "" if after.exit_code is None else f" with exit code {after.exit_code}"
            reason = after.exit_reason or ""
            why = "" if not reason or (code and reason.endswith(code)) else f": {reason}"
            text = f"Ended{code}{why}"
        if text is not None:
            failed = after.state is AllocationState.TERMINATED and after.failure is not None
            level = "LOG_LEVEL_ERROR" if failed else "LOG_LEVEL_INFO"
            plan.writes.append(AppendLogs((self._logs.say(after.task_id, after.id, text, level=level),)))
            plan.effects.append(lambda: self._logs.kept(after.task_id))

    # Effects

    def _start(self, allocation: Allocation, container: Container) -> None:
        self._in_background(self._start_when_built(allocation, container))

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        running = asyncio.create_task(work)
        self._background.add(running)
        running.add_done_callback(self._background.discard)

    async def _start_when_built(self, allocation: Allocation, container: Container) -> None:
        while self.container_wanted(allocation.id, container.id):
            try:
                spec = await self._build_spec(self._tasks[allocation.id], allocation, container)
            except StoreUnavailable as error:
                logger.warning("allocation %s cannot start yet: %s", allocation.id, error)
                await asyncio.sleep(STORE_RETRY_SECONDS)
                continue
            except Exception as error:
                gone = isinstance(error, RequestError)
                if not gone:
                    logger.exception("allocation %s cannot start", allocation.id)
                moved = core.ContainerMoved(
                    container.id,
                    AllocationState.TERMINATED,
                    failure=core.UNPREPARED if gone else core.TASK_FAILED,
                    message=f"the task could not be prepared: {error}",
                )
                self.insist(allocation.id, moved)
                return
            if self.container_wanted(allocation.id, container.id):
                self._resources.start(container, spec)
            return

    def _arm(self, allocation_id: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timers[allocation_id] = loop.call_later(
            seconds, lambda: self.insist(allocation_id, core.PreemptionTimedOut())
        )

    def _ended(self, allocation: Allocation) -> None:
        self._open.pop(allocation.id, None)
        task = self._tasks.pop(allocation.id)
        self._of_job.get(task.job_id, set()).discard(allocation.id)
        if not self._of_job.get(task.job_id):
            self._of_job.pop(task.job_id, None)
        self._called_in.pop(allocation.id, None)
        for timers in (self._timers, self._deadlines):
            if timer := timers.pop(allocation.id, None):
                timer.cancel()
        self._resources.release(allocation.id)
        self._topics.notify(("preemption", allocation.id), ("rendezvous", allocation.id))
        for hook in self._end_hooks:
            hook(allocation.id)
        self._owners[task.type](task, allocation)
