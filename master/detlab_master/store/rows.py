"""Records to rows and back: a record's fields are the columns of the same names."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import sqlalchemy as sa

from detlab_master.store import records, tables

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    R = TypeVar("R", bound=DataclassInstance)
else:
    R = TypeVar("R")

Select = sa.Select[*tuple[Any, ...]]


class Shape(Generic[R]):
    """How records of one class lie in their table."""

    def __init__(self, record: type[R], table: sa.Table) -> None:
        self.record = record
        self.table = table
        self.c = table.c
        self._columns = [table.c[field.name] for field in fields(record)]

    def select(self) -> Select:
        """All rows, ready to be narrowed down; what it yields is for `of`."""
        return sa.select(*self._columns)

    def where_equal(self, column: sa.Column[Any]) -> Select:
        """The rows with ``:key`` in that column; made once and used often."""
        return self.select().where(column == sa.bindparam("key"))

    def of(self, row: sa.Row[*tuple[Any, ...]]) -> R:
        return self.record(*row)


USERS: Final = Shape(records.User, tables.users)
SESSIONS: Final = Shape(records.Session, tables.sessions)
WORKSPACES: Final = Shape(records.Workspace, tables.workspaces)
PROJECTS: Final = Shape(records.Project, tables.projects)
TEMPLATES: Final = Shape(records.Template, tables.templates)
EXPERIMENTS: Final = Shape(records.Experiment, tables.experiments)
SEARCHER_EVENTS: Final = Shape(records.SearcherEvent, tables.searcher_events)
TASKS: Final = Shape(records.Task, tables.tasks)
TRIALS: Final = Shape(records.Trial, tables.trials)
ALLOCATIONS: Final = Shape(records.Allocation, tables.allocations)
REPORTS: Final = Shape(records.MetricReport, tables.metric_reports)
CHECKPOINTS: Final = Shape(records.Checkpoint, tables.checkpoints)
TRIAL_SOURCES: Final = Shape(records.TrialSource, tables.trial_sources)
MODELS: Final = Shape(records.Model, tables.models)
MODEL_VERSIONS: Final = Shape(records.ModelVersion, tables.model_versions)
LOGS: Final = Shape(records.LogLine, tables.task_logs)


def experiment_row(experiment: records.Experiment) -> dict[str, Any]:
    return _with_folded(experiment)


def model_row(model: records.Model) -> dict[str, Any]:
    return _with_folded(model)


def _with_folded(record: records.Experiment | records.Model) -> dict[str, Any]:
    return {
        **vars(record),
        "folded_name": record.name.casefold(),
        "folded_description": record.description.casefold(),
    }


def checkpoint_row(checkpoint: records.Checkpoint) -> dict[str, Any]:
    return {**vars(checkpoint), "size": checkpoint.size}


def report_row(report: records.MetricReport) -> dict[str, Any]:
    row = dict(vars(report))
    del row["id"]
    return row


def log_row(line: records.LogLine) -> dict[str, Any]:
    row = dict(vars(line))
    del row["id"]
    row["log"] = printable(line.log)
    return row


def printable(log: str) -> str:
    """The line without what a database cannot hold: NUL characters and lone surrogates become U+FFFD.

    A line that a task printed must never be refused, or its agent would send it again for ever.
    """
    return log.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
