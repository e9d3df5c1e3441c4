"""The writes of the in-memory store: each change goes through a journal, which can take all of them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from detlab_master.core.metrics import PROFILING_GROUPS
from detlab_master.store import records
from detlab_master.store.applying import nothing_to_replace
from detlab_master.store.base import StoreConflict
from detlab_master.store.memory_data import Data
from detlab_master.store.rows import printable
from detlab_master.store.writes import (
    AppendLogs,
    AppendSearcherEvent,
    ArchiveReports,
    CollectionDone,
    DeleteExperiment,
    DeleteLogs,
    DeleteModel,
    DeleteModelVersion,
    DeleteProject,
    DeleteSession,
    DeleteSessionsOf,
    DeleteTemplate,
    DeleteTrial,
    DeleteWorkspace,
    InsertReport,
    ReplaceReport,
    SaveAllocation,
    SaveCheckpoint,
    SaveExperiment,
    SaveModel,
    SaveModelVersion,
    SaveProject,
    SaveSession,
    SaveTask,
    SaveTemplate,
    SaveTrial,
    SaveTrialSource,
    SaveUser,
    SaveWorkspace,
    SetProgress,
    Write,
)

K = TypeVar("K")
V = TypeVar("V")
_ABSENT: Final = object()


class Journal:
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


def apply(data: Data, journal: Journal, write: Write) -> None:
    match write:
        case InsertReport(report):
            _parent(data.trials, report.trial_id, "trial")
            place = (report.trial_id, report.group, report.steps_completed)
            report = replace(report, id=_number(data, journal, "report"))
            if not report.archived and report.group not in PROFILING_GROUPS:
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
        case SaveWorkspace() | SaveProject() | SaveTemplate() | DeleteWorkspace() | DeleteProject():
            _place(data, journal, write)
        case DeleteTemplate(name):
            journal.drop(data.templates, name)
        case SaveExperiment(experiment):
            _parent(data.projects, experiment.project_id, "project")
            journal.put(data.experiments, experiment.id, experiment)
        case SetProgress(experiment_id, progress):
            if experiment_id in data.experiments:
                changed = replace(data.experiments[experiment_id], progress=progress)
                journal.put(data.experiments, experiment_id, changed)
        case CollectionDone(experiment_id, due):
            waiting = data.experiments.get(experiment_id)
            if waiting is not None and waiting.gc_due == due:
                journal.put(data.experiments, experiment_id, replace(waiting, gc_due=None))
        case DeleteTrial(trial_id):
            if trial_id in data.trials:
                _delete_trial(data, journal, data.trials[trial_id])
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
        case SaveTrialSource(source):
            _parent(data.trials, source.trial_id, "trial")
            key = (source.trial_id, source.checkpoint_uuid, source.model_id, source.model_version)
            journal.put(data.sources, key, source)
        case SaveModel(model):
            _parent(data.workspaces, model.workspace_id, "workspace")
            for other in data.models.values():
                if (other.name, other.owner_id) == (model.name, model.owner_id) and other.id != model.id:
                    raise StoreConflict(f"user {model.owner_id} has a model {model.name!r} already")
            journal.put(data.models, model.id, model)
        case SaveModelVersion(version):
            _parent(data.models, version.model_id, "model")
            _parent(data.checkpoints, version.checkpoint_uuid, "checkpoint")
            journal.put(data.versions, (version.model_id, version.version), version)
        case DeleteModel(model_id):
            _delete_versions(data, journal, [key for key in data.versions if key[0] == model_id])
            if model_id in data.models:
                journal.drop(data.models, model_id)
                _retire(data, journal, "model", model_id)
        case DeleteModelVersion(model_id, number):
            _delete_versions(data, journal, [key for key in data.versions if key == (model_id, number)])
        case AppendLogs(lines):
            for line in lines:
                _append_line(data, journal, line)
        case DeleteLogs():
            _delete_lines(data, journal, write)
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


def _place(
    data: Data,
    journal: Journal,
    write: SaveWorkspace | SaveProject | SaveTemplate | DeleteWorkspace | DeleteProject,
) -> None:
    match write:
        case SaveWorkspace(workspace):
            _alone(data.workspaces, workspace, "a workspace of that name", lambda one: one.name)
            journal.put(data.workspaces, workspace.id, workspace)
        case SaveProject(project):
            _parent(data.workspaces, project.workspace_id, "workspace")
            _alone(data.projects, project, "a project of that key", lambda one: one.key)
            name = lambda one: (one.workspace_id, one.name)
            _alone(data.projects, project, "a project of that name", name)
            journal.put(data.projects, project.id, project)
        case SaveTemplate(template):
            _parent(data.workspaces, template.workspace_id, "workspace")
            journal.put(data.templates, template.name, template)
        case DeleteWorkspace(workspace_id):
            for inside in (data.projects, data.models, data.templates):
                _empty(inside.values(), "workspace_id", workspace_id)
            _drop_numbered(data, journal, data.workspaces, "workspace", workspace_id)
        case DeleteProject(project_id):
            _empty(data.experiments.values(), "project_id", project_id)
            _drop_numbered(data, journal, data.projects, "project", project_id)


def _alone(known: Mapping[int, V], new: V, what: str, name: Callable[[V], Any]) -> None:
    if any(name(one) == name(new) and one.id != new.id for one in known.values()):  # type: ignore[attr-defined]
        raise StoreConflict(f"there is {what} already: {name(new)}")


def _empty(inside: Iterable[object], parent: str, id: int) -> None:
    for one in inside:
        if getattr(one, parent) == id:
            raise StoreConflict(f"there is something in {parent} {id}: {one}")


def _drop_numbered(data: Data, journal: Journal, where: MutableMapping[int, V], kind: str, id: int) -> None:
    if id in where:
        journal.drop(where, id)
        _retire(data, journal, kind, id)


def _parent(parents: MutableMapping[K, V], key: K, what: str) -> None:
    if key not in parents:
        raise StoreConflict(f"there is no {what} {key}")


def _number(data: Data, journal: Journal, of: str) -> int:
    number = data.numbers[of] + 1
    journal.put(data.numbers, of, number)
    return number


def _archive(data: Data, journal: Journal, write: ArchiveReports) -> None:
    reports = data.reports.get(write.trial_id, {})
    for report in list(reports.values()):
        first = write.steps_completed + (report.group != write.group)
        if not report.archived and report.run_id < write.run_id and report.steps_completed >= first:
            journal.put(reports, report.id, replace(report, archived=True))
            place = (report.trial_id, report.group, report.steps_completed)
            if place in data.live:  # profiling reports are not
                journal.drop(data.live, place)


def _append_line(data: Data, journal: Journal, line: records.LogLine) -> None:
    if line.offset is not None:
        if (line.container_id, line.offset) in data.shipped:
            return
        journal.put(data.shipped, (line.container_id, line.offset), None)
    line = replace(line, id=_number(data, journal, "log"), log=printable(line.log))
    journal.put(data.logs.setdefault(line.task_id, {}), line.id, line)


def _delete_lines(data: Data, journal: Journal, write: DeleteLogs) -> None:
    lines = data.logs.get(write.task_id, {})
    for line in [line for line in lines.values() if line.id <= write.last_id]:
        if line.offset is not None:
            journal.drop(data.shipped, (line.container_id, line.offset))
        journal.drop(lines, line.id)


def _drop_sessions(data: Data, journal: Journal, allocation_ids: set[str]) -> None:
    for session in list(data.sessions.values()):
        if session.allocation_id in allocation_ids:
            journal.drop(data.sessions, session.token_hash)


def _delete_versions(data: Data, journal: Journal, keys: list[tuple[int, int]]) -> None:
    for key in keys:
        _retire(data, journal, "model_version", data.versions[key].id)
        journal.drop(data.versions, key)


def _retire(data: Data, journal: Journal, kind: str, id: int) -> None:
    journal.put(data.retired, kind, max(id, data.retired.get(kind, 0)))


def _delete_experiment(data: Data, journal: Journal, experiment_id: int) -> None:
    if experiment_id not in data.experiments:
        return
    for trial_id in list(data.trials_of.get(experiment_id, {})):
        _delete_trial(data, journal, data.trials[trial_id])
    journal.drop(data.trials_of, experiment_id)
    for task in [task for task in data.tasks.values() if task.experiment_id == experiment_id]:
        _delete_task(data, journal, task)
    journal.drop(data.events, experiment_id)
    journal.drop(data.experiments, experiment_id)
    _retire(data, journal, "experiment", experiment_id)


def _delete_trial(data: Data, journal: Journal, trial: records.Trial) -> None:
    for version in data.versions.values():
        if data.checkpoints[version.checkpoint_uuid].trial_id == trial.id:
            raise StoreConflict(
                f"trial {trial.id} has a checkpoint in the model registry: {version.checkpoint_uuid}"
            )
    for report in data.reports.get(trial.id, {}).values():
        journal.drop(data.live, (trial.id, report.group, report.steps_completed))
    journal.drop(data.reports, trial.id)
    for checkpoint in data.checkpoints_of.get(trial.id, {}):
        journal.drop(data.checkpoints, checkpoint)
    journal.drop(data.checkpoints_of, trial.id)
    for key in [key for key in data.sources if key[0] == trial.id]:
        journal.drop(data.sources, key)
    for task in [task for task in data.tasks.values() if task.trial_id == trial.id]:
        _delete_task(data, journal, task)
    journal.drop(data.trials, trial.id)
    journal.drop(data.trials_of[trial.experiment_id], trial.id)
    _retire(data, journal, "trial", trial.id)


def _delete_task(data: Data, journal: Journal, task: records.Task) -> None:
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
