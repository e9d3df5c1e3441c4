"""Search methods: which trials an experiment runs, and which of them it stops early.

`make.make` builds the one that a configuration asks for.
"""

from detlab_master.core.searchers.base import (
    Action,
    Create,
    Event,
    Exited,
    Searcher,
    SearcherError,
    Shutdown,
    Started,
    Stop,
    Validated,
    event_from_json,
    event_to_json,
)

__all__ = [
    "Action",
    "Create",
    "Event",
    "Exited",
    "Searcher",
    "SearcherError",
    "Shutdown",
    "Started",
    "Stop",
    "Validated",
    "event_from_json",
    "event_to_json",
]
