"""Workspaces: everybody sees them; their owners and administrators change them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from detlab_master.api.base import ApiHandler, Rule
from detlab_master.api.body import Fields, Query
from detlab_master.api.encode import workspaces as encode
from detlab_master.api.encode.workspaces import WorkspaceView
from detlab_master.api.paging import Paging, ordered
from detlab_master.core.errors import NotFound
from detlab_master.core.permissions import Access, Kind, Principal, may_see, visible_owners
from detlab_master.core.records import Project, User, Workspace
from detlab_master.store.base import Store

if TYPE_CHECKING:
    from detlab_master.engine.services import Services

_SORTS: dict[str, Callable[[Workspace], Any]] = {
    "ID": lambda workspace: workspace.id,
    "NAME": lambda workspace: workspace.name.casefold(),
}
_POOLS = {  # by the names of today and of old
    "default_compute_pool": ("defaultComputePool", "defaultComputeResourcePool"),
    "default_aux_pool": ("defaultAuxPool", "defaultAuxResourcePool"),
}


class WorkspaceHandler(ApiHandler):
    """What routes of workspaces share."""

    async def workspace(self) -> Workspace:
        """The workspace in the path."""
        number = self.path_integer(Kind.WORKSPACE)
        found = await self.read(self.services.store.projects.workspace, number)
        if found is None:
            raise NotFound(f"workspace '{number}' not found")
        return found

    async def reply_workspace(self, workspace: Workspace) -> None:
        (view,) = await self.read(workspace_views, self.services.store, [workspace], self.principal)
        self.reply(
            {"workspace": encode.workspace(view, secrets=self._knows(workspace)), "namespaceBindings": {}}
        )

    def _knows(self, workspace: Workspace) -> bool:
        return may_see(self.principal, workspace.owner_id)


class Workspaces(WorkspaceHandler):
    rules: ClassVar = {"GET": Rule(Access.SIGNED_IN), "POST": Rule(Access.SIGNED_IN)}

    async def get(self) -> None:
        query = self.query
        paging = Paging.of(query)
        sort = query.enum("sortBy", list(_SORTS), "SORT_BY_") or "ID"
        found = await self.read(_matching, self.services.store, query)
        page, pagination = paging.cut(ordered(found, _SORTS[sort], paging.descending))
        views = await self.read(workspace_views, self.services.store, page, self.principal)
        shown = [encode.workspace(view, secrets=self._knows(view.workspace)) for view in views]
        self.reply({"workspaces": shown, "pagination": pagination})

    async def post(self) -> None:
        fields = await self.fields()
        created = await self.services.workspaces.create_workspace(
            self.principal, fields.text("name"), **_settings(fields)
        )
        await self.reply_workspace(created)


class OneWorkspace(WorkspaceHandler):
    rules: ClassVar = {
        "GET": Rule(Access.SIGNED_IN),
        "PATCH": Rule(Access.EDIT, Kind.WORKSPACE),
        "DELETE": Rule(Access.EDIT, Kind.WORKSPACE),
    }

    async def get(self, workspace_id: str) -> None:
        await self.reply_workspace(await self.workspace())

    async def patch(self, workspace_id: str) -> None:
        fields = await self.fields()
        changes = _settings(fields)
        if (name := fields.optional_text("name")) is not None:
            changes["name"] = name
        edited = await self.services.workspaces.edit_workspace(self.path_integer(Kind.WORKSPACE), **changes)
        await self.reply_workspace(edited)

    async def delete(self, workspace_id: str) -> None:
        number = self.path_integer(Kind.WORKSPACE)
        self.reply({"completed": await self.services.workspaces.delete_workspace(self.principal, number)})


class ArchiveWorkspace(ApiHandler):
    """Archiving or unarchiving; repeating it succeeds."""

    rules: ClassVar = {"POST": Rule(Access.EDIT, Kind.WORKSPACE)}

    def initialize(self, services: Services, archived: bool) -> None:
        super().initialize(services)
        self._archived = archived

    async def post(self, workspace_id: str) -> None:
        await self.services.workspaces.archive_workspace(self.path_integer(Kind.WORKSPACE), self._archived)
        self.reply({})


class WorkspacePools(WorkspaceHandler):
    """The resource pools that its experiments may use: all, since none are bound to workspaces."""

    rules: ClassVar = {"GET": Rule(Access.SIGNED_IN)}

    async def get(self, workspace_id: str) -> None:
        await self.workspace()
        names = [pool.name for pool in self.services.agents.pools()]
        page, pagination = Paging.of(self.query).cut(names)
        self.reply({"resourcePools": list(page), "pagination": pagination})


def _settings(fields: Fields) -> dict[str, Any]:
    """What a body sets of a workspace, apart from its name; what it does not name is left out."""
    refuse_unix_accounts(fields)
    if fields.object("clusterNamespaceMeta") or fields.object("clusterQuotaPairs"):
        name = "clusterNamespaceMeta" if fields.object("clusterNamespaceMeta") else "clusterQuotaPairs"
        raise fields.refuse(
            name, "this master runs no Kubernetes, so there are no namespaces and quotas to set"
        )
    settings: dict[str, Any] = {}
    for ours, theirs in _POOLS.items():
        named = [name for name in theirs if fields.optional_text(name) is not None]
        if named:
            settings[ours] = fields.text(named[0])
    if fields.raw("checkpointStorageConfig") is not None:
        settings["checkpoint_storage"] = fields.object("checkpointStorageConfig") or None
    return settings


def refuse_unix_accounts(fields: Fields) -> None:
    """Tasks run under an account that the agent makes for their user, whatever workspace they are in."""
    if any(value not in (None, "") for value in fields.object("agentUserGroup").values()):
        raise fields.refuse(
            "agentUserGroup",
            "workspaces are not linked with Unix accounts by hand; tasks get an account of the agent's",
        )


def owned_by(store: Store, query: Query) -> Callable[[Workspace | Project], bool]:
    """Whether something has one of the owners that a query asks for."""
    wanted = set(query.integers("userIds"))
    wanted |= {user.id for user in map(store.users.by_name, query.texts("users")) if user is not None}
    asked = bool(query.items("userIds") or query.items("users"))
    return lambda place: not asked or place.owner_id in wanted


def _matching(store: Store, query: Query) -> list[Workspace]:
    exact, part = query.text("nameCaseSensitive", ""), query.text("name", "").casefold()
    archived, owned = query.optional_flag("archived"), owned_by(store, query)
    return [
        workspace
        for workspace in store.projects.workspaces()
        if (not exact or workspace.name == exact)
        and part in workspace.name.casefold()
        and archived in (None, workspace.archived)
        and not query.flag("pinned")  # none is
        and owned(workspace)
    ]


def workspace_views(
    store: Store, workspaces: Sequence[Workspace], principal: Principal
) -> list[WorkspaceView]:
    """What is shown of workspaces."""
    owners: dict[int, User | None] = {id: store.users.get(id) for id in {one.owner_id for one in workspaces}}
    counts = store.projects.counts(visible_owners(principal))
    of: dict[int, list[int]] = {}
    for project in store.projects.projects():
        inside = counts.get(project.id)
        of.setdefault(project.workspace_id, []).append(inside.experiments if inside else 0)
    return [
        WorkspaceView(one, owners[one.owner_id], len(of.get(one.id, ())), sum(of.get(one.id, ())))
        for one in workspaces
    ]
