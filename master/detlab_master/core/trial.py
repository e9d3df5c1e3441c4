"""The life of a trial: when it runs again, and how it ends.

How an ended allocation is read follows the rules of `outcome`, the first that fits wins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from detlab_master.core import log_policies, transitions
from detlab_master.core.allocation import HOPELESS, KILLED_BY_US, TASK_FAILED
from detlab_master.core.records import Allocation, Json, Trial
from detlab_master.core.states import TrialState as S

INVALID_HP = "EXITED_REASON_INVALID_HP"
EXIT_GRACE_SECONDS = 10.0  # between the report of an early exit and the kill


# Events


@dataclass(frozen=True)
class Activated:
    pass


@dataclass(frozen=True)
class Paused:
    pass


@dataclass(frozen=True)
class Canceled:
    """Stop gracefully: checkpoint, then exit."""

    why: str = "canceled by the user"


@dataclass(frozen=True)
class Killed:
    pass


@dataclass(frozen=True)
class StoppedBySearcher:
    pass


@dataclass(frozen=True)
class EarlyExitReported:
    reason: str


@dataclass(frozen=True)
class LogPolicyMatched:
    match: log_policies.Match


@dataclass(frozen=True)
class AllocationEnded:
    allocation: Allocation


@dataclass(frozen=True)
class Continued:
    """Run again from the latest checkpoint, with as many restarts as at first."""

    hparams: Json | None = None  # in place of the trial's


Event = (
    Activated
    | Paused
    | Canceled
    | Killed
    | StoppedBySearcher
    | EarlyExitReported
    | LogPolicyMatched
    | AllocationEnded
    | Continued
)


# Effects


@dataclass(frozen=True)
class RequestAllocation:
    """Queue a new run of this trial; the trial carries its number and the allocation's id."""

    trial: Trial


@dataclass(frozen=True)
class StopAllocation:
    """Ask the run to checkpoint and exit."""

    allocation_id: str
    reason: str


@dataclass(frozen=True)
class KillAllocation:
    allocation_id: str
    reason: str


@dataclass(frozen=True)
class KillAllocationLater:
    """Unless it has ended by then."""

    allocation_id: str
    seconds: float
    reason: str


Effect = RequestAllocation | StopAllocation | KillAllocation | KillAllocationLater


class Outcome(Enum):
    """What an ended allocation means for its trial."""

    CANCELED = "canceled"
    COMPLETED = "completed"
    ERROR = "error"
    RESCHEDULE = "reschedule"
    RESTART = "restart"  # reschedule, and count it against max_restarts


def outcome(trial: Trial, ended: Allocation) -> Outcome:
    """Read an ended allocation; the rules in their order, the first that fits wins."""
    failed_by_itself = ended.failure == TASK_FAILED and not ended.aborted
    # A run that we killed because it ignored the signal counts like one that failed.
    task_failed = failed_by_itself or (ended.failure == KILLED_BY_US and not ended.aborted)
    system_failed = ended.aborted or (ended.failure is not None and not task_failed)
    if trial.state is S.STOPPING_KILLED:
        return Outcome.CANCELED
    if trial.state is S.STOPPING_CANCELED:
        return Outcome.ERROR if failed_by_itself and not ended.preempt_acked else Outcome.CANCELED
    if trial.early_exit_reason == INVALID_HP:
        return Outcome.COMPLETED
    if trial.stopped_by_searcher:
        return Outcome.ERROR if task_failed else Outcome.COMPLETED
    if ended.failure in HOPELESS:
        return Outcome.ERROR
    if system_failed:
        return Outcome.RESCHEDULE
    if ended.preempt_acked:
        return Outcome.RESCHEDULE
    if task_failed:
        return Outcome.RESTART
    if not ended.containers:  # taken out of the queue before it ran
        return Outcome.RESCHEDULE
    return Outcome.COMPLETED


def step(trial: Trial, event: Event, *, max_restarts: int, now: float) -> tuple[Trial, list[Effect]]:
    """Apply one event.

    Args:
        trial: the trial as it is.
        event: what happened.
        max_restarts: failed runs that are tried again.
        now: Unix seconds.

    Returns:
        The trial after the event, and what is to be done. An event that has no meaning in the trial's state (a pause
        of one that is stopping, the end of an allocation that it no longer waits for) changes nothing.
    """
    if isinstance(event, LogPolicyMatched):
        return _log_matched(trial, event.match), []
    if isinstance(event, Continued):
        return _continued(trial, event) if trial.state.terminal else (trial, [])
    if trial.state.terminal:
        return trial, []
    match event:
        case Activated():
            if trial.state is not S.PAUSED:
                return trial, []
            return _run_if_free(_move(trial, S.ACTIVE))
        case Paused():
            if trial.state is not S.ACTIVE:
                return trial, []
            return _stop(_move(trial, S.PAUSED), "the experiment was paused")
        case Canceled(why):
            if trial.state.stopping:
                return trial, []
            return _stop_for_good(trial, S.STOPPING_CANCELED, S.CANCELED, why, now)
        case Killed():
            if trial.state is S.STOPPING_KILLED:
                return trial, []
            if trial.allocation_id is None:
                return _close(trial, S.CANCELED, now), []
            return _move(trial, S.STOPPING_KILLED), [
                KillAllocation(trial.allocation_id, "killed by the user")
            ]
        case StoppedBySearcher():
            if trial.state.stopping:
                return replace(trial, stopped_by_searcher=True), []
            return _stop_for_good(
                replace(trial, stopped_by_searcher=True),
                S.STOPPING_COMPLETED,
                S.COMPLETED,
                "the search needs no more of this trial",
                now,
            )
        case EarlyExitReported(reason):
            return replace(trial, early_exit_reason=reason), _overdue(trial)
        case AllocationEnded(allocation):
            if allocation.id != trial.allocation_id:
                return trial, []
            return _allocation_ended(replace(trial, allocation_id=None), allocation, max_restarts, now)


def _overdue(trial: Trial) -> list[Effect]:
    """What becomes of a run that has reported its early exit, and does not exit."""
    if trial.allocation_id is None:
        return []
    why = f"it reported an early exit, and was still there {EXIT_GRACE_SECONDS:g} s later"
    return [KillAllocationLater(trial.allocation_id, EXIT_GRACE_SECONDS, why)]


def _allocation_ended(
    trial: Trial, ended: Allocation, max_restarts: int, now: float
) -> tuple[Trial, list[Effect]]:
    match outcome(trial, ended):
        case Outcome.CANCELED:
            return _close(trial, S.CANCELED, now), []
        case Outcome.COMPLETED:
            return _close(trial, S.COMPLETED, now), []
        case Outcome.ERROR:
            return _close(trial, S.ERROR, now), []
        case Outcome.RESTART:
            if trial.retries_canceled or trial.restarts >= max_restarts:
                return _close(trial, S.ERROR, now), []
            return _run_if_free(replace(trial, restarts=trial.restarts + 1))
        case Outcome.RESCHEDULE:
            return _run_if_free(trial)


def _log_matched(trial: Trial, match: log_policies.Match) -> Trial:
    """A trial that has ended is labelled all the same: its last lines may come late."""
    policy, agent = match.policy, match.agent_id
    trial = replace(trial, log_policy_matched=policy.name or trial.log_policy_matched)
    if policy.action == log_policies.CANCEL_RETRIES:
        return replace(trial, retries_canceled=True)
    if policy.action == log_policies.EXCLUDE_NODE and agent and agent not in trial.excluded_agents:
        return replace(trial, excluded_agents=(*trial.excluded_agents, agent))
    return trial


def _continued(trial: Trial, event: Continued) -> tuple[Trial, list[Effect]]:
    fresh = replace(
        _move(trial, S.ACTIVE),
        hparams=trial.hparams if event.hparams is None else event.hparams,
        end_time=None,
        restarts=0,
        stopped_by_searcher=False,
        early_exit_reason=None,
        retries_canceled=False,
        excluded_agents=(),
        progress=0.0,
    )
    return _run_if_free(fresh)


def _run_if_free(trial: Trial) -> tuple[Trial, list[Effect]]:
    """Queue a run, unless the trial is paused or still waits for its last run to end."""
    if trial.state is not S.ACTIVE or trial.allocation_id is not None:
        return trial, []
    run_id = trial.run_id + 1
    trial = replace(trial, run_id=run_id, allocation_id=f"{trial.task_id}.{run_id}")
    return trial, [RequestAllocation(trial)]


def start(trial: Trial) -> tuple[Trial, list[Effect]]:
    """A trial that the searcher has just created, in state ACTIVE or PAUSED."""
    return _run_if_free(trial)


def _stop(trial: Trial, reason: str) -> tuple[Trial, list[Effect]]:
    if trial.allocation_id is None:
        return trial, []
    return trial, [StopAllocation(trial.allocation_id, reason)]


def _stop_for_good(trial: Trial, stopping: S, end: S, reason: str, now: float) -> tuple[Trial, list[Effect]]:
    if trial.allocation_id is None:
        return _close(trial, end, now), []
    return _stop(_move(trial, stopping), reason)


def _close(trial: Trial, end: S, now: float) -> Trial:
    return replace(_move(trial, end), end_time=now)


def _move(trial: Trial, to: S) -> Trial:
    return replace(trial, state=transitions.check(transitions.TRIAL, f"trial {trial.id}", trial.state, to))
