"""The store without a database: for simulations and tests. It forgets everything at the end.

The records lie in dicts. A transaction writes through a journal that remembers what was there before; where a write
fails, the journal is played back, so that nothing of the transaction stays.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final, TypeVar

from detlab_master.core.states import CheckpointState, ExperimentState, TrialState
from detlab_master.store import records
from detlab_master.store.applying import nothing_to_replace
from detlab_master.store.base import (
    ExperimentFilter,
    ExperimentTotals,
    HighestIds,
    LogFilter,
    Page,
    StoreConflict,
    StoreUnavailable,
)
from detlab_master.store.checkpoints import storage_digest
from detlab_master.store.experiments import KEPT_CHECKPOINTS
from detlab_master.store.logs import line_test
from detlab_master.store.reading import first_of
from detlab_master.store.rows import printable
from detlab_master.store.writes import (
    AppendLogs,
    AppendSearcherEvent,
    ArchiveReports,
    DeleteExperiment,
    DeleteSession,
    DeleteSessionsOf,
    InsertReport,
    ReplaceReport,
    SaveAllocation,
    SaveCheckpoint,
    SaveExperiment,
    SaveSession,
    SaveTask,
    SaveTrial,
    SaveUser,
    SetProgress,
    Write,
)

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
_ABSENT: Final = object()


class _Journal:
    """Changes to dicts that can be taken back."""

    def __init__(self) -> None:
        self._before: list[tuple[MutableMapping[Any, Any], Any, Any]] = []

    def put(self, where: MutableMapping[K, V], key: K, value: V) -> None:
        self._before.append((where, key, where.get(key, _ABSENT)))
        where[key] = value

    def drop(self, where: MutableMapping[K, V], key: K) -> None:
        if key in where:
            self._before.append((where, key, where.pop(key)))

    def take_back(self) -> None:
        for where, key, value in reversed(self._before):
            if value is _ABSENT:
                where.pop(key, None)
            else:
                where[key] = value


class _Data:
    def __init__(self) -> None:
        uncategorized = {"name": "Uncategorized", "owner_id": 1, "immutable": True}
        self.workspaces = {1: records.Workspace(id=1, **uncategorized)}  # type: ignore[arg-type]
        self.projects = {1: records.Project(id=1, workspace_id=1, **uncategorized)}  # type: ignore[arg-type]
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
        self.storages: dict[str, int] = {}  # by digest
        self.logs: dict[str, dict[int, records.LogLine]] = {}  # by task and id
        self.shipped: dict[tuple[str, int], None] = {}  # (container, offset) of the lines
        self.retired: dict[str, int] = {}  # highest ids of deleted experiments and trials
        self.numbers: dict[str, int] = {"report": 0, "log": 0}  # last ids given


class MemoryStore:
    """Implements `detlab_master.store.base.Store`; `commit` returns a future that is done already."""

    def __init__(self) -> None:
        data = _Data()
        lock = threading.RLock()
        self._data = data
        self._lock = lock
        self._closed = False
        self._cluster_id = str(uuid.uuid4())
        self._users = _Users(data, lock)
        self._projects = _Projects(data, lock)
        self._experiments = _Experiments(data, lock)
        self._trials = _Trials(data, lock)
        self._metrics = _Metrics(data, lock)
        self._checkpoints = _Checkpoints(data, lock)
        self._logs = _Logs(data, lock)

    @property
    def users(self) -> _Users:
        return self._users

    @property
    def projects(self) -> _Projects:
        return self._projects

    @property
    def experiments(self) -> _Experiments:
        return self._experiments

    @property
    def trials(self) -> _Trials:
        return self._trials

    @property
    def metrics(self) -> _Metrics:
        return self._metrics

    @property
    def checkpoints(self) -> _Checkpoints:
        return self._checkpoints

    @property
    def logs(self) -> _Logs:
        return self._logs

    def commit(self, writes: Sequence[Write]) -> Future[None]:
        done: Future[None] = Future()
        journal = _Journal()
        with self._lock:
            try:
                if self._closed:
                    raise StoreUnavailable("the store is closed")
                for write in writes:
                    _apply(self._data, journal, write)
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
            )

    def cluster_id(self) -> str:
        return self._cluster_id

    def close(self) -> None:
        self._closed = True


# ---- writes ------------------------------------------------------------------------------------------------------


def _apply(data: _Data, journal: _Journal, write: Write) -> None:
    match write:
        case InsertReport(report):
            _parent(data.trials, report.trial_id, "trial")
            place = (report.trial_id, report.group, report.steps_completed)
            report = replace(report, id=_number(data, journal, "report"))
            if not report.archived:
                if place in data.live:
                    raise StoreConflict(
                        f"trial {place[0]} has a report of {place[1]!r} at {place[2]} already"
                    )
                journal.put(data.live, place, report.id)
            journal.put(data.reports.setdefault(report.trial_id, {}), report.id, report)
        case ReplaceReport(report):
            replaced = data.live.get((report.trial_id, report.group, report.steps_completed))
            if replaced is None:
                raise nothing_to_replace(report)
            journal.put(data.reports[report.trial_id], replaced, replace(report, id=replaced, archived=False))
        case ArchiveReports():
            _archive(data, journal, write)
        case SaveTrial(trial):
            _parent(data.experiments, trial.experiment_id, "experiment")
            journal.put(data.trials, trial.id, trial)
            journal.put(data.trials_of.setdefault(trial.experiment_id, {}), trial.id, None)
        case SaveExperiment(experiment):
            _parent(data.projects, experiment.project_id, "project")
            journal.put(data.experiments, experiment.id, experiment)
        case SetProgress(experiment_id, progress):
            if experiment_id in data.experiments:
                changed = replace(data.experiments[experiment_id], progress=progress)
                journal.put(data.experiments, experiment_id, changed)
        case DeleteExperiment(experiment_id):
            _delete_experiment(data, journal, experiment_id)
        case SaveTask(task):
            if task.experiment_id is not None:
                _parent(data.experiments, task.experiment_id, "experiment")
            journal.put(data.tasks, task.id, task)
        case SaveAllocation(allocation):
            _parent(data.tasks, allocation.task_id, "task")
            journal.put(data.allocations, allocation.id, allocation)
            journal.put(data.allocations_of.setdefault(allocation.task_id, {}), allocation.id, None)
            if allocation.ended_at is None:
                journal.put(data.open, allocation.id, None)
            else:
                journal.drop(data.open, allocation.id)
        case AppendSearcherEvent(event):
            _parent(data.experiments, event.experiment_id, "experiment")
            events = data.events.setdefault(event.experiment_id, {})
            if event.seq in events:
                raise StoreConflict(
                    f"experiment {event.experiment_id} has searcher event {event.seq} already"
                )
            journal.put(events, event.seq, event)
        case SaveCheckpoint(checkpoint):
            _parent(data.trials, checkpoint.trial_id, "trial")
            journal.put(data.checkpoints, checkpoint.uuid, checkpoint)
            journal.put(data.checkpoints_of.setdefault(checkpoint.trial_id, {}), checkpoint.uuid, None)
        case AppendLogs(lines):
            for line in lines:
                _append_line(data, journal, line)
        case SaveUser(user):
            if data.usernames.get(user.username, user.id) != user.id:
                raise StoreConflict(f"there is a user {user.username!r} already")
            if user.id in data.users:
                journal.drop(data.usernames, data.users[user.id].username)
            journal.put(data.users, user.id, user)
            journal.put(data.usernames, user.username, user.id)
        case SaveSession(session):
            journal.put(data.sessions, session.token_hash, session)
        case DeleteSession(token_hash):
            journal.drop(data.sessions, token_hash)
        case DeleteSessionsOf(allocation_id):
            _drop_sessions(data, journal, {allocation_id})


def _parent(parents: MutableMapping[K, V], key: K, what: str) -> None:
    if key not in parents:
        raise StoreConflict(f"there is no {what} {key}")


def _number(data: _Data, journal: _Journal, of: str) -> int:
    number = data.numbers[of] + 1
    journal.put(data.numbers, of, number)
    return number


def _archive(data: _Data, journal: _Journal, write: ArchiveReports) -> None:
    reports = data.reports.get(write.trial_id, {})
    for report in list(reports.values()):
        first = write.steps_completed + (report.group != write.group)
        if not report.archived and report.run_id < write.run_id and report.steps_completed >= first:
            journal.put(reports, report.id, replace(report, archived=True))
            journal.drop(data.live, (report.trial_id, report.group, report.steps_completed))


def _append_line(data: _Data, journal: _Journal, line: records.LogLine) -> None:
    if line.offset is not None:
        if (line.container_id, line.offset) in data.shipped:
            return
        journal.put(data.shipped, (line.container_id, line.offset), None)
    line = replace(line, id=_number(data, journal, "log"), log=printable(line.log))
    journal.put(data.logs.setdefault(line.task_id, {}), line.id, line)


def _drop_sessions(data: _Data, journal: _Journal, allocation_ids: set[str]) -> None:
    for session in list(data.sessions.values()):
        if session.allocation_id in allocation_ids:
            journal.drop(data.sessions, session.token_hash)


def _delete_experiment(data: _Data, journal: _Journal, experiment_id: int) -> None:
    if experiment_id not in data.experiments:
        return
    for trial_id in data.trials_of.get(experiment_id, {}):
        for report in data.reports.get(trial_id, {}).values():
            journal.drop(data.live, (trial_id, report.group, report.steps_completed))
        journal.drop(data.reports, trial_id)
        for checkpoint in data.checkpoints_of.get(trial_id, {}):
            journal.drop(data.checkpoints, checkpoint)
        journal.drop(data.checkpoints_of, trial_id)
        journal.drop(data.trials, trial_id)
        journal.put(data.retired, "trial", max(trial_id, data.retired.get("trial", 0)))
    journal.drop(data.trials_of, experiment_id)
    for task in [task for task in data.tasks.values() if task.experiment_id == experiment_id]:
        for line in data.logs.get(task.id, {}).values():
            if line.offset is not None:
                journal.drop(data.shipped, (line.container_id, line.offset))
        journal.drop(data.logs, task.id)
        allocation_ids = set(data.allocations_of.get(task.id, {}))
        _drop_sessions(data, journal, allocation_ids)
        for allocation_id in allocation_ids:
            journal.drop(data.allocations, allocation_id)
            journal.drop(data.open, allocation_id)
        journal.drop(data.allocations_of, task.id)
        journal.drop(data.tasks, task.id)
    journal.drop(data.events, experiment_id)
    journal.drop(data.experiments, experiment_id)
    journal.put(data.retired, "experiment", max(experiment_id, data.retired.get("experiment", 0)))


# ---- reads -------------------------------------------------------------------------------------------------------


class _Reads:
    def __init__(self, data: _Data, lock: threading.RLock) -> None:
        self._data = data
        self._lock = lock


def _page(found: Iterable[T], page: Page, orders: dict[str, Callable[[T], Any]]) -> tuple[list[T], int]:
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


def _among(value: T, allowed: Sequence[T] | None) -> bool:
    return allowed is None or value in allowed


class _Users(_Reads):
    def get(self, user_id: int) -> records.User | None:
        return self._data.users.get(user_id)

    def by_name(self, username: str) -> records.User | None:
        with self._lock:
            user_id = self._data.usernames.get(username)
            return None if user_id is None else self._data.users[user_id]

    def all(self) -> list[records.User]:
        with self._lock:
            return sorted(self._data.users.values(), key=lambda user: user.id)

    def session(self, token_hash: str) -> records.Session | None:
        return self._data.sessions.get(token_hash)


class _Projects(_Reads):
    def project(self, project_id: int) -> records.Project | None:
        return self._data.projects.get(project_id)

    def workspace(self, workspace_id: int) -> records.Workspace | None:
        return self._data.workspaces.get(workspace_id)

    def find(self, workspace_name: str, project_name: str) -> records.Project | None:
        for project in self._data.projects.values():
            if (self._data.workspaces[project.workspace_id].name, project.name) == (
                workspace_name,
                project_name,
            ):
                return project
        return None


class _Experiments(_Reads):
    def get(self, experiment_id: int) -> records.Experiment | None:
        return self._data.experiments.get(experiment_id)

    def find(self, where: ExperimentFilter, page: Page) -> tuple[list[records.Experiment], int]:
        plain = [
            "id",
            "name",
            "description",
            "start_time",
            "end_time",
            "state",
            "progress",
            "owner_id",
            "project_id",
            "forked_from",
        ]
        with self._lock:
            orders: dict[str, Callable[[records.Experiment], Any]] = {name: _field(name) for name in plain}
            orders["num_trials"] = lambda experiment: len(self._data.trials_of.get(experiment.id, ()))
            orders["checkpoint_count"] = lambda experiment: self._totals(experiment.id).checkpoint_count
            orders["checkpoint_bytes"] = lambda experiment: self._totals(experiment.id).checkpoint_bytes
            found = (one for one in self._data.experiments.values() if _matches(one, where))
            return _page(found, page, orders)

    def unfinished(self) -> list[records.Experiment]:
        states = [state for state in ExperimentState if not state.terminal]
        return self.find(ExperimentFilter(states=states), Page())[0]

    def totals(self, experiment_ids: Sequence[int]) -> dict[int, ExperimentTotals]:
        with self._lock:
            return {id: self._totals(id) for id in experiment_ids if id in self._data.experiments}

    def searcher_events(self, experiment_id: int) -> list[records.SearcherEvent]:
        with self._lock:
            events = self._data.events.get(experiment_id, {})
            return [events[seq] for seq in sorted(events)]

    def _totals(self, experiment_id: int) -> ExperimentTotals:
        trial_ids = sorted(self._data.trials_of.get(experiment_id, ()))
        kept = [
            one
            for one in self._data.checkpoints.values()
            if one.experiment_id == experiment_id and one.state in KEPT_CHECKPOINTS
        ]
        return ExperimentTotals(
            experiment_id, len(trial_ids), tuple(trial_ids), len(kept), sum(one.size for one in kept)
        )


def _field(name: str) -> Callable[[Any], Any]:
    return lambda record: getattr(record, name)


def _matches(experiment: records.Experiment, where: ExperimentFilter) -> bool:
    return (
        _among(experiment.owner_id, where.owner_ids)
        and _among(experiment.state, where.states)
        and (where.archived is None or experiment.archived == where.archived)
        and (where.project_id is None or experiment.project_id == where.project_id)
        and _among(experiment.id, where.ids)
        and (where.name is None or where.name.casefold() in experiment.name.casefold())
        and (where.description is None or where.description.casefold() in experiment.description.casefold())
        and (where.labels is None or set(where.labels) <= set(experiment.labels))
    )


class _Trials(_Reads):
    def get(self, trial_id: int) -> records.Trial | None:
        return self._data.trials.get(trial_id)

    def find(
        self, experiment_id: int, states: Sequence[TrialState] | None, page: Page
    ) -> tuple[list[records.Trial], int]:
        plain = ["id", "start_time", "end_time", "state", "searcher_metric", "total_batches", "restarts"]
        with self._lock:
            trials = (self._data.trials[id] for id in self._data.trials_of.get(experiment_id, ()))
            found = (trial for trial in trials if _among(trial.state, states))
            return _page(found, page, {name: _field(name) for name in plain})

    def task(self, task_id: str) -> records.Task | None:
        return self._data.tasks.get(task_id)

    def allocation(self, allocation_id: str) -> records.Allocation | None:
        return self._data.allocations.get(allocation_id)

    def allocations(self, task_id: str) -> list[records.Allocation]:
        with self._lock:
            found = [self._data.allocations[id] for id in self._data.allocations_of.get(task_id, ())]
        return sorted(found, key=lambda one: (one.run_id, one.queue_order))

    def open_allocations(self) -> list[records.Allocation]:
        with self._lock:
            found = [self._data.allocations[id] for id in self._data.open]
        return sorted(found, key=lambda one: (one.queue_order, one.id))


class _Metrics(_Reads):
    def report(self, trial_id: int, group: str, steps_completed: int) -> records.MetricReport | None:
        with self._lock:
            report_id = self._data.live.get((trial_id, group, steps_completed))
            return None if report_id is None else self._data.reports[trial_id][report_id]

    def reports(
        self,
        trial_ids: Sequence[int],
        group: str | None = None,
        *,
        include_archived: bool = False,
        after: tuple[int, int, int] | None = None,
        limit: int | None = None,
    ) -> list[records.MetricReport]:
        def place(report: records.MetricReport) -> tuple[int, int, int]:
            return report.trial_id, report.steps_completed, report.id

        with self._lock:
            found = [
                report
                for trial_id in set(trial_ids)
                for report in self._data.reports.get(trial_id, {}).values()
                if group in (None, report.group)
                and (include_archived or not report.archived)
                and (after is None or place(report) > after)
            ]
        return sorted(found, key=place)[:limit]


class _Checkpoints(_Reads):
    def get(self, uuid: str) -> records.Checkpoint | None:
        return self._data.checkpoints.get(uuid)

    def find(
        self,
        *,
        experiment_id: int | None = None,
        trial_id: int | None = None,
        states: Sequence[CheckpointState] | None = None,
    ) -> list[records.Checkpoint]:
        with self._lock:
            uuids = (
                self._data.checkpoints if trial_id is None else self._data.checkpoints_of.get(trial_id, {})
            )
            found = [self._data.checkpoints[uuid] for uuid in uuids]
        return sorted(
            (
                one
                for one in found
                if experiment_id in (None, one.experiment_id) and _among(one.state, states)
            ),
            key=lambda one: (one.trial_id, one.steps_completed, one.reported_at, one.uuid),
        )

    def latest(self, trial_id: int) -> records.Checkpoint | None:
        completed = self.find(trial_id=trial_id, states=[CheckpointState.COMPLETED])
        return completed[-1] if completed else None

    def storage_id(self, config: records.Json) -> int:
        with self._lock:
            return self._data.storages.setdefault(storage_digest(config), len(self._data.storages) + 1)


class _Logs(_Reads):
    def find(
        self, where: LogFilter, *, after_id: int = 0, limit: int | None = None, descending: bool = False
    ) -> list[records.LogLine]:
        passes = line_test(where)
        with self._lock:
            lines = [
                line
                for task_id in set(where.task_ids)
                for line in self._data.logs.get(task_id, {}).values()
                if line.id > after_id
            ]
        found = [
            line
            for line in lines
            if _among(line.allocation_id, where.allocation_ids)
            and _among(line.agent_id, where.agent_ids)
            and _among(line.container_id, where.container_ids)
            and _among(-1 if line.rank_id is None else line.rank_id, where.rank_ids)
            and _among(line.level, where.levels)
            and _among(line.source, where.sources)
            and _among(line.stdtype, where.stdtypes)
            and (where.after is None or line.timestamp > where.after)
            and (where.before is None or line.timestamp <= where.before)
            and passes(line.log)
        ]
        return sorted(found, key=lambda line: line.id, reverse=descending)[:limit]
