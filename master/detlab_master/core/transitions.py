"""Which state may follow which, and why: of experiments, trials and allocations.

These tables are the only place that says so. Whoever changes a state asks `check` first; the diagrams in
docs/states.md are drawn from here (`python -m detlab_master.diagrams`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from detlab_master.core.states import AllocationState as A
from detlab_master.core.states import ExperimentState as E
from detlab_master.core.states import TrialState as T

State = TypeVar("State", bound=StrEnum)
Table = Mapping[State, Mapping[State, str]]  # state -> those that may follow, each with what causes it

EXPERIMENT: Table[E] = {
    E.ACTIVE: {
        E.PAUSED: "pause",
        E.STOPPING_CANCELED: "cancel, or all trials were canceled",
        E.STOPPING_KILLED: "kill",
        E.STOPPING_COMPLETED: "the search is done",
        E.STOPPING_ERROR: "all trials failed, or the search itself",
    },
    E.PAUSED: {
        E.ACTIVE: "activate",
        E.STOPPING_CANCELED: "cancel, or all trials were canceled",
        E.STOPPING_KILLED: "kill",
        E.STOPPING_COMPLETED: "the search is done",
        E.STOPPING_ERROR: "all trials failed, or the search itself",
    },
    E.STOPPING_CANCELED: {E.STOPPING_KILLED: "kill", E.CANCELED: "its last trial ended"},
    E.STOPPING_KILLED: {E.CANCELED: "its last trial ended"},
    E.STOPPING_COMPLETED: {E.COMPLETED: "its last trial ended"},
    E.STOPPING_ERROR: {E.STOPPING_KILLED: "kill", E.ERROR: "its last trial ended"},
    E.CANCELED: {E.ACTIVE: "continue", E.DELETING: "delete"},
    E.COMPLETED: {E.ACTIVE: "continue", E.DELETING: "delete"},
    E.ERROR: {E.ACTIVE: "continue", E.DELETING: "delete"},
    E.DELETING: {E.DELETED: "all of it is gone", E.DELETE_FAILED: "something could not be removed"},
    E.DELETE_FAILED: {E.DELETING: "delete"},
    E.DELETED: {},
}

TRIAL: Table[T] = {
    T.ACTIVE: {
        T.PAUSED: "the experiment was paused",
        T.STOPPING_CANCELED: "cancel, while a run is under way",
        T.STOPPING_KILLED: "kill, while a run is under way",
        T.STOPPING_COMPLETED: "the search stopped it, while a run is under way",
        T.COMPLETED: "its run ended well, or reported invalid hyperparameters",
        T.ERROR: "its run failed, and was not to be tried again",
    },
    T.PAUSED: {
        T.ACTIVE: "the experiment was activated",
        T.STOPPING_CANCELED: "cancel, while the last run still ends",
        T.STOPPING_KILLED: "kill, while the last run still ends",
        T.STOPPING_COMPLETED: "the search stopped it, while the last run still ends",
        T.CANCELED: "cancel or kill",
        T.COMPLETED: "the search stopped it, or its last run ended well",
        T.ERROR: "its last run failed, and was not to be tried again",
    },
    T.STOPPING_CANCELED: {
        T.STOPPING_KILLED: "kill",
        T.CANCELED: "its run ended",
        T.ERROR: "its run failed instead of stopping",
    },
    T.STOPPING_KILLED: {T.CANCELED: "its run ended"},
    T.STOPPING_COMPLETED: {
        T.STOPPING_KILLED: "kill",
        T.COMPLETED: "its run ended",
        T.ERROR: "its run failed instead of stopping",
    },
    T.CANCELED: {T.ACTIVE: "the experiment was continued"},
    T.COMPLETED: {T.ACTIVE: "the experiment was continued"},
    T.ERROR: {T.ACTIVE: "the experiment was continued"},
}

# Detached ones: nothing is scheduled, the states are what their scripts report (core/unmanaged.py).
_ON: dict[E, str] = {E.ACTIVE: "a trial starts, or is heard of again", E.PAUSED: "a trial is added"}
_LATE: dict[E, str] = dict.fromkeys((E.COMPLETED, E.CANCELED), "a silent trial's last words came late")
_DELETE: dict[E, str] = {E.DELETING: "delete"}
_OVER = {
    E.COMPLETED: "its last open trial ended, and one of all completed",
    E.ERROR: "its last open trial ended, and none completed; or it never had one",
    E.CANCELED: "its last open trial ended, and all were canceled",
}
UNMANAGED_EXPERIMENT: Table[E] = {
    E.PAUSED: {E.ACTIVE: _ON[E.ACTIVE], **_OVER},
    E.ACTIVE: {E.PAUSED: "only trials that never started are open", **_OVER},
    E.COMPLETED: {**_ON, **_DELETE},
    E.ERROR: {**_ON, **_LATE, **_DELETE},
    E.CANCELED: {**_ON, **_DELETE},
    E.DELETING: EXPERIMENT[E.DELETING],
    E.DELETE_FAILED: EXPERIMENT[E.DELETE_FAILED],
    E.DELETED: {},
}
_SAID = {
    T.COMPLETED: "it says so",
    T.ERROR: "it says so, or nothing was heard of it",
    T.CANCELED: "it says so",
}
UNMANAGED_TRIAL: Table[T] = {
    T.PAUSED: {T.ACTIVE: "it starts", **_SAID},
    T.ACTIVE: _SAID,
    T.COMPLETED: {T.ACTIVE: "it starts again"},
    T.ERROR: {T.ACTIVE: "it starts again, or is heard of again"},
    T.CANCELED: {T.ACTIVE: "it starts again"},
}

_ENDS = {A.TERMINATED: "every container ended"}
ALLOCATION: Table[A] = {
    A.QUEUED: {A.ASSIGNED: "the scheduler gave slots", A.TERMINATED: "taken out of the queue"},
    A.ASSIGNED: {
        A.PULLING: "its agent fetches the image",
        A.STARTING: "its agent starts it",
        A.RUNNING: "it runs",
        **_ENDS,
    },
    A.PULLING: {A.STARTING: "its agent starts it", A.RUNNING: "it runs", **_ENDS},
    A.STARTING: {A.RUNNING: "it runs", **_ENDS},
    A.RUNNING: {**_ENDS},
    A.TERMINATED: {},
}


class IllegalMove(Exception):
    """The event cannot happen in this state; nothing was changed."""


def check(table: Table[State], what: str, state: State, to: State) -> State:
    """The new state.

    Args:
        what: of whom, such as ``"trial 3"``.

    Raises:
        IllegalMove: the table does not have this move.
    """
    if to not in table[state]:
        allowed = ", ".join(sorted(table[state])) or "nothing"
        raise IllegalMove(f"{what} is {state}: it cannot become {to}; from there it can become: {allowed}")
    return to
