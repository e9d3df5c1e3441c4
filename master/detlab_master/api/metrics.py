"""Metric reports: taking them from trials, and streaming them to readers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, ClassVar

from detlab_master.api.base import ApiHandler, Rule, distinct
from detlab_master.api.body import Fields
from detlab_master.api.encode import metrics as encode
from detlab_master.api.encode import wire
from detlab_master.core.errors import Invalid
from detlab_master.core.metrics import PROFILING_GROUPS, TRAINING, VALIDATION
from detlab_master.core.permissions import Access, Kind
from detlab_master.core.records import MetricReport
from detlab_master.store.base import Store

if TYPE_CHECKING:
    from detlab_master.engine.services import Services

_BATCH = 1000  # reports in one item of a stream
Position = tuple[int, int, int]  # trial, step and id of the last report that was sent


class ReportMetrics(ApiHandler):
    """The hot path: one call for each report of each trial. For a container's token nothing is read before the engine.

    Our own harness sends what gathers in a fraction of a second as `{"reports": [...]}`: each of them as it would be
    sent alone. They are taken in order up to the first that is refused, and sending them again is safe.
    """

    rules: ClassVar = {"POST": Rule(Access.REPORT, Kind.TRIAL)}

    def initialize(self, services: Services, group: str | None = None) -> None:
        super().initialize(services)
        self._group = (
            group  # of older clients' routes, whose whole body is the report; None: the body says it
        )

    async def post(self, trial_id: str) -> None:
        fields = await self.fields()
        number = self.path_integer(Kind.TRIAL)
        together = fields.children("reports") if self._group is None else []
        reports = [self._report(number, one) for one in together or [fields]]
        await self.services.experiments.report_metrics(number, reports)
        self.reply({})

    def _report(self, number: int, fields: Fields) -> MetricReport:
        report = fields.child("metrics") if self._group is None else fields
        if report.integer("trialId", number) != number:
            raise report.refuse("trialId", f"the report is sent to trial {number}")
        values = report.child("metrics")
        batches = None if values.raw("batchMetrics") is None else values.items("batchMetrics")
        if batches is not None and not all(isinstance(batch, dict) for batch in batches):
            raise Invalid(f"{values.label('batchMetrics')} must be a list of objects, one for each batch")
        run_id = report.integer("trialRunId")
        group = fields.text("group") if self._group is None else self._group
        steps_completed = report.optional_integer("stepsCompleted")
        if steps_completed is None and group not in PROFILING_GROUPS:
            raise Invalid(f"a report of metric group {group!r} must say its stepsCompleted")
        reported_at = report.timestamp("reportTime")
        return MetricReport(
            trial_id=number,
            run_id=run_id,
            group=group,
            steps_completed=steps_completed or 0,
            reported_at=self.services.now() if reported_at is None else reported_at,
            metrics=values.object("avgMetrics"),
            batch_metrics=None if batches is None else tuple(batches),
        )


class StreamMetrics(ApiHandler):
    """The reports of some trials, by trial and step."""

    rules: ClassVar = {"GET": Rule(Access.READ, Kind.TRIAL, in_body=True)}

    def initialize(self, services: Services, group: str | None = None) -> None:
        super().initialize(services)
        self._group = group  # None: the query says it

    async def get(self) -> None:
        query = self.query
        trial_ids = sorted(distinct(query.integers("trialIds")))
        if not trial_ids:
            raise Invalid("trialIds is missing: name the trials whose metrics are wanted")
        for trial_id in trial_ids:
            await self.admit(Kind.TRIAL, trial_id, Access.READ)
        group = self._group if self._group is not None else query.text("group", "")
        await self.stream(self._batches(trial_ids, group or None))

    async def _batches(self, trial_ids: Sequence[int], group: str | None) -> AsyncGenerator[bytes, None]:
        after: Position | None = None
        while True:
            line, after = await self.read(_next_reports, self.services.store, trial_ids, group, after)
            if line:
                yield line
            if after is None:
                return


def _next_reports(
    store: Store, trial_ids: Sequence[int], group: str | None, after: Position | None
) -> tuple[bytes, Position | None]:
    """The next item of the stream, and where it ends; None when there is no more."""
    reports = store.metrics.reports(trial_ids, group, after=after, limit=_BATCH)
    if not reports:
        return b"", None
    line = wire.stream_line({"metrics": [encode.report(report) for report in reports]})
    last = reports[-1]
    end = (last.trial_id, last.steps_completed, last.id) if len(reports) == _BATCH else None
    return line, end


GROUPS = {"trial_metrics": None, "training_metrics": TRAINING, "validation_metrics": VALIDATION}
