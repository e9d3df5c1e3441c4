"""The model registry: a model is a name, its versions are checkpoints that are kept under it."""

import urllib.parse
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from determined.common.api import Session, iterate
from determined.experimental import _metrics, _wire
from determined.experimental._checkpoint import Checkpoint
from determined.experimental._enums import ModelSortBy, OrderBy

LATEST = -1


class ModelVersion:
    """A version of a model as of the last `reload`. While it is there, its checkpoint cannot be deleted."""

    def __init__(self, session: Session, raw: dict[str, Any]) -> None:
        self._session = session
        self._load(raw)

    def _load(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.model_version: int = raw["version"]
        self.model_version_id: int = raw["id"]
        self.model_id: int = raw["model"]["id"]
        self.model_name: str = raw["model"]["name"]
        self.checkpoint = Checkpoint(self._session, raw["checkpoint"])
        self.metadata: dict[str, Any] = raw.get("metadata") or {}
        self.name: str = raw.get("name") or ""
        self.comment: str = raw.get("comment") or ""
        self.notes: str = raw.get("notes") or ""
        self.labels: list[str] = raw.get("labels") or []
        self.username: str = raw.get("username") or ""
        self.creation_time = _wire.time(raw["creationTime"])
        self.last_updated_time = _wire.time(raw["lastUpdatedTime"])

    def __repr__(self) -> str:
        return f"ModelVersion(model_name={self.model_name!r}, model_version={self.model_version})"

    def reload(self) -> None:
        self._load(self._session.get_json(self._path())["modelVersion"])

    def set_name(self, name: str) -> None:
        self._patch(name=name)

    def set_notes(self, notes: str) -> None:
        self._patch(notes=notes)

    def iter_metrics(self, group: str | None = None) -> Iterator[_metrics.TrialMetrics]:
        """What trials reported that said they work with this version, such as a batch inference.

        They say so by `core_context.experimental.report_task_using_model_version()`.
        """
        return _metrics.iter_metrics_of(self._session, f"{self._path()}/metrics", group)

    def get_metrics(self, group: str | None = None) -> Iterator[_metrics.TrialMetrics]:
        """The older name of `iter_metrics`."""
        warnings.warn(
            "ModelVersion.get_metrics() is deprecated: use ModelVersion.iter_metrics()",
            FutureWarning,
            stacklevel=2,
        )
        return self.iter_metrics(group)

    def delete(self) -> None:
        """Take it out of the registry. Its checkpoint stays; its number is not used again."""
        self._session.delete(self._path())

    def _path(self) -> str:
        return f"/api/v1/models/{self.model_id}/versions/{self.model_version}"

    def _patch(self, **changes: Any) -> None:
        self._load(self._session.patch(self._path(), changes).json()["modelVersion"])


class Model:
    """A model of the registry as of the last `reload`."""

    def __init__(self, session: Session, raw: dict[str, Any]) -> None:
        self._session = session
        self._load(raw)

    def _load(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.model_id: int = raw["id"]
        self.name: str = raw["name"]
        self.description: str = raw.get("description") or ""
        self.notes: str = raw.get("notes") or ""
        self.metadata: dict[str, Any] = raw["metadata"] or {}
        self.labels: list[str] = raw.get("labels") or []
        self.username: str = raw["username"]
        self.archived: bool = raw["archived"]
        self.workspace_id: int = raw["workspaceId"]
        self.num_versions: int = raw["numVersions"]
        self.creation_time = _wire.time(raw["creationTime"])
        self.last_updated_time = _wire.time(raw["lastUpdatedTime"])

    def __repr__(self) -> str:
        return f"Model(name={self.name!r}, model_id={self.model_id})"

    def reload(self) -> None:
        self._load(self._session.get_json(self._path())["model"])

    # Versions.

    def register_version(self, checkpoint_uuid: str) -> ModelVersion:
        """Make a checkpoint the next version. It must be COMPLETED; from then on it cannot be deleted."""
        body = {"modelName": self.name, "checkpointUuid": checkpoint_uuid}
        answer = self._session.post(f"{self._path()}/versions", body, once=True).json()
        return ModelVersion(self._session, answer["modelVersion"])

    def get_version(self, version: int = LATEST) -> ModelVersion | None:
        """A version by its number; without one the latest, None when there is none yet.

        Raises NotFoundException for a number that there is not.
        """
        if version == LATEST:
            return next(self._versions(OrderBy.DESC, limit=1), None)
        answer = self._session.get_json(f"{self._path()}/versions/{version}")
        return ModelVersion(self._session, answer["modelVersion"])

    def list_versions(self, order_by: OrderBy = OrderBy.DESC) -> list[ModelVersion]:
        """All versions by number, the latest first."""
        return list(self._versions(order_by))

    def get_versions(self, order_by: OrderBy = OrderBy.DESC) -> list[ModelVersion]:
        warnings.warn("Model.get_versions() is deprecated: use list_versions()", FutureWarning, stacklevel=2)
        return self.list_versions(order_by)

    # What it is called, and where it is.

    def set_description(self, description: str) -> None:
        self._patch(description=description)

    def set_labels(self, labels: Sequence[str]) -> None:
        """Replace all labels."""
        self._patch(labels=list(labels))

    def add_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add or replace entries of the metadata."""
        self.reload()
        self._patch(metadata={**self.metadata, **metadata})

    def remove_metadata(self, keys: Sequence[str]) -> None:
        """Remove entries of the metadata; a key that is not there is no error."""
        self.reload()
        self._patch(metadata={key: value for key, value in self.metadata.items() if key not in keys})

    def move_to_workspace(self, workspace_name: str) -> None:
        self._patch(workspaceName=workspace_name)

    def archive(self) -> None:
        self._session.post(f"{self._path()}/archive")
        self.archived = True

    def unarchive(self) -> None:
        self._session.post(f"{self._path()}/unarchive")
        self.archived = False

    def delete(self) -> None:
        """Delete the model with its versions. Their checkpoints stay."""
        self._session.delete(self._path())

    def _path(self) -> str:
        return f"/api/v1/models/{self.model_id}"

    def _patch(self, **changes: Any) -> None:
        self._load(self._session.patch(self._path(), changes).json()["model"])

    def _versions(self, order_by: OrderBy, limit: int | None = None) -> Iterator[ModelVersion]:
        params = {"sortBy": "SORT_BY_VERSION", "orderBy": order_by.value}
        for raw in iterate(self._session, f"{self._path()}/versions", "modelVersions", params, limit=limit):
            yield ModelVersion(self._session, raw)


def get_model(session: Session, identifier: str | int) -> Model:
    """By name or id. Raises NotFoundException."""
    path = f"/api/v1/models/{urllib.parse.quote(str(identifier), safe='')}"
    return Model(session, session.get_json(path)["model"])


def create_model(
    session: Session,
    name: str,
    *,
    description: str = "",
    metadata: Mapping[str, Any] | None = None,
    labels: Sequence[str] = (),
    workspace_name: str | None = None,
) -> Model:
    """Raises APIException with status 409 when there is one of that name."""
    body: dict[str, Any] = {
        "name": name,
        "description": description,
        "metadata": dict(metadata or {}),
        "labels": list(labels),
    }
    if workspace_name is not None:
        body["workspaceName"] = workspace_name
    return Model(session, session.post("/api/v1/models", body, once=True).json()["model"])


def list_models(
    session: Session,
    sort_by: ModelSortBy = ModelSortBy.NAME,
    order_by: OrderBy = OrderBy.ASC,
    *,
    name: str | None = None,
    description: str | None = None,
    model_id: int | None = None,
    workspace_names: Sequence[str] | None = None,
    workspace_ids: Sequence[int] | None = None,
) -> list[Model]:
    params = {
        "sortBy": sort_by.value,
        "orderBy": order_by.value,
        "name": name,
        "description": description,
        "id": model_id,
        "workspaceNames": workspace_names,
        "workspaceIds": workspace_ids,
    }
    return [Model(session, raw) for raw in iterate(session, "/api/v1/models", "models", params)]
