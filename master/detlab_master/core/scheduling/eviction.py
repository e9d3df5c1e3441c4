"""Whom to preempt so that a waiting request fits.

Only preemptible allocations of strictly lower priority may be preempted. Slots that are about to come free
anyway, because their holder has been told to stop, are counted first and cost nothing. Otherwise the plan is
chosen that spares the higher priorities, then costs the fewest slots of running work; on an agent the lowest
priority goes first, and the latest submitted of it, and nobody goes whose slots turn out not to be needed.

An object of this module lives for one scheduling pass. It keeps account of what earlier, higher requests of
the pass have laid claim to.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from detlab_master.core.scheduling.fit import Inventory
from detlab_master.core.scheduling.requests import Assignment, Request


@dataclass(frozen=True)
class Running:
    request: Request
    assignment: Assignment  # in the inventory's terms


@dataclass(frozen=True)
class Plan:
    victims: tuple[str, ...]  # allocations to preempt
    places: dict[str, int]  # agent -> slots, free or coming free, that the request will take


@dataclass
class _Occupants:
    leaving: int = 0  # slots coming free, and not claimed yet
    evictable: list[Running] = field(default_factory=list)  # the first to go first


class Eviction:
    """Plans of one pass.

    Args:
        inventory: of the pool.
        leaving: allocations that have been told to stop already.
        evictable: the other running ones that are preemptible.
    """

    def __init__(
        self, inventory: Inventory, leaving: Iterable[Running], evictable: Iterable[Running]
    ) -> None:
        self._inventory = inventory
        self._agents: dict[str, _Occupants] = {}
        self._lowest_priority = 0
        for running in leaving:
            self._leaves(running)
        for running in sorted(evictable, key=lambda r: r.request.rank, reverse=True):
            self._lowest_priority = max(self._lowest_priority, running.request.priority)
            for agent_id in running.assignment:
                self._on(agent_id).evictable.append(running)

    def plan(self, request: Request) -> Plan | None:
        """How the request can be made to fit, or None. The request does not fit as things are."""
        if request.slots <= self._inventory.largest(request.excluded):
            return self._on_one_agent(request)
        if request.single_node:
            return None
        return self._on_whole_agents(request)

    def carry_out(self, plan: Plan, running: Mapping[str, Running]) -> None:
        """Count the plan's victims as leaving, and keep its places from the requests that come after."""
        for allocation_id in plan.victims:
            victim = running[allocation_id]
            for agent_id in victim.assignment:
                self._agents[agent_id].evictable.remove(victim)
            self._leaves(victim)
        for agent_id, slots in plan.places.items():
            # Slots still in use first: those that are free can serve somebody meanwhile.
            occupants = self._on(agent_id)
            coming = min(slots, occupants.leaving)
            occupants.leaving -= coming
            self._inventory.hold(agent_id, slots - coming)

    def _on(self, agent_id: str) -> _Occupants:
        return self._agents.setdefault(agent_id, _Occupants())

    def _leaves(self, running: Running) -> None:
        for agent_id, slots in running.assignment.items():
            self._on(agent_id).leaving += self._inventory.usable(agent_id, slots)

    def _at_hand(self, agent_id: str) -> int:
        """Slots that are free or coming free."""
        return self._inventory.available(agent_id) + self._on(agent_id).leaving

    def _on_one_agent(self, request: Request) -> Plan | None:
        # Where enough is coming free nobody has to go: best, and quick to see. The least to spare wins.
        spare = [
            (self._inventory.available(agent_id) + occupants.leaving - request.slots, agent_id)
            for agent_id, occupants in self._agents.items()
            if occupants.leaving and agent_id in self._inventory and agent_id not in request.excluded
        ]
        _, enough = min((entry for entry in spare if entry[0] >= 0), default=(0, None))
        if enough is not None:
            return Plan((), {enough: request.slots})
        best: tuple[tuple[int, int, int, str], Plan] | None = None
        for agent_id, occupants in self._agents.items():
            if agent_id not in self._inventory or agent_id in request.excluded:
                continue
            if self._inventory.capacity(agent_id) < request.slots:
                continue
            need = request.slots - self._at_hand(agent_id)
            victims = self._victims(occupants.evictable, agent_id, request.priority, need)
            if victims:
                cost = (*self._cost(victims), agent_id)
                if best is None or cost < best[0]:
                    names = tuple(victim.request.allocation_id for victim in victims)
                    best = cost, Plan(names, {agent_id: request.slots})
        return best[1] if best else None

    def _victims(self, evictable: list[Running], agent_id: str, priority: int, need: int) -> list[Running]:
        """Who has to leave the agent for `need` more slots; nobody where that is not enough."""
        chosen: list[tuple[Running, int]] = []
        gained = 0
        for running in evictable:
            if gained >= need or running.request.priority <= priority:
                break
            usable = self._inventory.usable(agent_id, running.assignment[agent_id])
            if usable:
                chosen.append((running, usable))
                gained += usable
        if gained < need:
            return []
        for candidate in reversed(chosen.copy()):
            if gained - candidate[1] >= need:
                chosen.remove(candidate)
                gained -= candidate[1]
        return [running for running, _ in chosen]

    def _on_whole_agents(self, request: Request) -> Plan | None:
        for size, count in self._inventory.gang_sizes(request.slots, request.excluded):
            emptied: list[tuple[tuple[int, int, int], str, list[Running]]] = []
            for agent_id in self._inventory.of_size(size, request.excluded):
                need = size - self._at_hand(agent_id)
                victims = (
                    self._victims(self._on(agent_id).evictable, agent_id, request.priority, need)
                    if need
                    else []
                )
                if not need or victims:
                    emptied.append((self._cost(victims), agent_id, victims))
            if len(emptied) >= count:
                emptied.sort(key=lambda entry: entry[:2])
                names = {
                    victim.request.allocation_id: None
                    for _, _, victims in emptied[:count]
                    for victim in victims
                }
                return Plan(tuple(names), {agent_id: size for _, agent_id, _ in emptied[:count]})
        return None

    @staticmethod
    def _cost(victims: list[Running]) -> tuple[int, int, int]:
        """Compares plans: any victim is worse than none, one of higher priority worse than one of lower."""
        if not victims:
            return 0, 0, 0
        highest = min(victim.request.priority for victim in victims)
        lost = sum(victim.request.slots for victim in victims)
        return 1, -highest, lost
