"""Reports: what goes on, what is merged, repeated or rolled back."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detlab_master.core import metrics
from detlab_master.core.errors import Invalid
from detlab_master.core.records import MetricReport, Trial
from detlab_master.core.states import TrialState

TRIAL = Trial(1, 1, 0, "1.t", TrialState.ACTIVE, {}, 1, start_time=0.0, run_id=1)
LOSS = metrics.SearcherMetric("loss", smaller_is_better=True)


def report(
    steps: int, loss: object = 1.0, *, group: str = "validation", run: int = 1, **more: object
) -> MetricReport:
    return MetricReport(1, run, group, steps, reported_at=float(steps), metrics={"loss": loss, **more})


def test_what_goes_on_needs_no_look_at_the_store() -> None:
    known = metrics.TrialMetrics([report(10), report(10, group="training")])
    assert known.continues(report(20))
    assert known.continues(report(20, group="training", run=2))
    assert not known.continues(report(10))
    assert not known.continues(report(5))


def test_a_newer_run_rolls_back_what_it_comes_before() -> None:
    known = metrics.TrialMetrics([report(10), report(20), report(20, group="training")])
    assert known.rolls_back(report(20, run=2))
    assert known.rolls_back(report(15, group="other", run=2))
    assert not known.rolls_back(report(20, group="other", run=2))
    assert not known.rolls_back(report(15, run=1))


def test_merging_adds_and_never_overwrites() -> None:
    union = metrics.merged(report(10), report(10, accuracy=0.5))
    assert union is not None
    assert union.metrics == {"loss": 1.0, "accuracy": 0.5}
    assert metrics.merged(report(10), report(10)) is None
    with pytest.raises(Invalid, match=r"'loss' = 1\.0"):
        metrics.merged(report(10), report(10, loss=2.0))


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (report(1, group=""), "must not be empty"),
        (report(1, group="a.b"), "must not contain a dot"),
        (report(-1), "0 or more"),
        (report(1, epochs="ten"), "must be a number"),
    ],
)
def test_what_cannot_be_stored(bad: MetricReport, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        metrics.check(bad)


def test_summaries_count_numbers_and_name_other_types() -> None:
    known = metrics.TrialMetrics(
        [report(1, 3.0, note="a"), report(2, 1.0, note={}), report(3, "NaN", flag=True)]
    )
    summary = known.summary()["validation_metrics"]
    assert summary["loss"]["count"] == 3
    assert summary["loss"]["last"] == "NaN"
    assert summary["note"] == {"type": "string", "last": {}}
    assert summary["flag"] == {"type": "bool", "last": True}


def test_the_best_validation_follows_the_direction_and_nan_never_wins() -> None:
    known, trial = metrics.TrialMetrics(), TRIAL
    for steps, loss in ((1, 3.0), (2, 1.0), (3, "NaN"), (4, 2.0)):
        known.add(report(steps, loss))
        trial = metrics.with_report(trial, report(steps, loss), known, LOSS)
    assert trial.searcher_metric == 1.0
    assert trial.best_validation is not None
    assert trial.best_validation["total_batches"] == 2
    assert trial.latest_validation is not None
    assert trial.latest_validation["total_batches"] == 4


def test_a_validation_without_the_searcher_metric_does_not_count() -> None:
    known = metrics.TrialMetrics()
    other = replace(report(5), metrics={"accuracy": 1.0})
    assert metrics.with_report(TRIAL, other, known, LOSS).latest_validation is None


def test_recomputing_gives_what_counting_gave() -> None:
    reports = [report(steps, 10.0 - steps) for steps in range(1, 6)]
    known, trial = metrics.TrialMetrics(), TRIAL
    for one in reports:
        known.add(one)
        trial = metrics.with_report(trial, one, known, LOSS)
    again, _ = metrics.recomputed(trial, reports, LOSS)
    assert again == trial


def test_special_numbers_survive_the_wire() -> None:
    for value in (math.inf, -math.inf, 1.5):
        assert metrics.as_number(metrics.on_wire(value)) == value
    assert metrics.as_number("nan") is not None
    assert metrics.as_number(True) is None
    assert metrics.as_number("1.5") is None


VALUES = (
    st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.integers(-1000, 1000)
    | st.sampled_from(["NaN", "Infinity", "-Infinity"])
)


@given(values=st.lists(VALUES, min_size=1, max_size=20))
def test_statistics_counted_one_by_one_are_those_of_all_values(values: list[float | str]) -> None:
    known = metrics.TrialMetrics(report(steps, value) for steps, value in enumerate(values))
    found = dict(known.summary()["validation_metrics"]["loss"])
    numbers = [float(value) for value in values]
    low, high, total = numbers[0], numbers[0], -0.0
    for number in numbers:
        low, high, total = min(low, number), max(high, number), total + number
    plain = {"mean": total / len(numbers), "sum": total, "min": low, "max": high, "last": numbers[-1]}
    assert (found.pop("type"), found.pop("count")) == ("number", len(values))
    assert json.dumps(found, allow_nan=False) == json.dumps(
        {name: metrics.on_wire(value) for name, value in plain.items()}
    )


def test_a_summary_stays_as_it_was_when_more_is_counted_in() -> None:
    known = metrics.TrialMetrics([report(1, 3.0), report(1, 2.0, group="training")])
    before = known.summary()
    known.add(report(2, 1.0))
    assert before["validation_metrics"]["loss"]["count"] == 1
    assert known.summary()["validation_metrics"]["loss"]["count"] == 2
    assert known.summary()["avg_metrics"] is before["avg_metrics"]
