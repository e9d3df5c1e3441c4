"""The incremental scheduler against a naive one that walks over everything, and against what must always hold."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from detlab_master.core.scheduling import PoolConfig, Preempt, PriorityScheduler, Request, Start, explain

MAX_AUX = 2


class NaiveScheduler:
    """The rules of `PriorityScheduler`, read off its docstring, with nothing kept but the plain facts."""

    def __init__(self, pool: PoolConfig) -> None:
        self.pool = pool
        self.agents: dict[str, dict[int, bool]] = {}
        self.closed: set[str] = set()
        self.waiting: dict[str, Request] = {}
        self.running: dict[str, tuple[Request, dict[str, tuple[int, ...]]]] = {}
        self.leaving: set[str] = set()
        self.caps: dict[str, int | None] = {}

    def schedule(self, over_cap: set[str]) -> list[Start | Preempt]:
        decisions: list[Start | Preempt] = []
        for job in sorted(over_cap):
            decisions += self._enforce(job)
        for kind in ("slots", "aux"):
            decisions += self._pass(kind)
        return decisions

    def used(self, job: str) -> int:
        return sum(r.slots for r, _ in self.running.values() if r.job_id == job)

    def _enforce(self, job: str) -> list[Start | Preempt]:
        cap = self.caps.get(job)
        if cap is None:
            return []
        out: list[Start | Preempt] = []
        mine = sorted(
            (r for r, _ in self.running.values() if r.job_id == job), key=lambda r: r.rank, reverse=True
        )
        for request in mine:
            staying = sum(r.slots for r in mine if r.allocation_id not in self.leaving)
            if (
                staying > cap
                and request.slots
                and request.preemptible
                and request.allocation_id not in self.leaving
            ):
                self.leaving.add(request.allocation_id)
                out.append(Preempt(request.allocation_id))
        return out

    def _pass(self, kind: str) -> list[Start | Preempt]:
        out: list[Start | Preempt] = []
        held_free: Counter[str] = Counter()
        held_leaving: Counter[str] = Counter()
        promised: Counter[str] = Counter()
        barrier: int | None = None

        def units(agent: str) -> list[int]:
            if agent in self.closed:
                return []
            if kind == "aux":
                return list(range(MAX_AUX))
            return [slot for slot, enabled in self.agents[agent].items() if enabled]

        def of_kind(request: Request) -> bool:
            return (request.slots > 0) == (kind == "slots")

        def holders(agent: str) -> dict[str, int]:
            """allocation -> units it holds here that could be given out again"""
            found = {}
            for name, (request, assignment) in self.running.items():
                if of_kind(request) and agent in assignment:
                    n = 1 if kind == "aux" else len(set(assignment[agent]) & set(units(agent)))
                    found[name] = n if units(agent) else 0
            return found

        def free(agent: str) -> list[int]:
            if kind == "aux":
                return units(agent)[: max(0, len(units(agent)) - len(holders(agent)))]
            taken = {s for r, a in self.running.values() if of_kind(r) for s in a.get(agent, ())}
            return sorted(set(units(agent)) - taken)

        def available(agent: str) -> int:
            return len(free(agent)) - held_free[agent]

        def coming(agent: str) -> int:
            return sum(n for name, n in holders(agent).items() if name in self.leaving) - held_leaving[agent]

        def evictable(agent: str, priority: int) -> list[tuple[Request, int]]:
            found = [
                (self.running[name][0], n)
                for name, n in holders(agent).items()
                if n and name not in self.leaving and self.running[name][0].preemptible
            ]
            found = [(r, n) for r, n in found if r.priority > priority]
            return sorted(found, key=lambda entry: entry[0].rank, reverse=True)

        def chosen(agent: str, priority: int, need: int) -> list[Request] | None:
            if need <= 0:
                return []
            take: list[tuple[Request, int]] = []
            for entry in evictable(agent, priority):
                if sum(n for _, n in take) < need:
                    take.append(entry)
            if sum(n for _, n in take) < need:
                return None
            for entry in take[::-1]:
                if sum(n for _, n in take) - entry[1] >= need:
                    take.remove(entry)
            return [r for r, _ in take]

        def cost(victims: list[Request]) -> tuple[int, int, int]:
            if not victims:
                return (0, 0, 0)
            return (1, -min(v.priority for v in victims), sum(v.slots for v in victims))

        names = sorted(self.agents)
        for request in sorted(filter(of_kind, list(self.waiting.values())), key=lambda r: r.rank):
            n = request.slots or 1
            allowed = [agent for agent in names if agent not in request.excluded]
            largest = max((len(units(agent)) for agent in allowed), default=0)
            gangs = []
            if n > largest and request.slots and not request.single_node:
                for size in sorted({len(units(a)) for a in allowed if units(a)}, reverse=True):
                    members = [a for a in allowed if len(units(a)) == size]
                    if n % size == 0 and len(members) >= n // size:
                        gangs.append((size, n // size, members))
            if barrier is not None and request.priority > barrier and not request.preemptible:
                continue
            cap = self.caps.get(request.job_id)
            job = request.job_id
            if cap is not None and self.used(job) + promised[job] + request.slots > cap:
                continue
            assignment: dict[str, tuple[int, ...]] | None = None
            if n <= largest:
                sign = 1 if self.pool.fitting == "best" else -1
                fitting = sorted((sign * available(a), a) for a in allowed if available(a) >= n)
                if fitting:
                    agent = fitting[0][1]
                    assignment = {agent: tuple(free(agent)[:n])}
            else:
                for size, count, members in gangs:
                    idle = [a for a in members if available(a) == size]
                    if assignment is None and len(idle) >= count:
                        assignment = {a: tuple(free(a)) for a in idle[:count]}
            if assignment is not None:
                if not request.slots:
                    assignment = dict.fromkeys(assignment, ())
                del self.waiting[request.allocation_id]
                self.running[request.allocation_id] = (request, assignment)
                out.append(Start(request.allocation_id, assignment))
                continue
            if not self.pool.preemption:
                continue
            plans: list[tuple[Any, list[Request], dict[str, int]]] = []
            if n <= largest:
                for agent in allowed:
                    need = n - available(agent) - coming(agent)
                    victims = chosen(agent, request.priority, need)
                    if len(units(agent)) >= n and victims is not None:
                        by = (0, 0, -need) if need <= 0 else cost(victims)
                        plans.append(((*by, agent), victims, {agent: n}))
            else:
                for size, count, members in gangs:
                    options = []
                    for agent in members:
                        victims = chosen(agent, request.priority, size - available(agent) - coming(agent))
                        if victims is not None:
                            options.append((cost(victims), agent, victims))
                    options.sort(key=lambda option: option[:2])
                    if not plans and len(options) >= count:
                        everyone = [v for _, _, victims in options[:count] for v in victims]
                        plans.append(((), everyone, {agent: size for _, agent, _ in options[:count]}))
            if not plans:
                if barrier is None and (n <= largest or gangs):
                    barrier = request.priority
                continue
            _, victims, places = min(plans, key=lambda plan: plan[0])
            for victim in victims:
                if victim.allocation_id not in self.leaving:
                    self.leaving.add(victim.allocation_id)
                    out.append(Preempt(victim.allocation_id))
            for agent, wanted in places.items():
                later = min(wanted, coming(agent))
                held_leaving[agent] += later
                held_free[agent] += wanted - later
            promised[job] += request.slots
        return out


class PoolLife:
    """A random life of a pool, decided by a seed. Both schedulers hear the same, and must decide the same."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        pool = PoolConfig(
            preemption=self.rng.random() < 0.7,
            fitting=self.rng.choice(("best", "worst")),
            max_aux_per_agent=MAX_AUX,
        )
        self.real, self.naive = PriorityScheduler(pool), NaiveScheduler(pool)
        self.over_cap: set[str] = set()
        self.news = True  # something has happened since the last pass
        self.serial = 0
        self.seen: Counter[str] = Counter()
        for _ in range(self.rng.randint(1, 3)):
            self.join()

    def live(self, events: int) -> None:
        weights = {
            self.submit: 10,
            self.finish: 8,
            self.preempted_stops: 8,
            self.withdraw: 2,
            self.set_priority: 2,
            self.set_max_slots: 2,
            self.switch_slot: 2,
            self.switch_agent: 2,
            self.join: 1,
            self.leave: 0.5,
        }
        for _ in range(events):
            (event,) = self.rng.choices(list(weights), list(weights.values()))
            event()
            if self.rng.random() < 0.7:
                self.schedule()
            self.check()

    # Events

    def join(self) -> None:
        if len(self.naive.agents) == 5:
            return
        size = self.rng.choice((1, 2, 4, 4))
        agent = next(f"a{i}" for i in range(99) if f"a{i}" not in self.naive.agents)
        self.real.add_agent(agent, range(size))
        self.news = True
        self.naive.agents[agent] = dict.fromkeys(range(size), True)

    def leave(self) -> None:
        """An agent goes, and what ran on it is given up."""
        if self.naive.agents:
            agent = self.rng.choice(sorted(self.naive.agents))
            self.real.remove_agent(agent)
            self.news = True
            del self.naive.agents[agent]
            self.naive.closed.discard(agent)
            for name in [name for name, (_, held) in self.naive.running.items() if agent in held]:
                self._release(name)

    def submit(self) -> None:
        rng = self.rng
        for _ in range(rng.randint(1, 4)):
            self.serial += 1
            name = f"r{self.serial}"
            job = rng.choice(("x", "y", "z", name))
            request = Request(
                name,
                job,
                rng.choice((0, 1, 1, 2, 2, 3, 4, 8)),
                rng.choice((10, 42, 42, 42, 60)),
                self.serial // 2,
                preemptible=rng.random() < 0.7,
                single_node=rng.random() < 0.3,
                max_slots=self.naive.caps.get(job),
                excluded=frozenset(a for a in self.naive.agents if rng.random() < 0.4)
                if rng.random() < 0.2
                else frozenset(),
            )
            self.real.submit(request)
            self.news = True
            self.naive.waiting[name] = request

    def finish(self) -> None:
        if self.naive.running:
            self._release(self.rng.choice(sorted(self.naive.running)))

    def preempted_stops(self) -> None:
        if self.naive.leaving:
            self._release(self.rng.choice(sorted(self.naive.leaving)))

    def withdraw(self) -> None:
        if self.naive.waiting:
            self._release(self.rng.choice(sorted(self.naive.waiting)))

    def set_priority(self) -> None:
        job, priority = self.rng.choice("xyz"), self.rng.choice((1, 42, 99))
        self.real.set_priority(job, priority)
        self.news = True
        for name, request in self.naive.waiting.items():
            if request.job_id == job:
                self.naive.waiting[name] = replace(request, priority=priority)
        for name, (request, assignment) in self.naive.running.items():
            if request.job_id == job:
                self.naive.running[name] = (replace(request, priority=priority), assignment)

    def set_max_slots(self) -> None:
        job, cap = self.rng.choice("xyz"), self.rng.choice((None, 0, 1, 3, 6))
        self.real.set_max_slots(job, cap)
        if any(request.job_id == job for request in self._all()):
            if self.naive.caps.get(job) != cap:
                self.news = True
                if cap is not None:
                    self.over_cap.add(job)
            self.naive.caps[job] = cap

    def switch_slot(self) -> None:
        if self.naive.agents:
            agent = self.rng.choice(sorted(self.naive.agents))
            slot, enabled = self.rng.choice(sorted(self.naive.agents[agent])), self.rng.random() < 0.7
            self.real.set_slot_enabled(agent, slot, enabled)
            self.news = True
            self.naive.agents[agent][slot] = enabled

    def switch_agent(self) -> None:
        if self.naive.agents:
            agent = self.rng.choice(sorted(self.naive.agents))
            enabled, draining = self.rng.random() < 0.8, self.rng.random() < 0.2
            self.real.set_agent_enabled(agent, enabled)
            self.news = True
            self.real.set_agent_draining(agent, draining)
            (self.naive.closed.discard if enabled and not draining else self.naive.closed.add)(agent)

    def _release(self, name: str) -> None:
        self.real.release(name)
        self.news = True
        request = self.naive.waiting.pop(name, None) or self.naive.running.pop(name)[0]
        self.naive.leaving.discard(name)
        if not any(other.job_id == request.job_id for other in self._all()):
            self.naive.caps.pop(request.job_id, None)
            self.over_cap.discard(request.job_id)

    def _all(self) -> list[Request]:
        return [*self.naive.waiting.values(), *(request for request, _ in self.naive.running.values())]

    # Checks

    def schedule(self) -> None:
        expected = self.naive.schedule(self.over_cap) if self.news else []
        self.over_cap.clear()
        self.news = False
        decided = self.real.schedule()
        assert sorted(map(repr, decided)) == sorted(map(repr, expected))
        assert self.real.schedule() == [], "a pass without news decided something"
        self.seen.update(type(decision).__name__ for decision in decided)
        self.check_caps()
        self.check_inversion()
        for name in self.naive.waiting:
            assert explain(self.real, name)

    def check(self) -> None:
        running = self.real.running()
        assert {name: held for name, (_, held) in running.items()} == {
            name: held for name, (_, held) in self.naive.running.items()
        }
        assert self.real.preempting() == self.naive.leaving
        slots = Counter(
            (agent, slot) for _, held in running.values() for agent, ids in held.items() for slot in ids
        )
        assert all(count == 1 for count in slots.values()), "a slot is held twice"
        for request, held in running.values():
            assert sum(map(len, held.values())) == request.slots
            assert not request.single_node or len(held) == 1
            assert not request.excluded & held.keys(), "it runs where it must not"
        aux = Counter(agent for request, held in running.values() if not request.slots for agent in held)
        assert all(count <= MAX_AUX for count in aux.values())
        order = [
            request.allocation_id for request in sorted(self.naive.waiting.values(), key=lambda r: r.rank)
        ]
        assert self.real.positions() == {name: i for i, name in enumerate(order)}
        assert all(self.real.position(name) == i for i, name in enumerate(order))

    def check_caps(self) -> None:
        """No job holds more than it may, but for what is stopping and what cannot be made to stop."""
        for job, cap in self.naive.caps.items():
            mine = [
                (name, request) for name, (request, _) in self.naive.running.items() if request.job_id == job
            ]
            fixed = sum(request.slots for _, request in mine if not request.preemptible)
            total = sum(request.slots for name, request in mine if name not in self.naive.leaving)
            assert cap is None or total <= max(cap, fixed)

    def check_inversion(self) -> None:
        """With preemption, nobody waits while a preemptible one of lower priority holds all that it needs.

        But one that could not be pushed out again may wait for the sake of a request of yet higher priority.
        """
        if not self.naive.pool.preemption or self.naive.leaving:
            return
        for request in self.naive.waiting.values():
            cap = self.naive.caps.get(request.job_id)
            used = self.naive.used(request.job_id)
            if not request.slots or (cap is not None and used + request.slots > cap):
                continue
            above = (r for r in self.naive.waiting.values() if r.slots and r.priority < request.priority)
            if not request.preemptible and any(above):
                continue
            for other, held in self.naive.running.values():
                if not other.preemptible or other.priority <= request.priority:
                    continue
                for agent, slots in held.items():
                    if agent in self.naive.agents.keys() - self.naive.closed - request.excluded:
                        enabled = sum(self.naive.agents[agent].get(slot, False) for slot in slots)
                        assert enabled < request.slots, f"{request} waits for what {other} holds"


@pytest.mark.parametrize("first", range(0, 80, 10))
def test_a_pool_lives_by_its_rules(first: int) -> None:
    _live(range(first, first + 10), events=120)


@pytest.mark.full
@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_many_pools_live_by_their_rules(first: int) -> None:
    _live(range(first, first + 100), events=150)


def _live(seeds: range, events: int) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        life = PoolLife(seed)
        try:
            life.live(events)
        except Exception as error:
            error.add_note(f"to see it again: PoolLife({seed}).live({events})")
            raise
        seen += life.seen
    assert seen["Start"] > 100 and seen["Preempt"] > 5, f"too little happened to show anything: {seen}"
