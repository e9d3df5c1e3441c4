"""Experiments: submitting, listing, and their users' verbs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from detlab_master.api.base import MAX_BODY, ApiHandler, Rule
from detlab_master.api.body import Fields
from detlab_master.api.encode import experiments as encode
from detlab_master.api.encode import wire
from detlab_master.api.experiment_lists import Listing, arranged, best_trial, matching, view, views
from detlab_master.api.unpacking import Unpacker
from detlab_master.core.errors import NotFound
from detlab_master.core.experiment_edit import ExperimentEdit
from detlab_master.core.permissions import Access, Kind, visible_owners
from detlab_master.core.records import Experiment
from detlab_master.engine.submissions import CreateExperiment
from detlab_master.store.base import ExperimentFilter

if TYPE_CHECKING:
    from detlab_master.engine.services import Services

LARGEST_REQUEST = 136 << 20  # bytes: 95 MiB of files in base64, and the rest
_KEEP = {
    "saveExperimentBest": "save_experiment_best",
    "saveTrialBest": "save_trial_best",
    "saveTrialLatest": "save_trial_latest",
}


class ExperimentHandler(ApiHandler):
    """What routes that answer with one experiment share."""

    async def shown(self, record: Experiment) -> tuple[wire.Object, str]:
        """The API's object, and the state that it shows."""
        found = await self.read(view, self.services.store, record)
        state = self.services.experiments.shown_state(record)
        return encode.experiment(found, state, self.services.now()), state


class Experiments(ExperimentHandler):
    rules: ClassVar = {"GET": Rule(Access.SIGNED_IN), "POST": Rule(Access.SIGNED_IN)}
    max_body = LARGEST_REQUEST

    def initialize(self, services: Services, unpacker: Unpacker) -> None:
        super().initialize(services)
        self._unpacker = unpacker

    async def get(self) -> None:
        listing = Listing.of(self.query, self.principal)
        store, shown_state = self.services.store, self.services.experiments.shown_state
        records, count = await self.read(matching, store, listing)
        if count is None:
            records = [record for record in records if listing.wants(str(record.state), shown_state(record))]
            page = await self.read(arranged, store, listing, records)
            records, count = page
        found = await self.read(views, store, records, listing.best_trials)
        states = [shown_state(record) for record in records]
        await self.reply_large(
            _page, found, states, listing.paging.shown(len(records), count), self.services.now()
        )

    async def post(self) -> None:
        unpacked = await self._unpacker.unpack(self.body)
        incoming = self.services.contexts.folder / unpacked.archive if unpacked.archive else None
        try:
            asked = _asked(Fields(unpacked.fields), unpacked.sha256, unpacked.size)
            with self.services.contexts.held(unpacked.sha256):
                if incoming is not None and not asked.validate_only:
                    # Refused first, kept then: only a restart would remove the context of one that never came to be.
                    await self.services.experiments.create(self.principal, replace(asked, validate_only=True))
                    await self.read(self.services.contexts.adopt, incoming, unpacked.sha256)
                created = await self.services.experiments.create(self.principal, asked)
        finally:
            if incoming is not None:
                incoming.unlink(missing_ok=True)
        experiment, _ = await self.shown(created.experiment)
        self.reply(
            {
                "experiment": experiment,
                "config": created.experiment.config,
                "warnings": created.launch_warnings,
                "messages": created.warnings,  # for people; ours, official clients do not look
            }
        )


def _page(
    views: Sequence[encode.ExperimentView], states: Sequence[str], pagination: wire.Object, now: float
) -> wire.Object:
    shown = [encode.experiment(found, state, now) for found, state in zip(views, states, strict=True)]
    return {"experiments": shown, "pagination": pagination}


class ExperimentByExternalId(ExperimentHandler):
    """A detached experiment by the name that its owner has for it: found, or made where there is none."""

    rules: ClassVar = {"PUT": Rule(Access.SIGNED_IN)}
    max_body = LARGEST_REQUEST

    async def put(self, external_id: str) -> None:
        fields = await self.fields()
        if fields.optional_flag("unmanaged") is False:
            raise fields.refuse("unmanaged", "only detached experiments have external ids")
        asked = replace(_asked(fields, "", 0), unmanaged=True, external_id=external_id)
        put = await self.services.unmanaged.put_experiment(self.principal, asked)
        experiment, _ = await self.shown(put.experiment)
        self.reply({"experiment": experiment, "config": put.experiment.config, "messages": put.warnings})


def _asked(fields: Fields, sha256: str, size: int) -> CreateExperiment:
    return CreateExperiment(
        unmanaged=fields.flag("unmanaged"),
        config_text=fields.text("config"),
        context_sha256=sha256,
        context_bytes=size,
        activate=fields.flag("activate", True),
        validate_only=fields.flag("validateOnly"),
        parent_id=fields.optional_integer("parentId") or None,
        project_id=fields.optional_integer("projectId") or None,
        template=fields.optional_text("template") or None,
    )


class OneExperiment(ExperimentHandler):
    rules: ClassVar = {
        "GET": Rule(Access.READ, Kind.EXPERIMENT),
        "PATCH": Rule(Access.OWN, Kind.EXPERIMENT),
        "DELETE": Rule(Access.OWN, Kind.EXPERIMENT),
    }
    max_body = MAX_BODY

    async def get(self, experiment_id: str) -> None:
        record = self.found.experiment
        assert record is not None
        experiment, state = await self.shown(record)
        self.reply(
            {
                "experiment": experiment,
                "config": record.config,
                "jobSummary": encode.job_summary(
                    record, state, self.services.agents.jobs_ahead(record.job_id)
                ),
            }
        )

    async def patch(self, experiment_id: str) -> None:
        fields = await self.fields()
        keep = fields.child("checkpointStorage")
        given = {ours: keep.optional_integer(theirs) for theirs, ours in _KEEP.items()}
        edit = ExperimentEdit(
            name=fields.optional_text("name"),
            description=fields.optional_text("description"),
            notes=fields.optional_text("notes"),
            labels=None if fields.raw("labels") is None else fields.texts("labels"),
            resources=_resources(fields.child("resources")),
            keep_checkpoints={name: value for name, value in given.items() if value is not None},
        )
        edited = await self.services.experiments.edit(self.path_integer(Kind.EXPERIMENT), edit)
        experiment, _ = await self.shown(edited)
        self.reply({"experiment": experiment})

    async def delete(self, experiment_id: str) -> None:
        await self.services.deletion.delete(self.path_integer(Kind.EXPERIMENT))
        self.reply({})


def _resources(fields: Fields) -> dict[str, int | float | None]:
    changes: dict[str, int | float | None] = {}
    if fields.present("maxSlots"):  # null takes the limit away
        changes["max_slots"] = fields.optional_integer("maxSlots")
    if (priority := fields.optional_integer("priority")) is not None:
        changes["priority"] = priority
    if (weight := fields.optional_number("weight")) is not None:
        changes["weight"] = weight
    return changes


class ExperimentLabel(ApiHandler):
    """One label of an experiment; adding what is there and removing what is not succeeds."""

    rules: ClassVar = {"PUT": Rule(Access.OWN, Kind.EXPERIMENT), "DELETE": Rule(Access.OWN, Kind.EXPERIMENT)}

    async def put(self, experiment_id: str, label: str) -> None:
        await self._edit(ExperimentEdit(add_labels=[label]))

    async def delete(self, experiment_id: str, label: str) -> None:
        await self._edit(ExperimentEdit(remove_labels=[label]))

    async def _edit(self, edit: ExperimentEdit) -> None:
        edited = await self.services.experiments.edit(self.path_integer(Kind.EXPERIMENT), edit)
        self.reply({"labels": list(edited.labels)})


class ExperimentLabels(ApiHandler):
    """All labels of the experiments that one sees, the most used first."""

    rules: ClassVar = {"GET": Rule(Access.SIGNED_IN)}

    async def get(self) -> None:
        where = ExperimentFilter(
            owner_ids=visible_owners(self.principal),
            project_id=self.query.optional_integer("projectId") or None,
        )
        self.reply({"labels": await self.read(self.services.store.experiments.labels, where)})


class ContinueExperiment(ExperimentHandler):
    """Let an experiment that has ended go on."""

    rules: ClassVar = {"POST": Rule(Access.OWN, Kind.EXPERIMENT, in_body=True)}

    async def post(self) -> None:
        fields = await self.fields()
        number = fields.integer("id")
        await self.admit(Kind.EXPERIMENT, number, Access.OWN)
        continued = await self.services.experiments.continue_(
            self.principal, number, fields.text("overrideConfig", "")
        )
        experiment, _ = await self.shown(continued.experiment)
        self.reply(
            {
                "experiment": experiment,
                "warnings": continued.launch_warnings,
                "messages": continued.warnings,  # for people; ours, official clients do not look
            }
        )


class ExperimentVerb(ApiHandler):
    """A verb that needs nothing but the experiment; repeating it succeeds."""

    rules: ClassVar = {"POST": Rule(Access.OWN, Kind.EXPERIMENT)}

    def initialize(self, services: Services, verb: str) -> None:
        super().initialize(services)
        self._verb = verb

    async def post(self, experiment_id: str) -> None:
        experiments, number = self.services.experiments, self.path_integer(Kind.EXPERIMENT)
        match self._verb:
            case "activate":
                await experiments.activate(number)
            case "pause":
                await experiments.pause(number)
            case "cancel":
                await experiments.cancel(number)
            case "kill":
                await experiments.kill(number)
            case "archive":
                await experiments.archive(number, True)
            case "unarchive":
                await experiments.archive(number, False)
            case _:
                raise AssertionError(self._verb)
        self.reply({})


class MoveExperiment(ApiHandler):
    """Into a project of anybody's."""

    rules: ClassVar = {"POST": Rule(Access.OWN, Kind.EXPERIMENT)}

    async def post(self, experiment_id: str) -> None:
        destination = (await self.fields()).integer("destinationProjectId")
        await self.services.experiments.move(self.path_integer(Kind.EXPERIMENT), destination)
        self.reply({})


VERBS = ("activate", "pause", "cancel", "kill", "archive", "unarchive")


class BestSearcherMetric(ApiHandler):
    """What a trial compares its validation with; 404 as long as there is none."""

    rules: ClassVar = {"GET": Rule(Access.READ, Kind.EXPERIMENT)}

    async def get(self, experiment_id: str) -> None:
        record = self.found.experiment
        assert record is not None
        best = await self.read(best_trial, self.services.store, record)
        if best is None:
            raise NotFound(f"experiment '{record.id}' has no validation with its searcher metric yet")
        self.reply({"metric": best.searcher_metric})
