"""What a metric report does to a trial: stored anew, merged into an earlier one, a repeat, or a roll-back.

A trial that restarts from a checkpoint reports again what its last run had reported already. The newer run wins: the
older run's rows of the same group at or after the new step, and of other groups after it, are archived, and the
summaries are computed anew (reference: rest-api.md 4.3).

Nearly all reports simply go on from the last one. `TrialMetrics.continues` recognises them without a look at the store.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from detlab_master.core.errors import Invalid
from detlab_master.core.records import Json, MetricReport, Trial

TRAINING = "training"
VALIDATION = "validation"
PROFILING_GROUPS = frozenset(
    {"gpu", "cpu", "memory", "disk", "network"}
)  # stored apart: no summary, no steps
_SPECIAL = {"nan": math.nan, "infinity": math.inf, "-infinity": -math.inf}


def as_number(value: object) -> float | None:
    """A metric's value as a float, or None where it is no number. The wire's "NaN" and "Infinity" are numbers."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    return _SPECIAL.get(value.lower()) if isinstance(value, str) else None


def on_wire(value: float) -> float | str:
    """The reverse: what JSON cannot carry becomes a string."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _off_wire(value: float | str) -> float:
    return _SPECIAL[value.lower()] if isinstance(value, str) else value


def summary_key(group: str) -> str:
    """The name of a group in a trial's summary_metrics."""
    return {TRAINING: "avg_metrics", VALIDATION: "validation_metrics"}.get(group, group)


@dataclass(frozen=True)
class SearcherMetric:
    name: str
    smaller_is_better: bool

    def value(self, metrics: Json) -> float | None:
        return as_number(metrics.get(self.name))

    def better(self, new: float, old: float | None) -> bool:
        """NaN is never better than a number."""
        if old is None or math.isnan(old):
            return True
        if math.isnan(new):
            return False
        return new < old if self.smaller_is_better else new > old


def check(report: MetricReport) -> None:
    """Refuse a report that cannot be stored.

    Raises:
        Invalid: empty group or one with a dot, negative steps, an epoch that is no number.
    """
    if not report.group or "." in report.group:
        raise Invalid(
            f"the metric group is {report.group!r}: it must not be empty and must not contain a dot;"
            " usual groups are 'training' and 'validation'"
        )
    if report.steps_completed < 0:
        raise Invalid(f"stepsCompleted is {report.steps_completed}: it must be 0 or more")
    for key in ("epoch", "epochs"):
        if key in report.metrics and as_number(report.metrics[key]) is None:
            raise Invalid(f"the metric {key!r} is {report.metrics[key]!r}: it must be a number")


def merged(old: MetricReport, new: MetricReport) -> MetricReport | None:
    """The union of two reports of one group and step of the same run; None when the new one adds nothing.

    Raises:
        Invalid: a metric is there with another value, or there are batch metrics already.
    """
    changed = {
        k: (old.metrics[k], v) for k, v in new.metrics.items() if k in old.metrics and old.metrics[k] != v
    }
    if changed:
        name, (before, after) = next(iter(changed.items()))
        raise Invalid(
            f"trial {new.trial_id} has reported {name!r} = {before!r} in group {new.group!r} at step"
            f" {new.steps_completed} already, and now reports {after!r}; use another step or another name"
        )
    if new.batch_metrics and old.batch_metrics and new.batch_metrics != old.batch_metrics:
        raise Invalid(
            f"trial {new.trial_id} has reported batch metrics in group {new.group!r} at step"
            f" {new.steps_completed} already: they cannot be overwritten"
        )
    added = {k: v for k, v in new.metrics.items() if k not in old.metrics}
    batch_metrics = old.batch_metrics or new.batch_metrics
    if not added and batch_metrics == old.batch_metrics:
        return None
    return replace(old, metrics={**old.metrics, **added}, batch_metrics=batch_metrics)


class TrialMetrics:
    """What must be known of a trial's earlier reports to take the next one: the last step of each group, and sums."""

    def __init__(self, reports: Iterable[MetricReport] = ()) -> None:
        self._last: dict[str, tuple[int, int]] = {}  # group -> (steps_completed, run_id)
        self._summary: dict[str, dict[str, Json]] = {}  # summary key -> metric -> statistics
        for report in reports:
            self.add(report)

    def continues(self, report: MetricReport) -> bool:
        """True when the report comes after all others of its group, and nothing has to be rolled back."""
        last = self._last.get(report.group)
        if last is not None and report.steps_completed <= last[0]:
            return False
        return all(
            steps <= report.steps_completed or run_id >= report.run_id
            for steps, run_id in self._last.values()
        )

    def rolls_back(self, report: MetricReport) -> bool:
        """True when older runs got further than this report of a newer run."""
        return any(
            run_id < report.run_id
            and (steps >= report.steps_completed if group == report.group else steps > report.steps_completed)
            for group, (steps, run_id) in self._last.items()
        )

    def add(self, report: MetricReport) -> None:
        """Count a report in that is being stored."""
        if report.group in PROFILING_GROUPS:
            return
        steps, run_id = self._last.get(report.group, (report.steps_completed, report.run_id))
        self._last[report.group] = (max(steps, report.steps_completed), max(run_id, report.run_id))
        key = summary_key(report.group)
        group = self._summary.get(key, {})
        counted = {name: _with_value(group.get(name), value) for name, value in report.metrics.items()}
        self._summary = {**self._summary, key: {**group, **counted}}

    @property
    def total_batches(self) -> int:
        """The highest step that was reported."""
        return max((steps for steps, _ in self._last.values()), default=0)

    def summary(self) -> Mapping[str, Mapping[str, Json]]:
        """summary_metrics as the API shows them; values that JSON cannot carry are strings.

        It stays as it is when more reports are counted in, and shares with later ones what has not changed.
        """
        return self._summary


_KINDS: Mapping[type, str] = {bool: "bool", str: "string", dict: "object", list: "array", type(None): "null"}
# ISO 8601: a day, or a moment.
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?)?", re.ASCII)


def _kind(value: object) -> str:
    if isinstance(value, str) and _DATE.fullmatch(value):
        return "date"
    return _KINDS.get(type(value), "string")


def _with_value(before: Json | None, value: object) -> Json:
    """A metric's statistics, with one more value; ``before`` is None for the first."""
    number = as_number(value)
    kind = _kind(value) if number is None else "number"
    if before is not None and before["type"] != kind:
        kind = "string"  # a metric that changes its type
    if kind != "number" or number is None:
        return {"type": kind, "last": value}
    count, total, low, high = 1, number, number, number
    if before is not None:
        count += before["count"]
        total += _off_wire(before["sum"])
        low, high = min(_off_wire(before["min"]), number), max(_off_wire(before["max"]), number)
    return {
        "type": kind,
        "count": count,
        "mean": on_wire(total / count),
        "sum": on_wire(total),
        "min": on_wire(low),
        "max": on_wire(high),
        "last": on_wire(number),
    }


def with_report(trial: Trial, report: MetricReport, known: TrialMetrics, searched: SearcherMetric) -> Trial:
    """The trial's record after a report that ``known`` has counted in."""
    changes: dict[str, Any] = {
        "total_batches": known.total_batches,
        "summary_metrics": known.summary(),
    }
    # Only validations that carry the searcher metric count.
    value = searched.value(report.metrics) if report.group == VALIDATION else None
    if value is not None:
        shown = {
            "end_time": report.reported_at,
            "total_batches": report.steps_completed,
            "metrics": dict(report.metrics),
        }
        latest = trial.latest_validation
        if latest is None or report.steps_completed >= latest["total_batches"]:
            changes["latest_validation"] = shown
        if searched.better(value, trial.searcher_metric):
            changes |= {"best_validation": shown, "searcher_metric": value}
    return replace(trial, **changes)


def recomputed(
    trial: Trial, reports: Iterable[MetricReport], searched: SearcherMetric
) -> tuple[Trial, TrialMetrics]:
    """The trial's record and sums from nothing, out of all its reports that are not archived."""
    known = TrialMetrics()
    trial = replace(
        trial,
        total_batches=0,
        summary_metrics={},
        latest_validation=None,
        best_validation=None,
        searcher_metric=None,
    )
    for report in reports:
        known.add(report)
        trial = with_report(trial, report, known, searched)
    return replace(trial, summary_metrics=known.summary(), total_batches=known.total_batches), known
