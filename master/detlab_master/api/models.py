"""The model registry: models, and the checkpoints that are their versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from detlab_master.api.base import ApiHandler, Rule
from detlab_master.api.body import Fields, Query
from detlab_master.api.encode import models as encode
from detlab_master.api.encode import wire
from detlab_master.api.encode.models import ModelView, VersionView
from detlab_master.api.paging import Paging
from detlab_master.api.trial_lists import checkpoint_view
from detlab_master.core.errors import Invalid, NotFound
from detlab_master.core.permissions import Access, Kind, Principal, visible_owners
from detlab_master.core.records import Model, ModelVersion
from detlab_master.engine.registry import DEFAULT_WORKSPACE
from detlab_master.store.base import ModelFilter, Page, Store

if TYPE_CHECKING:
    from detlab_master.engine.services import Services

_SORTS = {
    "NAME": "name",
    "DESCRIPTION": "description",
    "CREATION_TIME": "created_at",
    "LAST_UPDATED_TIME": "updated_at",
    "NUM_VERSIONS": "num_versions",
    "WORKSPACE": "workspace_id",
}
_VERSION_SORTS = {"VERSION": "version", "CREATION_TIME": "created_at"}


class ModelHandler(ApiHandler):
    """What routes of one model share."""

    @property
    def model(self) -> Model:
        model = self.found.model
        assert model is not None
        return model

    async def reply_model(self, model: Model) -> None:
        (view,) = await self.read(model_views, self.services.store, [model])
        self.reply({"model": encode.model(view)})

    async def reply_version(self, version: ModelVersion) -> None:
        views = await self.read(version_views, self.services.store, self.model, [version])
        if not views:
            raise self.no_version(version.version)
        self.reply({"modelVersion": encode.version(views[0])})

    async def version(self, text: str) -> ModelVersion:
        """The version that a path names."""
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise Invalid(f"the version is {text!r}: expected an integer")
        found = await self.read(self.services.store.models.version, self.model.id, int(text))
        if found is None:
            raise self.no_version(int(text))
        return found

    def no_version(self, number: int) -> NotFound:
        """The error to raise for a version that is not there."""
        return NotFound(f"model {self.model.name!r} has no version {number}")

    async def workspace(self, fields: Fields) -> int | None:
        """The workspace that a body names; None where it names none."""
        return await self.services.registry.workspace(
            fields.optional_integer("workspaceId") or None, fields.optional_text("workspaceName") or None
        )


class Models(ModelHandler):
    rules: ClassVar = {"GET": Rule(Access.SIGNED_IN), "POST": Rule(Access.SIGNED_IN)}

    async def get(self) -> None:
        query = self.query
        paging = Paging.of(query)
        sort = query.enum("sortBy", list(_SORTS), "SORT_BY_")
        page = Page(paging.offset, paging.limit, _SORTS[sort] if sort else "id", paging.descending)
        store = self.services.store
        where = await self.read(_filter, store, query, self.principal)
        found, total = await self.read(store.models.find, where, page)
        views = await self.read(model_views, store, found)
        await self.reply_large(_models, views, paging.shown(len(found), total))

    async def post(self) -> None:
        fields = await self.fields()
        created = await self.services.registry.create(
            self.principal,
            fields.text("name"),
            description=fields.text("description", ""),
            notes=fields.text("notes", ""),
            labels=fields.texts("labels"),
            metadata=fields.object("metadata"),
            workspace_id=await self.workspace(fields) or DEFAULT_WORKSPACE,
        )
        await self.reply_model(created)


class ModelLabels(ApiHandler):
    """All labels of the models that one sees."""

    rules: ClassVar = {"GET": Rule(Access.SIGNED_IN)}

    async def get(self) -> None:
        workspace = self.query.optional_integer("workspaceId")
        where = ModelFilter(
            owner_ids=visible_owners(self.principal), workspace_ids=[workspace] if workspace else None
        )
        found, _ = await self.read(self.services.store.models.find, where, Page())
        self.reply({"labels": sorted({label for model in found for label in model.labels})})


class OneModel(ModelHandler):
    rules: ClassVar = {
        "GET": Rule(Access.OWN, Kind.MODEL),
        "PATCH": Rule(Access.OWN, Kind.MODEL),
        "DELETE": Rule(Access.OWN, Kind.MODEL),
    }

    async def get(self, model_name: str) -> None:
        await self.reply_model(self.model)

    async def patch(self, model_name: str) -> None:
        fields = await self.fields()
        changes = _changes(fields, "name", "description", "notes")
        if (workspace := await self.workspace(fields)) is not None:
            changes["workspace_id"] = workspace
        await self.reply_model(await self.services.registry.edit(self.model.id, **changes))

    async def delete(self, model_name: str) -> None:
        await self.services.registry.delete(self.model.id)
        self.reply({})


class ArchiveModel(ModelHandler):
    """Archiving or unarchiving; repeating it succeeds."""

    rules: ClassVar = {"POST": Rule(Access.OWN, Kind.MODEL)}

    def initialize(self, services: Services, archived: bool) -> None:
        super().initialize(services)
        self._archived = archived

    async def post(self, model_name: str) -> None:
        await self.services.registry.edit(self.model.id, archived=self._archived)
        self.reply({})


class ModelVersions(ModelHandler):
    rules: ClassVar = {"GET": Rule(Access.OWN, Kind.MODEL), "POST": Rule(Access.OWN, Kind.MODEL)}

    async def get(self, model_name: str) -> None:
        query = self.query
        paging = Paging.of(query)
        sort = query.enum("sortBy", list(_VERSION_SORTS), "SORT_BY_")
        page = Page(
            paging.offset, paging.limit, _VERSION_SORTS[sort] if sort else "version", paging.descending
        )
        store = self.services.store
        found, total = await self.read(store.models.versions, self.model.id, page)
        (model,) = await self.read(model_views, store, [self.model])
        views = await self.read(version_views, store, self.model, found)
        await self.reply_large(_versions, model, views, paging.shown(len(found), total))

    async def post(self, model_name: str) -> None:
        fields = await self.fields()
        checkpoint_uuid = fields.text("checkpointUuid")
        await self.admit(Kind.CHECKPOINT, checkpoint_uuid, Access.OWN)
        version = await self.services.registry.register(
            self.principal,
            self.model.id,
            checkpoint_uuid,
            name=fields.text("name", ""),
            comment=fields.text("comment", ""),
            notes=fields.text("notes", ""),
            labels=fields.texts("labels"),
            metadata=fields.object("metadata"),
        )
        await self.reply_version(version)


class OneModelVersion(ModelHandler):
    rules: ClassVar = {
        "GET": Rule(Access.OWN, Kind.MODEL),
        "PATCH": Rule(Access.OWN, Kind.MODEL),
        "DELETE": Rule(Access.OWN, Kind.MODEL),
    }

    async def get(self, model_name: str, version: str) -> None:
        await self.reply_version(await self.version(version))

    async def patch(self, model_name: str, version: str) -> None:
        fields = await self.fields()
        known = await self.version(version)
        if fields.child("checkpoint").text("uuid", known.checkpoint_uuid) != known.checkpoint_uuid:
            raise fields.child("checkpoint").refuse(
                "uuid", "a version keeps its checkpoint; add another version"
            )
        changes = _changes(fields, "name", "comment", "notes")
        await self.reply_version(
            await self.services.registry.edit_version(known.model_id, known.version, **changes)
        )

    async def delete(self, model_name: str, version: str) -> None:
        known = await self.version(version)
        await self.services.registry.delete_version(known.model_id, known.version)
        self.reply({})


def _filter(store: Store, query: Query, principal: Principal) -> ModelFilter:
    """Which models a query asks for. Who is no administrator sees only their own, whatever they filter by."""
    owners = visible_owners(principal)
    named = [user.id for user in map(store.users.by_name, query.texts("users")) if user is not None]
    for wanted, given in ((query.integers("userIds"), "userIds"), (named, "users")):
        if query.items(given):
            owners = wanted if owners is None else [owner for owner in owners if owner in wanted]
    workspaces: list[int] | None = None
    if query.items("workspaceIds") or query.items("workspaceNames"):
        found = map(store.projects.workspace_by_name, query.texts("workspaceNames"))
        workspaces = [*query.integers("workspaceIds"), *(one.id for one in found if one is not None)]
    number = query.optional_integer("id")
    return ModelFilter(
        owner_ids=owners,
        ids=[number] if number else None,
        workspace_ids=workspaces,
        archived=query.optional_flag("archived"),
        name=query.optional_text("name") or None,
        description=query.optional_text("description") or None,
        labels=query.texts("labels") or None,
    )


def _changes(fields: Fields, *texts: str) -> dict[str, Any]:
    """What a PATCH changes: what it does not name stays."""
    changes: dict[str, Any] = {}
    for name in texts:
        if (text := fields.optional_text(name)) is not None:
            changes[name] = text
    if fields.raw("labels") is not None:
        changes["labels"] = fields.texts("labels")
    if fields.raw("metadata") is not None:
        changes["metadata"] = fields.object("metadata")
    return changes


def model_views(store: Store, models: Sequence[Model]) -> list[ModelView]:
    """What is shown of models."""
    counts = store.models.version_counts([model.id for model in models])
    owners = {owner: store.users.get(owner) for owner in {model.owner_id for model in models}}
    return [ModelView(model, owners[model.owner_id], counts.get(model.id, 0)) for model in models]


def version_views(store: Store, model: Model, versions: Sequence[ModelVersion]) -> list[VersionView]:
    """What is shown of versions of one model; those that were deleted meanwhile, with their checkpoint, are left out."""
    found = []
    (shown,) = model_views(store, [store.models.get(model.id) or model])  # a new version has changed it
    for version in versions:
        checkpoint = store.checkpoints.get(version.checkpoint_uuid)
        experiment = store.experiments.get(checkpoint.experiment_id) if checkpoint else None
        if checkpoint is None or experiment is None:
            continue
        trial = store.trials.get(checkpoint.trial_id)
        view = checkpoint_view(store, experiment, checkpoint, trial)
        found.append(VersionView(version, shown, view, store.users.get(version.owner_id)))
    return found


def _models(views: Sequence[ModelView], pagination: wire.Object) -> wire.Object:
    return {"models": [encode.model(view) for view in views], "pagination": pagination}


def _versions(model: ModelView, views: Sequence[VersionView], pagination: wire.Object) -> wire.Object:
    return {
        "model": encode.model(model),
        "modelVersions": [encode.version(view) for view in views],
        "pagination": pagination,
    }
