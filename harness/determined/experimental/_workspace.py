"""A workspace: projects that belong together, and what their experiments inherit."""

from collections.abc import Iterator, Mapping
from typing import Any

from determined.common.api import Session, errors, iterate
from determined.experimental._project import Project, delete_place, projects_of


class Workspace:
    """A workspace as of the last `reload`."""

    def __init__(self, session: Session, raw: dict[str, Any]) -> None:
        self._session = session
        self._load(raw)

    def _load(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.id: int = raw["id"]
        self.name: str = raw["name"]
        self.archived: bool = raw["archived"]
        self.username: str = raw["username"]
        self.num_projects: int = raw["numProjects"]
        self.num_experiments: int = raw["numExperiments"]
        self.checkpoint_storage_config: dict[str, Any] | None = raw.get("checkpointStorageConfig")
        self.default_compute_pool: str = raw.get("defaultComputePool") or ""
        self.default_aux_pool: str = raw.get("defaultAuxPool") or ""

    def __repr__(self) -> str:
        return f"Workspace(id={self.id}, name={self.name!r})"

    def reload(self) -> None:
        self._load(self._session.get_json(self._path())["workspace"])

    def edit(
        self,
        *,
        name: str | None = None,
        checkpoint_storage_config: Mapping[str, Any] | None = None,
        default_compute_pool: str | None = None,
        default_aux_pool: str | None = None,
    ) -> None:
        """Change what is given. `{}` and "" take what its experiments inherit away again."""
        settings = _settings(checkpoint_storage_config, default_compute_pool, default_aux_pool)
        changes = settings if name is None else {"name": name, **settings}
        self._load(self._session.patch(self._path(), changes).json()["workspace"])

    def archive(self) -> None:
        """From then on its projects take no experiments."""
        self._session.post(f"{self._path()}/archive")
        self.archived = True

    def unarchive(self) -> None:
        self._session.post(f"{self._path()}/unarchive")
        self.archived = False

    def delete(self) -> None:
        """Delete the workspace with its projects and their experiments; return when it is gone.

        Raises APIException when something in it has not ended, or may not be deleted.
        """
        delete_place(self._session, self._path(), "workspace", self.name)

    def list_pools(self) -> list[str]:
        """The names of the resource pools that its experiments may use."""
        answer = self._session.get_json(f"{self._path()}/available-resource-pools")
        return list(answer["resourcePools"])

    # Projects

    def create_project(self, name: str, description: str | None = None, key: str | None = None) -> Project:
        """Raises APIException with status 409 when there is one of that name, or key."""
        given = {"description": description, "key": key}
        body = {"name": name, "workspaceId": self.id, **{k: v for k, v in given.items() if v is not None}}
        answer = self._session.post(f"{self._path()}/projects", body, once=True).json()
        return Project(self._session, answer["project"])

    def get_project(self, name: str) -> Project:
        """Raises NotFoundException."""
        for project in projects_of(self._session, self.id, name=name):
            if project.name == name:
                return project
        raise errors.for_status(404, f"there is no project {name!r} in workspace {self.name!r}", "")

    def list_projects(self) -> list[Project]:
        return list(projects_of(self._session, self.id))

    def delete_project(self, name: str) -> None:
        """See `Project.delete`."""
        self.get_project(name).delete()

    def _path(self) -> str:
        return f"/api/v1/workspaces/{self.id}"


def get_workspace(session: Session, name: str) -> Workspace:
    """Raises NotFoundException."""
    for workspace in list_workspaces(session, nameCaseSensitive=name):
        return workspace
    raise errors.for_status(404, f"there is no workspace {name!r}", "")


def list_workspaces(session: Session, **params: Any) -> Iterator[Workspace]:
    for raw in iterate(session, "/api/v1/workspaces", "workspaces", params):
        yield Workspace(session, raw)


def create_workspace(
    session: Session,
    name: str,
    *,
    checkpoint_storage_config: Mapping[str, Any] | None = None,
    default_compute_pool: str | None = None,
    default_aux_pool: str | None = None,
) -> Workspace:
    """Raises APIException with status 409 when there is one of that name."""
    settings = _settings(checkpoint_storage_config, default_compute_pool, default_aux_pool)
    answer = session.post("/api/v1/workspaces", {"name": name, **settings}, once=True).json()
    return Workspace(session, answer["workspace"])


def _settings(storage: Mapping[str, Any] | None, compute: str | None, aux: str | None) -> dict[str, Any]:
    """The master's names of what is given."""
    given = {"checkpointStorageConfig": storage, "defaultComputePool": compute, "defaultAuxPool": aux}
    return {name: value for name, value in given.items() if value is not None}
