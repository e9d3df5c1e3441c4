"""What an experiment leaves in its storage: which checkpoints a policy would remove, and TensorBoard files."""

from __future__ import annotations

from dataclasses import fields as fields_of
from typing import ClassVar

from detlab_master.api.base import ApiHandler, Rule
from detlab_master.api.encode import checkpoints as encode
from detlab_master.core.permissions import Access, Kind
from detlab_master.core.retention import Policy


class PreviewCollection(ApiHandler):
    """The checkpoints that a policy would remove now; numbers that are not given are those of the present policy."""

    rules: ClassVar = {"GET": Rule(Access.OWN, Kind.EXPERIMENT)}

    async def get(self, experiment_id: str) -> None:
        experiment = self.found.experiment
        assert experiment is not None
        numbers = {}
        present = Policy.of(experiment.config["checkpoint_storage"])
        for field in fields_of(Policy):
            number = self.query.optional_integer(field.name)
            if number is not None and number < 0:
                raise self.query.refuse(field.name, "it must be 0 or more")
            numbers[field.name] = getattr(present, field.name) if number is None else number
        found = await self.services.collector.preview(experiment, Policy(**numbers))
        metric = experiment.config["searcher"]["metric"]
        rows = [encode.superfluous(one.checkpoint, one.metrics, metric) for one in found]
        self.reply({"checkpoints": rows, "metric_name": metric})


class TensorboardFiles(ApiHandler):
    rules: ClassVar = {"DELETE": Rule(Access.OWN, Kind.EXPERIMENT)}

    async def delete(self, experiment_id: str) -> None:
        experiment = self.found.experiment
        assert experiment is not None
        await self.services.deletion.delete_tensorboard_files(experiment)
        self.reply({})
