"""The store's contract. Every implementation passes tests/contracts/test_store.py, the in-memory fake included.

Reads are synchronous, may be called from several threads at once, and see everything that was committed before them.
They return frozen records, or ``None`` / empty where there is nothing. Writes go through `commit`, which answers once
the transaction is on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from detlab_master.core.states import CheckpointState, ExperimentState, TrialState
from detlab_master.store import records
from detlab_master.store.writes import Write


class StoreUnavailable(Exception):
    """The database cannot be reached or written to at the moment; nothing of the transaction happened."""


class StoreFull(StoreUnavailable):
    """The database's disk has no room; nothing of the transaction happened."""


class StoreConflict(Exception):
    """The transaction contradicts what is stored (a duplicate key, a record whose parent is not there), or holds a value
    that cannot be stored (a NaN in JSON); nothing of it happened."""


@dataclass(frozen=True)
class Page:
    """Which part of a list: ``limit`` None means all; a negative ``offset`` counts from the end.

    Records without a value to order by come last in both directions; ties are by ascending id.
    """

    offset: int = 0
    limit: int | None = None
    order_by: str = "id"
    descending: bool = False


@dataclass(frozen=True)
class ExperimentFilter:
    """Fields that are None do not filter; ``owner_ids`` is how a user who is no admin sees only their own."""

    owner_ids: Sequence[int] | None = None
    states: Sequence[ExperimentState] | None = None
    archived: bool | None = None
    project_id: int | None = None
    external_id: str | None = None  # exactly
    ids: Sequence[int] | None = None
    above_id: int | None = None  # exclusive
    below_id: int | None = None  # exclusive
    without_ids: Sequence[int] = ()
    name: str | None = None  # substring, case-insensitive
    description: str | None = None  # substring, case-insensitive
    labels: Sequence[str] | None = None  # has all of them


@dataclass(frozen=True)
class ExperimentTotals:
    """What lists show beside an experiment, computed by the store."""

    experiment_id: int
    trial_count: int = 0
    trial_ids: tuple[int, ...] = ()
    checkpoint_count: int = 0  # COMPLETED and PARTIALLY_DELETED ones
    checkpoint_bytes: int = 0


@dataclass(frozen=True)
class ProjectCounts:
    """What lists show beside a project, computed by the store."""

    experiments: int
    active: int  # those that are not terminal
    trials: int
    last_start: float  # start_time of the latest experiment


Workload = records.MetricReport | records.Checkpoint


@dataclass(frozen=True)
class WorkloadFilter:
    groups: Sequence[str] | None = None  # of reports; None: all but profiling
    checkpoint_states: Sequence[CheckpointState] | None = None  # None: all


@dataclass(frozen=True)
class LogFilter:
    """Fields that are None do not filter; ``rank_ids`` may hold -1 for lines without a rank."""

    task_ids: Sequence[str]
    allocation_ids: Sequence[str] | None = None
    agent_ids: Sequence[str] | None = None
    container_ids: Sequence[str] | None = None
    rank_ids: Sequence[int] | None = None
    levels: Sequence[str] | None = None
    sources: Sequence[str] | None = None
    stdtypes: Sequence[str] | None = None
    search_text: str | None = None  # substring, letter for letter
    search_regex: bool = (
        False  # search_text is a regular expression in RE2's syntax; ValueError when it is not
    )
    after: float | None = None  # exclusive
    before: float | None = None  # inclusive


@dataclass(frozen=True)
class LogFields:
    """Where lines of a log come from."""

    allocation_id: str
    agent_id: str
    container_id: str
    rank_id: int | None
    source: str
    stdtype: str


@dataclass(frozen=True)
class KeptLog:
    """The log of a task that has ended."""

    task_id: str
    ended_at: float
    retention_days: int | None  # as its trial says


@dataclass(frozen=True)
class ModelFilter:
    """Fields that are None do not filter; ``owner_ids`` is how a user who is no admin sees only their own."""

    owner_ids: Sequence[int] | None = None
    ids: Sequence[int] | None = None
    workspace_ids: Sequence[int] | None = None
    archived: bool | None = None
    name: str | None = None  # substring, case-insensitive
    description: str | None = None  # substring, case-insensitive
    labels: Sequence[str] | None = None  # has all of them


class UserReads(Protocol):
    def get(self, user_id: int) -> records.User | None: ...
    def by_name(self, username: str) -> records.User | None: ...
    def all(self) -> list[records.User]: ...
    def session(self, token_hash: str) -> records.Session | None: ...


class ProjectReads(Protocol):
    """Workspace 1 and project 1, both "Uncategorized" and immutable, are there from the start."""

    def project(self, project_id: int) -> records.Project | None: ...
    def projects(self, workspace_id: int | None = None) -> list[records.Project]:
        """By id; of one workspace, or of all."""
        ...

    def find(self, workspace_name: str, project_name: str) -> records.Project | None: ...
    def workspace(self, workspace_id: int) -> records.Workspace | None: ...
    def workspace_by_name(self, name: str) -> records.Workspace | None: ...
    def workspaces(self) -> list[records.Workspace]:
        """By id."""
        ...

    def counts(self, owner_ids: Sequence[int] | None = None) -> dict[int, ProjectCounts]:
        """By project id; projects without an experiment of these owners (None: of anybody) are left out."""
        ...


class TemplateReads(Protocol):
    def get(self, name: str) -> records.Template | None: ...
    def all(self) -> list[records.Template]:
        """By name."""
        ...


class ExperimentReads(Protocol):
    def get(self, experiment_id: int) -> records.Experiment | None: ...
    def find(self, where: ExperimentFilter, page: Page) -> tuple[list[records.Experiment], int]:
        """That page of the matching experiments, and how many match in all.

        order_by: id, name, description, start_time, end_time, state, progress, owner_id, project_id,
        forked_from, num_trials, checkpoint_count, checkpoint_bytes; ValueError for others.
        """
        ...

    def unfinished(self) -> list[records.Experiment]:
        """Those that are not terminal, by id: what a master that starts again takes up."""
        ...

    def collections_due(self) -> list[int]:
        """The ids of those with ``gc_due``, the longest waiting first."""
        ...

    def labels(self, where: ExperimentFilter) -> list[str]:
        """Of those that match, the most used label first, equals by name."""
        ...

    def contexts(self) -> set[str]:
        """``context_sha256`` of all experiments."""
        ...

    def totals(self, experiment_ids: Sequence[int]) -> dict[int, ExperimentTotals]:
        """By id; those that do not exist are left out."""
        ...

    def searcher_events(self, experiment_id: int) -> list[records.SearcherEvent]: ...


class TrialReads(Protocol):
    def get(self, trial_id: int) -> records.Trial | None: ...
    def find(
        self, experiment_id: int, states: Sequence[TrialState] | None, page: Page
    ) -> tuple[list[records.Trial], int]:
        """order_by: id, start_time, end_time, state, searcher_metric, total_batches, restarts; ValueError for others."""
        ...

    def task(self, task_id: str) -> records.Task | None: ...
    def allocation(self, allocation_id: str) -> records.Allocation | None: ...
    def allocations(self, task_id: str) -> list[records.Allocation]:
        """All runs of a task, by run_id."""
        ...

    def allocations_of(self, task_ids: Sequence[str]) -> list[records.Allocation]:
        """All runs of these tasks, by (task_id, run_id)."""
        ...

    def open_allocations(self) -> list[records.Allocation]:
        """Those without ``ended_at``, in queue order."""
        ...


class WorkloadReads(Protocol):
    def find(self, trial_id: int, where: WorkloadFilter, page: Page) -> tuple[list[Workload], int]:
        """That page of a trial's reports that are not archived and its checkpoints, and how many match in all.

        order_by: steps_completed (then other reports, validations, checkpoints, each by time) or reported_at;
        ValueError for others. Descending is the exact reverse.
        """
        ...


class MetricReads(Protocol):
    def report(self, trial_id: int, group: str, steps_completed: int) -> records.MetricReport | None:
        """The one that is not archived."""
        ...

    def reports(
        self,
        trial_ids: Sequence[int],
        group: str | None = None,
        *,
        include_archived: bool = False,
        after: tuple[int, int, int] | None = None,
        limit: int | None = None,
    ) -> list[records.MetricReport]:
        """By (trial_id, steps_completed, id); ``after`` is the last such triple already seen."""
        ...


class CheckpointReads(Protocol):
    def get(self, uuid: str) -> records.Checkpoint | None: ...
    def find(
        self,
        *,
        experiment_id: int | None = None,
        trial_id: int | None = None,
        trial_ids: Sequence[int] | None = None,
        states: Sequence[CheckpointState] | None = None,
    ) -> list[records.Checkpoint]:
        """By (trial_id, steps_completed, reported_at)."""
        ...

    def latest(self, trial_id: int) -> records.Checkpoint | None:
        """The COMPLETED one with the most steps_completed (the later report where equal)."""
        ...

    def storage(self, storage_id: int, owner_id: int) -> records.Json | None:
        """The user's configuration of that number; another's is not there, for there may be keys in it."""
        ...

    def sources(
        self, *, checkpoint_uuid: str | None = None, model_version: tuple[int, int] | None = None
    ) -> list[records.TrialSource]:
        """What trials said they work with: those with this checkpoint, or this (model id, version), by trial."""
        ...

    def warm_starts(self, experiment_id: int) -> set[str]:
        """The uuids of those of the experiment that other trials than their own have started from."""
        ...

    def starting_from(
        self, *, checkpoint_uuids: Sequence[str] | None = None, experiment_id: int | None = None
    ) -> list[records.Trial]:
        """The trials that have not ended and whose warm start is one of these, or one of that experiment, by id."""
        ...

    def storage_id(self, config: records.Json, owner_id: int) -> int:
        """The number of this storage configuration of a user; the same one always has the same number.

        This one read may write (its own short transaction).
        """
        ...


class ModelReads(Protocol):
    def get(self, model_id: int) -> records.Model | None: ...
    def by_name(self, name: str) -> list[records.Model]:
        """Those of all owners that have exactly this name, by id."""
        ...

    def find(self, where: ModelFilter, page: Page) -> tuple[list[records.Model], int]:
        """That page of the matching models, and how many match in all.

        order_by: id, name, description, created_at, updated_at, workspace_id, num_versions; ValueError for others.
        """
        ...

    def version_counts(self, model_ids: Sequence[int]) -> dict[int, int]:
        """How many versions each has; models without one are left out."""
        ...

    def version(self, model_id: int, version: int) -> records.ModelVersion | None: ...
    def versions(self, model_id: int, page: Page) -> tuple[list[records.ModelVersion], int]:
        """order_by: id, version, created_at; ValueError for others."""
        ...

    def registered(
        self, *, checkpoint_uuids: Sequence[str] | None = None, experiment_id: int | None = None
    ) -> list[records.ModelVersion]:
        """The versions that hold one of these checkpoints, or one of that experiment, by id."""
        ...


class LogReads(Protocol):
    def find(
        self, where: LogFilter, *, after_id: int = 0, limit: int | None = None, descending: bool = False
    ) -> list[records.LogLine]:
        """By id, that is in the order of arrival; only ids above ``after_id``."""
        ...

    def fields(self, task_id: str) -> list[LogFields]:
        """Each that occurs in a task's log once, in no order."""
        ...

    def of_ended_tasks(self) -> list[KeptLog]:
        """The logs with any lines of tasks that have ended, the earliest end first."""
        ...

    def first(self, task_id: str, count: int) -> tuple[int, int]:
        """How many there are of the first ``count`` lines of a task, and the id of the last of these (0: none)."""
        ...

    def last_offsets(self, container_ids: Sequence[str]) -> dict[str, int]:
        """The highest offset of each container's lines; containers without a line are left out."""
        ...


@dataclass(frozen=True)
class HighestIds:
    """The highest ids that were ever in use, 0 where none was: the engine counts on from here.

    Those that were deleted count, because folders, log lines and people elsewhere still know them by their ids.
    """

    experiment: int
    trial: int
    user: int
    queue_order: int
    model: int = 0
    model_version: int = 0
    workspace: int = 1  # the first of both are there from the start
    project: int = 1


class Store(Protocol):
    @property
    def users(self) -> UserReads: ...
    @property
    def projects(self) -> ProjectReads: ...
    @property
    def templates(self) -> TemplateReads: ...
    @property
    def experiments(self) -> ExperimentReads: ...
    @property
    def trials(self) -> TrialReads: ...
    @property
    def metrics(self) -> MetricReads: ...
    @property
    def checkpoints(self) -> CheckpointReads: ...
    @property
    def workloads(self) -> WorkloadReads: ...
    @property
    def models(self) -> ModelReads: ...
    @property
    def logs(self) -> LogReads: ...

    def commit(self, writes: Sequence[Write]) -> Future[None]:
        """One transaction; transactions take effect in the order of the calls.

        Transactions that wait together are committed together (group commit). The future fails with
        `StoreConflict` or `StoreUnavailable`, and then nothing of this transaction happened, while the others
        that waited beside it are not touched by its failure.
        """
        ...

    def highest_ids(self) -> HighestIds: ...
    def cluster_id(self) -> str:
        """Made at the first start, kept for ever."""
        ...

    def close(self) -> None:
        """Waits for what was handed to `commit`, then lets go of the database."""
        ...
