"""A whole cluster in one process without time, threads or sockets: the pure core, a store of dicts, and tasks that obey.

Everything that happens is drawn from one seeded generator, so a failing seed replays. The world is the shell around the
core that the engine is in production: it keeps what the core says is to be kept, as one transaction, and carries out
effects afterwards. Failures strike between any two steps: tasks crash, agents vanish and return, the master starts
again from what was kept, a transaction cannot be kept, a log policy keeps a trial off an agent. An experiment that has ended
may be continued.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from detlab_master.core import allocation as alloc
from detlab_master.core import expconf, hyperparameters, log_policies
from detlab_master.core import experiment_events as core
from detlab_master.core import trial as trials
from detlab_master.core.experiment import ExperimentMachine
from detlab_master.core.records import Allocation, Container, Experiment, SearcherEvent, Trial
from detlab_master.core.scheduling import Preempt, PriorityScheduler, Request, Start
from detlab_master.core.searchers.make import make
from detlab_master.core.states import AllocationState, ExperimentState, TrialState

LENGTH = 64  # steps that a trial trains
EVERY = 4  # steps between validations
OFF_THIS_AGENT = log_policies.Policy("trouble", "trouble", log_policies.EXCLUDE_NODE)


@dataclass
class Kept:
    """The database."""

    experiment: Experiment
    trials: dict[int, Trial] = field(default_factory=dict)
    allocations: dict[str, Allocation] = field(default_factory=dict)
    events: list[SearcherEvent] = field(default_factory=list)
    checkpoints: dict[int, int] = field(default_factory=dict)  # trial -> steps
    reports: dict[tuple[int, int], float] = field(default_factory=dict)  # (trial, step) -> value


@dataclass
class Process:
    """A trial's process on an agent."""

    container_id: str
    allocation_id: str
    trial_id: int
    run_id: int
    agent_id: str
    steps: int
    phase: str = "STARTING"  # then RUNNING
    acked: bool = False


@dataclass
class Agent:
    id: str
    slots: tuple[int, ...]
    connected: bool = True
    processes: dict[str, Process] = field(default_factory=dict)
    unsaid: dict[str, alloc.ContainerMoved] = field(
        default_factory=dict
    )  # ends that were not acknowledged yet


class CommitFailed(Exception):
    pass


class World:
    """One experiment on a few agents.

    Args:
        seed: of all that happens.
        searcher: the searcher section of the configuration.
        failure_rate: share of steps in which something breaks.
        ends_after: whether the master ends right after its n-th commit (from 1 on): before the effects of what it
            decided, and before anybody was answered. The next one starts at once.
    """

    def __init__(
        self,
        seed: int,
        searcher: dict[str, Any],
        *,
        failure_rate: float,
        max_restarts: int = 3,
        ends_after: Callable[[int], bool] = lambda commit: False,
    ) -> None:
        self.rng = random.Random(seed)
        self.failure_rate = failure_rate
        self.now = 1000.0
        self.commits = 0
        self._ends_after = ends_after
        self._masters = 0  # that were started
        self._returning: set[str] = set()  # agents that come back before anything else happens
        self._ids = 0
        self.continued = 0  # how often
        self._reopened: Counter[int] = Counter()  # trials that had ended and ran again, and how often
        config = expconf.resolve(
            {
                "entrypoint": "model_def:Trial",
                "hyperparameters": {"lr": {"type": "double", "minval": 0.0, "maxval": 1.0, "count": 7}},
                "searcher": {"metric": "loss", **searcher},
                "max_restarts": max_restarts,
                "checkpoint_storage": {"type": "shared_fs", "host_path": "/checkpoints"},
            },
            defaults={"default_compute_resource_pool": "default", "default_aux_resource_pool": "default"},
            experiment_seed=seed,
            default_name="simulated",
        ).as_dict
        self.failure_rate, failure_rate = 0.0, self.failure_rate  # nothing breaks before the world stands
        self.kept = Kept(
            Experiment(1, "job", 1, 1, ExperimentState.ACTIVE, config, "", "", 0, start_time=self.now)
        )
        self.agents = {
            f"a{i}": Agent(f"a{i}", tuple(range(self.rng.randint(1, 3))))
            for i in range(self.rng.randint(1, 3))
        }
        self.story: list[str] = []
        self._owner_of: dict[str, str] = {}  # container -> allocation, of processes that have ended
        self._start_master()
        self._event(core.Started())
        self.failure_rate = failure_rate

    # Ids for the core

    def trial(self) -> int:
        self._ids += 1
        return self._ids

    def task(self, experiment_id: int) -> str:
        self._ids += 1
        return f"{experiment_id}.task{self._ids}"

    # The master

    def _build_machine(self) -> None:
        config = expconf.restore(self.kept.experiment.config)
        searcher = make(
            config.searcher,
            hyperparameters.parse(config.hyperparameters),
            random.Random(config.reproducibility.experiment_seed),
        )
        self.machine = ExperimentMachine(self.kept.experiment, searcher, max_restarts=config.max_restarts)
        self.machine.restore(self.kept.events, sorted(self.kept.trials.values(), key=lambda t: t.id))

    def _start_master(self) -> None:
        """Build everything in memory from what was kept."""
        self._masters += 1
        self._build_machine()
        self.scheduler = PriorityScheduler()
        self._impossible: list[str] = []  # queued allocations whose trials exclude every agent
        self.open = {a.id: a for a in self.kept.allocations.values() if a.ended_at is None}
        self.unsure: set[str] = set()  # agents that have not come back since the master started
        for allocation in self.open.values():
            request = self._request(allocation)
            if allocation.state is AllocationState.QUEUED:
                self._submit(request)
            else:
                self.scheduler.restore(request, {c.agent_id: c.slot_ids for c in allocation.containers})
                self.unsure |= {c.agent_id for c in allocation.containers}
        for agent in self.agents.values():
            agent.connected = False

    def _restart_master(self) -> None:
        """Build the master anew and take up what was under way, until that can be kept."""
        self.story.append("master restarts")
        while True:
            try:
                self._start_master()
                self._take_up()
                return
            except CommitFailed:
                continue

    def restart_at_once(self) -> None:
        """The master ends, and the next one is there before anything else happens: its agents are back as well."""
        # Also those that were about to come back when the last master ended while it took up its work.
        self._returning |= {agent.id for agent in self.agents.values() if agent.connected}
        self._start_master()
        this = self._masters
        self._take_up()
        for agent in self.agents.values():
            if this == self._masters and agent.id in self._returning:
                self._connect(agent)
        if this == self._masters:
            self._returning = set()

    def _take_up(self) -> None:
        this = self._masters
        for trial in list(self.machine.trials.values()):
            if this != self._masters:
                return  # the next master has done it
            if trial.allocation_id is None or trial.state.terminal:
                continue
            open_ = self.open.get(trial.allocation_id)
            if open_ is None:
                self._event(core.AllocationEnded(trial.id, self.kept.allocations[trial.allocation_id]))
            elif trial.state is TrialState.STOPPING_KILLED:
                self._allocation(open_.id, alloc.KillRequested())
            elif trial.state is not TrialState.ACTIVE:
                self._allocation(open_.id, alloc.PreemptionRequested())

    def _request(self, allocation: Allocation) -> Request:
        trial = self._trial_of(allocation)
        return Request(
            allocation.id,
            "job",
            1,
            allocation.priority,
            allocation.queue_order,
            preemptible=True,
            excluded=frozenset(trial.excluded_agents),
        )

    def _submit(self, request: Request) -> None:
        self.scheduler.submit(request)
        if request.excluded >= self.agents.keys():
            self._impossible.append(request.allocation_id)

    def _trial_of(self, allocation: Allocation) -> Trial:
        return next(t for t in self.machine.trials.values() if t.task_id == allocation.task_id)

    def _commit(self, keep: Callable[[Kept], None]) -> bool:
        """One transaction; now and then the database refuses.

        Returns:
            Whether the master lives to carry out the effects; otherwise the next one has taken up what was kept.
        """
        if self.failure_rate and self.rng.random() < self.failure_rate / 4:
            self.story.append("a commit fails")
            raise CommitFailed
        changed = copy.copy(self.kept)
        changed.trials, changed.allocations = dict(self.kept.trials), dict(self.kept.allocations)
        changed.events, changed.reports = list(self.kept.events), dict(self.kept.reports)
        changed.checkpoints = dict(self.kept.checkpoints)
        keep(changed)
        self.kept = changed
        self.commits += 1
        if self._ends_after(self.commits):
            self.story.append(f"the master ends after commit {self.commits}")
            self.restart_at_once()
            return False
        return True

    def _event(self, event: core.Event, also: Callable[[Kept], None] = lambda kept: None) -> None:
        """Hand an event to the experiment: decide, keep, then do."""
        effects = self.machine.handle(event, self, self.now)

        def keep(kept: Kept) -> None:
            also(kept)
            for effect in effects:
                self._keep(kept, effect)

        if not self._commit(keep):
            return
        this = self._masters
        for effect in effects:
            if this != self._masters:
                return  # ended while it carried out an effect: the rest is taken up by the next
            match effect:
                case trials.RequestAllocation(trial):
                    assert trial.allocation_id is not None
                    self.open[trial.allocation_id] = self.kept.allocations[trial.allocation_id]
                    self._submit(self._request(self.open[trial.allocation_id]))
                case trials.StopAllocation(allocation_id, reason):
                    self._allocation(allocation_id, alloc.PreemptionRequested(reason))
                case trials.KillAllocation(allocation_id, reason):
                    self._allocation(allocation_id, alloc.KillRequested(reason))
                case _:
                    pass

    def _keep(self, kept: Kept, effect: core.Effect) -> None:
        match effect:
            case core.KeepExperiment(experiment):
                kept.experiment = experiment
            case core.KeepTrial(trial):
                kept.trials[trial.id] = trial
            case core.KeepProgress(_, progress):
                kept.experiment = replace(kept.experiment, progress=progress)
            case core.RecordSearcherEvent(event):
                assert event.seq == len(kept.events), "the searcher's events have a gap"
                kept.events.append(event)
            case trials.RequestAllocation(trial):
                assert trial.allocation_id is not None
                assert trial.allocation_id not in kept.allocations, "an allocation id was given twice"
                self._ids += 1
                kept.allocations[trial.allocation_id] = Allocation(
                    id=trial.allocation_id,
                    task_id=trial.task_id,
                    owner_id=1,
                    run_id=trial.run_id,
                    resource_pool="default",
                    slots=1,
                    priority=42,
                    state=AllocationState.QUEUED,
                    queued_at=self.now,
                    queue_order=self._ids,
                )
            case _:
                pass

    def _allocation(self, allocation_id: str, event: alloc.Event) -> None:
        before = self.open.get(allocation_id)
        if before is None:
            return
        after, effects = alloc.step(before, event, self.now)
        if after != before:
            if not self._commit(lambda kept: kept.allocations.__setitem__(allocation_id, after)):
                return
            self.open[allocation_id] = after
        this = self._masters
        for effect in effects:
            if this != self._masters:
                return
            match effect:
                case alloc.StartContainer(container):
                    self._start_container(after, container)
                case alloc.KillContainer(container):
                    self._kill_container(container)
                case alloc.Ended():
                    del self.open[allocation_id]
                    self.scheduler.release(allocation_id)
                    self._event(core.AllocationEnded(self._trial_of(after).id, after))
                case _:
                    pass

    def _schedule(self) -> None:
        while self._impossible:
            self._allocation(self._impossible.pop(), alloc.Unplaceable("all agents are excluded"))
        this = self._masters
        for decision in self.scheduler.schedule():
            if this != self._masters:
                self._schedule()  # the next master's scheduler knows of what was kept
                return
            match decision:
                case Start(allocation_id, assignment):
                    containers = []
                    for agent_id, slots in assignment.items():
                        self._ids += 1
                        containers.append(Container(f"c{self._ids}", agent_id, tuple(slots)))
                    self._allocation(allocation_id, alloc.Granted(tuple(containers)))
                case Preempt(allocation_id):
                    self._allocation(allocation_id, alloc.PreemptionRequested("preempted"))

    # Agents

    def _start_container(self, allocation: Allocation, container: Container) -> None:
        agent = self.agents[container.agent_id]
        if not agent.connected or container.id in agent.processes:
            return
        trial = self._trial_of(allocation)
        assert agent.id not in trial.excluded_agents, (
            f"trial {trial.id} runs on {agent.id}, which it excludes"
        )
        steps = self.kept.checkpoints.get(trial.id, 0)
        agent.processes[container.id] = Process(
            container.id, allocation.id, trial.id, allocation.run_id, agent.id, steps
        )

    def _kill_container(self, container: Container) -> None:
        agent = self.agents[container.agent_id]
        if agent.connected and container.id in agent.processes:
            self._end_process(agent, agent.processes[container.id], 143, "container_aborted")

    def _end_process(self, agent: Agent, process: Process, code: int | None, failure: str | None) -> None:
        del agent.processes[process.container_id]
        if failure is None and code:
            failure = "container_failed"
        agent.unsaid[process.container_id] = alloc.ContainerMoved(
            process.container_id, AllocationState.TERMINATED, exit_code=code, failure=failure
        )
        self._owner_of[process.container_id] = process.allocation_id

    def _connect(self, agent: Agent) -> None:
        """An agent (re)connects: unwanted containers end first, then its slots are given out."""
        agent.connected = True
        self.unsure.discard(agent.id)
        wanted = {
            c.id: (a.id, c)
            for a in self.open.values()
            for c in a.containers
            if c.agent_id == agent.id and not c.ended
        }
        for process in list(agent.processes.values()):
            if process.container_id not in wanted:
                del agent.processes[process.container_id]
        for container_id, (allocation_id, container) in wanted.items():
            if container_id in agent.processes or container_id in agent.unsaid:
                continue
            if container.state is AllocationState.ASSIGNED:
                self._start_container(self.open[allocation_id], container)
            else:
                agent.unsaid[container_id] = alloc.ContainerMoved(
                    container_id, AllocationState.TERMINATED, failure="container_missing"
                )
                self._owner_of[container_id] = allocation_id
        if self.scheduler.has_agent(agent.id):
            self.scheduler.set_agent_enabled(agent.id, True)
        else:
            self.scheduler.add_agent(agent.id, agent.slots)
        for process in list(agent.processes.values()):  # what the last master may not have said any more
            allocation = self.open.get(process.allocation_id)
            if (
                allocation is not None
                and (allocation.kill_requested or allocation.aborted or allocation.failure)
                and process.container_id in agent.processes
            ):
                self._end_process(agent, process, 143, "container_aborted")

    def _lose(self, agent: Agent) -> None:
        """An agent was away for too long; what still runs there is ended when it returns."""
        self.story.append(f"agent {agent.id} is lost")
        agent.connected = False
        agent.processes.clear()  # the machine is gone; a partition is the scheduler's business, not the core's
        agent.unsaid.clear()
        if self.scheduler.has_agent(agent.id):
            self.scheduler.remove_agent(agent.id)
        for allocation in list(self.open.values()):
            if any(c.agent_id == agent.id and not c.ended for c in allocation.containers):
                self._allocation(allocation.id, alloc.AgentLost(agent.id))

    def _say(self, agent: Agent) -> None:
        """Ends that the master has not acknowledged, said (again)."""
        for container_id, moved in list(agent.unsaid.items()):
            allocation_id = self._owner_of[container_id]
            self._allocation(allocation_id, moved)
            agent.unsaid.pop(container_id, None)

    # A process at work

    def _work(self, agent: Agent, process: Process) -> None:
        allocation = self.open.get(process.allocation_id)
        if allocation is None:
            return
        if process.phase == "STARTING":
            running = alloc.ContainerMoved(process.container_id, AllocationState.RUNNING)
            self._allocation(allocation.id, running)
            self._allocation(allocation.id, alloc.BecameReady())
            process.phase = "RUNNING"
            return
        if allocation.preempt_requested_at is not None:
            if not process.acked:
                self._allocation(allocation.id, alloc.PreemptionAcked())
                process.acked = True
            else:
                self._checkpoint(process)
                self._end_process(agent, process, 0, None)
            return
        process.steps += 1
        if process.steps % EVERY == 0:
            self._validate(process)
        if process.steps >= LENGTH:
            self._checkpoint(process)
            self._end_process(agent, process, 0, None)

    def _checkpoint(self, process: Process) -> None:
        self._commit(lambda kept: kept.checkpoints.__setitem__(process.trial_id, process.steps))

    def _validate(self, process: Process) -> None:
        trial = self.machine.trials[process.trial_id]
        if trial.run_id != process.run_id or trial.state.terminal:
            return
        value = trial.hparams["lr"] + 1.0 / process.steps
        metrics = {"loss": value, "batches": process.steps}
        place = (trial.id, process.steps)
        heard = place in self.kept.reports
        event = core.Reported(replace(trial, total_batches=process.steps), None if heard else metrics)
        self._event(event, lambda kept: kept.reports.__setitem__(place, value))

    # Time passes

    def step(self) -> None:
        """One random thing happens; then the scheduler looks. What could not be kept did not happen."""
        self.now += 1.0
        try:
            self._step()
        except CommitFailed:
            self._restart_master()

    def _step(self) -> None:
        if self.rng.random() < self.failure_rate:
            self._break_something()
        for agent in self.agents.values():
            if not agent.connected and self.rng.random() < 0.3:
                self._connect(agent)
        agent = self.rng.choice(list(self.agents.values()))
        if agent.connected:
            self._say(agent)
        if agent.processes:
            self._work(agent, self.rng.choice(list(agent.processes.values())))
        self._schedule()

    def _break_something(self) -> None:
        agent = self.rng.choice(list(self.agents.values()))
        match self.rng.choice(["crash", "crash", "lose", "master", "pause", "repeat", "trouble"]):
            case "crash" if agent.processes:
                process = self.rng.choice(list(agent.processes.values()))
                self.story.append(f"trial {process.trial_id} crashes")
                self._end_process(agent, process, self.rng.choice([1, 137]), None)
            case "trouble" if agent.processes:
                self.trouble(agent, self.rng.choice(list(agent.processes.values())))
            case "lose":
                self._lose(agent)
            case "master":
                self._restart_master()
            case "pause" if (
                not self.kept.experiment.state.terminal and not self.kept.experiment.state.stopping
            ):
                verb = core.Activated if self.kept.experiment.state is ExperimentState.PAUSED else core.Paused
                self.story.append(verb.__name__)
                self._event(verb())
            case "repeat":
                self._say(agent)
            case _:
                pass

    def trouble(self, agent: Agent, process: Process) -> None:
        """A process prints a line that keeps its trial off this agent from the next run on, and crashes."""
        self.story.append(f"trouble of trial {process.trial_id} on {agent.id}")
        self._end_process(agent, process, 1, None)
        self._event(core.LogPolicyMatched(process.trial_id, log_policies.Match(OFF_THIS_AGENT, agent.id)))

    def stop(self, verb: core.Canceled | core.Killed) -> None:
        """The user ends the experiment."""
        self.story.append(type(verb).__name__)
        self._until_kept(verb)

    def go_on(self) -> None:
        """The user continues the experiment, which has ended."""
        self.story.append("Continued")
        self.continued += 1
        before = self.kept
        self._until_kept(core.Continued())
        self.check(before)

    def _until_kept(self, verb: core.Event) -> None:
        """The user asks again until it is answered."""
        state = self.kept.experiment.state
        while self.kept.experiment.state is state:
            try:
                if isinstance(verb, core.Continued):
                    self._build_machine()
                self._event(verb)
            except CommitFailed:
                self._restart_master()

    def wake(self) -> None:
        """Nothing breaks from here on, and nobody forgets to press activate."""
        self.failure_rate = 0.0
        if self.kept.experiment.state is ExperimentState.PAUSED:
            self._event(core.Activated())

    # What must always hold

    def check(self, before: Kept) -> None:
        kept = self.kept
        alive: dict[int, list[str]] = {}
        for agent in self.agents.values():
            for process in agent.processes.values():
                alive.setdefault(process.trial_id, []).append(process.container_id)
        for trial_id, containers in alive.items():
            assert len(containers) == 1, f"trial {trial_id} runs twice: {containers}"
        slots: dict[tuple[str, int], str] = {}
        for allocation in self.open.values():
            for container in allocation.containers:
                for slot in container.slot_ids if not container.ended else ():
                    other = slots.setdefault((container.agent_id, slot), allocation.id)
                    assert other == allocation.id, f"slot {slot} of {container.agent_id} is held twice"
        assert [e.seq for e in kept.events] == list(range(len(kept.events)))
        assert kept.events[: len(before.events)] == before.events, "the searcher's past has changed"
        assert before.reports.keys() <= kept.reports.keys(), "an acknowledged report is gone"
        assert 0.0 <= kept.experiment.progress <= 1.0
        for trial in kept.trials.values():
            old = before.trials.get(trial.id)
            assert trial.restarts <= expconf.restore(kept.experiment.config).max_restarts
            if old is not None:
                assert trial.run_id >= old.run_id
                if old.state.terminal and trial.state is not old.state:
                    self._check_reopened(old, trial)
        limit = kept.experiment.config["searcher"].get("max_concurrent_trials")
        running = sum(not trial.state.terminal for trial in kept.trials.values())
        assert not limit or running <= limit, f"{running} trials are open at once"
        if kept.experiment.state.terminal:
            assert all(t.state.terminal for t in kept.trials.values()), (
                "the experiment ended before its trials"
            )

    def _check_reopened(self, old: Trial, trial: Trial) -> None:
        assert self._reopened[trial.id] < self.continued, (
            f"trial {trial.id}, which was closed, was opened again"
        )
        single = self.kept.experiment.config["searcher"]["name"] == "single"
        assert single or old.state is not TrialState.COMPLETED, (
            f"trial {trial.id} was complete, and runs again"
        )
        self._reopened[trial.id] += 1
