"""Workspaces, projects and templates."""

from __future__ import annotations

from dataclasses import dataclass

from detlab_master.api.encode.wire import Object, timestamp
from detlab_master.core.expconf import without_secrets
from detlab_master.core.records import Project, Template, User, Workspace
from detlab_master.store.base import ProjectCounts


@dataclass(frozen=True)
class WorkspaceView:
    """A workspace with what is shown beside it."""

    workspace: Workspace
    owner: User | None
    project_count: int
    experiment_count: int  # of those that the caller sees


@dataclass(frozen=True)
class ProjectView:
    """A project with what is shown beside it."""

    project: Project
    workspace: Workspace
    owner: User | None
    counts: ProjectCounts | None  # of those that the caller sees; None: there is none

    @property
    def archived(self) -> bool:
        """It takes no experiments, because of itself or of its workspace."""
        return self.project.archived or self.workspace.archived


def workspace(view: WorkspaceView, *, secrets: bool) -> Object:
    """v1Workspace.

    Args:
        secrets: show the keys of its checkpoint storage.
    """
    record = view.workspace
    storage = record.checkpoint_storage
    return {
        "id": record.id,
        "name": record.name,
        "archived": record.archived,
        "immutable": record.immutable,
        "state": f"WORKSPACE_STATE_{record.state}",
        "errorMessage": record.error_message,
        "userId": record.owner_id,
        "username": view.owner.username if view.owner else "",
        "numProjects": view.project_count,
        "numExperiments": view.experiment_count,
        "pinned": False,
        "pinnedAt": None,
        "agentUserGroup": None,
        "checkpointStorageConfig": storage if storage is None or secrets else without_secrets(storage),
        "defaultComputePool": record.default_compute_pool,
        "defaultAuxPool": record.default_aux_pool,
    }


def project(view: ProjectView) -> Object:
    """v1Project."""
    record, counts = view.project, view.counts
    return {
        "id": record.id,
        "name": record.name,
        "key": record.key,
        "description": record.description,
        "notes": [vars(note) for note in record.notes],
        "archived": view.archived,
        "immutable": record.immutable,
        "state": f"WORKSPACE_STATE_{record.state}",
        "errorMessage": record.error_message,
        "workspaceId": record.workspace_id,
        "workspaceName": view.workspace.name,
        "userId": record.owner_id,
        "username": view.owner.username if view.owner else "",
        "numExperiments": counts.experiments if counts else 0,
        "numActiveExperiments": counts.active if counts else 0,
        "numRuns": counts.trials if counts else 0,
        "lastExperimentStartedAt": timestamp(counts.last_start) if counts else None,
    }


def template(record: Template, *, secrets: bool) -> Object:
    """v1Template. Without `secrets` the keys of its checkpoint storage are masked; who uses it gets them all the same."""
    config, storage = record.config, record.config.get("checkpoint_storage")
    if not secrets and isinstance(storage, dict):
        config = {**config, "checkpoint_storage": without_secrets(storage)}
    return {"name": record.name, "config": config, "workspaceId": record.workspace_id}
