"""What the in-memory store holds, and what its reads have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from detlab_master.store import records
from detlab_master.store.base import Page
from detlab_master.store.reading import first_of

T = TypeVar("T")


class Data:
    def __init__(self) -> None:
        first = "Uncategorized"
        self.workspaces = {1: records.Workspace(1, first, owner_id=1, immutable=True)}
        self.projects = {1: records.Project(1, 1, first, owner_id=1, key="UNCAT", immutable=True)}
        self.templates: dict[str, records.Template] = {}
        self.users: dict[int, records.User] = {}
        self.usernames: dict[str, int] = {}
        self.sessions: dict[str, records.Session] = {}
        self.experiments: dict[int, records.Experiment] = {}
        self.events: dict[int, dict[int, records.SearcherEvent]] = {}  # by experiment and seq
        self.tasks: dict[str, records.Task] = {}
        self.trials: dict[int, records.Trial] = {}
        self.trials_of: dict[int, dict[int, None]] = {}  # ids, by experiment
        self.allocations: dict[str, records.Allocation] = {}
        self.allocations_of: dict[str, dict[str, None]] = {}  # ids, by task
        self.open: dict[str, None] = {}  # ids of allocations that have not ended
        self.reports: dict[int, dict[int, records.MetricReport]] = {}  # by trial and id
        self.live: dict[
            tuple[int, str, int], int
        ] = {}  # (trial, group, steps) -> id of the unarchived report
        self.checkpoints: dict[str, records.Checkpoint] = {}
        self.checkpoints_of: dict[int, dict[str, None]] = {}  # uuids, by trial
        self.sources: dict[tuple[int, str, int, int], records.TrialSource] = {}
        self.storages: dict[str, tuple[int, records.Json]] = {}  # number and configuration, by digest
        self.logs: dict[str, dict[int, records.LogLine]] = {}  # by task and id
        self.shipped: dict[tuple[str, int], None] = {}  # (container, offset) of the lines
        self.models: dict[int, records.Model] = {}
        self.versions: dict[tuple[int, int], records.ModelVersion] = {}  # by model and number
        self.retired: dict[str, int] = {}  # highest ids of what was deleted
        self.numbers: dict[str, int] = {"report": 0, "log": 0}  # last ids given


class Reads:
    def __init__(self, data: Data, lock: threading.RLock) -> None:
        self._data = data
        self._lock = lock


def paged(found: Iterable[T], page: Page, orders: dict[str, Callable[[T], Any]]) -> tuple[list[T], int]:
    """``orders`` begins with the id, which also decides ties."""
    if page.order_by not in orders:
        raise ValueError(f"cannot order by {page.order_by!r}: it is one of {', '.join(orders)}")
    value = orders[page.order_by]
    items = sorted(found, key=orders["id"])
    without = [item for item in items if value(item) is None]
    items = sorted((item for item in items if value(item) is not None), key=value, reverse=page.descending)
    items += without
    first = first_of(page, len(items))
    return items[first:] if page.limit is None else items[first : first + page.limit], len(items)


def among(value: T, allowed: Sequence[T] | None) -> bool:
    return allowed is None or value in allowed
