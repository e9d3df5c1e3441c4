"""The resource manager over agents: pools of slots, a scheduler for each, and one connection per agent.

Rules:

- The scheduler runs once per turn of the event loop over all that changed, never once per request.
- An agent that loses its connection keeps its containers for ``reconnect_wait`` seconds; then it is lost, and what it
  ran is given up. If it comes back later, the containers that nobody wants any more are killed **before** its slots are
  given out again: no trial runs twice at once.
- A request whose pool has only agents that it excludes (log policies) is refused when it comes, so that nobody waits
  for what cannot be. After a start of the master agents have ``reconnect_wait`` seconds to come back before that, and
  minutes where the request is older than the start: it was found possible then.
- What was told to an agent may not have arrived. When it connects, what it has is compared with what it should have,
  and starts and kills are said again.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, assert_never

from detlab_agent import protocol
from detlab_master.core.allocation import KILL_GRACE_SECONDS, ContainerMoved
from detlab_master.core.records import Container, LogLine
from detlab_master.core.scheduling import PoolConfig as SchedulerPool
from detlab_master.core.scheduling import Preempt, PriorityScheduler, Request, Start, explain
from detlab_master.core.states import AllocationState
from detlab_master.core.task_spec import ClusterFacts
from detlab_master.resources.base import AgentSummary, Listener, PoolSummary, SlotSummary

logger = logging.getLogger(__name__)
Send = Callable[[protocol.MasterMessage], None]
_AGENTS_BACK = 300.0  # seconds


@dataclass(frozen=True)
class PoolConfig:
    """A resource pool of master.yaml."""

    name: str
    description: str = ""
    preemption: bool = False
    fitting_policy: Literal["best", "worst"] = "best"
    default_priority: int = 42
    max_aux_per_agent: int = 100
    reconnect_wait: float = 25.0  # seconds


@dataclass
class _Pool:
    config: PoolConfig
    scheduler: PriorityScheduler


@dataclass
class _Agent:
    id: str
    pool: str
    devices: tuple[protocol.Device, ...] = ()
    version: str = ""
    addresses: tuple[str, ...] = ()
    environments: tuple[protocol.PythonOffer, ...] = ()
    registered_at: float = 0.0
    send: Send | None = None  # None: not connected
    lost: asyncio.TimerHandle | None = None
    leftovers: set[str] = field(default_factory=set)  # unwanted containers that still have to end
    kills: dict[str, float] = field(
        default_factory=dict
    )  # container id -> grace: asked for, and not ended yet


@dataclass
class _Held:
    """A request in the queue or with slots."""

    request: Request
    assignment: dict[str, tuple[int, ...]] | None = None
    containers: dict[str, str] = field(default_factory=dict)  # container id -> agent id
    checked_again: asyncio.TimerHandle | None = None  # whether it may run anywhere at all

    def stop_checking(self) -> None:
        if self.checked_again is not None:
            self.checked_again.cancel()


class AgentConnection:
    """One agent's connection, for as long as it lasts; the API feeds it what arrives."""

    def __init__(self, manager: Agents, agent_id: str, send: Send) -> None:
        self._manager = manager
        self._agent_id = agent_id
        self._send = send

    async def received(self, message: protocol.Message) -> None:
        await self._manager._received(self._agent_id, message, self._send)

    def closed(self) -> None:
        self._manager._disconnected(self._agent_id, self._send)


class Agents:
    """Implements resources.base.ResourceManager."""

    def __init__(self, pools: Sequence[PoolConfig], cluster: ClusterFacts) -> None:
        self._cluster = cluster
        self._pools = {
            config.name: _Pool(
                config,
                PriorityScheduler(
                    SchedulerPool(config.preemption, config.fitting_policy, config.max_aux_per_agent)
                ),
            )
            for config in pools
        }
        self._agents: dict[str, _Agent] = {}
        self._held: dict[str, _Held] = {}
        self._tick: asyncio.Handle | None = None
        self._started_at = time.monotonic()
        self._met_agents = False  # what was asked for before that is from before the start
        self._background: set[asyncio.Future[None]] = set()
        self._listener: Listener

    def wire(self, listener: Listener) -> None:
        self._listener = listener

    def close(self) -> None:
        for agent in self._agents.values():
            if agent.lost:
                agent.lost.cancel()
        for held in self._held.values():
            held.stop_checking()
        for waiting in self._background:
            waiting.cancel()

    # resources.base.ResourceManager

    def submit(self, request: Request) -> None:
        self._held[request.allocation_id] = _Held(request)
        self._pools[request.pool].scheduler.submit(request)
        if request.excluded:
            loop = asyncio.get_running_loop()
            held = self._held[request.allocation_id]
            wait = self._time_for_agents(self._pools[request.pool])
            held.checked_again = loop.call_later(wait, self._refuse_impossible, request)
        self._changed()

    def restore(self, request: Request, containers: Sequence[Container]) -> None:
        assignment = {c.agent_id: c.slot_ids for c in containers}
        held = _Held(request, assignment, {c.id: c.agent_id for c in containers})
        self._held[request.allocation_id] = held
        self._pools[request.pool].scheduler.restore(request, assignment)
        for agent_id in assignment:
            if agent_id not in self._agents:
                self._agents[agent_id] = _Agent(agent_id, request.pool)
                self._expect_back(self._agents[agent_id])

    def release(self, allocation_id: str) -> None:
        held = self._held.pop(allocation_id, None)
        if held is not None:
            held.stop_checking()
            self._pools[held.request.pool].scheduler.release(allocation_id)
            self._changed()

    def set_priority(self, job_id: str, priority: int) -> None:
        for pool in self._pools.values():
            pool.scheduler.set_priority(job_id, priority)
        self._changed()

    def set_max_slots(self, job_id: str, max_slots: int | None) -> None:
        for pool in self._pools.values():
            pool.scheduler.set_max_slots(job_id, max_slots)
        self._changed()

    def jobs_ahead(self, job_id: str) -> int:
        return max(pool.scheduler.jobs_ahead(job_id) for pool in self._pools.values())

    def waits(self, allocation_id: str) -> tuple[int, str]:
        held = self._held.get(allocation_id)
        if held is None or held.assignment is not None:
            return -1, ""
        scheduler = self._pools[held.request.pool].scheduler
        return scheduler.position(allocation_id), explain(scheduler, allocation_id)

    def start(self, container: Container, spec: protocol.ContainerSpec) -> None:
        agent = self._agents.get(container.agent_id)
        if agent is not None and agent.send is not None:
            agent.send(protocol.StartContainer(spec))
            if (
                container.id in agent.kills
            ):  # asked for while the start was prepared: the agent knew of none yet
                agent.send(protocol.KillContainer(container.id, agent.kills[container.id]))

    def kill(self, container: Container, grace_seconds: float) -> None:
        agent = self._agents.get(container.agent_id)
        if agent is None:
            return
        agent.kills[container.id] = grace_seconds
        if agent.send is not None:
            agent.send(protocol.KillContainer(container.id, grace_seconds))

    def pools(self) -> list[PoolSummary]:
        return [self._pool_summary(pool) for pool in self._pools.values()]

    def agents(self) -> list[AgentSummary]:
        return [self._agent_summary(agent) for agent in self._agents.values() if agent.devices or agent.send]

    # Agents come and go

    def connect(
        self, hello: protocol.Hello, send: Send, stored: Mapping[str, int]
    ) -> AgentConnection | protocol.Refused:
        """An agent's first message on a connection: welcome it, or say why not.

        ``stored``: up to which offset the lines of its containers are kept, where that is known.
        """
        if hello.protocol != protocol.PROTOCOL_VERSION:
            return protocol.Refused(
                f"the agent speaks protocol {hello.protocol}, this master {protocol.PROTOCOL_VERSION}:"
                " install the same Detlab version on both"
            )
        if hello.resource_pool not in self._pools:
            known = ", ".join(sorted(self._pools))
            return protocol.Refused(f"there is no resource pool {hello.resource_pool!r}; there are: {known}")
        agent = self._agents.get(hello.agent_id)
        if agent is not None and agent.send is not None:
            return protocol.Refused(
                f"an agent named {hello.agent_id!r} is connected already; give this one another --agent-id",
                permanent=False,
            )
        if agent is not None and self._changed_its_slots(agent, hello):
            self._lose(agent)
            agent = None
        if agent is None:
            agent = self._agents[hello.agent_id] = _Agent(hello.agent_id, hello.resource_pool)
        if agent.lost is not None:
            agent.lost.cancel()
            agent.lost = None
        agent.devices, agent.version, agent.addresses = hello.slots, hello.version, hello.addresses
        agent.environments = hello.environments
        agent.registered_at, agent.send = time.time(), send
        self._met_agents = True
        self._reconcile(agent, hello, stored)
        logger.info("agent %s connected with %d slots", agent.id, len(agent.devices))
        return AgentConnection(self, agent.id, send)

    def _changed_its_slots(self, agent: _Agent, hello: protocol.Hello) -> bool:
        if agent.pool != hello.resource_pool:
            return True
        used = {
            slot for _, c in self._listener.containers_on(agent.id) for slot in c.slot_ids
        }  # a restarted master knows only these
        offered = {device.id for device in hello.slots}
        return not used <= offered or bool(agent.devices and agent.devices != hello.slots)

    def _reconcile(self, agent: _Agent, hello: protocol.Hello, stored: Mapping[str, int]) -> None:
        """Bring what the agent has and what it should have together."""
        assert agent.send is not None
        reported = {report.container_id: report for report in hello.containers}
        wanted = dict(self._wanted(agent.id))
        ended = protocol.ContainerState.TERMINATED
        agent.leftovers = {i for i, r in reported.items() if i not in wanted and r.state is not ended}
        # An agent silently kills what it is not to keep. We want to hear of the end of leftovers too.
        keep = tuple(i for i in reported if i in wanted or i in agent.leftovers)
        agent.send(protocol.Welcome(self._cluster.master_id, self._cluster.cluster_id, keep, dict(stored)))
        for container_id in agent.leftovers:
            agent.send(protocol.KillContainer(container_id, KILL_GRACE_SECONDS))
        for container_id in keep:
            self._moved(agent, reported[container_id])
        for container_id, (allocation_id, container) in wanted.items():
            if container_id in agent.kills:
                agent.send(protocol.KillContainer(container_id, agent.kills[container_id]))
            if container_id in reported:
                continue
            if container.state is AllocationState.ASSIGNED:
                self._listener.start_again(allocation_id, container_id)
            else:
                gone = ContainerMoved(
                    container_id,
                    AllocationState.TERMINATED,
                    failure=protocol.FailureKind.CONTAINER_MISSING,
                    message=f"agent {agent.id} came back without it",
                )
                self._background_task(self._listener.container_moved(allocation_id, gone))
        if not agent.leftovers:
            self._offer(agent)

    def _wanted(self, agent_id: str) -> list[tuple[str, tuple[str, Container]]]:
        return [(c.id, (allocation_id, c)) for allocation_id, c in self._listener.containers_on(agent_id)]

    def _offer(self, agent: _Agent) -> None:
        """The agent's slots can be given out."""
        scheduler = self._pools[agent.pool].scheduler
        if scheduler.has_agent(agent.id):
            scheduler.set_agent_enabled(agent.id, True)
        else:
            scheduler.add_agent(agent.id, [device.id for device in agent.devices])
        self._changed()

    def _disconnected(self, agent_id: str, send: Send) -> None:
        agent = self._agents.get(agent_id)
        if agent is None or agent.send is not send:
            return
        agent.send = None
        self._close(agent)
        logger.warning("agent %s lost its connection", agent_id)
        self._expect_back(agent)

    def _close(self, agent: _Agent) -> None:
        """Give out nothing more of the agent."""
        scheduler = self._pools[agent.pool].scheduler
        if scheduler.has_agent(agent.id):
            scheduler.set_agent_enabled(agent.id, False)

    def _expect_back(self, agent: _Agent) -> None:
        wait = self._pools[agent.pool].config.reconnect_wait
        agent.lost = asyncio.get_running_loop().call_later(wait, self._lose, agent)

    def _lose(self, agent: _Agent) -> None:
        if agent.lost is not None:
            agent.lost.cancel()
        self._agents.pop(agent.id, None)
        scheduler = self._pools[agent.pool].scheduler
        if scheduler.has_agent(agent.id):
            scheduler.remove_agent(agent.id)
        logger.warning("agent %s is lost", agent.id)
        self._listener.agent_lost(agent.id)
        self._changed()

    # Messages

    async def _received(self, agent_id: str, message: protocol.Message, send: Send) -> None:
        agent = self._agents.get(agent_id)
        if agent is None or agent.send is not send:
            return  # of a connection that was replaced
        match message:
            case protocol.ContainerStateChanged():
                self._moved(agent, message)
            case protocol.LogBatch():
                await self._logs(agent, message)
            case _:
                raise protocol.ProtocolError(f"an agent does not say {type(message).__name__} here")

    def _moved(
        self, agent: _Agent, report: protocol.ContainerReport | protocol.ContainerStateChanged
    ) -> None:
        failure = report.failure
        moved = ContainerMoved(
            report.container_id,
            AllocationState(report.state),
            exit_code=report.exit_code,
            failure=None if failure is None else str(failure.kind),
            message="" if failure is None else failure.message,
            address=agent.addresses[0] if agent.addresses else "",
        )
        self._background_task(self._keep_state(agent, report.allocation_id, moved))

    async def _keep_state(self, agent: _Agent, allocation_id: str, moved: ContainerMoved) -> None:
        await self._listener.container_moved(allocation_id, moved)
        if moved.state is not AllocationState.TERMINATED:
            return
        agent.kills.pop(moved.container_id, None)
        if agent.send is not None:
            agent.send(protocol.AckState(moved.container_id))
        if moved.container_id in agent.leftovers:
            agent.leftovers.discard(moved.container_id)
            if not agent.leftovers and agent.send is not None:
                self._offer(agent)

    async def _logs(self, agent: _Agent, batch: protocol.LogBatch) -> None:
        lines = [
            LogLine(
                task_id=batch.task_id,
                allocation_id=batch.allocation_id,
                timestamp=datetime.fromisoformat(line.timestamp).timestamp(),
                log=line.log,
                container_id=batch.container_id,
                agent_id=agent.id,
                rank_id=line.rank_id,
                level=line.level or "",
                stdtype=str(line.stdtype),
                source="task",
                offset=line.offset,
            )
            for line in batch.lines
        ]
        await self._listener.log_lines(lines)
        if agent.send is not None and batch.lines:
            agent.send(protocol.AckLogs(batch.container_id, batch.lines[-1].offset))

    # Scheduling

    def _time_for_agents(self, pool: _Pool) -> float:
        """Seconds that agents still have to come back after a start of the master."""
        wait = pool.config.reconnect_wait if self._met_agents else _AGENTS_BACK
        return max(0.0, self._started_at + wait - time.monotonic())

    def _refuse_impossible(self, request: Request) -> None:
        """Where only agents that the request excludes could hold it, say so."""
        held = self._held.get(request.allocation_id)
        if held is None or held.assignment is not None:
            return
        if self._pools[request.pool].scheduler.excludes_all(request):
            names = ", ".join(sorted(request.excluded))
            reason = f"log policies exclude {names}, and no other agent of pool {request.pool!r} could run it"
            self._listener.unplaceable(request.allocation_id, reason)

    def _changed(self) -> None:
        if self._tick is None:
            self._tick = asyncio.get_running_loop().call_soon(self._schedule)

    def _schedule(self) -> None:
        self._tick = None
        for pool in self._pools.values():
            for decision in pool.scheduler.schedule():
                match decision:
                    case Start(allocation_id, assignment):
                        self._grant(allocation_id, dict(assignment))
                    case Preempt(allocation_id, reason):
                        self._listener.preempt(allocation_id, reason)
                    case _:
                        assert_never(decision)

    def _grant(self, allocation_id: str, assignment: dict[str, tuple[int, ...]]) -> None:
        held = self._held[allocation_id]
        containers = tuple(
            Container(str(uuid.uuid4()), agent_id, tuple(slots)) for agent_id, slots in assignment.items()
        )
        held.assignment = assignment
        held.containers = {c.id: c.agent_id for c in containers}
        self._listener.granted(allocation_id, containers)

    def _background_task(self, work: Awaitable[None]) -> None:
        running = asyncio.ensure_future(work)
        self._background.add(running)
        running.add_done_callback(self._done)

    def _done(self, running: asyncio.Future[None]) -> None:
        self._background.discard(running)
        if not running.cancelled() and (error := running.exception()) is not None:
            # Not acknowledged: the agent says it again when it connects anew.
            logger.error("an agent's report could not be kept: %s", error)

    # Summaries

    def _pool_summary(self, pool: _Pool) -> PoolSummary:
        agents = [a for a in self._agents.values() if a.pool == pool.config.name and a.send is not None]
        held = [h for h in self._held.values() if h.request.pool == pool.config.name]
        granted = [h for h in held if h.assignment is not None]
        return PoolSummary(
            name=pool.config.name,
            description=pool.config.description,
            slot_type=next((str(d.type) for a in agents for d in a.devices), ""),
            agents=len(agents),
            slots_total=sum(len(a.devices) for a in agents),
            slots_used=sum(h.request.slots for h in granted),
            aux_running=sum(h.request.slots == 0 for h in granted),
            aux_capacity_per_agent=pool.config.max_aux_per_agent,
            scheduler="priority",
            fitting_policy=pool.config.fitting_policy,
            preemption=pool.config.preemption,
            default_priority=pool.config.default_priority,
            queued=len(held) - len(granted),
            scheduled=len(granted),
            environments=_environments(agents),
        )

    def _agent_summary(self, agent: _Agent) -> AgentSummary:
        of_slot: dict[int, tuple[str, str]] = {}
        containers: dict[str, str] = {}
        for allocation_id, container in self._listener.containers_on(agent.id):
            containers[container.id] = allocation_id
            of_slot |= {slot: (allocation_id, container.id) for slot in container.slot_ids}
        slots = tuple(
            SlotSummary(d.id, str(d.type), d.brand, d.uuid, True, *of_slot.get(d.id, (None, None)))
            for d in agent.devices
        )
        return AgentSummary(
            id=agent.id,
            pool=agent.pool,
            slots=slots,
            connected=agent.send is not None,
            enabled=True,
            draining=False,
            registered_at=agent.registered_at,
            version=agent.version,
            addresses=agent.addresses,
            containers=containers,
        )


def _environments(agents: Sequence[_Agent]) -> dict[str, str]:
    """By name: "" where any agent can run tasks with it, else why one cannot."""
    refusals: dict[str, str] = {}
    for offer in (offer for agent in agents for offer in agent.environments):
        refusals[offer.name] = offer.refusal and refusals.get(offer.name, offer.refusal)
    return refusals
