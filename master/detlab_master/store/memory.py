"""The store without a database: for simulations and tests. It forgets everything at the end.

The records lie in dicts. A transaction writes through a journal that remembers what was there before; where a write
fails, the journal is played back, so that nothing of the transaction stays.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import Future

from detlab_master.store.base import HighestIds, StoreUnavailable
from detlab_master.store.memory_data import Data
from detlab_master.store.memory_reads import (
    MemoryExperiments,
    MemoryModels,
    MemoryProjects,
    MemoryTemplates,
    MemoryUsers,
)
from detlab_master.store.memory_trials import (
    MemoryCheckpoints,
    MemoryLogs,
    MemoryMetrics,
    MemoryTrials,
    MemoryWorkloads,
)
from detlab_master.store.memory_writes import Journal, apply
from detlab_master.store.writes import Write


class MemoryStore:
    """Implements `detlab_master.store.base.Store`; `commit` returns a future that is done already."""

    def __init__(self) -> None:
        data = Data()
        lock = threading.RLock()
        self._data = data
        self._lock = lock
        self._closed = False
        self._cluster_id = str(uuid.uuid4())
        self._users = MemoryUsers(data, lock)
        self._projects = MemoryProjects(data, lock)
        self._templates = MemoryTemplates(data, lock)
        self._experiments = MemoryExperiments(data, lock)
        self._trials = MemoryTrials(data, lock)
        self._metrics = MemoryMetrics(data, lock)
        self._checkpoints = MemoryCheckpoints(data, lock)
        self._workloads = MemoryWorkloads(data, lock)
        self._models = MemoryModels(data, lock)
        self._logs = MemoryLogs(data, lock)

    @property
    def users(self) -> MemoryUsers:
        return self._users

    @property
    def projects(self) -> MemoryProjects:
        return self._projects

    @property
    def templates(self) -> MemoryTemplates:
        return self._templates

    @property
    def experiments(self) -> MemoryExperiments:
        return self._experiments

    @property
    def trials(self) -> MemoryTrials:
        return self._trials

    @property
    def metrics(self) -> MemoryMetrics:
        return self._metrics

    @property
    def checkpoints(self) -> MemoryCheckpoints:
        return self._checkpoints

    @property
    def workloads(self) -> MemoryWorkloads:
        return self._workloads

    @property
    def models(self) -> MemoryModels:
        return self._models

    @property
    def logs(self) -> MemoryLogs:
        return self._logs

    def commit(self, writes: Sequence[Write]) -> Future[None]:
        done: Future[None] = Future()
        journal = Journal()
        with self._lock:
            try:
                if self._closed:
                    raise StoreUnavailable("the store is closed")
                for write in writes:
                    apply(self._data, journal, write)
            except Exception as error:  # noqa: BLE001 (the future carries it)
                journal.take_back()
                done.set_exception(error)
            else:
                done.set_result(None)
        return done

    def highest_ids(self) -> HighestIds:
        data = self._data
        with self._lock:
            return HighestIds(
                experiment=max((data.retired.get("experiment", 0), *data.experiments)),
                trial=max((data.retired.get("trial", 0), *data.trials)),
                user=max((0, *data.users)),
                queue_order=max((0, *(a.queue_order for a in data.allocations.values()))),
                model=max((data.retired.get("model", 0), *data.models)),
                model_version=max(
                    (data.retired.get("model_version", 0), *(one.id for one in data.versions.values()))
                ),
                workspace=max((data.retired.get("workspace", 0), *data.workspaces)),
                project=max((data.retired.get("project", 0), *data.projects)),
            )

    def cluster_id(self) -> str:
        return self._cluster_id

    def close(self) -> None:
        self._closed = True
