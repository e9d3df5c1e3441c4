"""Carries writes out on a connection, inside a transaction that the caller opened.

Most writes put a whole row into one table. Those wait until the end, table by table, and go to the database as one
statement for each table: of several `SaveTrial` with the same id only the last is written, and parents go before their
children. That changes nothing of the outcome, because rows of different tables touch each other through foreign keys
only. A write that looks at what is there (`ArchiveReports`, `ReplaceReport`, `CollectionDone`, `Delete...`) has the
waiting rows written first. Users, sessions, workspaces, projects, templates and models belong to nothing that waits and
are written at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.elements import ColumnElement

from detlab_master.store import records, tables
from detlab_master.store.base import StoreConflict
from detlab_master.store.rows import checkpoint_row, experiment_row, log_row, model_row, report_row
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


@dataclass(frozen=True)
class AddStorage:
    """The row of a checkpoint storage's configuration, where it is missing. Used by the store itself only."""

    digest: str
    config: records.Json


_PARENTS_FIRST: Final = (
    tables.experiments,
    tables.tasks,
    tables.trials,
    tables.allocations,
    tables.searcher_events,
    tables.metric_reports,
    tables.checkpoints,
    tables.trial_sources,
    tables.model_versions,
    tables.task_logs,
)

_SET_PROGRESS: Final = (
    sa.update(tables.experiments)
    .where(tables.experiments.c.id == sa.bindparam("key"))
    .values(progress=sa.bindparam("new_progress"))
)


class _Waiting:
    """Rows to be written, parents first, and the progress of experiments, which goes after their rows."""

    def __init__(self) -> None:
        self.rows: dict[sa.Table, dict[Any, dict[str, Any]]] = {table: {} for table in _PARENTS_FIRST}
        self.progress: dict[int, float] = {}


class Applier:
    def __init__(self, dialect: str) -> None:
        """``dialect``: sqlite or postgresql."""
        self._insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
        logs, storages = tables.task_logs, tables.checkpoint_storages
        self._statements: dict[sa.Table, sa.Insert] = {
            table: self._upsert(table)
            for table in (
                tables.users,
                tables.sessions,
                tables.workspaces,
                tables.projects,
                tables.templates,
                tables.experiments,
                tables.tasks,
                tables.trials,
                tables.allocations,
                tables.checkpoints,
                tables.trial_sources,
                tables.models,
                tables.model_versions,
                tables.retired_ids,
            )
        }
        self._statements |= {
            tables.searcher_events: sa.insert(tables.searcher_events),
            tables.metric_reports: sa.insert(tables.metric_reports),
            logs: self._insert(logs).on_conflict_do_nothing(
                index_elements=[logs.c.container_id, logs.c.offset]
            ),
            storages: self._insert(storages).on_conflict_do_nothing(index_elements=[storages.c.digest]),
        }

    def _upsert(self, table: sa.Table) -> sa.Insert:
        statement = self._insert(table)
        replaced = {
            column.name: statement.excluded[column.name] for column in table.c if not column.primary_key
        }
        return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=replaced)

    def apply(self, connection: sa.Connection, writes: Iterable[Write | AddStorage]) -> None:
        """Raises StoreConflict, or what the database raises; the caller rolls back then."""
        waiting = _Waiting()
        rows = waiting.rows
        reports, events, logs = (
            rows[tables.metric_reports],
            rows[tables.searcher_events],
            rows[tables.task_logs],
        )
        for write in writes:
            match write:
                case InsertReport(report):
                    reports[len(reports)] = report_row(report)
                case SaveTrial(trial):
                    rows[tables.trials][trial.id] = vars(trial)
                case AppendLogs(lines):
                    for line in lines:
                        logs[len(logs)] = log_row(line)
                case AppendSearcherEvent(event):
                    events[len(events)] = vars(event)
                case SaveExperiment(experiment):
                    rows[tables.experiments][experiment.id] = experiment_row(experiment)
                    waiting.progress.pop(experiment.id, None)
                case SetProgress(experiment_id, progress):
                    waiting.progress[experiment_id] = progress
                case SaveTask(task):
                    rows[tables.tasks][task.id] = vars(task)
                case SaveAllocation(allocation):
                    rows[tables.allocations][allocation.id] = vars(allocation)
                case SaveCheckpoint(checkpoint):
                    rows[tables.checkpoints][checkpoint.uuid] = checkpoint_row(checkpoint)
                case SaveTrialSource(source):
                    key = (source.trial_id, source.checkpoint_uuid, source.model_id, source.model_version)
                    rows[tables.trial_sources][key] = vars(source)
                case SaveModelVersion(version):
                    rows[tables.model_versions][version.model_id, version.version] = vars(version)
                case SaveModel(model):
                    connection.execute(self._statements[tables.models], model_row(model))
                case SaveWorkspace(workspace):
                    connection.execute(self._statements[tables.workspaces], vars(workspace))
                case DeleteWorkspace(workspace_id):
                    self._delete_place(connection, tables.workspaces, "workspace", workspace_id)
                case SaveProject(project):
                    connection.execute(self._statements[tables.projects], vars(project))
                case DeleteProject(project_id):
                    self._flush(connection, waiting)
                    self._delete_place(connection, tables.projects, "project", project_id)
                case SaveTemplate(template):
                    connection.execute(self._statements[tables.templates], vars(template))
                case DeleteTemplate(name):
                    connection.execute(sa.delete(tables.templates).where(tables.templates.c.name == name))
                case SaveUser(user):
                    connection.execute(self._statements[tables.users], vars(user))
                case SaveSession(session):
                    connection.execute(self._statements[tables.sessions], vars(session))
                case DeleteSession(token_hash):
                    connection.execute(
                        sa.delete(tables.sessions).where(tables.sessions.c.token_hash == token_hash)
                    )
                case DeleteSessionsOf(allocation_id):
                    connection.execute(
                        sa.delete(tables.sessions).where(tables.sessions.c.allocation_id == allocation_id)
                    )
                case ReplaceReport(report):
                    self._flush(connection, waiting)
                    _replace_report(connection, report)
                case ArchiveReports():
                    self._flush(connection, waiting)
                    _archive_reports(connection, write)
                case DeleteExperiment(experiment_id):
                    self._flush(connection, waiting)
                    self._delete_experiment(connection, experiment_id)
                case DeleteTrial(trial_id):
                    self._flush(connection, waiting)
                    self._delete_trials(connection, tables.trials.c.id == trial_id)
                case CollectionDone(experiment_id, due):
                    self._flush(connection, waiting)
                    e = tables.experiments.c
                    connection.execute(
                        sa.update(tables.experiments)
                        .where(e.id == experiment_id, e.gc_due == due)
                        .values(gc_due=None)
                    )
                case DeleteModel(model_id):
                    self._flush(connection, waiting)
                    self._delete_model(connection, model_id)
                case DeleteModelVersion(model_id, number):
                    self._flush(connection, waiting)
                    self._delete_versions(connection, model_id, number)
                case DeleteLogs(task_id, last_id):
                    self._flush(connection, waiting)
                    lines_of = tables.task_logs.c
                    connection.execute(
                        sa.delete(tables.task_logs).where(lines_of.task_id == task_id, lines_of.id <= last_id)
                    )
                case AddStorage(digest, config):
                    row = {"digest": digest, "config": config}
                    connection.execute(self._statements[tables.checkpoint_storages], row)
        self._flush(connection, waiting)

    def _flush(self, connection: sa.Connection, waiting: _Waiting) -> None:
        for table, rows in waiting.rows.items():
            if rows:
                connection.execute(self._statements[table], list(rows.values()))
                rows.clear()
        if waiting.progress:
            changes = [{"key": id, "new_progress": progress} for id, progress in waiting.progress.items()]
            connection.execute(_SET_PROGRESS, changes)
            waiting.progress.clear()

    def _delete_experiment(self, connection: sa.Connection, experiment_id: int) -> None:
        self._delete_trials(connection, tables.trials.c.experiment_id == experiment_id)
        self._delete_tasks(connection, tables.tasks.c.experiment_id == experiment_id)
        events = tables.searcher_events
        connection.execute(sa.delete(events).where(events.c.experiment_id == experiment_id))
        deleted = connection.execute(
            sa.delete(tables.experiments).where(tables.experiments.c.id == experiment_id)
        )
        if deleted.rowcount:
            self._retire(connection, "experiment", experiment_id)

    def _delete_trials(self, connection: sa.Connection, which: ColumnElement[bool]) -> None:
        trials, reports, checkpoints = tables.trials, tables.metric_reports, tables.checkpoints
        these = sa.select(trials.c.id).where(which)
        last = connection.scalar(sa.select(sa.func.max(trials.c.id)).where(which))
        if last is None:
            return
        self._delete_tasks(connection, tables.tasks.c.trial_id.in_(these))
        connection.execute(sa.delete(reports).where(reports.c.trial_id.in_(these)))
        connection.execute(sa.delete(checkpoints).where(checkpoints.c.trial_id.in_(these)))
        sources = tables.trial_sources
        connection.execute(sa.delete(sources).where(sources.c.trial_id.in_(these)))
        connection.execute(sa.delete(trials).where(which))
        self._retire(connection, "trial", last)

    def _delete_tasks(self, connection: sa.Connection, which: ColumnElement[bool]) -> None:
        tasks, allocations, logs, sessions = (
            tables.tasks,
            tables.allocations,
            tables.task_logs,
            tables.sessions,
        )
        these = sa.select(tasks.c.id).where(which)
        runs = sa.select(allocations.c.id).where(allocations.c.task_id.in_(these))
        connection.execute(sa.delete(logs).where(logs.c.task_id.in_(these)))
        connection.execute(sa.delete(sessions).where(sessions.c.allocation_id.in_(runs)))
        connection.execute(sa.delete(allocations).where(allocations.c.task_id.in_(these)))
        connection.execute(sa.delete(tasks).where(which))

    def _delete_place(self, connection: sa.Connection, table: sa.Table, kind: str, id: int) -> None:
        if connection.execute(sa.delete(table).where(table.c.id == id)).rowcount:
            self._retire(connection, kind, id)

    def _delete_model(self, connection: sa.Connection, model_id: int) -> None:
        self._delete_versions(connection, model_id)
        deleted = connection.execute(sa.delete(tables.models).where(tables.models.c.id == model_id))
        if deleted.rowcount:
            self._retire(connection, "model", model_id)

    def _delete_versions(self, connection: sa.Connection, model_id: int, number: int | None = None) -> None:
        """``number``: None for all versions of the model."""
        v = tables.model_versions.c
        which = [v.model_id == model_id, *([] if number is None else [v.version == number])]
        last = connection.scalar(sa.select(sa.func.max(v.id)).where(*which))
        if last is not None:
            connection.execute(sa.delete(tables.model_versions).where(*which))
            self._retire(connection, "model_version", last)

    def _retire(self, connection: sa.Connection, kind: str, id: int) -> None:
        retired = tables.retired_ids
        so_far = connection.scalar(sa.select(retired.c.highest).where(retired.c.kind == kind))
        connection.execute(self._statements[retired], {"kind": kind, "highest": max(id, so_far or 0)})


def _replace_report(connection: sa.Connection, report: records.MetricReport) -> None:
    m = tables.metric_reports.c
    replaced = connection.execute(
        sa.update(tables.metric_reports)
        .where(
            m.trial_id == report.trial_id,
            m.group == report.group,
            m.steps_completed == report.steps_completed,
            m.archived == sa.false(),
        )
        .values(
            run_id=report.run_id,
            reported_at=report.reported_at,
            metrics=report.metrics,
            batch_metrics=report.batch_metrics,
        )
    )
    if replaced.rowcount == 0:
        raise nothing_to_replace(report)


def nothing_to_replace(report: records.MetricReport) -> StoreConflict:
    return StoreConflict(
        f"trial {report.trial_id} has no report of group {report.group!r} at step {report.steps_completed} to replace"
    )


def _archive_reports(connection: sa.Connection, write: ArchiveReports) -> None:
    m = tables.metric_reports.c
    connection.execute(
        sa.update(tables.metric_reports)
        .where(
            m.trial_id == write.trial_id,
            m.run_id < write.run_id,
            m.archived == sa.false(),
            sa.case(
                (m.group == write.group, m.steps_completed >= write.steps_completed),
                else_=m.steps_completed > write.steps_completed,
            ),
        )
        .values(archived=True)
    )
