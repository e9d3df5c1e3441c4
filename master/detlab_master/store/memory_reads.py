"""What the in-memory store holds, and its reads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from detlab_master.core.metrics import PROFILING_GROUPS, VALIDATION
from detlab_master.core.states import CheckpointState, ExperimentState, TrialState
from detlab_master.store import records
from detlab_master.store.base import (
    ExperimentFilter,
    ExperimentTotals,
    KeptLog,
    LogFields,
    LogFilter,
    ModelFilter,
    Page,
    ProjectCounts,
    Workload,
    WorkloadFilter,
)
from detlab_master.store.checkpoints import storage_digest
from detlab_master.store.experiments import KEPT_CHECKPOINTS, by_use
from detlab_master.store.logs import line_test
from detlab_master.store.reading import first_of
from detlab_master.store.workloads import workload_order

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


class _Reads:
    def __init__(self, data: Data, lock: threading.RLock) -> None:
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


class MemoryUsers(_Reads):
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


class MemoryProjects(_Reads):
    def project(self, project_id: int) -> records.Project | None:
        return self._data.projects.get(project_id)

    def workspace(self, workspace_id: int) -> records.Workspace | None:
        return self._data.workspaces.get(workspace_id)

    def workspace_by_name(self, name: str) -> records.Workspace | None:
        return next((one for one in self._data.workspaces.values() if one.name == name), None)

    def find(self, workspace_name: str, project_name: str) -> records.Project | None:
        for project in self._data.projects.values():
            if (self._data.workspaces[project.workspace_id].name, project.name) == (
                workspace_name,
                project_name,
            ):
                return project
        return None

    def projects(self, workspace_id: int | None = None) -> list[records.Project]:
        with self._lock:
            found = [one for one in self._data.projects.values() if workspace_id in (None, one.workspace_id)]
        return sorted(found, key=_field("id"))

    def workspaces(self) -> list[records.Workspace]:
        with self._lock:
            return sorted(self._data.workspaces.values(), key=_field("id"))

    def counts(self, owner_ids: Sequence[int] | None = None) -> dict[int, ProjectCounts]:
        of: dict[int, list[records.Experiment]] = {}
        with self._lock:
            for one in self._data.experiments.values():
                if _among(one.owner_id, owner_ids):
                    of.setdefault(one.project_id, []).append(one)
            trials = {id: len(its) for id, its in self._data.trials_of.items()}
        return {
            project_id: ProjectCounts(
                len(its),
                sum(not one.state.terminal for one in its),
                sum(trials.get(one.id, 0) for one in its),
                max(one.start_time for one in its),
            )
            for project_id, its in of.items()
        }


class MemoryTemplates(_Reads):
    def get(self, name: str) -> records.Template | None:
        return self._data.templates.get(name)

    def all(self) -> list[records.Template]:
        with self._lock:
            return sorted(self._data.templates.values(), key=_field("name"))


class MemoryExperiments(_Reads):
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

    def collections_due(self) -> list[int]:
        with self._lock:
            due = [(one.gc_due, one.id) for one in self._data.experiments.values() if one.gc_due is not None]
        return [id for _, id in sorted(due)]

    def labels(self, where: ExperimentFilter) -> list[str]:
        found, _ = self.find(where, Page())
        return by_use(label for one in found for label in one.labels)

    def contexts(self) -> set[str]:
        with self._lock:
            return {one.context_sha256 for one in self._data.experiments.values()}

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
        and (where.external_id is None or experiment.external_id == where.external_id)
        and (where.above_id is None or experiment.id > where.above_id)
        and (where.below_id is None or experiment.id < where.below_id)
        and experiment.id not in where.without_ids
        and (where.name is None or where.name.casefold() in experiment.name.casefold())
        and (where.description is None or where.description.casefold() in experiment.description.casefold())
        and (where.labels is None or set(where.labels) <= set(experiment.labels))
    )


class MemoryTrials(_Reads):
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

    def allocations_of(self, task_ids: Sequence[str]) -> list[records.Allocation]:
        return [one for task_id in sorted(set(task_ids)) for one in self.allocations(task_id)]

    def open_allocations(self) -> list[records.Allocation]:
        with self._lock:
            found = [self._data.allocations[id] for id in self._data.open]
        return sorted(found, key=lambda one: (one.queue_order, one.id))


class MemoryMetrics(_Reads):
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


class MemoryCheckpoints(_Reads):
    def get(self, uuid: str) -> records.Checkpoint | None:
        return self._data.checkpoints.get(uuid)

    def find(
        self,
        *,
        experiment_id: int | None = None,
        trial_id: int | None = None,
        trial_ids: Sequence[int] | None = None,
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
                if experiment_id in (None, one.experiment_id)
                and _among(one.trial_id, trial_ids)
                and _among(one.state, states)
            ),
            key=lambda one: (one.trial_id, one.steps_completed, one.reported_at, one.uuid),
        )

    def latest(self, trial_id: int) -> records.Checkpoint | None:
        completed = self.find(trial_id=trial_id, states=[CheckpointState.COMPLETED])
        return completed[-1] if completed else None

    def storage(self, storage_id: int, owner_id: int) -> records.Json | None:
        with self._lock:
            config = dict(self._data.storages.values()).get(storage_id)
            if config is None:
                return None
            known = self._data.storages.get(storage_digest(config, owner_id))
            return config if known is not None and known[0] == storage_id else None

    def sources(
        self, *, checkpoint_uuid: str | None = None, model_version: tuple[int, int] | None = None
    ) -> list[records.TrialSource]:
        with self._lock:
            return [
                source
                for _, source in sorted(self._data.sources.items())
                if checkpoint_uuid in (None, source.checkpoint_uuid)
                and model_version in (None, (source.model_id, source.model_version))
            ]

    def warm_starts(self, experiment_id: int) -> set[str]:
        with self._lock:
            starts = [(trial.warm_start_checkpoint, trial.id) for trial in self._data.trials.values()]
            return {
                uuid
                for uuid, trial_id in starts
                if uuid is not None
                and (one := self._data.checkpoints.get(uuid)) is not None
                and one.experiment_id == experiment_id
                and one.trial_id != trial_id
            }

    def starting_from(
        self, *, checkpoint_uuids: Sequence[str] | None = None, experiment_id: int | None = None
    ) -> list[records.Trial]:
        with self._lock:
            saved = self._data.checkpoints
            return [
                trial
                for _, trial in sorted(self._data.trials.items())
                if (uuid := trial.warm_start_checkpoint) is not None
                and not trial.state.terminal
                and _among(uuid, checkpoint_uuids)
                and (experiment_id is None or (uuid in saved and saved[uuid].experiment_id == experiment_id))
            ]

    def storage_id(self, config: records.Json, owner_id: int) -> int:
        with self._lock:
            new = len(self._data.storages) + 1, config
            return self._data.storages.setdefault(storage_digest(config, owner_id), new)[0]


class MemoryWorkloads(_Reads):
    def find(self, trial_id: int, where: WorkloadFilter, page: Page) -> tuple[list[Workload], int]:
        columns = workload_order(page)
        found: list[tuple[dict[str, Any], Workload]] = []
        with self._lock:
            for report in self._data.reports.get(trial_id, {}).values():
                plain = report.group not in PROFILING_GROUPS
                wanted = plain if where.groups is None else report.group in where.groups
                if wanted and not report.archived:
                    kind = int(report.group == VALIDATION)
                    found.append(({"kind": kind, "report_id": report.id, "uuid": ""}, report))
            for uuid in self._data.checkpoints_of.get(trial_id, {}):
                checkpoint = self._data.checkpoints[uuid]
                if _among(checkpoint.state, where.checkpoint_states):
                    found.append(({"kind": 2, "report_id": 0, "uuid": uuid}, checkpoint))

        def place(item: tuple[dict[str, Any], Workload]) -> tuple[Any, ...]:
            values = {**item[0], "steps": item[1].steps_completed, "reported_at": item[1].reported_at}
            return tuple(values[name] for name in columns)

        found.sort(key=place, reverse=page.descending)
        first = first_of(page, len(found))
        last = len(found) if page.limit is None else first + page.limit
        return [row for _, row in found[first:last]], len(found)


class MemoryModels(_Reads):
    def get(self, model_id: int) -> records.Model | None:
        return self._data.models.get(model_id)

    def by_name(self, name: str) -> list[records.Model]:
        with self._lock:
            found = [model for model in self._data.models.values() if model.name == name]
        return sorted(found, key=lambda model: model.id)

    def find(self, where: ModelFilter, page: Page) -> tuple[list[records.Model], int]:
        plain = ["id", "name", "description", "created_at", "updated_at", "workspace_id"]
        with self._lock:
            orders: dict[str, Callable[[records.Model], Any]] = {name: _field(name) for name in plain}
            orders["num_versions"] = lambda model: self.version_counts([model.id]).get(model.id, 0)
            found = (model for model in self._data.models.values() if _model_matches(model, where))
            return _page(found, page, orders)

    def version_counts(self, model_ids: Sequence[int]) -> dict[int, int]:
        with self._lock:
            return dict(Counter(model_id for model_id, _ in self._data.versions if model_id in model_ids))

    def version(self, model_id: int, version: int) -> records.ModelVersion | None:
        return self._data.versions.get((model_id, version))

    def versions(self, model_id: int, page: Page) -> tuple[list[records.ModelVersion], int]:
        with self._lock:
            found = [version for version in self._data.versions.values() if version.model_id == model_id]
        return _page(found, page, {name: _field(name) for name in ("id", "version", "created_at")})

    def registered(
        self, *, checkpoint_uuids: Sequence[str] | None = None, experiment_id: int | None = None
    ) -> list[records.ModelVersion]:
        with self._lock:
            found = [
                version
                for version in self._data.versions.values()
                if _among(version.checkpoint_uuid, checkpoint_uuids)
                and experiment_id in (None, self._data.checkpoints[version.checkpoint_uuid].experiment_id)
            ]
        return sorted(found, key=lambda version: version.id)


def _model_matches(model: records.Model, where: ModelFilter) -> bool:
    return (
        _among(model.owner_id, where.owner_ids)
        and _among(model.id, where.ids)
        and _among(model.workspace_id, where.workspace_ids)
        and (where.archived is None or model.archived == where.archived)
        and (where.name is None or where.name.casefold() in model.name.casefold())
        and (where.description is None or where.description.casefold() in model.description.casefold())
        and (where.labels is None or set(where.labels) <= set(model.labels))
    )


class MemoryLogs(_Reads):
    def of_ended_tasks(self) -> list[KeptLog]:
        with self._lock:
            found = [
                KeptLog(task.id, task.end_time, _retention_days(self._data, task))
                for task in self._data.tasks.values()
                if task.end_time is not None and self._data.logs.get(task.id)
            ]
        return sorted(found, key=lambda log: (log.ended_at, log.task_id))

    def fields(self, task_id: str) -> list[LogFields]:
        with self._lock:
            lines = list(self._data.logs.get(task_id, {}).values())
        return list(
            {
                LogFields(x.allocation_id, x.agent_id, x.container_id, x.rank_id, x.source, x.stdtype)
                for x in lines
            }
        )

    def first(self, task_id: str, count: int) -> tuple[int, int]:
        with self._lock:
            ids = sorted(self._data.logs.get(task_id, {}))[:count]
        return len(ids), ids[-1] if ids else 0

    def last_offsets(self, container_ids: Sequence[str]) -> dict[str, int]:
        with self._lock:
            shipped = sorted(self._data.shipped)  # so the last of a container's is its highest
        return {container_id: offset for container_id, offset in shipped if container_id in container_ids}

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


def _retention_days(data: Data, task: records.Task) -> int | None:
    trial = data.trials.get(task.trial_id) if task.trial_id is not None else None
    return trial.log_retention_days if trial else None
