"""The agents of a pool, their free slots, and where a request fits.

Rules
- A request goes to one agent where any agent is large enough for it (busy or not): it is not torn apart only
  because that agent is busy. `best` fitting takes the agent that has the fewest free slots left over, `worst`
  the one with the most; among equals the first by name.
- A larger request takes whole agents, idle and all of one size, that add up to it exactly; the largest size
  that does.
- Agents that a request excludes are not there for it.
- Slots that are disabled, and all slots of an agent that is disabled or draining, are not given out. Who
  holds one keeps it. Who holds slots of an agent that is away keeps them too, and finds them held when the
  agent is back.

Holds set free slots aside within one scheduling pass, so that what a high request waits for is not given to a
lower one.

Nothing here is found by walking over all agents: they are filed by how many slots they have free.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from detlab_master.core.scheduling.requests import Assignment, SlotId

Excluded: TypeAlias = AbstractSet[str]  # agents that a request must not run on
_NONE: frozenset[str] = frozenset()


@dataclass
class _Agent:
    slots: dict[SlotId, bool]  # enabled
    open: bool = True  # neither disabled nor draining
    free: list[SlotId] = field(default_factory=list)  # that may be given out, ascending
    capacity: int = 0  # slots that may be given out when nobody holds any
    reserved: int = 0  # free ones under a hold

    @property
    def available(self) -> int:
        return len(self.free) - self.reserved


class _Shelves:
    """Agent names filed by a number, in order."""

    def __init__(self) -> None:
        self._shelves: dict[int, list[str]] = {}

    def add(self, number: int, agent_id: str) -> None:
        insort(self._shelves.setdefault(number, []), agent_id)

    def remove(self, number: int, agent_id: str) -> None:
        shelf = self._shelves[number]
        del shelf[bisect_left(shelf, agent_id)]
        if not shelf:
            del self._shelves[number]

    def numbers(self) -> Iterable[int]:
        return self._shelves

    def __getitem__(self, number: int) -> list[str]:
        return self._shelves.get(number, [])


class Inventory:
    """The slots of a pool: who holds which, and what is free."""

    def __init__(self, fitting: Literal["best", "worst"]) -> None:
        self._fitting = fitting
        self._agents: dict[str, _Agent] = {}
        self._held: dict[str, dict[SlotId, str]] = {}  # agent -> slot -> allocation; of absent agents too
        self._by_available = _Shelves()  # agents with something available
        self._by_capacity = _Shelves()  # agents that give slots out at all
        self._idle_by_capacity = _Shelves()  # those of them of which all is available
        self._with_holds: set[str] = set()

    # Changes

    def add(self, agent_id: str, slots: Iterable[SlotId]) -> None:
        if agent_id in self._agents:
            raise ValueError(f"agent {agent_id!r} is in the pool already")
        self._agents[agent_id] = _Agent(dict.fromkeys(slots, True))
        self._file(agent_id)

    def remove(self, agent_id: str) -> None:
        self._unfile(agent_id)
        del self._agents[agent_id]
        self._with_holds.discard(agent_id)

    def set_slot_enabled(self, agent_id: str, slot: SlotId, enabled: bool) -> None:
        agent = self._agents[agent_id]
        if slot not in agent.slots:
            known = ", ".join(map(str, agent.slots)) or "none"
            raise ValueError(f"agent {agent_id!r} has no slot {slot!r}; it has {known}")
        self._unfile(agent_id)
        agent.slots[slot] = enabled
        self._file(agent_id)

    def set_open(self, agent_id: str, is_open: bool) -> None:
        self._unfile(agent_id)
        self._agents[agent_id].open = is_open
        self._file(agent_id)

    def take(self, allocation_id: str, assignment: Assignment) -> None:
        """Raises ValueError, and changes nothing, where a slot is held already."""
        for agent_id, slots in assignment.items():
            for slot in slots:
                holder = self._held.get(agent_id, {}).get(slot)
                if holder is not None:
                    raise ValueError(f"slot {slot} of agent {agent_id!r} is held by {holder}, not free")
        for agent_id, slots in assignment.items():
            held = self._held.setdefault(agent_id, {})
            held.update(dict.fromkeys(slots, allocation_id))
            if agent_id in self._agents:
                self._unfile(agent_id)
                self._file(agent_id)

    def give_back(self, assignment: Assignment) -> None:
        for agent_id, slots in assignment.items():
            held = self._held[agent_id]
            for slot in slots:
                del held[slot]
            if not held:
                del self._held[agent_id]
            if agent_id in self._agents:
                self._unfile(agent_id)
                self._file(agent_id)

    def hold(self, agent_id: str, slots: int) -> None:
        """Set free slots aside until `drop_holds`."""
        if slots:
            self._unfile(agent_id)
            self._agents[agent_id].reserved += slots
            self._with_holds.add(agent_id)
            self._file(agent_id)

    def drop_holds(self) -> None:
        for agent_id in self._with_holds:
            self._unfile(agent_id)
            self._agents[agent_id].reserved = 0
            self._file(agent_id)
        self._with_holds.clear()

    def _file(self, agent_id: str) -> None:
        agent = self._agents[agent_id]
        held = self._held.get(agent_id, {})
        usable = [slot for slot, enabled in agent.slots.items() if enabled] if agent.open else []
        agent.capacity = len(usable)
        agent.free = sorted(slot for slot in usable if slot not in held)
        if agent.available > 0:
            self._by_available.add(agent.available, agent_id)
        if agent.capacity:
            self._by_capacity.add(agent.capacity, agent_id)
            if agent.available == agent.capacity:
                self._idle_by_capacity.add(agent.capacity, agent_id)

    def _unfile(self, agent_id: str) -> None:
        agent = self._agents[agent_id]
        if agent.available > 0:
            self._by_available.remove(agent.available, agent_id)
        if agent.capacity:
            self._by_capacity.remove(agent.capacity, agent_id)
            if agent.available == agent.capacity:
                self._idle_by_capacity.remove(agent.capacity, agent_id)

    # Questions

    def __contains__(self, agent_id: str) -> bool:
        return agent_id in self._agents

    def agents(self) -> Iterator[str]:
        return iter(self._agents)

    def capacity(self, agent_id: str) -> int:
        """Slots that the agent could give out if nobody held any."""
        return self._agents[agent_id].capacity

    def available(self, agent_id: str) -> int:
        """Slots that the agent could give out now."""
        return self._agents[agent_id].available

    def usable(self, agent_id: str, slots: Iterable[SlotId]) -> int:
        """How many of these, held now, could be given out again once they are free."""
        agent = self._agents.get(agent_id)
        if agent is None or not agent.open:
            return 0
        return sum(agent.slots.get(slot, False) for slot in slots)

    def largest(self, excluded: Excluded = _NONE) -> int:
        """Slots of the largest agent, busy or not; 0 without any."""
        if not excluded:
            return max(self._by_capacity.numbers(), default=0)
        sizes = (size for size in self._by_capacity.numbers() if _others(self._by_capacity[size], excluded))
        return max(sizes, default=0)

    def unheld(self, agent_id: str, count: int) -> tuple[SlotId, ...]:
        """That many slot numbers, the lowest that nobody holds, whether the agent is there or not."""
        held = self._held.get(agent_id, {})
        found: list[SlotId] = []
        slot = 0
        while len(found) < count:
            if slot not in held:
                found.append(slot)
            slot += 1
        return tuple(found)

    def gang_sizes(self, slots: int, excluded: Excluded = _NONE) -> Iterator[tuple[int, int]]:
        """(agent size, number of agents) that a large request could take, busy or not, largest size first."""
        for size in sorted(self._by_capacity.numbers(), reverse=True):
            if slots % size == 0 and len(self.of_size(size, excluded)) >= slots // size:
                yield size, slots // size

    def of_size(self, size: int, excluded: Excluded = _NONE) -> list[str]:
        """Agents of this many slots, busy or not, by name."""
        return _others(self._by_capacity[size], excluded)

    def could_ever_fit(self, slots: int, single_node: bool, excluded: Excluded = _NONE) -> bool:
        """Whether the request would fit if nobody held anything."""
        if slots <= self.largest(excluded):
            return True
        return not single_node and next(self.gang_sizes(slots, excluded), None) is not None

    def could_hold(self, slots: int, single_node: bool, excluded: Excluded = _NONE) -> bool:
        """Whether the request would fit if nobody held anything and all was enabled. O(agents)."""
        sizes = Counter(len(agent.slots) for name, agent in self._agents.items() if name not in excluded)
        if slots <= max(sizes, default=0):
            return True
        return not single_node and any(
            size and slots % size == 0 and count >= slots // size for size, count in sizes.items()
        )

    def find(
        self, slots: int, single_node: bool, excluded: Excluded = _NONE
    ) -> dict[str, tuple[SlotId, ...]] | None:
        """Slots for a request (of at least 1) that are free now; None if it does not fit."""
        if slots <= self.largest(excluded):
            agents = self._by_available
            fitting = [n for n in agents.numbers() if n >= slots and _others(agents[n], excluded)]
            if not fitting:
                return None
            number = min(fitting) if self._fitting == "best" else max(fitting)
            agent_id = _others(agents[number], excluded)[0]
            # Free slots under a hold are the last ones.
            return {agent_id: tuple(self._agents[agent_id].free[:slots])}
        if single_node:
            return None
        for size, count in self.gang_sizes(slots, excluded):
            idle = _others(self._idle_by_capacity[size], excluded)
            if len(idle) >= count:
                return {agent_id: tuple(self._agents[agent_id].free) for agent_id in idle[:count]}
        return None


def _others(agents: list[str], excluded: Excluded) -> list[str]:
    return [agent_id for agent_id in agents if agent_id not in excluded] if excluded else agents
