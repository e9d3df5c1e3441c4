"""Why a request waits, in words for its owner."""

from detlab_master.core.scheduling.priority import PriorityScheduler
from detlab_master.core.scheduling.requests import Request


def explain(scheduler: PriorityScheduler, allocation_id: str) -> str:
    """One sentence or two, as of the last `schedule`. Raises KeyError for an allocation that is not there."""
    request = scheduler.request(allocation_id)
    ahead = scheduler.position(allocation_id)
    if ahead < 0:
        if allocation_id in scheduler.preempting():
            return (
                "It runs, and has been asked to stop for a request of higher priority "
                "or for its job's max_slots."
            )
        return "It runs."
    inventory = (scheduler.slots if request.slots else scheduler.aux).inventory
    agents = list(inventory.agents())
    if not agents:
        return "The pool has no agents. It starts when one connects."
    open_ = [agent_id for agent_id in agents if inventory.capacity(agent_id)]
    if not open_:
        count = _count(len(agents), "agent")
        return f"Nothing can start in the pool: its {count} are disabled, draining or without slots."
    if (cap := _capped(scheduler, request)) is not None:
        return cap
    usable = [agent_id for agent_id in open_ if agent_id not in request.excluded]
    if not usable:
        count = _count(len(open_), "agent")
        return f"It may not run on any of the pool's {count}: log policies of its experiment exclude them."
    if not request.slots:
        return _no_place(scheduler, len(usable), ahead)
    total = sum(inventory.capacity(agent_id) for agent_id in usable)
    largest = inventory.largest(request.excluded)
    if not inventory.could_ever_fit(request.slots, request.single_node, request.excluded):
        return _too_large(request, largest, total, len(usable))
    free = sum(inventory.available(agent_id) for agent_id in usable)
    most = max(inventory.available(agent_id) for agent_id in usable)
    if request.slots <= largest:
        where = (
            f"needs {_count(request.slots, 'slot')} on one agent, and the most that is free on one is {most}"
        )
    else:
        ways = " or ".join(
            f"{count} idle agents of {size}"
            for size, count in inventory.gang_sizes(request.slots, request.excluded)
        )
        where = f"needs {request.slots} slots, which takes {ways}"
    if most >= request.slots:
        where = f"needs {_count(request.slots, 'slot')}, which are free"
    free_now = f"of {_count(total, 'slot')} in the pool {free} {'is' if free == 1 else 'are'} free"
    text = f"It {where}; {free_now}. {_ahead(ahead)}"
    stopping = len(scheduler.preempting())
    if stopping:
        text += f" {_count(stopping, 'allocation')} {'is' if stopping == 1 else 'are'} stopping to make room."
    if scheduler.pool.preemption and most >= request.slots:
        text += " The free slots are kept for requests of higher priority."
    return text


def _capped(scheduler: PriorityScheduler, request: Request) -> str | None:
    cap, used = scheduler.max_slots(request.job_id), scheduler.used_slots(request.job_id)
    if cap is None or used + request.slots <= cap:
        return None
    if request.slots > cap:
        return (
            f"It needs {_count(request.slots, 'slot')}, but max_slots of its job is {cap}: "
            "it cannot start until that is raised."
        )
    return (
        f"Its job holds {used} of the {_count(cap, 'slot')} that max_slots allows it, "
        f"and this needs {request.slots} more."
    )


def _no_place(scheduler: PriorityScheduler, agents: int, ahead: int) -> str:
    places = scheduler.pool.max_aux_per_agent
    return (
        f"It needs no slots, but each of {_count(agents, 'agent')} runs the {places} tasks without slots "
        f"that max_aux_containers_per_agent allows. {_ahead(ahead)}"
    )


def _too_large(request: Request, largest: int, total: int, agents: int) -> str:
    if request.single_node:
        return (
            f"It needs {_count(request.slots, 'slot')} on one agent, "
            f"but the largest of {_count(agents, 'agent')} has {largest}: it cannot start here."
        )
    return (
        f"It needs {request.slots} slots, which must be one agent's or those of whole agents of one size; "
        f"the pool has {_count(total, 'slot')} on {_count(agents, 'agent')}, the largest of {largest}: "
        "it cannot start here."
    )


def _ahead(ahead: int) -> str:
    return (
        f"{_count(ahead, 'request')} {'is' if ahead == 1 else 'are'} ahead of it."
        if ahead
        else "It is next in line."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
