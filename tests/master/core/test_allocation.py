"""The life of an allocation, event by event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from detlab_master.core import allocation as core
from detlab_master.core.records import Allocation, Container
from detlab_master.core.states import AllocationState as S
from detlab_master.core.transitions import IllegalMove

QUEUED = Allocation(
    id="1.t.1",
    task_id="1.t",
    owner_id=1,
    run_id=1,
    resource_pool="default",
    slots=2,
    priority=42,
    state=S.QUEUED,
    queued_at=0.0,
    queue_order=1,
    preemption_timeout=60.0,
)
ONE = Container("c1", "a1", (0,))
TWO = Container("c2", "a2", (0,))


def played(*events: core.Event, start: Allocation = QUEUED) -> tuple[Allocation, list[core.Effect]]:
    """The allocation after some events, and the effects of the last one."""
    allocation = start
    effects: list[core.Effect] = []
    for event in events:
        allocation, effects = core.step(allocation, event, now=10.0)
    return allocation, effects


def moved(container: str, state: S, **how: object) -> core.ContainerMoved:
    return core.ContainerMoved(container, state, **how)  # type: ignore[arg-type]


GRANTED = core.Granted((ONE, TWO))
RUNNING = (GRANTED, moved("c1", S.RUNNING), moved("c2", S.RUNNING), core.BecameReady())


def test_a_grant_starts_every_container() -> None:
    allocation, effects = played(GRANTED)
    assert allocation.state is S.ASSIGNED
    assert effects == [core.StartContainer(ONE), core.StartContainer(TWO)]


def test_slots_cannot_be_granted_twice() -> None:
    with pytest.raises(IllegalMove, match="cannot become ASSIGNED"):
        played(GRANTED, GRANTED)


def test_it_is_as_far_as_its_slowest_container() -> None:
    allocation, _ = played(GRANTED, moved("c1", S.RUNNING), moved("c2", S.STARTING))
    assert allocation.state is S.STARTING


def test_a_late_report_changes_nothing() -> None:
    running, _ = played(*RUNNING)
    assert core.step(running, moved("c1", S.STARTING), 11.0) == (running, [])
    assert core.step(running, moved("unknown", S.RUNNING), 11.0) == (running, [])


def test_a_signal_only_once_it_is_ready() -> None:
    allocation, effects = played(*RUNNING, core.PreemptionRequested("paused"))
    assert effects == [core.SignalPreemption(), core.ArmPreemptionTimeout(60.0)]
    assert not allocation.aborted
    assert core.step(allocation, core.PreemptionRequested("again"), 11.0) == (allocation, [])


def test_before_that_it_is_killed_and_that_is_no_failure() -> None:
    allocation, effects = played(GRANTED, core.PreemptionRequested("paused"))
    assert allocation.aborted
    assert [type(effect) for effect in effects] == [core.KillContainer, core.KillContainer]


def test_in_the_queue_it_just_ends() -> None:
    allocation, effects = played(core.KillRequested())
    assert allocation.state is S.TERMINATED
    assert effects == [core.Ended()]


def test_one_failure_ends_the_gang_and_names_its_cause() -> None:
    failure = moved("c2", S.TERMINATED, exit_code=3, failure="container_failed", message="out of memory")
    allocation, effects = played(*RUNNING, failure)
    assert [e.container.id for e in effects if isinstance(e, core.KillContainer)] == ["c1"]
    killed = moved("c1", S.TERMINATED, exit_code=143, failure="container_aborted")
    allocation, effects = core.step(allocation, killed, 12.0)
    assert (allocation.exit_code, allocation.failure, allocation.exit_reason) == (
        3,
        "container_failed",
        "out of memory",
    )
    assert effects == [core.Ended()]


def test_daemons_do_not_keep_it_alive_and_do_not_fail_it() -> None:
    allocation, effects = played(*RUNNING, core.DaemonMarked("c2"), moved("c1", S.TERMINATED, exit_code=0))
    assert [e.container.id for e in effects if isinstance(e, core.KillContainer)] == ["c2"]
    killed = moved("c2", S.TERMINATED, exit_code=137, failure="container_aborted")
    allocation, _ = core.step(allocation, killed, 12.0)
    assert (allocation.state, allocation.exit_code, allocation.failure) == (S.TERMINATED, 0, None)


def test_a_lost_agent_takes_its_containers_along() -> None:
    allocation, effects = played(*RUNNING, core.AgentLost("a1"))
    assert allocation.failure == "agent_failed"
    assert [e.container.id for e in effects if isinstance(e, core.KillContainer)] == ["c2"]


def test_an_ack_needs_a_signal() -> None:
    assert not played(*RUNNING, core.PreemptionAcked())[0].preempt_acked
    assert played(*RUNNING, core.PreemptionRequested(), core.PreemptionAcked())[0].preempt_acked


def test_who_ignores_the_signal_is_killed() -> None:
    _, effects = played(*RUNNING, core.PreemptionRequested(), core.PreemptionTimedOut())
    assert [type(effect) for effect in effects] == [core.KillContainer, core.KillContainer]


def test_after_the_end_nothing_changes() -> None:
    ended, _ = played(core.KillRequested())
    for event in (GRANTED, core.PreemptionRequested(), core.AgentLost("a1"), core.BecameReady()):
        assert core.step(replace(ended), event, 20.0) == (ended, [])


@pytest.mark.parametrize(
    ("now", "left"),
    [(100.0, 60.0), (130.0, 30.0), (160.0, 0.0), (22_000.0, 0.0), (-21_500.0, 60.0)],
    ids=["at once", "later", "at its end", "clock put forward", "clock put back"],
)
def test_a_new_master_goes_on_with_the_grace_that_is_left(now: float, left: float) -> None:
    asked = replace(QUEUED, preempt_requested_at=100.0)
    assert core.grace_left(asked, now) == left
