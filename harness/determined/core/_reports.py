"""What a trial tells its master while it trains, and the requests that carry it."""

import datetime
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from determined.common import api
from determined.core._encode import Snapshot, encode

MAX_REPORTS = 200  # in one request; the master stores them in one transaction
MAX_BYTES = 4 << 20  # of a request that carries more than one report


# Tuples: they are made in the training's thread, and a frozen dataclass takes several times as long.


class MetricsReport(NamedTuple):
    """Metrics of one group after so many steps. `steps_completed` is None for a profiler's groups."""

    group: str
    steps_completed: int | None
    metrics: Mapping[str, Snapshot]
    batch_metrics: Sequence[Mapping[str, Snapshot]] | None
    time: float  # Unix seconds


class ProgressReport(NamedTuple):
    progress: float  # 0 to 1


class StatusReport(NamedTuple):
    status: str


Report = MetricsReport | ProgressReport | StatusReport


class TrialReports:
    """Carries reports of one run of a trial to the master.

    Metrics arrive in their order, several in one request. Of progress and status only the newest of a delivery is
    sent, after the metrics: nobody can see the others.
    """

    def __init__(self, session: api.Session, *, trial_id: int, run_id: int) -> None:
        self._session = session
        self._trial_id = trial_id
        self._run_id = run_id

    def deliver(self, reports: Sequence[Report]) -> None:
        """Send these. Raises what the session raises; then the master may have got the first of them."""
        texts = (self._metrics(report) for report in reports if isinstance(report, MetricsReport))
        for together in _portions(texts):
            body = together[0] if len(together) == 1 else f'{{"reports": [{", ".join(together)}]}}'
            self._session.post(self._path("metrics"), body=body.encode())
        newest = {type(report): report for report in reports}
        match newest.get(StatusReport):
            case StatusReport(status):
                self._session.post(self._path("runner/metadata"), json={"state": status})
        match newest.get(ProgressReport):
            case ProgressReport(progress):
                self._session.post(self._path("progress"), json={"progress": progress, "is_raw": True})

    def _metrics(self, report: MetricsReport) -> str:
        values: dict[str, Any] = {"avgMetrics": encode(report.metrics)}
        if report.batch_metrics is not None:
            values["batchMetrics"] = [encode(batch) for batch in report.batch_metrics]
        at = datetime.datetime.fromtimestamp(report.time, datetime.UTC)
        metrics = {
            "trialId": self._trial_id,
            "trialRunId": self._run_id,
            "reportTime": at.isoformat(timespec="milliseconds"),
            "metrics": values,
        }
        if report.steps_completed is not None:
            metrics["stepsCompleted"] = report.steps_completed
        return json.dumps({"group": report.group, "metrics": metrics}, allow_nan=False)

    def _path(self, end: str) -> str:
        return f"/api/v1/trials/{self._trial_id}/{end}"


def _portions(texts: Iterator[str]) -> Iterator[list[str]]:
    together: list[str] = []
    size = 0
    for text in texts:
        if together and (len(together) == MAX_REPORTS or size + len(text) > MAX_BYTES):
            yield together
            together, size = [], 0
        together.append(text)
        size += len(text)
    if together:
        yield together
