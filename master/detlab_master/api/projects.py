"""Projects: everybody sees them; who made one, and whose workspace it is, change it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from detlab_master.api.base import ApiHandler, Rule
from detlab_master.api.body import Query
from detlab_master.api.encode import workspaces as encode
from detlab_master.api.encode.workspaces import ProjectView
from detlab_master.api.paging import Paging, ordered
from detlab_master.api.workspaces import WorkspaceHandler, owned_by
from detlab_master.core.errors import NotFound
from detlab_master.core.permissions import Access, Kind, Principal, visible_owners
from detlab_master.core.records import Note, Project
from detlab_master.store.base import Store

if TYPE_CHECKING:
    from detlab_master.engine.services import Services

_SORTS: dict[str, Callable[[ProjectView], Any]] = {
    "CREATION_TIME": lambda view: view.project.id,
    "LAST_EXPERIMENT_START_TIME": lambda view: view.counts.last_start if view.counts else None,
    "NAME": lambda view: view.project.name.casefold(),
    "DESCRIPTION": lambda view: view.project.description.casefold(),
    "ID": lambda view: view.project.id,
}


class ProjectHandler(ApiHandler):
    """What routes of projects share."""

    async def project(self) -> Project:
        """The project in the path."""
        number = self.path_integer(Kind.PROJECT)
        found = await self.read(self.services.store.projects.project, number)
        if found is None:
            raise NotFound(f"project '{number}' not found")
        return found

    async def reply_project(self, project: Project) -> None:
        views = await self.read(project_views, self.services.store, [project], self.principal)
        if not views:
            raise NotFound(f"project '{project.id}' not found")
        self.reply({"project": encode.project(views[0])})


class WorkspaceProjects(WorkspaceHandler, ProjectHandler):
    rules: ClassVar = {"GET": Rule(Access.SIGNED_IN), "POST": Rule(Access.SIGNED_IN)}

    async def get(self, workspace_id: str) -> None:
        workspace, query = await self.workspace(), self.query
        paging = Paging.of(query)
        sort = query.enum("sortBy", list(_SORTS), "SORT_BY_") or "ID"
        views = await self.read(_matching, self.services.store, workspace.id, query, self.principal)
        page, pagination = paging.cut(ordered(views, _SORTS[sort], paging.descending))
        self.reply({"projects": [encode.project(view) for view in page], "pagination": pagination})

    async def post(self, workspace_id: str) -> None:
        fields = await self.fields()
        created = await self.services.workspaces.create_project(
            self.principal,
            self.path_integer(Kind.WORKSPACE),
            fields.text("name"),
            description=fields.text("description", ""),
            key=fields.text("key", ""),
        )
        await self.reply_project(created)


class OneProject(ProjectHandler):
    rules: ClassVar = {
        "GET": Rule(Access.SIGNED_IN),
        "PATCH": Rule(Access.EDIT, Kind.PROJECT),
        "DELETE": Rule(Access.EDIT, Kind.PROJECT),
    }

    async def get(self, project_id: str) -> None:
        await self.reply_project(await self.project())

    async def patch(self, project_id: str) -> None:
        fields = await self.fields()
        given = {name: fields.optional_text(name) for name in ("name", "description", "key")}
        changes = {name: text for name, text in given.items() if text is not None}
        edited = await self.services.workspaces.edit_project(self.path_integer(Kind.PROJECT), **changes)
        await self.reply_project(edited)

    async def delete(self, project_id: str) -> None:
        number = self.path_integer(Kind.PROJECT)
        self.reply({"completed": await self.services.workspaces.delete_project(self.principal, number)})


class ArchiveProject(ApiHandler):
    """Archiving or unarchiving; repeating it succeeds."""

    rules: ClassVar = {"POST": Rule(Access.EDIT, Kind.PROJECT)}

    def initialize(self, services: Services, archived: bool) -> None:
        super().initialize(services)
        self._archived = archived

    async def post(self, project_id: str) -> None:
        await self.services.workspaces.archive_project(self.path_integer(Kind.PROJECT), self._archived)
        self.reply({})


class ProjectNotes(ApiHandler):
    rules: ClassVar = {"PUT": Rule(Access.EDIT, Kind.PROJECT)}

    async def put(self, project_id: str) -> None:
        sent = (await self.fields()).children("notes")
        notes = [Note(note.text("name", ""), note.text("contents", "")) for note in sent]
        edited = await self.services.workspaces.set_notes(self.path_integer(Kind.PROJECT), notes)
        self.reply({"notes": [vars(note) for note in edited.notes]})


def _matching(store: Store, workspace_id: int, query: Query, principal: Principal) -> list[ProjectView]:
    part, archived, owned = (
        query.text("name", "").casefold(),
        query.optional_flag("archived"),
        owned_by(store, query),
    )
    inside = [
        one for one in store.projects.projects(workspace_id) if part in one.name.casefold() and owned(one)
    ]
    views = project_views(store, inside, principal)
    return [view for view in views if archived in (None, view.archived)]


def project_views(store: Store, projects: Sequence[Project], principal: Principal) -> list[ProjectView]:
    """What is shown of projects; those whose workspace has just been deleted are left out."""
    owners = {id: store.users.get(id) for id in {one.owner_id for one in projects}}
    workspaces = {id: store.projects.workspace(id) for id in {one.workspace_id for one in projects}}
    counts = store.projects.counts(visible_owners(principal))
    return [
        ProjectView(one, workspace, owners[one.owner_id], counts.get(one.id))
        for one in projects
        if (workspace := workspaces[one.workspace_id]) is not None
    ]
