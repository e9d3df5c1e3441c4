"""The tables. A column has the name of the record's field that it holds; the few others are explained where they stand.

Rows belong to their parents by foreign key: trials, tasks and searcher events to an experiment, allocations to a task,
reports and checkpoints to a trial, model versions to their model and their checkpoint. So nothing late can write to an
experiment that was deleted, and none is deleted whose checkpoints are in the registry. Users are never deleted,
and log lines may come when their task is gone: neither is bound. Ids are given by the engine, apart from those of
reports and log lines. A change here wants a migration beside it; tests/master/store/test_migrations.py compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import sqlalchemy as sa

from detlab_master.core.metrics import PROFILING_GROUPS
from detlab_master.core.states import (
    AllocationState,
    CheckpointState,
    ExperimentState,
    PlaceState,
    TaskType,
    TrialState,
)
from detlab_master.store.columns import INT, JSON, TEXT, ConvertedJson, EnumText
from detlab_master.store.records import Container, Note

NAMING: Final = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


def _dicts(values: Sequence[Container | Note]) -> list[dict[str, Any]]:
    return [asdict(value) for value in values]


def _containers_from_json(values: Sequence[Mapping[str, Any]]) -> tuple[Container, ...]:
    return tuple(
        Container(**{**value, "slot_ids": tuple(value["slot_ids"]), "state": AllocationState(value["state"])})
        for value in values
    )


def _notes_from_json(values: Sequence[Mapping[str, str]]) -> tuple[Note, ...]:
    return tuple(Note(**value) for value in values)


_TUPLE: Final = ConvertedJson(list, tuple)
_CONTAINERS: Final = ConvertedJson(_dicts, _containers_from_json)
_NOTES: Final = ConvertedJson(_dicts, _notes_from_json)

metadata = sa.MetaData(naming_convention=NAMING)

# One row: what this cluster is called for ever.
cluster = sa.Table("cluster", metadata, sa.Column("cluster_id", TEXT, primary_key=True))

# The highest ids of what was deleted ("experiment", "trial", "model", "workspace" and so on): they are not used again, because
# folders, notebooks and people remember them.
retired_ids = sa.Table(
    "retired_ids",
    metadata,
    sa.Column("kind", TEXT, primary_key=True),
    sa.Column("highest", INT, nullable=False),
)

users = sa.Table(
    "users",
    metadata,
    sa.Column("id", INT, primary_key=True, autoincrement=False),
    sa.Column("username", TEXT, nullable=False),
    sa.Column("password_hash", TEXT),
    sa.Column("admin", sa.Boolean, nullable=False),
    sa.Column("active", sa.Boolean, nullable=False),
    sa.Column("display_name", TEXT, nullable=False),
    sa.Column("remote", sa.Boolean, nullable=False),
    sa.Column("modified_at", sa.Double, nullable=False),
    sa.Column("last_auth_at", sa.Double),
    sa.UniqueConstraint("username"),
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("token_hash", TEXT, primary_key=True),
    sa.Column("user_id", INT, nullable=False),
    sa.Column("kind", TEXT, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double),
    sa.Column("allocation_id", TEXT, index=True),
)

workspaces = sa.Table(
    "workspaces",
    metadata,
    sa.Column("id", INT, primary_key=True, autoincrement=False),
    sa.Column("name", TEXT, nullable=False),
    sa.Column("owner_id", INT, nullable=False),
    sa.Column("archived", sa.Boolean, nullable=False),
    sa.Column("immutable", sa.Boolean, nullable=False),
    sa.Column("checkpoint_storage", JSON),
    sa.Column("default_compute_pool", TEXT, nullable=False),
    sa.Column("default_aux_pool", TEXT, nullable=False),
    sa.Column("state", EnumText(PlaceState), nullable=False),
    sa.Column("error_message", TEXT, nullable=False),
    sa.UniqueConstraint("name"),
)

projects = sa.Table(
    "projects",
    metadata,
    sa.Column("id", INT, primary_key=True, autoincrement=False),
    sa.Column("workspace_id", INT, sa.ForeignKey(workspaces.c.id), nullable=False),
    sa.Column("name", TEXT, nullable=False),
    sa.Column("owner_id", INT, nullable=False),
    sa.Column("key", TEXT, nullable=False),
    sa.Column("description", TEXT, nullable=False),
    sa.Column("notes", _NOTES, nullable=False),
    sa.Column("archived", sa.Boolean, nullable=False),
    sa.Column("immutable", sa.Boolean, nullable=False),
    sa.Column("state", EnumText(PlaceState), nullable=False),
    sa.Column("error_message", TEXT, nullable=False),
    sa.UniqueConstraint("workspace_id", "name"),
    sa.UniqueConstraint("key"),
)

templates = sa.Table(
    "templates",
    metadata,
    sa.Column("name", TEXT, primary_key=True),
    sa.Column("workspace_id", INT, sa.ForeignKey(workspaces.c.id), nullable=False),
    sa.Column("owner_id", INT, nullable=False),
    sa.Column("config", JSON, nullable=False),
)

experiments = sa.Table(
    "experiments",
    metadata,
    sa.Column("id", INT, primary_key=True, autoincrement=False),
    sa.Column("job_id", TEXT, nullable=False),
    sa.Column("owner_id", INT, nullable=False, index=True),
    sa.Column("project_id", INT, sa.ForeignKey(projects.c.id), nullable=False, index=True),
    sa.Column("state", EnumText(ExperimentState), nullable=False, index=True),
    sa.Column("config", JSON, nullable=False),
    sa.Column("original_config", TEXT, nullable=False),
    sa.Column("context_sha256", TEXT, nullable=False),
    sa.Column("context_bytes", INT, nullable=False),
    sa.Column("start_time", sa.Double, nullable=False),
    sa.Column("end_time", sa.Double),
    sa.Column("name", TEXT, nullable=False),
    sa.Column("description", TEXT, nullable=False),
    sa.Column("notes", TEXT, nullable=False),
    sa.Column("labels", _TUPLE, nullable=False),
    sa.Column("archived", sa.Boolean, nullable=False),
    sa.Column("forked_from", INT),
    sa.Column("progress", sa.Double, nullable=False),
    sa.Column("error", TEXT, nullable=False),
    sa.Column("gc_due", sa.Double),
    sa.Column("unmanaged", sa.Boolean, nullable=False),
    sa.Column("external_id", TEXT, index=True),
    # What filters look into: str.casefold() of the two, as databases disagree on letters beyond ASCII.
    sa.Column("folded_name", TEXT, nullable=False),
    sa.Column("folded_description", TEXT, nullable=False),
)

searcher_events = sa.Table(
    "searcher_events",
    metadata,
    sa.Column("experiment_id", INT, sa.ForeignKey(experiments.c.id), primary_key=True, autoincrement=False),
    sa.Column("seq", INT, primary_key=True, autoincrement=False),
    sa.Column("event", JSON, nullable=False),
)

tasks = sa.Table(
    "tasks",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("type", EnumText(TaskType), nullable=False),
    sa.Column("owner_id", INT, nullable=False),
    sa.Column("job_id", TEXT, nullable=False),
    sa.Column("start_time", sa.Double, nullable=False),
    sa.Column("end_time", sa.Double),
    sa.Column("experiment_id", INT, sa.ForeignKey(experiments.c.id), index=True),
    sa.Column("trial_id", INT, index=True),
    sa.Column("config", JSON, nullable=False),
    sa.Column("address", TEXT, nullable=False),
)

trials = sa.Table(
    "trials",
    metadata,
    sa.Column("id", INT, primary_key=True, autoincrement=False),
    sa.Column("experiment_id", INT, sa.ForeignKey(experiments.c.id), nullable=False, index=True),
    sa.Column("request_id", INT, nullable=False),
    sa.Column("task_id", TEXT, nullable=False),
    sa.Column("state", EnumText(TrialState), nullable=False),
    sa.Column("hparams", JSON, nullable=False),
    sa.Column("seed", INT, nullable=False),
    sa.Column("start_time", sa.Double, nullable=False),
    sa.Column("end_time", sa.Double),
    sa.Column("run_id", INT, nullable=False),
    sa.Column("restarts", INT, nullable=False),
    sa.Column("allocation_id", TEXT),
    sa.Column("stopped_by_searcher", sa.Boolean, nullable=False),
    sa.Column("early_exit_reason", TEXT),
    sa.Column("warm_start_checkpoint", TEXT, index=True),
    sa.Column("progress", sa.Double, nullable=False),
    sa.Column("runner_state", TEXT, nullable=False),
    sa.Column("total_batches", INT, nullable=False),
    sa.Column("summary_metrics", JSON, nullable=False),
    sa.Column("latest_validation", JSON),
    sa.Column("best_validation", JSON),
    sa.Column("searcher_metric", sa.Double),
    sa.Column("metadata", JSON, nullable=False),
    sa.Column("log_policy_matched", TEXT),
    sa.Column("retries_canceled", sa.Boolean, nullable=False),
    sa.Column("excluded_agents", _TUPLE, nullable=False),
    sa.Column("log_retention_days", INT),
    sa.Column("external_id", TEXT),
    sa.Column("last_activity", sa.Double),
    sa.Column("lost_contact", sa.Boolean, nullable=False),
)

allocations = sa.Table(
    "allocations",
    metadata,
    sa.Column("id", TEXT, primary_key=True),
    sa.Column("task_id", TEXT, sa.ForeignKey(tasks.c.id), nullable=False, index=True),
    sa.Column("owner_id", INT, nullable=False),
    sa.Column("run_id", INT, nullable=False),
    sa.Column("resource_pool", TEXT, nullable=False),
    sa.Column("slots", INT, nullable=False),
    sa.Column("priority", INT, nullable=False),
    sa.Column("state", EnumText(AllocationState), nullable=False),
    sa.Column("queued_at", sa.Double, nullable=False),
    sa.Column("queue_order", INT, nullable=False, index=True),  # a master that starts asks for the highest
    sa.Column("started_at", sa.Double),
    sa.Column("ended_at", sa.Double),
    sa.Column("containers", _CONTAINERS, nullable=False),
    sa.Column("ready", sa.Boolean, nullable=False),
    sa.Column("preempt_requested_at", sa.Double),
    sa.Column("preempt_acked", sa.Boolean, nullable=False),
    sa.Column("kill_requested", sa.Boolean, nullable=False),
    sa.Column("aborted", sa.Boolean, nullable=False),
    sa.Column("preemption_timeout", sa.Double, nullable=False),
    sa.Column("exit_reason", TEXT, nullable=False),
    sa.Column("exit_code", INT),
    sa.Column("failure", TEXT),
    sa.Index(None, "ended_at", "queue_order"),
)

# Profiling reports have no steps, and there may be any number of them.
_WITH_STEPS: Final = f'"group" NOT IN ({", ".join(repr(group) for group in sorted(PROFILING_GROUPS))})'

metric_reports = sa.Table(
    "metric_reports",
    metadata,
    sa.Column("id", INT, primary_key=True),
    sa.Column("trial_id", INT, sa.ForeignKey(trials.c.id), nullable=False),
    sa.Column("run_id", INT, nullable=False),
    sa.Column("group", TEXT, nullable=False),
    sa.Column("steps_completed", INT, nullable=False),
    sa.Column("reported_at", sa.Double, nullable=False),
    sa.Column("metrics", JSON, nullable=False),
    sa.Column("batch_metrics", _TUPLE),
    sa.Column("archived", sa.Boolean, nullable=False),
    sa.Index(None, "trial_id", "steps_completed", "id"),
    sa.Index(
        "uq_metric_reports_live",  # one report that counts for each point
        "trial_id",
        "group",
        "steps_completed",
        unique=True,
        sqlite_where=sa.text(f"archived = 0 AND {_WITH_STEPS}"),
        postgresql_where=sa.text(f"archived = false AND {_WITH_STEPS}"),
    ),
)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    sa.Column("uuid", TEXT, primary_key=True),
    sa.Column("task_id", TEXT, nullable=False),
    sa.Column("allocation_id", TEXT, nullable=False),
    sa.Column("experiment_id", INT, nullable=False, index=True),
    sa.Column("trial_id", INT, sa.ForeignKey(trials.c.id), nullable=False),
    sa.Column("state", EnumText(CheckpointState), nullable=False),
    sa.Column("reported_at", sa.Double, nullable=False),
    sa.Column("steps_completed", INT, nullable=False),
    sa.Column("resources", JSON, nullable=False),
    sa.Column("metadata", JSON, nullable=False),
    sa.Column("storage_id", INT),
    sa.Column("size", INT, nullable=False),  # Checkpoint.size, so that the database can add up
    sa.Index(None, "trial_id", "steps_completed"),
)

trial_sources = sa.Table(
    "trial_sources",
    metadata,
    sa.Column("trial_id", INT, sa.ForeignKey(trials.c.id), primary_key=True, autoincrement=False),
    # No foreign key: the trial's word stays when the checkpoint's experiment is deleted.
    sa.Column("checkpoint_uuid", TEXT, primary_key=True, index=True),
    sa.Column("model_id", INT, primary_key=True, autoincrement=False),
    sa.Column("model_version", INT, primary_key=True, autoincrement=False),
    sa.Column("kind", TEXT, nullable=False),
)

checkpoint_storages = sa.Table(
    "checkpoint_storages",
    metadata,
    sa.Column("id", INT, primary_key=True),
    sa.Column(
        "digest", TEXT, nullable=False
    ),  # SHA-256 of the JSON of its user's id and the configuration, keys sorted
    sa.Column("config", JSON, nullable=False),
    sa.UniqueConstraint("digest"),
)

models = sa.Table(
    "models",
    metadata,
    sa.Column("id", INT, primary_key=True, autoincrement=False),
    sa.Column("name", TEXT, nullable=False),
    sa.Column("owner_id", INT, nullable=False),
    sa.Column("workspace_id", INT, sa.ForeignKey(workspaces.c.id), nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("updated_at", sa.Double, nullable=False),
    sa.Column("description", TEXT, nullable=False),
    sa.Column("notes", TEXT, nullable=False),
    sa.Column("labels", _TUPLE, nullable=False),
    sa.Column("metadata", JSON, nullable=False),
    sa.Column("archived", sa.Boolean, nullable=False),
    sa.Column("last_version", INT, nullable=False),
    sa.Column("folded_name", TEXT, nullable=False),  # as in experiments
    sa.Column("folded_description", TEXT, nullable=False),
    sa.UniqueConstraint("name", "owner_id"),
)

model_versions = sa.Table(
    "model_versions",
    metadata,
    sa.Column("id", INT, nullable=False),
    sa.Column("model_id", INT, sa.ForeignKey(models.c.id), primary_key=True, autoincrement=False),
    sa.Column("version", INT, primary_key=True, autoincrement=False),
    sa.Column("checkpoint_uuid", TEXT, sa.ForeignKey(checkpoints.c.uuid), nullable=False, index=True),
    sa.Column("owner_id", INT, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("updated_at", sa.Double, nullable=False),
    sa.Column("name", TEXT, nullable=False),
    sa.Column("comment", TEXT, nullable=False),
    sa.Column("notes", TEXT, nullable=False),
    sa.Column("labels", _TUPLE, nullable=False),
    sa.Column("metadata", JSON, nullable=False),
)

task_logs = sa.Table(
    "task_logs",
    metadata,
    sa.Column("id", INT, primary_key=True),
    sa.Column("task_id", TEXT, nullable=False),
    sa.Column("allocation_id", TEXT, nullable=False),
    sa.Column("timestamp", sa.Double, nullable=False),
    sa.Column("log", TEXT, nullable=False),
    sa.Column("container_id", TEXT, nullable=False),
    sa.Column("agent_id", TEXT, nullable=False),
    sa.Column("rank_id", INT),
    sa.Column("level", TEXT, nullable=False),
    sa.Column("stdtype", TEXT, nullable=False),
    sa.Column("source", TEXT, nullable=False),
    sa.Column("offset", INT),
    sa.Index(None, "task_id", "id"),
    sa.UniqueConstraint("container_id", "offset"),
    sqlite_autoincrement=True,  # who follows a log asks for higher ids: one must not come back after a delete
)
