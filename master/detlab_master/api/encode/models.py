"""The model registry."""

from __future__ import annotations

from dataclasses import dataclass

from detlab_master.api.encode.checkpoints import CheckpointView, checkpoint
from detlab_master.api.encode.wire import Object, timestamp
from detlab_master.core.records import Model, ModelVersion, User


@dataclass(frozen=True)
class ModelView:
    """A model with what is shown beside it."""

    model: Model
    owner: User | None
    version_count: int


@dataclass(frozen=True)
class VersionView:
    """A version with its model and its checkpoint."""

    version: ModelVersion
    model: ModelView
    checkpoint: CheckpointView
    owner: User | None


def model(view: ModelView) -> Object:
    """v1Model."""
    record = view.model
    return {
        "id": record.id,
        "name": record.name,
        "description": record.description,
        "notes": record.notes,
        "labels": list(record.labels),
        "metadata": record.metadata,
        "archived": record.archived,
        "creationTime": timestamp(record.created_at),
        "lastUpdatedTime": timestamp(record.updated_at),
        "numVersions": view.version_count,
        "userId": record.owner_id,
        "username": view.owner.username if view.owner else "",
        "workspaceId": record.workspace_id,
    }


def version(view: VersionView) -> Object:
    """v1ModelVersion."""
    record = view.version
    return {
        "id": record.id,
        "version": record.version,
        "model": model(view.model),
        "checkpoint": checkpoint(view.checkpoint),
        "name": record.name,
        "comment": record.comment,
        "notes": record.notes,
        "labels": list(record.labels),
        "metadata": record.metadata,
        "creationTime": timestamp(record.created_at),
        "lastUpdatedTime": timestamp(record.updated_at),
        "userId": record.owner_id,
        "username": view.owner.username if view.owner else "",
    }
