"""Exact decisions of the priority scheduler, its explanations, and its cost."""

import time
from collections.abc import Collection

import pytest

from detlab_master.core.scheduling import PoolConfig, Preempt, PriorityScheduler, Request, Start, explain


def request(
    name: str,
    slots: int = 1,
    *,
    job: str | None = None,
    priority: int = 42,
    order: int | None = None,
    preemptible: bool = True,
    single_node: bool = False,
    max_slots: int | None = None,
    excluded: Collection[str] = (),
) -> Request:
    order = int("".join(filter(str.isdigit, name)) or 0) if order is None else order
    return Request(
        name,
        job or name,
        slots,
        priority,
        order,
        preemptible,
        single_node=single_node,
        max_slots=max_slots,
        excluded=frozenset(excluded),
    )


def pool(
    agents: dict[str, int],
    *requests: Request,
    preemption: bool = False,
    fitting: str = "best",
    aux: int = 100,
) -> PriorityScheduler:
    assert fitting in ("best", "worst")
    config = PoolConfig(preemption, "best" if fitting == "best" else "worst", aux)
    scheduler = PriorityScheduler(config)
    for agent, slots in agents.items():
        scheduler.add_agent(agent, range(slots))
    for each in requests:
        scheduler.submit(each)
    return scheduler


def started(scheduler: PriorityScheduler) -> dict[str, dict[str, tuple[int, ...]]]:
    decisions = scheduler.schedule()
    assert all(isinstance(decision, Start) for decision in decisions), decisions
    return {d.allocation_id: dict(d.assignment) for d in decisions if isinstance(d, Start)}


def test_priority_goes_first_then_submission() -> None:
    scheduler = pool(
        {"a": 2}, request("r1", priority=50), request("r3"), request("r2"), request("r4", priority=1)
    )
    assert list(started(scheduler)) == ["r4", "r2"]
    assert scheduler.positions() == {"r3": 0, "r1": 1}
    scheduler.release("r4")
    assert started(scheduler) == {"r3": {"a": (0,)}}


@pytest.mark.parametrize(
    ("fitting", "expected"),
    [
        ("best", {"r1": {"b": (0, 1)}, "r2": {"a": (0,)}, "r3": {"a": (1,)}}),
        ("worst", {"r1": {"a": (0, 1)}, "r2": {"a": (2,)}, "r3": {"b": (0,)}}),
    ],
)
def test_fitting_packs_or_spreads(fitting: str, expected: dict[str, dict[str, tuple[int, ...]]]) -> None:
    scheduler = pool({"a": 4, "b": 2}, request("r1", 2), request("r2"), request("r3"), fitting=fitting)
    assert started(scheduler) == expected


def test_a_gang_takes_whole_idle_agents_or_waits() -> None:
    scheduler = pool({"a": 2, "b": 2, "c": 1}, request("r1"), request("r2", 4))
    assert started(scheduler) == {"r1": {"c": (0,)}, "r2": {"a": (0, 1), "b": (0, 1)}}
    scheduler = pool({"a": 2, "b": 2}, request("r1"), request("r2", 4))
    assert started(scheduler) == {"r1": {"a": (0,)}}
    scheduler.release("r1")
    assert started(scheduler) == {"r2": {"a": (0, 1), "b": (0, 1)}}


def test_a_request_that_one_agent_could_hold_is_not_torn_apart() -> None:
    scheduler = pool({"a": 4, "b": 2, "c": 2}, request("r1", 3), request("r2", 4))
    assert started(scheduler) == {"r1": {"a": (0, 1, 2)}}
    assert "needs 4 slots on one agent, and the most that is free on one is 2" in explain(scheduler, "r2")


@pytest.mark.parametrize(
    ("agents", "each", "why"),
    [
        ({"a": 2, "b": 2}, request("r1", 3), "3 slots, which must be one agent's or those of whole agents"),
        (
            {"a": 2, "b": 2},
            request("r1", 4, single_node=True),
            "on one agent, but the largest of 2 agents has 2",
        ),
        ({}, request("r1"), "The pool has no agents"),
        ({"a": 4}, request("r1", 3, max_slots=2), "max_slots of its job is 2: it cannot start until"),
    ],
)
def test_what_can_never_start_waits_and_says_why(agents: dict[str, int], each: Request, why: str) -> None:
    scheduler = pool(agents, each, preemption=True)
    assert scheduler.schedule() == []
    assert why in explain(scheduler, "r1")


def test_excluded_agents_are_not_there_for_a_request() -> None:
    scheduler = pool({"a": 2, "b": 1}, request("r1", excluded={"b"}), request("r2", excluded={"a"}))
    assert started(scheduler) == {"r1": {"a": (0,)}, "r2": {"b": (0,)}}
    scheduler = pool({"a": 2, "b": 2, "c": 2}, request("r1", 4, excluded={"a"}), request("r2", 4))
    assert started(scheduler) == {"r1": {"b": (0, 1), "c": (0, 1)}}
    assert started(pool({"a": 1}, request("r1", 0, excluded={"a"}))) == {}


def test_who_excludes_an_agent_pushes_nobody_off_it() -> None:
    scheduler = pool(
        {"a": 1, "b": 1}, request("r1", priority=50), request("r2", priority=60), preemption=True
    )
    assert started(scheduler) == {"r1": {"a": (0,)}, "r2": {"b": (0,)}}
    scheduler.submit(request("r3", priority=1, excluded={"b"}))
    assert scheduler.schedule() == [Preempt("r1")]


@pytest.mark.parametrize(
    ("agents", "each", "all_excluded"),
    [
        ({"a": 1}, request("r1", excluded={"a"}), True),
        ({"a": 1, "b": 1}, request("r1", excluded={"a"}), False),
        ({"a": 2, "b": 1}, request("r1", 2, excluded={"a"}), True),  # b is too small for it
        ({"a": 1, "b": 1}, request("r1", 2, excluded={"a"}), True),  # only both together
        ({"b": 1}, request("r1", 2, excluded={"a"}), False),  # it would not fit without the rule either
        ({}, request("r1", excluded={"a"}), False),
        ({"a": 1}, request("r1", 0, excluded={"a"}), True),
        ({"a": 1}, request("r1"), False),
    ],
)
def test_when_only_excluded_agents_could_hold_a_request(
    agents: dict[str, int], each: Request, all_excluded: bool
) -> None:
    scheduler = pool(agents, each)
    assert scheduler.excludes_all(each) is all_excluded
    for agent in agents:
        scheduler.set_agent_enabled(agent, False)  # one that is disabled may come back
    assert scheduler.excludes_all(each) is all_excluded
    if all_excluded and len(agents) == 1:
        scheduler.set_agent_enabled("a", True)
        scheduler.schedule()
        assert "log policies of its experiment exclude them" in explain(scheduler, "r1")


def test_one_that_does_not_fit_holds_nobody_up() -> None:
    scheduler = pool({"a": 2}, request("r1", 1), request("r2", 2, priority=43), request("r3", 1, priority=99))
    assert list(started(scheduler)) == ["r1", "r3"]
    assert explain(scheduler, "r2") == (
        "It needs 2 slots on one agent, and the most that is free on one is 0; "
        "of 2 slots in the pool 0 are free. It is next in line."
    )


def test_tasks_without_slots_have_places_of_their_own() -> None:
    agents = {"a": 0, "b": 1}
    scheduler = pool(agents, request("r1"), *(request(f"r{i}", 0) for i in range(2, 7)), aux=2)
    assert started(scheduler) == {
        "r1": {"b": (0,)},
        "r2": {"a": ()},
        "r3": {"a": ()},
        "r4": {"b": ()},
        "r5": {"b": ()},
    }
    assert "each of 2 agents runs the 2 tasks without slots" in explain(scheduler, "r6")
    scheduler.release("r4")
    assert started(scheduler) == {"r6": {"b": ()}}


def test_max_slots_bounds_a_job_and_lowering_it_preempts_the_latest() -> None:
    trials = [request(f"t{i}", job="e", max_slots=3) for i in range(5)]
    scheduler = pool({"a": 8}, *trials)
    assert list(started(scheduler)) == ["t0", "t1", "t2"]
    assert "Its job holds 3 of the 3 slots" in explain(scheduler, "t3")
    scheduler.set_max_slots("e", 1)
    decisions = scheduler.schedule()
    assert decisions == [Preempt("t2"), Preempt("t1")]
    assert all("max_slots" in d.reason for d in decisions if isinstance(d, Preempt))
    scheduler.release("t1")
    assert scheduler.schedule() == []
    scheduler.set_max_slots("e", None)
    assert list(started(scheduler)) == ["t3", "t4"]


def test_jobs_ahead_counts_jobs_and_not_their_requests() -> None:
    scheduler = pool(
        {"a": 1},
        request("r1", job="first"),
        request("r2", job="first"),
        request("r3", job="second"),
        request("r4", job="third", priority=1),
    )
    assert [scheduler.jobs_ahead(job) for job in ("third", "first", "second")] == [0, 1, 2]
    assert list(started(scheduler)) == ["r4"]
    assert [scheduler.jobs_ahead(job) for job in ("third", "first", "second")] == [-1, 0, 1]
    scheduler.set_priority("second", 1)
    assert [scheduler.jobs_ahead(job) for job in ("third", "first", "second")] == [-1, 1, 0]


def test_disabled_slots_and_agents_get_nothing_new() -> None:
    scheduler = pool({"a": 2, "b": 2})
    scheduler.set_slot_enabled("a", 0, False)
    scheduler.set_agent_draining("b", True)
    for i in range(3):
        scheduler.submit(request(f"r{i}"))
    assert started(scheduler) == {"r0": {"a": (1,)}}
    scheduler.set_agent_draining("b", False)
    assert started(scheduler) == {"r1": {"b": (0,)}, "r2": {"b": (1,)}}
    scheduler.set_agent_enabled("a", False)
    scheduler.release("r0")
    scheduler.submit(request("r3"))
    assert scheduler.schedule() == []
    scheduler.set_agent_enabled("b", False)
    assert explain(scheduler, "r3").startswith("Nothing can start in the pool: its 2 agents are disabled")


def test_preemption_takes_the_lowest_priority_and_the_latest_first_and_keeps_the_room() -> None:
    low = [request(f"r{i}", priority=50) for i in range(4)] + [request("r4", priority=60)]
    scheduler = pool({"a": 5}, *low, preemption=True)
    assert len(started(scheduler)) == 5
    scheduler.submit(request("r9", 2, priority=10))
    assert scheduler.schedule() == [Preempt("r4"), Preempt("r3")]
    scheduler.release("r4")
    scheduler.submit(request("r10", 1, priority=20))
    # One slot is free, but it is kept for r9; r10 makes room for itself.
    assert scheduler.schedule() == [Preempt("r2")]
    assert "are kept for requests of higher priority" in explain(scheduler, "r10")
    scheduler.release("r3")
    assert started(scheduler) == {"r9": {"a": (3, 4)}}


@pytest.mark.parametrize("preemption", [False, True])
def test_nobody_is_preempted_by_equals_or_when_not_preemptible(preemption: bool) -> None:
    held = [request("r1"), request("r2", priority=99, preemptible=False)]
    scheduler = pool({"a": 2}, *held, preemption=preemption)
    started(scheduler)
    scheduler.submit(request("r3"))
    scheduler.submit(request("r4", 2, priority=1))
    assert scheduler.schedule() == []


def test_without_need_nobody_is_preempted() -> None:
    # Freeing two slots takes r2, which has both; r3 alone would not do, and is not needed.
    scheduler = pool({"a": 3}, request("r2", 2, priority=50), request("r3", 1, priority=60), preemption=True)
    started(scheduler)
    scheduler.submit(request("r4", 2, priority=10))
    assert scheduler.schedule() == [Preempt("r2")]


def test_a_gang_preempts_whole_agents() -> None:
    small = [request(f"r{i}", priority=90) for i in range(3)]
    scheduler = pool({"a": 2, "b": 2}, *small, preemption=True)
    started(scheduler)
    scheduler.submit(request("r8", 4, priority=5))
    decisions = scheduler.schedule()
    assert sorted(decisions, key=str) == [Preempt("r0"), Preempt("r1"), Preempt("r2")]
    for i in range(3):
        scheduler.release(f"r{i}")
        scheduler.submit(request(f"again{i}", priority=90))
    assert started(scheduler) == {"r8": {"a": (0, 1), "b": (0, 1)}}


def test_behind_one_that_no_room_can_be_made_for_only_preemptible_ones_start() -> None:
    scheduler = pool({"a": 2}, request("r1", priority=5, preemptible=False), preemption=True)
    started(scheduler)
    scheduler.submit(request("r2", 2, priority=10))
    scheduler.submit(request("r3", 1, priority=20, preemptible=False))
    scheduler.submit(request("r4", 1, priority=30))
    assert started(scheduler) == {"r4": {"a": (1,)}}
    scheduler.release("r1")
    assert scheduler.schedule() == [Preempt("r4")]
    scheduler.release("r4")
    assert started(scheduler) == {"r2": {"a": (0, 1)}}


def test_a_change_of_priority_moves_what_waits_and_exposes_what_runs() -> None:
    scheduler = pool({"a": 1}, request("r1"), preemption=True)
    started(scheduler)
    scheduler.submit(request("r2"))
    scheduler.submit(request("r3"))
    scheduler.set_priority("r3", 41)
    assert scheduler.positions() == {"r3": 0, "r2": 1}
    assert scheduler.schedule() == [Preempt("r1")]
    assert "asked to stop" in explain(scheduler, "r1")


def test_restored_allocations_keep_their_slots_even_before_their_agent_is_back() -> None:
    scheduler = pool({"a": 1})
    scheduler.restore(request("r1", 2, max_slots=2, job="e"), {"b": (0, 2)})
    scheduler.restore(request("r2", 0), {"b": ()})
    scheduler.submit(request("r3", 3))
    scheduler.submit(request("r4", 1, job="e", max_slots=2))
    assert scheduler.schedule() == []
    scheduler.add_agent("b", range(4))
    scheduler.submit(request("r5", 2))
    assert started(scheduler) == {"r5": {"b": (1, 3)}}
    assert scheduler.running()["r2"][1] == {"b": ()}
    scheduler.release("r1")
    assert started(scheduler) == {"r4": {"a": (0,)}}


def test_an_agent_that_comes_back_finds_its_slots_held() -> None:
    scheduler = pool({"a": 1}, request("r1"))
    started(scheduler)
    scheduler.remove_agent("a")
    scheduler.submit(request("r2"))
    assert scheduler.schedule() == []
    scheduler.add_agent("a", range(1))
    assert scheduler.schedule() == []
    scheduler.release("r1")
    assert started(scheduler) == {"r2": {"a": (0,)}}


def test_mistakes_are_refused_and_change_nothing() -> None:
    scheduler = pool({"a": 2}, request("r1"))
    started(scheduler)
    with pytest.raises(ValueError, match="known already"):
        scheduler.submit(request("r1"))
    with pytest.raises(ValueError, match="slot 0 of agent 'a' is held by r1"):
        scheduler.restore(request("r2"), {"a": (0,)})
    with pytest.raises(ValueError, match="has 2 slots, not those of"):
        scheduler.restore(request("r2", 2), {"a": (1,)})
    with pytest.raises(ValueError, match="priority 100"):
        request("r2", priority=100)
    with pytest.raises(ValueError, match="has no slot 7"):
        scheduler.set_slot_enabled("a", 7, False)
    with pytest.raises(ValueError, match="in the pool already"):
        scheduler.add_agent("a", range(1))
    for unknown in (scheduler.release, scheduler.position, scheduler.request):
        with pytest.raises(KeyError, match="no allocation 'r9'"):
            unknown("r9")
    with pytest.raises(KeyError, match="no agent 'z'"):
        scheduler.remove_agent("z")
    assert scheduler.running() == {"r1": (request("r1"), {"a": (0,)})}
    scheduler.submit(request("r2"))
    assert started(scheduler) == {"r2": {"a": (1,)}}


@pytest.mark.parametrize("preemption", [False, True])
def test_a_pass_costs_the_same_however_long_the_queue(preemption: bool) -> None:
    """Time for 200 rounds of one release and one pass; a pass over the whole queue would show tenfold."""

    def rounds(queued: int) -> float:
        scheduler = pool({f"a{i:02}": 8 for i in range(8)}, preemption=preemption)
        for i in range(queued):
            slots = (1, 2, 4)[i % 3]
            scheduler.submit(request(f"r{i}", slots, job=f"e{i % 50}", priority=40 + i % 4, order=i))
        running = [d.allocation_id for d in scheduler.schedule() if isinstance(d, Start)]
        begin = time.perf_counter()
        for _ in range(200):
            scheduler.release(running.pop(0))
            running += [d.allocation_id for d in scheduler.schedule() if isinstance(d, Start)]
        return time.perf_counter() - begin

    short, long = min(rounds(1_000) for _ in range(2)), min(rounds(10_000) for _ in range(2))
    assert long < 5 * short
    assert long / 200 < 0.005, f"{long / 200 * 1000:.1f} ms a pass"
