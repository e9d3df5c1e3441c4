"""Which trials work with a checkpoint, such as a batch inference, and what they reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from detlab_master.api.base import ApiHandler, Rule
from detlab_master.api.encode import metrics as encode
from detlab_master.api.encode import wire
from detlab_master.api.models import ModelHandler
from detlab_master.core.permissions import Access, Kind, Principal, may_see
from detlab_master.core.records import MetricReport, TrialSource
from detlab_master.store.base import Store

_KINDS = ("INFERENCE", "FINE_TUNING")
_PREFIX = "TRIAL_SOURCE_INFO_TYPE_"


class TrialSourceInfo(ApiHandler):
    """A trial says that it works with a checkpoint. Repeating it is safe."""

    rules: ClassVar = {"POST": Rule(Access.REPORT, Kind.TRIAL, in_body=True)}

    async def post(self) -> None:
        info = (await self.fields()).child("trialSourceInfo")
        trial_id, uuid = info.integer("trialId"), info.text("checkpointUuid")
        await self.admit(Kind.TRIAL, trial_id, Access.REPORT)
        await self.admit(Kind.CHECKPOINT, uuid, Access.READ)
        kind = info.enum("trialSourceInfoType", _KINDS, _PREFIX)
        if kind is None:
            raise info.refuse("trialSourceInfoType", f"expected {_PREFIX}INFERENCE or {_PREFIX}FINE_TUNING")
        model_id, number = info.integer("modelId", 0), info.integer("modelVersion", 0)
        if model_id:
            version = await self.read(self.services.store.models.version, model_id, number)
            if version is None or version.checkpoint_uuid != uuid:
                raise info.refuse("modelVersion", f"checkpoint '{uuid}' is no such version of that model")
        source = TrialSource(trial_id, uuid, kind, model_id, number if model_id else 0)
        await self.services.checkpoints.used_by(source)
        self.reply({"trialId": trial_id, "checkpointUuid": uuid})


class CheckpointMetrics(ApiHandler):
    """What trials that work with a checkpoint have reported."""

    rules: ClassVar = {"GET": Rule(Access.READ, Kind.CHECKPOINT)}

    async def get(self, checkpoint_uuid: str) -> None:
        store = self.services.store
        sources = await self.read(lambda: store.checkpoints.sources(checkpoint_uuid=checkpoint_uuid))
        await _reply_metrics(self, sources)


class ModelVersionMetrics(ModelHandler):
    """What trials that work with a version of a model have reported."""

    rules: ClassVar = {"GET": Rule(Access.OWN, Kind.MODEL)}

    async def get(self, model_name: str, version: str) -> None:
        store, known = self.services.store, await self.version(version)
        key = (known.model_id, known.version)
        await _reply_metrics(self, await self.read(lambda: store.checkpoints.sources(model_version=key)))


async def _reply_metrics(handler: ApiHandler, sources: Sequence[TrialSource]) -> None:
    group = handler.query.text("metricGroup", "")
    kind = handler.query.enum("trialSourceInfoType", _KINDS, _PREFIX)
    trial_ids = {source.trial_id for source in sources if kind in (None, source.kind)}
    found = await handler.read(
        _reports, handler.services.store, handler.principal, sorted(trial_ids), group or None
    )
    await handler.reply_large(_metrics, found)


def _reports(
    store: Store, principal: Principal, trial_ids: Sequence[int], group: str | None
) -> Sequence[MetricReport]:
    """Of the trials that are there for the principal: others may work with the same checkpoint."""
    seen = []
    for trial in map(store.trials.get, trial_ids):
        experiment = store.experiments.get(trial.experiment_id) if trial else None
        if trial and experiment and may_see(principal, experiment.owner_id):
            seen.append(trial.id)
    return store.metrics.reports(seen, group) if seen else []


def _metrics(reports: Sequence[MetricReport]) -> wire.Object:
    return {"metrics": [encode.report(report) for report in reports]}
