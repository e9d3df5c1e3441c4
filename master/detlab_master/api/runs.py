"""Runs, which are trials under the name that newer routes have for them: what their own code says about them."""

from __future__ import annotations

from typing import ClassVar

from detlab_master.api.base import ApiHandler, Rule
from detlab_master.core.permissions import Access, Kind

_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class StartRun(ApiHandler):
    """Every process of a trial says where it keeps its checkpoints; the answer is the storage's number."""

    rules: ClassVar = {"POST": Rule(Access.REPORT, Kind.TRIAL, in_body=True)}

    async def post(self) -> None:
        fields = await self.fields()
        trial_id = fields.integer("runId")
        await self.admit(Kind.TRIAL, trial_id, Access.REPORT)
        storage = fields.object("checkpointStorage")
        if not storage:
            self.reply({})
            return
        trial = await self.services.at_work.trial(trial_id)
        owner = (await self.services.at_work.get(trial.experiment_id)).owner_id
        number = await self.read(self.services.store.checkpoints.storage_id, storage, owner)
        self.reply({"storageId": number})


class RunMetadata(ApiHandler):
    """What is noted about a run: one JSON object, which is replaced as a whole."""

    rules: ClassVar = {
        "GET": Rule(Access.READ, Kind.TRIAL),
        "POST": Rule(Access.REPORT, Kind.TRIAL),
    }
    max_body: ClassVar[int] = 1 << 20  # it is shown with the trial, everywhere

    async def get(self, trial_id: str) -> None:
        trial = await self.services.at_work.trial(self.path_integer(Kind.TRIAL))
        self.reply({"metadata": trial.metadata})

    async def post(self, trial_id: str) -> None:
        fields = await self.fields()
        if not fields.present("metadata"):
            raise fields.refuse("metadata", "it is required; {} removes what was there")
        metadata = fields.object("metadata")
        await self.services.experiments.describe_trial(self.path_integer(Kind.TRIAL), metadata)
        self.reply({"metadata": metadata})


class Alert(ApiHandler):
    """Training code wants somebody to look: a line in the trial's log, at the level that it says.

    Under Determined it goes to webhooks; there are none here.
    """

    rules: ClassVar = {"POST": Rule(Access.REPORT, Kind.TRIAL, in_body=True)}
    max_body: ClassVar[int] = 1 << 16

    async def post(self) -> None:
        fields = await self.fields()
        number = fields.integer("trialId")
        await self.admit(Kind.TRIAL, number, Access.REPORT)
        trial = await self.services.at_work.trial(number)
        if fields.integer("experimentId", trial.experiment_id) != trial.experiment_id:
            raise fields.refuse("experimentId", f"trial {number} belongs to experiment {trial.experiment_id}")
        data = fields.child("data")
        level = data.enum("level", _LEVELS, "LOG_LEVEL_") or "INFO"
        text = ": ".join(part for part in (data.text("title", ""), data.text("description", "")) if part)
        if not text:
            raise data.refuse("title", "an alert needs a title or a description")
        line = self.services.logs.say(
            trial.task_id, trial.allocation_id or "", f"alert: {text}", level=f"LOG_LEVEL_{level}"
        )
        await self.services.logs.append([line])
        self.reply({})
