"""A project: experiments that belong together, in a workspace."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from determined.common.api import Session, errors, iterate
from determined.experimental import _wire
from determined.experimental._enums import ExperimentSortBy, OrderBy
from determined.experimental._experiment import Experiment


class Project:
    """A project as of the last `reload`. Everybody sees projects; in one, each user sees their own experiments."""

    def __init__(self, session: Session, raw: dict[str, Any]) -> None:
        self._session = session
        self._load(raw)

    def _load(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.id: int = raw["id"]
        self.name: str = raw["name"]
        self.key: str = raw["key"]
        self.description: str = raw.get("description") or ""
        self.notes: list[dict[str, str]] = raw["notes"]  # with "name" and "contents"
        self.archived: bool = raw["archived"]
        self.workspace_id: int = raw["workspaceId"]
        self.username: str = raw["username"]
        self.n_experiments: int = raw["numExperiments"]
        self.n_active_experiments: int = raw["numActiveExperiments"]
        self.last_experiment_started_at = _wire.time(raw.get("lastExperimentStartedAt"))

    def __repr__(self) -> str:
        return f"Project(id={self.id}, name={self.name!r})"

    def reload(self) -> None:
        self._load(self._session.get_json(self._path())["project"])

    def edit(
        self, *, name: str | None = None, description: str | None = None, key: str | None = None
    ) -> None:
        """Change what is given."""
        given = {"name": name, "description": description, "key": key}
        self._patch(**{field: value for field, value in given.items() if value is not None})

    def set_name(self, name: str) -> None:
        self._patch(name=name)

    def set_description(self, description: str) -> None:
        self._patch(description=description)

    def set_key(self, key: str) -> None:
        """One to five letters and digits; kept in capitals."""
        self._patch(key=key)

    def add_note(self, name: str, contents: str) -> None:
        self.reload()
        self._put_notes([*self.notes, {"name": name, "contents": contents}])

    def remove_note(self, name: str) -> None:
        """Remove every note of that name. Raises ValueError when there is none."""
        self.reload()
        kept = [note for note in self.notes if note["name"] != name]
        if len(kept) == len(self.notes):
            raise ValueError(f"project {self.name!r} has no note {name!r}")
        self._put_notes(kept)

    def archive(self) -> None:
        """From then on it takes no experiments."""
        self._session.post(f"{self._path()}/archive")
        self.archived = True

    def unarchive(self) -> None:
        self._session.post(f"{self._path()}/unarchive")
        self.archived = False

    def delete(self) -> None:
        """Delete the project with its experiments; return when it is gone.

        Raises APIException when an experiment in it has not ended, or may not be deleted.
        """
        delete_place(self._session, self._path(), "project", self.name)

    def list_experiments(
        self, sort_by: ExperimentSortBy | None = None, order_by: OrderBy | None = None
    ) -> list[Experiment]:
        params = {
            "projectId": self.id,
            "sortBy": sort_by.value if sort_by else None,
            "orderBy": order_by.value if order_by else None,
        }
        found = iterate(self._session, "/api/v1/experiments", "experiments", params)
        return [Experiment(self._session, raw) for raw in found]

    def _path(self) -> str:
        return f"/api/v1/projects/{self.id}"

    def _patch(self, **changes: Any) -> None:
        self._load(self._session.patch(self._path(), changes).json()["project"])

    def _put_notes(self, notes: list[dict[str, str]]) -> None:
        body = {"projectId": self.id, "notes": notes}
        self.notes = self._session.put(f"{self._path()}/notes", body).json()["notes"]


def delete_place(
    session: Session, path: str, what: str, name: str, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Delete a project or a workspace, and wait until it is gone.

    Raises ValueError when the master could not.
    """
    if session.delete(path).json()["completed"]:
        return
    while True:
        try:
            raw = session.get_json(path)[what]
        except errors.NotFoundException:
            return
        if raw["state"] == "WORKSPACE_STATE_DELETE_FAILED":
            raise ValueError(f"{what} {name!r} could not be deleted: {raw['errorMessage']}")
        sleep(0.5)


def projects_of(session: Session, workspace_id: int, **params: Any) -> Iterator[Project]:
    """The projects of a workspace."""
    for raw in iterate(session, f"/api/v1/workspaces/{workspace_id}/projects", "projects", params):
        yield Project(session, raw)
