import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from determined.common.api import Session
from determined.experimental import Experiment, ExperimentState, Trial, TrialMetrics, TrialState
from detlab_widgets import spec
from detlab_widgets.facts import Curve, curve, experiment_facts
from detlab_widgets.spec import Role
from harness import api_stub
from widgets.widget_facts import facts, trial


@pytest.fixture
def session() -> Iterator[Session]:
    with Session("http://127.0.0.1:1") as unused:
        yield unused


def report(steps: int, value: Any, run: int = 1) -> TrialMetrics:
    return TrialMetrics(12, run, steps, None, {"accuracy": value}, "validation")


def test_a_curve_is_sorted_and_leaves_out_what_is_no_number() -> None:
    reports = [report(30, 0.3), report(10, 0.1), report(20, "NaN"), report(40, True), report(50, None)]
    assert curve(reports, "accuracy") == Curve((10, 30), (0.1, 0.3))
    assert curve(reports, "another") == Curve()


def test_of_a_step_that_was_repeated_after_a_restart_the_later_run_counts() -> None:
    reports = [report(10, 0.1), report(20, 0.9, run=2), report(20, 0.2, run=1), report(30, 0.3, run=2)]
    assert curve(reports, "accuracy") == Curve((10, 20, 30), (0.1, 0.9, 0.3))


def test_facts_from_what_the_master_sends(session: Session) -> None:
    config = {
        "searcher": {"name": "random", "metric": "accuracy", "smaller_is_better": False},
        "hyperparameters": {
            "lr": {"type": "log", "minval": -4, "maxval": -1, "base": 10},
            "net": {"width": {"type": "categorical", "vals": [1, 2]}, "depth": {"type": "const", "val": 3}},
            "batch": 64,
        },
    }
    raw = api_stub.experiment(id=3, config=config, state="STATE_RUNNING", progress=0.5)
    hparams = {"lr": 0.1, "net": {"width": 2, "depth": 3}, "batch": 64}
    trials = [
        Trial(session, api_stub.trial(13, hparams=hparams, bestValidation=None, state="STATE_RUNNING")),
        Trial(session, api_stub.trial(12, hparams=hparams)),
    ]
    known = experiment_facts(Experiment(session, raw), trials, {12: Curve((100,), (0.9,))})
    assert (known.state, known.progress, known.searcher) == (ExperimentState.RUNNING, 0.5, "random")
    assert known.searched == ("lr", "net.width")
    first, second = known.trials
    assert (first.id, first.best, first.curve) == (12, 0.9, Curve((100,), (0.9,)))
    assert (second.id, second.best, second.curve, second.state) == (13, None, Curve(), TrialState.RUNNING)
    assert first.hparams == {"lr": 0.1, "net.width": 2, "net.depth": 3, "batch": 64}


def test_a_completed_experiment_is_all_done_whatever_its_searcher_says(session: Session) -> None:
    raw = api_stub.experiment(state="STATE_COMPLETED", progress=0.93)
    assert experiment_facts(Experiment(session, raw), [], {}).progress == 1.0


def test_the_best_is_drawn_last_and_those_that_have_ended_first() -> None:
    running = trial(3, 0.2, state=TrialState.RUNNING)
    chart = spec.learning_curves(facts(trial(1, 0.5, 0.9), trial(2, 0.4), running, trial(4)))
    assert [(s.label, s.role) for s in chart.series] == [
        ("trial 2", Role.ENDED),
        ("trial 3", Role.RUNNING),
        ("trial 1", Role.BEST),
    ]
    assert (chart.series[-1].x, chart.series[-1].y) == ((10, 20), (0.5, 0.9))
    assert "lr = 0.1" in chart.series[-1].details
    assert (chart.x_label, chart.y_label) == ("batches", "accuracy")


def test_smaller_may_be_better() -> None:
    losses = facts(trial(1, 0.5), trial(2, 0.1), trial(3), smaller_is_better=True)
    best = spec.best_trial(losses)
    assert best is not None
    assert best.id == 2
    assert [row.id for row in spec.trial_table(losses).rows] == [2, 1, 3]


def test_of_two_equals_the_older_is_the_best() -> None:
    best = spec.best_trial(facts(trial(1, 0.5), trial(2, 0.5)))
    assert best is not None
    assert best.id == 1


def test_the_table_shows_what_varies() -> None:
    odd = trial(2, 0.4, hparams={"lr": 0.2, "net.width": 16, "extra": None}, state=TrialState.ERROR)
    table = spec.trial_table(facts(trial(1, 0.123456789), odd, trial(3, state=TrialState.QUEUED)))
    assert table.columns == ("trial", "state", "best accuracy", "batches", "lr", "net.width")
    assert [row.cells for row in table.rows] == [
        ("2", "failed", "0.4", "10", "0.2", "16"),
        ("1", "completed", "0.12346", "10", "0.1", "8"),
        ("3", "queued", "", "0", "0.3", "8"),
    ]
    assert [row.best for row in table.rows] == [True, False, False]


def test_a_search_of_many_trials_says_what_it_leaves_out() -> None:
    known = facts(*(trial(i, i / 1000) for i in range(1, 301)))
    chart, table = spec.learning_curves(known), spec.trial_table(known)
    assert len(chart.series) == spec.MAX_SERIES
    assert chart.series[-1].label == "trial 300"
    assert chart.note == "the best 200 of 300 trials"
    assert len(table.rows) == spec.MAX_ROWS
    assert table.note == "200 more trials are not shown"


def test_long_curves_share_a_budget_of_points() -> None:
    long = tuple(float(i % 7) for i in range(5000))
    chart = spec.learning_curves(facts(*(trial(i, *long) for i in range(1, 9))))
    assert sum(len(series.x) for series in chart.series) <= spec.MAX_POINTS


@given(st.lists(st.floats(-1e6, 1e6), max_size=300), st.integers(3, 50))
def test_downsampling_keeps_both_ends_and_only_points_that_there_were(values: list[float], most: int) -> None:
    whole = Curve(tuple(range(len(values))), tuple(values))
    kept = spec.downsample(whole, most)
    assert len(kept.steps) == min(most, len(values))
    assert list(kept.steps) == sorted(set(kept.steps))
    assert set(zip(kept.steps, kept.values, strict=True)) <= set(
        zip(*dataclasses.astuple(whole), strict=True)
    )
    if values:
        assert (kept.steps[0], kept.steps[-1]) == (0, len(values) - 1)


def test_the_summary_in_one_line() -> None:
    running = trial(3, 0.2, state=TrialState.RUNNING)
    assert spec.summary(facts(trial(1, 0.5), trial(2, 0.75), running)) == (
        "adaptive_asha · 3 trials (2 completed, 1 running) · best accuracy 0.75 in trial 2"
    )
    assert spec.summary(facts()) == "adaptive_asha · 0 trials"


@pytest.mark.parametrize(
    ("state", "verbs"),
    [
        ("RUNNING", ("pause", "kill")),
        ("QUEUED", ("pause", "kill")),
        ("PAUSED", ("activate", "kill")),
        ("STOPPING_CANCELED", ("kill",)),
        ("STOPPING_KILLED", ()),
        ("COMPLETED", ()),
        ("DELETING", ()),
    ],
)
def test_what_can_be_done_in_a_state(state: str, verbs: tuple[str, ...]) -> None:
    assert spec.verbs(ExperimentState[state]) == verbs


def test_nobody_steers_a_detached_experiment_from_here() -> None:
    drawn = spec.experiment(facts(trial(1, 0.5), unmanaged=True))
    assert drawn.verbs == ()
    assert drawn.summary.startswith("detached · 1 trial")
