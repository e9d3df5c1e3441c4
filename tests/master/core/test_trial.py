"""How an ended allocation is read (harness-protocol.md 7), and which moves a trial makes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from detlab_master.core import log_policies
from detlab_master.core import trial as core
from detlab_master.core.records import Allocation, Container, Trial
from detlab_master.core.states import AllocationState
from detlab_master.core.states import TrialState as S
from detlab_master.core.trial import Outcome

TRIAL = Trial(1, 1, 0, "1.t", S.ACTIVE, {}, 1, start_time=0.0, run_id=1, allocation_id="1.t.1")
ENDED = Allocation(
    id="1.t.1",
    task_id="1.t",
    owner_id=1,
    run_id=1,
    resource_pool="default",
    slots=1,
    priority=42,
    state=AllocationState.TERMINATED,
    queued_at=0.0,
    queue_order=1,
    ended_at=5.0,
    exit_code=0,
    containers=(Container("c", "a", (0,), AllocationState.TERMINATED, 0),),
)
CRASHED = replace(ENDED, exit_code=1, failure="container_failed")
ACKED = replace(ENDED, preempt_requested_at=1.0, preempt_acked=True)


@pytest.mark.parametrize(
    ("trial", "ended", "outcome"),
    [
        (TRIAL, ENDED, Outcome.COMPLETED),
        (TRIAL, CRASHED, Outcome.RESTART),
        (TRIAL, ACKED, Outcome.RESCHEDULE),
        (TRIAL, replace(ACKED, exit_code=1, failure="container_failed"), Outcome.RESCHEDULE),
        (TRIAL, replace(ENDED, preempt_requested_at=1.0, failure="container_aborted"), Outcome.RESTART),
        (TRIAL, replace(ENDED, failure="agent_failed", exit_code=None), Outcome.RESCHEDULE),
        (TRIAL, replace(ENDED, failure="container_missing", exit_code=None), Outcome.RESCHEDULE),
        (TRIAL, replace(ENDED, failure="container_aborted", aborted=True), Outcome.RESCHEDULE),
        (TRIAL, replace(ENDED, failure="user_mismatch"), Outcome.ERROR),
        (TRIAL, replace(ENDED, failure="unplaceable", containers=()), Outcome.ERROR),
        (TRIAL, replace(ENDED, failure="environment_unusable"), Outcome.ERROR),
        (TRIAL, replace(ENDED, containers=()), Outcome.RESCHEDULE),
        (replace(TRIAL, early_exit_reason=core.INVALID_HP), CRASHED, Outcome.COMPLETED),
        (replace(TRIAL, state=S.STOPPING_COMPLETED, stopped_by_searcher=True), ACKED, Outcome.COMPLETED),
        (replace(TRIAL, state=S.STOPPING_COMPLETED, stopped_by_searcher=True), CRASHED, Outcome.ERROR),
        (replace(TRIAL, state=S.STOPPING_CANCELED), ACKED, Outcome.CANCELED),
        (replace(TRIAL, state=S.STOPPING_CANCELED), CRASHED, Outcome.ERROR),
        (replace(TRIAL, state=S.STOPPING_KILLED), CRASHED, Outcome.CANCELED),
        # Acknowledged goes before the exit code, also of one that we killed in the end.
        (TRIAL, replace(ACKED, exit_code=137, failure="container_aborted"), Outcome.RESCHEDULE),
        (replace(TRIAL, state=S.PAUSED), replace(CRASHED, preempt_requested_at=1.0), Outcome.RESTART),
        # Killed because it did not exit after its report of invalid hyperparameters.
        (
            replace(TRIAL, early_exit_reason=core.INVALID_HP),
            replace(ENDED, kill_requested=True, exit_code=137, failure="container_aborted"),
            Outcome.COMPLETED,
        ),
        (replace(TRIAL, early_exit_reason=core.INVALID_HP), ACKED, Outcome.COMPLETED),
        (
            replace(TRIAL, state=S.STOPPING_CANCELED, early_exit_reason=core.INVALID_HP),
            ENDED,
            Outcome.CANCELED,
        ),
        (
            replace(TRIAL, state=S.STOPPING_CANCELED),
            replace(ENDED, preempt_requested_at=1.0, exit_code=137, failure="container_aborted"),
            Outcome.CANCELED,
        ),
        (replace(TRIAL, state=S.STOPPING_CANCELED), replace(ENDED, failure="agent_failed"), Outcome.CANCELED),
        (
            replace(TRIAL, state=S.STOPPING_COMPLETED, stopped_by_searcher=True),
            replace(ENDED, failure="agent_failed"),
            Outcome.COMPLETED,
        ),
    ],
)
def test_how_an_end_is_read(trial: Trial, ended: Allocation, outcome: Outcome) -> None:
    assert core.outcome(trial, ended) is outcome


def stepped(trial: Trial, event: core.Event, max_restarts: int = 2) -> tuple[Trial, list[core.Effect]]:
    return core.step(trial, event, max_restarts=max_restarts, now=9.0)


def test_a_failed_run_is_tried_again_with_the_next_number() -> None:
    after, effects = stepped(TRIAL, core.AllocationEnded(CRASHED))
    assert (after.restarts, after.run_id, after.allocation_id) == (1, 2, "1.t.2")
    assert effects == [core.RequestAllocation(after)]


def test_the_systems_failures_and_preemptions_are_not_counted() -> None:
    trial = replace(TRIAL, restarts=2)
    for ended in (ACKED, replace(ENDED, failure="agent_failed"), replace(ENDED, failure="x", aborted=True)):
        after, effects = stepped(trial, core.AllocationEnded(ended))
        assert (after.state, after.restarts, after.run_id) == (S.ACTIVE, 2, 2)
        assert effects == [core.RequestAllocation(after)]


def test_who_reports_invalid_hyperparameters_has_ten_seconds_to_exit() -> None:
    after, (effect,) = stepped(TRIAL, core.EarlyExitReported(core.INVALID_HP))
    assert isinstance(effect, core.KillAllocationLater)
    assert (effect.allocation_id, effect.seconds) == ("1.t.1", 10.0)
    over, effects = stepped(after, core.AllocationEnded(replace(ENDED, failure="container_aborted")))
    assert (over.state, over.restarts, effects) == (S.COMPLETED, 0, [])


def test_until_max_restarts() -> None:
    after, effects = stepped(replace(TRIAL, restarts=2), core.AllocationEnded(CRASHED))
    assert (after.state, after.end_time, effects) == (S.ERROR, 9.0, [])


def log_match(action: str | None, name: str | None = "bad", agent: str = "a") -> core.LogPolicyMatched:
    return core.LogPolicyMatched(log_policies.Match(log_policies.Policy(name, "x", action), agent))


def test_a_log_policy_that_cancels_retries_makes_the_next_failure_the_last() -> None:
    labelled, effects = stepped(TRIAL, log_match("cancel_retries"))
    assert (labelled.log_policy_matched, labelled.retries_canceled, effects) == ("bad", True, [])
    assert stepped(labelled, core.AllocationEnded(CRASHED))[0].state is S.ERROR
    assert stepped(labelled, core.AllocationEnded(ENDED))[0].state is S.COMPLETED
    moved_off, _ = stepped(labelled, core.AllocationEnded(replace(CRASHED, failure="agent_failed")))
    assert (moved_off.state, moved_off.run_id) == (
        S.ACTIVE,
        2,
    )  # the system's failure is no failure of the trial


def test_a_log_policy_that_excludes_a_node_is_remembered_once() -> None:
    once, _ = stepped(TRIAL, log_match("exclude_node"))
    assert once.excluded_agents == ("a",)
    assert stepped(once, log_match("exclude_node"))[0] == once
    assert stepped(once, log_match("exclude_node", agent="b"))[0].excluded_agents == ("a", "b")
    assert stepped(TRIAL, log_match("exclude_node", agent=""))[0].excluded_agents == ()


def test_a_nameless_policy_leaves_the_label_and_a_late_line_labels_what_has_ended() -> None:
    labelled, _ = stepped(TRIAL, log_match(None))
    assert stepped(labelled, log_match("cancel_retries", name=None))[0].log_policy_matched == "bad"
    over = replace(TRIAL, state=S.COMPLETED)
    assert stepped(over, log_match(None))[0] == replace(over, log_policy_matched="bad")


def test_the_end_of_another_allocation_is_not_its_business() -> None:
    stale = replace(ENDED, id="1.t.0")
    assert stepped(TRIAL, core.AllocationEnded(stale)) == (TRIAL, [])


def test_a_pause_waits_for_the_checkpoint_and_stays_paused() -> None:
    paused, effects = stepped(TRIAL, core.Paused())
    assert isinstance(effects[0], core.StopAllocation)
    after, effects = stepped(paused, core.AllocationEnded(ACKED))
    assert (after.state, after.allocation_id, effects) == (S.PAUSED, None, [])
    resumed, effects = stepped(after, core.Activated())
    assert (resumed.state, resumed.run_id, len(effects)) == (S.ACTIVE, 2, 1)


def test_activated_while_the_old_run_still_ends_it_waits_for_that_end() -> None:
    paused, _ = stepped(TRIAL, core.Paused())
    active, effects = stepped(paused, core.Activated())
    assert effects == []
    after, effects = stepped(active, core.AllocationEnded(ACKED))
    assert (after.run_id, len(effects)) == (2, 1)


def test_a_kill_overtakes_a_cancel_but_not_the_reverse() -> None:
    canceled, _ = stepped(TRIAL, core.Canceled())
    killed, effects = stepped(canceled, core.Killed())
    assert (killed.state, type(effects[0])) == (S.STOPPING_KILLED, core.KillAllocation)
    assert stepped(killed, core.Canceled()) == (killed, [])


def test_stopped_by_the_search_in_the_queue_it_is_done() -> None:
    idle = replace(TRIAL, allocation_id=None, state=S.PAUSED)
    after, effects = stepped(idle, core.StoppedBySearcher())
    assert (after.state, effects) == (S.COMPLETED, [])


def test_terminal_states_are_final() -> None:
    for end in (S.COMPLETED, S.CANCELED, S.ERROR):
        closed = replace(TRIAL, state=end)
        for event in (core.Activated(), core.Killed(), core.AllocationEnded(CRASHED)):
            assert stepped(closed, event) == (closed, [])
