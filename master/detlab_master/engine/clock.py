"""What the core may not have: a clock, randomness and fresh ids."""

from __future__ import annotations

import itertools
import time
import uuid
from dataclasses import dataclass, field
from itertools import count

from detlab_master.store.base import HighestIds


def now() -> float:
    """Unix seconds."""
    return time.time()


@dataclass
class Ids:
    """Counts on from the highest ids that the store has seen. One master holds the store, so nobody else counts."""

    highest: HighestIds
    _experiments: itertools.count[int] = field(init=False)
    _trials: itertools.count[int] = field(init=False)
    _users: itertools.count[int] = field(init=False)
    _queue: itertools.count[int] = field(init=False)
    _models: itertools.count[int] = field(init=False)
    _model_versions: itertools.count[int] = field(init=False)
    _workspaces: itertools.count[int] = field(init=False)
    _projects: itertools.count[int] = field(init=False)

    def __post_init__(self) -> None:
        self._experiments = count(self.highest.experiment + 1)
        self._trials = count(self.highest.trial + 1)
        self._users = count(self.highest.user + 1)
        self._queue = count(self.highest.queue_order + 1)
        self._models = count(self.highest.model + 1)
        self._model_versions = count(self.highest.model_version + 1)
        self._workspaces = count(self.highest.workspace + 1)
        self._projects = count(self.highest.project + 1)

    def experiment(self) -> int:
        return next(self._experiments)

    def trial(self) -> int:
        return next(self._trials)

    def user(self) -> int:
        return next(self._users)

    def queue_order(self) -> int:
        return next(self._queue)

    def model(self) -> int:
        return next(self._models)

    def model_version(self) -> int:
        return next(self._model_versions)

    def workspace(self) -> int:
        return next(self._workspaces)

    def project(self) -> int:
        return next(self._projects)

    def task(self, experiment_id: int) -> str:
        return f"{experiment_id}.{uuid.uuid4()}"

    def unique(self) -> str:
        return str(uuid.uuid4())
