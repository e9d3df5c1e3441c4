"""Which checkpoints are kept: examples, laws, and a naive reading of the rules beside."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detlab_master.core.metrics import SearcherMetric, as_number, on_wire
from detlab_master.core.records import Checkpoint, MetricReport, Trial
from detlab_master.core.retention import Policy, needed_to_go_on, superfluous
from detlab_master.core.states import CheckpointState as C
from detlab_master.core.states import TrialState

ACCURACY = SearcherMetric("accuracy", smaller_is_better=False)
LOSS = SearcherMetric("accuracy", smaller_is_better=True)
NONE = Policy(0, 0, 0)


def checkpoint(trial: int, step: int, state: C = C.COMPLETED, at: float = 0.0, more: str = "") -> Checkpoint:
    return Checkpoint(f"{trial}-{step}{more}", "task", "allocation", 1, trial, state, at, step, {"w": 1}, {})


def validation(
    trial: int,
    step: int,
    accuracy: object,
    number: int = 0,
    *,
    group: str = "validation",
    archived: bool = False,
) -> MetricReport:
    metrics = {} if accuracy is None else {"accuracy": accuracy}
    return MetricReport(
        trial, 1, group, step, 0.0, metrics, archived=archived, id=number or 100 * trial + step
    )


def kept(
    checkpoints: list[Checkpoint],
    reports: list[MetricReport],
    policy: Policy,
    metric: SearcherMetric = ACCURACY,
    protected: tuple[str, ...] = (),
) -> str:
    """What stays of those with files, in their order."""
    gone = {one.uuid for one in superfluous(checkpoints, reports, metric, policy, protected)}
    return " ".join(one.uuid for one in checkpoints if one.uuid not in gone)


SEARCH = [checkpoint(trial, step) for trial in (1, 2) for step in (1, 2, 3)]
VALUES = {(1, 1): 0.5, (1, 2): 0.9, (1, 3): 0.7, (2, 1): 0.6, (2, 2): 0.2, (2, 3): 0.8}
REPORTS = [validation(trial, step, value) for (trial, step), value in VALUES.items()]


@pytest.mark.parametrize(
    ("policy", "metric", "stays"),
    [
        (NONE, ACCURACY, ""),
        (Policy(1, 0, 0), ACCURACY, "1-2"),
        (Policy(2, 0, 0), ACCURACY, "1-2 2-3"),
        (Policy(1, 0, 0), LOSS, "2-2"),
        (Policy(0, 1, 0), ACCURACY, "1-2 2-3"),
        (Policy(0, 2, 0), ACCURACY, "1-2 1-3 2-1 2-3"),
        (Policy(0, 1, 0), LOSS, "1-1 2-2"),
        (Policy(0, 0, 1), ACCURACY, "1-3 2-3"),
        (Policy(0, 0, 2), ACCURACY, "1-2 1-3 2-2 2-3"),
        (Policy(), ACCURACY, "1-2 1-3 2-3"),
        (Policy(9, 0, 0), ACCURACY, "1-1 1-2 1-3 2-1 2-2 2-3"),
    ],
)
def test_each_rule(policy: Policy, metric: SearcherMetric, stays: str) -> None:
    assert kept(SEARCH, REPORTS, policy, metric) == stays


def test_without_a_validation_only_the_last_rule_keeps() -> None:
    saved = [checkpoint(1, 1), checkpoint(1, 2), checkpoint(1, 3), checkpoint(1, 4), checkpoint(1, 5)]
    reports = [
        validation(1, 2, None),  # another metric
        validation(1, 3, "high"),  # no number
        validation(1, 4, 0.9, group="test"),
        validation(1, 5, 0.9, archived=True),
    ]
    assert kept(saved, reports, Policy(9, 9, 0)) == ""
    assert kept(saved, reports, Policy(9, 9, 2)) == "1-4 1-5"


def test_a_tie_goes_to_the_earlier_validation() -> None:
    saved = [checkpoint(1, 1), checkpoint(2, 1)]
    reports = [validation(1, 1, 0.5, number=7), validation(2, 1, 0.5, number=3)]
    assert kept(saved, reports, Policy(1, 0, 0)) == kept(saved, reports, Policy(1, 0, 0), LOSS) == "2-1"


def test_nan_is_worse_than_every_number() -> None:
    saved = [checkpoint(1, step) for step in (1, 2, 3)]
    reports = [validation(1, 1, "NaN"), validation(1, 2, "-Infinity"), validation(1, 3, "Infinity")]
    assert kept(saved, reports, Policy(0, 1, 0)) == "1-3"
    assert kept(saved, reports, Policy(0, 1, 0), LOSS) == "1-2"
    assert kept(saved, reports, Policy(0, 2, 0)) == kept(saved, reports, Policy(0, 2, 0), LOSS) == "1-2 1-3"
    assert kept(saved, reports[:1], Policy(0, 1, 0)) == "1-1"


def test_what_is_deleted_has_no_rank() -> None:
    saved = [replace(one, state=C.DELETED) if one.uuid in ("1-2", "2-3") else one for one in SEARCH]
    assert kept(saved, REPORTS, Policy(1, 1, 0)) == "1-2 1-3 2-1 2-3"
    assert kept(saved, REPORTS, Policy(0, 0, 1)) == "1-2 1-3 2-2 2-3"
    part = [replace(one, state=C.PARTIALLY_DELETED) for one in SEARCH]
    assert kept(part, REPORTS, Policy(1, 0, 0)) == "1-2"


def test_what_is_protected_stays_and_has_its_rank() -> None:
    assert kept(SEARCH, REPORTS, Policy(1, 0, 0), protected=("1-2",)) == "1-2"
    assert kept(SEARCH, REPORTS, NONE, protected=("1-1", "of another experiment")) == "1-1"


def test_of_two_checkpoints_of_one_step_the_later_one_is_kept() -> None:
    saved = [checkpoint(1, 1, at=2.0, more="-new"), checkpoint(1, 1, at=1.0, more="-old")]
    for policy in (Policy(1, 0, 0), Policy(0, 1, 0), Policy(0, 0, 1)):
        assert kept(saved, [validation(1, 1, 0.5)], policy) == "1-1-new"


def test_a_policy_of_a_configuration() -> None:
    storage = {"type": "shared_fs", "save_trial_best": 3, "save_trial_latest": None}
    assert Policy.of(storage) == Policy(0, 3, 1)


def test_what_trials_need_to_go_on() -> None:
    saved = [*SEARCH, checkpoint(1, 4, C.PARTIALLY_DELETED), checkpoint(1, 3, at=5.0, more="-again")]
    trials = [_trial(1, TrialState.PAUSED), _trial(2, TrialState.COMPLETED), _trial(3, TrialState.ACTIVE)]
    assert needed_to_go_on(trials, saved, ended=True) == {"1-3-again"}


def test_trials_of_a_continued_experiment_may_wait_for_their_turn() -> None:
    trials = [_trial(1, TrialState.ERROR), _trial(2, TrialState.COMPLETED)]
    assert needed_to_go_on(trials, SEARCH, ended=False) == {"1-3"}
    assert needed_to_go_on(trials, SEARCH, ended=True) == set()


def _trial(number: int, state: TrialState) -> Trial:
    return Trial(number, 1, number, f"task {number}", state, {}, 0, 0.0)


# Laws

numbers = st.integers(0, 4)
policies = st.builds(Policy, numbers, numbers, numbers)
values = st.one_of(
    st.none(),
    st.sampled_from([0.0, 0.5, 1.0, "NaN", "Infinity", "-Infinity", "text", True]),
    st.floats().map(on_wire),
)


@st.composite
def experiments(draw: st.DrawFn) -> tuple[list[Checkpoint], list[MetricReport], tuple[str, ...]]:
    places = draw(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6)), max_size=20))
    states = st.sampled_from([C.COMPLETED, C.COMPLETED, C.PARTIALLY_DELETED, C.DELETED, C.ERROR])
    saved = [
        checkpoint(*place, draw(states), at=float(draw(st.integers(0, 2))), more=f"-{number}")
        for number, place in enumerate(places)
    ]
    reported = draw(st.dictionaries(st.tuples(st.integers(1, 4), st.integers(1, 6)), values, max_size=20))
    ids = draw(st.permutations(range(1, len(reported) + 1)))
    reports = [
        validation(*place, value, number)
        for (place, value), number in zip(reported.items(), ids, strict=True)
    ]
    protected = draw(st.sets(st.sampled_from([one.uuid for one in saved]))) if saved else set()
    return saved, reports, tuple(protected)


def naive(
    saved: list[Checkpoint],
    reports: list[MetricReport],
    metric: SearcherMetric,
    policy: Policy,
    protected: tuple[str, ...],
) -> set[str]:
    """The rules, word by word: a rank is one more than the number of those that come before."""
    there = [one for one in saved if one.state in (C.COMPLETED, C.PARTIALLY_DELETED)]

    def joined(one: Checkpoint) -> MetricReport | None:
        for report in reports:
            if (report.trial_id, report.steps_completed) == (one.trial_id, one.steps_completed):
                return report if as_number(report.metrics.get(metric.name)) is not None else None
        return None

    def better(one: Checkpoint, other: Checkpoint) -> bool:
        mine, its = joined(one), joined(other)
        if mine is None or its is None:
            return False
        a, b = metric.value(mine.metrics), metric.value(its.metrics)
        assert a is not None and b is not None
        if a == b or (math.isnan(a) and math.isnan(b)):
            if mine.id != its.id:
                return mine.id < its.id
            return (-one.reported_at, one.uuid) < (-other.reported_at, other.uuid)
        return metric.better(a, b) if not math.isnan(b) else True

    def later(one: Checkpoint, other: Checkpoint) -> bool:
        key = "steps_completed", "reported_at", "uuid"
        return [getattr(one, k) for k in key] > [getattr(other, k) for k in key]

    gone = set()
    for one in there:
        siblings = [other for other in there if other.trial_id == one.trial_id]
        has = joined(one) is not None
        keep = (
            one.uuid in protected
            or (has and 1 + sum(better(other, one) for other in there) <= policy.save_experiment_best)
            or (has and 1 + sum(better(other, one) for other in siblings) <= policy.save_trial_best)
            or 1 + sum(later(other, one) for other in siblings) <= policy.save_trial_latest
        )
        if not keep:
            gone.add(one.uuid)
    return gone


@settings(max_examples=300)
@given(experiments(), policies, st.sampled_from([ACCURACY, LOSS]))
def test_laws(
    drawn: tuple[list[Checkpoint], list[MetricReport], tuple[str, ...]],
    policy: Policy,
    metric: SearcherMetric,
) -> None:
    saved, reports, protected = drawn

    def gone(policy: Policy, saved: list[Checkpoint] = saved) -> set[str]:
        return {one.uuid for one in superfluous(saved, reports, metric, policy, protected)}

    decided = gone(policy)
    assert decided == naive(saved, reports, metric, policy, protected)
    assert not decided & set(protected)
    with_files = {one.uuid for one in saved if one.state in (C.COMPLETED, C.PARTIALLY_DELETED)}
    assert decided <= with_files
    for name in ("save_experiment_best", "save_trial_best", "save_trial_latest"):
        assert gone(replace(policy, **{name: getattr(policy, name) + 1})) <= decided
    # Broken off anywhere and taken up again, it ends with the same.
    half = set(sorted(decided)[::2])
    after = [replace(one, state=C.DELETED) if one.uuid in half else one for one in saved]
    assert gone(policy, after) == decided - half
    assert gone(policy, list(reversed(saved))) == decided
