"""The first tables, and what is there from the start: the workspace and the project called "Uncategorized"."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

INT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TEXT = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
# Profiling reports have no steps, and there may be any number of them.
_WITH_STEPS = "\"group\" NOT IN ('cpu', 'disk', 'gpu', 'memory', 'network')"


def required(name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, type_, nullable=False)


def upgrade() -> None:
    op.create_table(
        "cluster", required("cluster_id", TEXT), sa.PrimaryKeyConstraint("cluster_id", name="pk_cluster")
    )
    op.create_table(
        "retired_ids",
        required("kind", TEXT),
        required("highest", INT),
        sa.PrimaryKeyConstraint("kind", name="pk_retired_ids"),
    )
    _create_users()
    _create_projects()
    _create_experiments()
    _create_trials()
    _create_reports()
    _create_models()


def _create_users() -> None:
    op.create_table(
        "users",
        sa.Column("id", INT, autoincrement=False, nullable=False),
        required("username", TEXT),
        sa.Column("password_hash", TEXT),
        required("admin", sa.Boolean()),
        required("active", sa.Boolean()),
        required("display_name", TEXT),
        required("remote", sa.Boolean()),
        required("modified_at", sa.Double()),
        sa.Column("last_auth_at", sa.Double()),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.UniqueConstraint("username", name="uq_users_username"),
    )
    op.create_table(
        "sessions",
        required("token_hash", TEXT),
        required("user_id", INT),
        required("kind", TEXT),
        required("created_at", sa.Double()),
        sa.Column("expires_at", sa.Double()),
        sa.Column("allocation_id", TEXT),
        sa.PrimaryKeyConstraint("token_hash", name="pk_sessions"),
    )
    op.create_index("ix_sessions_allocation_id", "sessions", ["allocation_id"])


def _create_projects() -> None:
    workspaces = op.create_table(
        "workspaces",
        sa.Column("id", INT, autoincrement=False, nullable=False),
        required("name", TEXT),
        required("owner_id", INT),
        required("archived", sa.Boolean()),
        required("immutable", sa.Boolean()),
        sa.Column("checkpoint_storage", JSON),
        required("default_compute_pool", TEXT),
        required("default_aux_pool", TEXT),
        required("state", TEXT),
        required("error_message", TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_workspaces"),
        sa.UniqueConstraint("name", name="uq_workspaces_name"),
    )
    projects = op.create_table(
        "projects",
        sa.Column("id", INT, autoincrement=False, nullable=False),
        required("workspace_id", INT),
        required("name", TEXT),
        required("owner_id", INT),
        required("key", TEXT),
        required("description", TEXT),
        required("notes", JSON),
        required("archived", sa.Boolean()),
        required("immutable", sa.Boolean()),
        required("state", TEXT),
        required("error_message", TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_projects"),
        sa.UniqueConstraint("key", name="uq_projects_key"),
        sa.UniqueConstraint("workspace_id", "name", name="uq_projects_workspace_id_name"),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_projects_workspace_id_workspaces"
        ),
    )
    op.create_table(
        "templates",
        required("name", TEXT),
        required("workspace_id", INT),
        required("owner_id", INT),
        required("config", JSON),
        sa.PrimaryKeyConstraint("name", name="pk_templates"),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_templates_workspace_id_workspaces"
        ),
    )
    first = {
        "id": 1,
        "name": "Uncategorized",
        "owner_id": 1,
        "archived": False,
        "immutable": True,
        "state": "UNSPECIFIED",
        "error_message": "",
    }
    op.bulk_insert(workspaces, [{**first, "default_compute_pool": "", "default_aux_pool": ""}])
    op.bulk_insert(projects, [{**first, "workspace_id": 1, "key": "UNCAT", "description": "", "notes": []}])


def _create_experiments() -> None:
    op.create_table(
        "experiments",
        sa.Column("id", INT, autoincrement=False, nullable=False),
        required("job_id", TEXT),
        required("owner_id", INT),
        required("project_id", INT),
        required("state", TEXT),
        required("config", JSON),
        required("original_config", TEXT),
        required("context_sha256", TEXT),
        required("context_bytes", INT),
        required("start_time", sa.Double()),
        sa.Column("end_time", sa.Double()),
        required("name", TEXT),
        required("description", TEXT),
        required("notes", TEXT),
        required("labels", JSON),
        required("archived", sa.Boolean()),
        sa.Column("forked_from", INT),
        required("progress", sa.Double()),
        required("error", TEXT),
        sa.Column("gc_due", sa.Double()),
        required("unmanaged", sa.Boolean()),
        sa.Column("external_id", TEXT),
        required("folded_name", TEXT),
        required("folded_description", TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_experiments"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_experiments_project_id_projects"),
    )
    for column in ("owner_id", "project_id", "state", "external_id"):
        op.create_index(f"ix_experiments_{column}", "experiments", [column])
    op.create_table(
        "searcher_events",
        sa.Column("experiment_id", INT, autoincrement=False, nullable=False),
        sa.Column("seq", INT, autoincrement=False, nullable=False),
        required("event", JSON),
        sa.PrimaryKeyConstraint("experiment_id", "seq", name="pk_searcher_events"),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name="fk_searcher_events_experiment_id_experiments"
        ),
    )


def _create_trials() -> None:
    op.create_table(
        "tasks",
        required("id", TEXT),
        required("type", TEXT),
        required("owner_id", INT),
        required("job_id", TEXT),
        required("start_time", sa.Double()),
        sa.Column("end_time", sa.Double()),
        sa.Column("experiment_id", INT),
        sa.Column("trial_id", INT),
        required("config", JSON),
        required("address", TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_tasks"),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name="fk_tasks_experiment_id_experiments"
        ),
    )
    op.create_index("ix_tasks_experiment_id", "tasks", ["experiment_id"])
    op.create_index("ix_tasks_trial_id", "tasks", ["trial_id"])
    op.create_table(
        "trials",
        sa.Column("id", INT, autoincrement=False, nullable=False),
        required("experiment_id", INT),
        required("request_id", INT),
        required("task_id", TEXT),
        required("state", TEXT),
        required("hparams", JSON),
        required("seed", INT),
        required("start_time", sa.Double()),
        sa.Column("end_time", sa.Double()),
        required("run_id", INT),
        required("restarts", INT),
        sa.Column("allocation_id", TEXT),
        required("stopped_by_searcher", sa.Boolean()),
        sa.Column("early_exit_reason", TEXT),
        sa.Column("warm_start_checkpoint", TEXT),
        required("progress", sa.Double()),
        required("runner_state", TEXT),
        required("total_batches", INT),
        required("summary_metrics", JSON),
        sa.Column("latest_validation", JSON),
        sa.Column("best_validation", JSON),
        sa.Column("searcher_metric", sa.Double()),
        required("metadata", JSON),
        sa.Column("log_policy_matched", TEXT),
        required("retries_canceled", sa.Boolean()),
        required("excluded_agents", JSON),
        sa.Column("log_retention_days", INT),
        sa.Column("external_id", TEXT),
        sa.Column("last_activity", sa.Double()),
        required("lost_contact", sa.Boolean()),
        sa.PrimaryKeyConstraint("id", name="pk_trials"),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name="fk_trials_experiment_id_experiments"
        ),
    )
    op.create_index("ix_trials_experiment_id", "trials", ["experiment_id"])
    op.create_index("ix_trials_warm_start_checkpoint", "trials", ["warm_start_checkpoint"])
    op.create_table(
        "allocations",
        required("id", TEXT),
        required("task_id", TEXT),
        required("owner_id", INT),
        required("run_id", INT),
        required("resource_pool", TEXT),
        required("slots", INT),
        required("priority", INT),
        required("state", TEXT),
        required("queued_at", sa.Double()),
        required("queue_order", INT),
        sa.Column("started_at", sa.Double()),
        sa.Column("ended_at", sa.Double()),
        required("containers", JSON),
        required("ready", sa.Boolean()),
        sa.Column("preempt_requested_at", sa.Double()),
        required("preempt_acked", sa.Boolean()),
        required("kill_requested", sa.Boolean()),
        required("aborted", sa.Boolean()),
        required("preemption_timeout", sa.Double()),
        required("exit_reason", TEXT),
        sa.Column("exit_code", INT),
        sa.Column("failure", TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_allocations"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_allocations_task_id_tasks"),
    )
    op.create_index("ix_allocations_task_id", "allocations", ["task_id"])
    op.create_index("ix_allocations_ended_at_queue_order", "allocations", ["ended_at", "queue_order"])
    op.create_index("ix_allocations_queue_order", "allocations", ["queue_order"])


def _create_reports() -> None:
    op.create_table(
        "metric_reports",
        required("id", INT),
        required("trial_id", INT),
        required("run_id", INT),
        required("group", TEXT),
        required("steps_completed", INT),
        required("reported_at", sa.Double()),
        required("metrics", JSON),
        sa.Column("batch_metrics", JSON),
        required("archived", sa.Boolean()),
        sa.PrimaryKeyConstraint("id", name="pk_metric_reports"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_metric_reports_trial_id_trials"),
    )
    op.create_index(
        "ix_metric_reports_trial_id_steps_completed_id",
        "metric_reports",
        ["trial_id", "steps_completed", "id"],
    )
    op.create_index(
        "uq_metric_reports_live",
        "metric_reports",
        ["trial_id", "group", "steps_completed"],
        unique=True,
        sqlite_where=sa.text(f"archived = 0 AND {_WITH_STEPS}"),
        postgresql_where=sa.text(f"archived = false AND {_WITH_STEPS}"),
    )
    op.create_table(
        "checkpoints",
        required("uuid", TEXT),
        required("task_id", TEXT),
        required("allocation_id", TEXT),
        required("experiment_id", INT),
        required("trial_id", INT),
        required("state", TEXT),
        required("reported_at", sa.Double()),
        required("steps_completed", INT),
        required("resources", JSON),
        required("metadata", JSON),
        sa.Column("storage_id", INT),
        required("size", INT),
        sa.PrimaryKeyConstraint("uuid", name="pk_checkpoints"),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_checkpoints_trial_id_trials"),
    )
    op.create_index("ix_checkpoints_experiment_id", "checkpoints", ["experiment_id"])
    op.create_index("ix_checkpoints_trial_id_steps_completed", "checkpoints", ["trial_id", "steps_completed"])
    op.create_table(
        "trial_sources",
        sa.Column("trial_id", INT, autoincrement=False, nullable=False),
        required("checkpoint_uuid", TEXT),
        sa.Column("model_id", INT, autoincrement=False, nullable=False),
        sa.Column("model_version", INT, autoincrement=False, nullable=False),
        required("kind", TEXT),
        sa.PrimaryKeyConstraint(
            "trial_id", "checkpoint_uuid", "model_id", "model_version", name="pk_trial_sources"
        ),
        sa.ForeignKeyConstraint(["trial_id"], ["trials.id"], name="fk_trial_sources_trial_id_trials"),
    )
    op.create_index("ix_trial_sources_checkpoint_uuid", "trial_sources", ["checkpoint_uuid"])
    op.create_table(
        "checkpoint_storages",
        required("id", INT),
        required("digest", TEXT),
        required("config", JSON),
        sa.PrimaryKeyConstraint("id", name="pk_checkpoint_storages"),
        sa.UniqueConstraint("digest", name="uq_checkpoint_storages_digest"),
    )
    op.create_table(
        "task_logs",
        required("id", INT),
        required("task_id", TEXT),
        required("allocation_id", TEXT),
        required("timestamp", sa.Double()),
        required("log", TEXT),
        required("container_id", TEXT),
        required("agent_id", TEXT),
        sa.Column("rank_id", INT),
        required("level", TEXT),
        required("stdtype", TEXT),
        required("source", TEXT),
        sa.Column("offset", INT),
        sa.PrimaryKeyConstraint("id", name="pk_task_logs"),
        sa.UniqueConstraint("container_id", "offset", name="uq_task_logs_container_id_offset"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_task_logs_task_id_id", "task_logs", ["task_id", "id"])


def _create_models() -> None:
    op.create_table(
        "models",
        sa.Column("id", INT, autoincrement=False, nullable=False),
        required("name", TEXT),
        required("owner_id", INT),
        required("workspace_id", INT),
        required("created_at", sa.Double()),
        required("updated_at", sa.Double()),
        required("description", TEXT),
        required("notes", TEXT),
        required("labels", JSON),
        required("metadata", JSON),
        required("archived", sa.Boolean()),
        required("last_version", INT),
        required("folded_name", TEXT),
        required("folded_description", TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_models"),
        sa.UniqueConstraint("name", "owner_id", name="uq_models_name_owner_id"),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_models_workspace_id_workspaces"
        ),
    )
    op.create_table(
        "model_versions",
        required("id", INT),
        sa.Column("model_id", INT, autoincrement=False, nullable=False),
        sa.Column("version", INT, autoincrement=False, nullable=False),
        required("checkpoint_uuid", TEXT),
        required("owner_id", INT),
        required("created_at", sa.Double()),
        required("updated_at", sa.Double()),
        required("name", TEXT),
        required("comment", TEXT),
        required("notes", TEXT),
        required("labels", JSON),
        required("metadata", JSON),
        sa.PrimaryKeyConstraint("model_id", "version", name="pk_model_versions"),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name="fk_model_versions_model_id_models"),
        sa.ForeignKeyConstraint(
            ["checkpoint_uuid"], ["checkpoints.uuid"], name="fk_model_versions_checkpoint_uuid_checkpoints"
        ),
    )
    op.create_index("ix_model_versions_checkpoint_uuid", "model_versions", ["checkpoint_uuid"])
