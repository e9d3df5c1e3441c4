"""docs/states.md, drawn from the core's tables: ``make docs``."""

from __future__ import annotations

from detlab_master.core.states import AllocationState, ExperimentState, TrialState
from detlab_master.core.transitions import (
    ALLOCATION,
    EXPERIMENT,
    TRIAL,
    UNMANAGED_EXPERIMENT,
    UNMANAGED_TRIAL,
    State,
    Table,
)

_HEAD = """\
# States

Drawn from `master/detlab_master/core/transitions.py` by `make docs`; not to be edited here.
"""
_EXPERIMENT = """\
Lists show an ACTIVE experiment by how far its most advanced trial is: QUEUED, PULLING, STARTING or RUNNING. Repeating a
verb that is in effect already changes nothing."""
_TRIAL = """\
A trial that is ACTIVE is queued or runs; when a run fails it gets another one, up to `max_restarts` times. A run that was
preempted, or that the system lost, is followed by another one without being counted."""
_UNMANAGED = """\
The scripts of a detached experiment run outside of the cluster, and the states are what they report. Lists show ACTIVE as
RUNNING. The master cannot pause, cancel or kill one."""
_UNMANAGED_TRIAL = """\
A trial that falls silent (no report and no heartbeat for `detached.heartbeat_timeout` of master.yaml, 5 minutes) becomes
ERROR; if it is heard of again, it goes on."""
_ALLOCATION = """\
An allocation is one run of a task on slots. It is as far as the container of it that is least far."""


def page() -> str:
    """The whole page, in Markdown with Mermaid diagrams."""
    sections = (
        ("Experiment", _EXPERIMENT, _diagram(EXPERIMENT, ExperimentState.ACTIVE, ExperimentState.PAUSED)),
        ("Trial", _TRIAL, _diagram(TRIAL, TrialState.ACTIVE, TrialState.PAUSED)),
        (
            "Detached experiment",
            _UNMANAGED,
            _diagram(UNMANAGED_EXPERIMENT, ExperimentState.PAUSED),
        ),
        ("Detached trial", _UNMANAGED_TRIAL, _diagram(UNMANAGED_TRIAL, TrialState.PAUSED)),
        ("Allocation", _ALLOCATION, _diagram(ALLOCATION, AllocationState.QUEUED)),
    )
    shown = [f"## {title}\n\n{text}\n\n```mermaid\n{diagram}```\n" for title, text, diagram in sections]
    return "\n".join([_HEAD, *shown])


def _diagram(table: Table[State], *first: State) -> str:
    lines = [f"[*] --> {state}" for state in first]
    for state, following in table.items():
        lines += [f"{state} --> {to}: {cause}" for to, cause in following.items()]
        if not following:
            lines.append(f"{state} --> [*]")
    return "".join(f"{line}\n" for line in ("stateDiagram-v2", *(f"    {line}" for line in lines)))


if __name__ == "__main__":
    print(page(), end="")
