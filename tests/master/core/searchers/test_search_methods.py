"""Exact behaviour of the search methods, worked by hand from their rules."""

import random
from typing import Any

import pytest

from detlab_master.core.expconf.searcher import (
    AdaptiveAshaConfig,
    AsyncHalvingConfig,
    GridConfig,
    RandomConfig,
    SearcherConfig,
    SingleConfig,
)
from detlab_master.core.hyperparameters import parse
from detlab_master.core.searchers import (
    Action,
    Create,
    Exited,
    Searcher,
    SearcherError,
    Shutdown,
    Started,
    Stop,
    Validated,
)
from detlab_master.core.searchers.adaptive_asha import Bracket, Mode, bracket_rungs, brackets
from detlab_master.core.searchers.async_halving import WORST, AsyncHalving, initial_trials, rung_units
from detlab_master.core.searchers.base import MAX_INVALID_IN_A_ROW, ExitReason, Search
from detlab_master.core.searchers.make import make

SPACE = parse(
    {
        "lr": {"type": "double", "minval": 0, "maxval": 1, "count": 3},
        "k": {"type": "categorical", "vals": [1, 2]},
    }
)


def new(config: SearcherConfig) -> Searcher:
    return make(config, SPACE, random.Random(1))


def brief(actions: list[Action]) -> list[str]:
    """create ids and stop ids, as in ['+0', '+1', '-0', 'end']"""
    out = []
    for action in actions:
        match action:
            case Create(request_id):
                out.append(f"+{request_id}")
            case Stop(request_id):
                out.append(f"-{request_id}")
            case Shutdown(failure, cancel):
                out.append("failed" if failure else "canceled" if cancel else "end")
    return out


def exits(search: Searcher, *reasons: tuple[int, ExitReason]) -> list[list[str]]:
    return [brief(search.step(Exited(request_id, reason))) for request_id, reason in reasons]


# Single, random, grid


@pytest.mark.parametrize(
    ("reason", "end"),
    [("completed", "end"), ("errored", "failed"), ("canceled", "canceled"), ("invalid_hp", "failed")],
)
def test_single_ends_with_its_trial(reason: ExitReason, end: str) -> None:
    search = new(SingleConfig(metric="loss"))
    assert brief(search.step(Started())) == ["+0"]
    assert search.progress(0.25) == 0.25
    assert brief(search.step(Validated(0, {}))) == []
    assert exits(search, (0, reason)) == [[end]]
    assert search.progress(0.0) == 1.0


def test_random_replaces_exits_up_to_max_trials_and_does_not_count_the_invalid() -> None:
    search = new(RandomConfig(metric="loss", max_trials=4, max_concurrent_trials=2))
    assert brief(search.step(Started())) == ["+0", "+1"]
    assert exits(
        search,
        (0, "errored"),
        (1, "invalid_hp"),
        (2, "canceled"),
        (3, "completed"),
        (4, "completed"),
    ) == [["+2"], ["+3"], ["+4"], [], ["end"]]


def test_random_without_a_limit_starts_all_and_progress_is_the_mean_of_known_trials() -> None:
    search = new(RandomConfig(metric="loss", max_trials=4, max_concurrent_trials=0))
    actions = search.step(Started())
    assert brief(actions) == ["+0", "+1", "+2", "+3"]
    creates = [action for action in actions if isinstance(action, Create)]
    assert len({create.hparams["lr"] for create in creates}) == 4
    assert all(0 <= create.seed < 2**31 for create in creates)
    assert search.progress(0.0) == 0
    search.step(Exited(2, "completed"))
    assert search.progress(0.5 + 0.1) == pytest.approx((0.5 + 0.1 + 1) / 4)


@pytest.mark.parametrize(
    ("reasons", "end"),
    [
        (["errored", "invalid_hp", "errored"], "failed"),
        (["canceled", "canceled"], "canceled"),
        (["canceled", "errored"], "end"),
        (["errored", "completed"], "end"),
    ],
)
def test_a_search_fails_or_is_canceled_only_if_all_its_trials_are(
    reasons: list[ExitReason], end: str
) -> None:
    search = new(RandomConfig(metric="loss", max_trials=2, max_concurrent_trials=1))
    search.step(Started())
    for request_id, reason in enumerate(reasons):
        last = brief(search.step(Exited(request_id, reason)))
    assert last == [end]


def test_grid_takes_its_points_from_the_end() -> None:
    search = new(GridConfig(metric="loss", max_concurrent_trials=4))
    actions = search.step(Started())
    points = [action.hparams for action in actions if isinstance(action, Create)]
    assert points == [{"k": 2, "lr": 1.0}, {"k": 2, "lr": 0.5}, {"k": 2, "lr": 0.0}, {"k": 1, "lr": 1.0}]
    assert exits(search, *((i, "invalid_hp") for i in range(6))) == [["+4"], ["+5"], [], [], [], ["failed"]]


# A space in which all is invalid

_REPLACING = [
    RandomConfig(metric="loss", max_trials=4, max_concurrent_trials=2),
    AsyncHalvingConfig(metric="loss", max_trials=4, num_rungs=2, time_metric="batches", max_time=4),
    AdaptiveAshaConfig(metric="loss", max_trials=4, time_metric="batches", max_time=4),
]


@pytest.mark.parametrize("config", _REPLACING, ids=lambda config: config.name)
def test_a_search_that_meets_only_invalid_points_ends_and_says_so(config: SearcherConfig) -> None:
    search = new(config)
    search.step(Started())
    for request_id in range(MAX_INVALID_IN_A_ROW - 1):
        assert len(brief(search.step(Exited(request_id, "invalid_hp")))) == 1
    for _ in range(2):  # it stays so
        with pytest.raises(SearcherError, match="100 trials in a row raised InvalidHP"):
            search.step(Exited(MAX_INVALID_IN_A_ROW - 1, "invalid_hp"))


@pytest.mark.parametrize("config", _REPLACING, ids=lambda config: config.name)
def test_one_valid_trial_in_between_and_the_search_goes_on(config: SearcherConfig) -> None:
    search = new(config)
    valid = brief(search.step(Started()))[0]
    assert valid == "+0"
    for request_id in range(1, MAX_INVALID_IN_A_ROW):
        search.step(Exited(request_id, "invalid_hp"))
    search.step(Validated(0, {"loss": 1.0, "batches": 1}))
    for request_id in range(MAX_INVALID_IN_A_ROW, 2 * MAX_INVALID_IN_A_ROW - 1):
        search.step(Exited(request_id, "invalid_hp"))
    search.step(Exited(0, "completed"))
    assert search.step(Exited(2 * MAX_INVALID_IN_A_ROW - 1, "invalid_hp"))


def test_a_grid_ends_by_itself_however_many_points_are_invalid() -> None:
    wide = parse({"k": {"type": "categorical", "vals": list(range(3 * MAX_INVALID_IN_A_ROW))}})
    search = make(GridConfig(metric="loss"), wide, random.Random(1))
    search.step(Started())
    last = [search.step(Exited(i, "invalid_hp")) for i in range(3 * MAX_INVALID_IN_A_ROW)][-1]
    assert brief(last) == ["failed"]


@pytest.mark.parametrize("config", [SingleConfig(metric="loss"), GridConfig(metric="loss"), *_REPLACING])
def test_branches_of_architectures_are_searched_by_every_method(config: SearcherConfig) -> None:
    """Conditional hyperparameters: each trial has the keys of its branch alone, and a seed names them all."""
    space = parse(
        {
            "net": {
                "type": "categorical",
                "vals": [
                    {"kind": "cnn", "blocks": {"type": "int", "minval": 1, "maxval": 3, "count": 2}},
                    {"kind": "mlp", "width": {"type": "int", "minval": 8, "maxval": 9, "count": 2}},
                ],
            }
        }
    )

    def nets() -> list[Any]:
        search, found = make(config, space, random.Random(5)), []
        actions = search.step(Started())
        while creates := [action for action in actions if isinstance(action, Create)]:
            found += [create.hparams["net"] for create in creates]
            actions = [a for c in creates for a in search.step(Exited(c.request_id, "completed"))]
        return found

    assert nets() == nets()
    assert all(set(net) == {"kind", {"cnn": "blocks", "mlp": "width"}[net["kind"]]} for net in nets())
    if isinstance(config, GridConfig):
        assert nets() == [
            {"kind": "mlp", "width": 9},
            {"kind": "mlp", "width": 8},
            {"kind": "cnn", "blocks": 3},
            {"kind": "cnn", "blocks": 1},
        ]


# ASHA


@pytest.mark.parametrize(
    ("max_time", "divisor", "num_rungs", "units"),
    [
        (16, 4, 3, [1, 4, 16]),
        (900, 4, 5, [3, 14, 56, 225, 900]),
        (9, 3, 2, [3, 9]),
        (5, 4, 4, [1, 1, 1, 5]),
        (7, 1.5, 3, [3, 4, 7]),
        (12, 4, 1, [12]),
    ],
)
def test_rung_units(max_time: int, divisor: float, num_rungs: int, units: list[int]) -> None:
    assert rung_units(max_time, divisor, num_rungs) == units


@pytest.mark.parametrize(
    ("concurrent", "trials", "expected"), [(3, 10, 3), (16, 10, 10), (0, 100, 16), (0, 10, 10), (0, 1, 1)]
)
def test_how_many_start(concurrent: int, trials: int, expected: int) -> None:
    assert initial_trials(3, trials, 4, concurrent) == expected


def asha(
    trials: int = 8, concurrent: int = 4, divisor: float = 2, **more: Any
) -> tuple[Search, AsyncHalving]:
    options: dict[str, Any] = {"metric": "loss", "smaller_is_better": True, "time_metric": "batches", **more}
    method = AsyncHalving(
        max_time=4,
        num_rungs=3,
        max_trials=trials,
        divisor=divisor,
        max_concurrent_trials=concurrent,
        **options,
    )
    search = Search(method, SPACE, random.Random(0))
    search.step(Started())
    return search, method


def report(search: Searcher, request_id: int, loss: Any, batches: Any) -> list[str]:
    return brief(search.step(Validated(request_id, {"loss": loss, "batches": batches})))


def rungs(method: AsyncHalving) -> list[list[float]]:
    return [rung.values for rung in method.rungs]


def test_asha_step_by_step() -> None:
    # Rungs at 1, 2 and 4 batches; the better half goes on.
    search, method = asha()
    assert report(search, 0, 0.5, 1) == []  # the first of its rung always goes on: keep = max(1 // 2, 1)
    assert report(search, 1, 0.6, 1) == ["-1", "+4"]  # second of 2, keep 1
    assert report(search, 2, 0.4, 1) == []  # first of 3, keep 1
    assert report(search, 3, 0.4, 1) == []  # before its equal, so first of 4, keep 2
    assert rungs(method) == [[0.4, 0.4, 0.5, 0.6], [], []]
    assert report(search, 0, 0.45, 1.9) == []  # not there yet
    assert report(search, 0, 0.45, 2.7) == []  # at the second rung, the first
    assert report(search, 2, 0.44, 2) == []  # the best of 2
    assert report(search, 3, 0.47, 2) == ["-3", "+5"]  # the last of 3
    assert report(search, 2, 0.3, 4) == ["-2", "+6"]  # at the top: done
    assert rungs(method) == [[0.4, 0.4, 0.5, 0.6], [0.44, 0.45, 0.47], [0.3]]
    # A stopped trial's late reports do not count; its exit brings nothing new.
    assert report(search, 2, 0.1, 4) == []
    assert exits(search, (1, "completed"), (2, "completed"), (3, "errored")) == [[], [], []]
    assert rungs(method) == [[0.4, 0.4, 0.5, 0.6], [0.44, 0.45, 0.47], [0.3]]
    # A report far along is judged at every rung on its way.
    assert report(search, 4, 0.2, 4) == ["-4", "+7"]
    assert rungs(method) == [[0.2, 0.4, 0.4, 0.5, 0.6], [0.2, 0.44, 0.45, 0.47], [0.2, 0.3]]
    # All 8 are created: who is stopped now is not replaced.
    assert report(search, 5, 0.9, 1) == ["-5"]


def test_asha_larger_is_better() -> None:
    search, method = asha(smaller_is_better=False, metric="loss")
    assert report(search, 0, 0.5, 1) == []
    assert report(search, 1, 0.4, 1) == ["-1", "+4"]
    assert rungs(method)[0] == [-0.5, -0.4]


def test_asha_failures_count_as_worst_and_the_invalid_as_never_been() -> None:
    search, method = asha(trials=5)
    report(search, 0, 0.5, 1)
    report(search, 1, 0.3, 1)
    assert exits(search, (1, "errored")) == [["+4"]]
    assert rungs(method) == [[0.3, 0.5], [1.7976931348623157e308], []]
    assert exits(search, (2, "canceled")) == [[]]  # five are created already
    assert exits(search, (0, "invalid_hp")) == [["+5"]]  # but this one does not count
    assert rungs(method)[0] == [0.3, 1.7976931348623157e308]
    assert exits(search, (3, "completed")) == [[]]  # a trial that ends by itself just leaves
    assert exits(search, (4, "completed"), (5, "completed")) == [[], ["end"]]


@pytest.mark.parametrize(
    ("reason", "values", "created", "counts"),
    [  # of a trial that has passed the first rung, in a search that may create one more
        ("completed", [[0.3, 0.5], [], []], [], True),  # it leaves; nothing takes its place
        ("errored", [[0.3, 0.5], [WORST], []], ["+4"], True),  # the worst, at the rung that it did not reach
        ("canceled", [[0.3, 0.5], [WORST], []], ["+4"], True),
        ("invalid_hp", [[0.5], [], []], ["+4"], False),  # as if it had never been
    ],
)
def test_asha_a_trial_that_ends_between_two_rungs(
    reason: ExitReason, values: list[list[float]], created: list[str], counts: bool
) -> None:
    search, method = asha(trials=5)
    report(search, 0, 0.5, 1)
    report(search, 1, 0.3, 1)
    report(search, 1, 0.2, 1.5)
    assert exits(search, (1, reason)) == [created]
    assert rungs(method) == values
    left = 5 - 4 - (len(created) if counts else 0)
    more = [exits(search, (request_id, "errored"))[0] for request_id in (0, 2, 3)]
    assert sum(bool(actions) for actions in more) == left


def test_asha_replaces_an_invalid_trial_even_after_stopping_it() -> None:
    search, method = asha(trials=4)
    report(search, 0, 0.5, 1)
    assert report(search, 1, 0.6, 1) == ["-1"]
    assert exits(search, (1, "invalid_hp")) == [["+4"]]
    assert rungs(method)[0] == [0.5]


def test_asha_takes_what_is_no_number_for_the_worst() -> None:
    search, method = asha()
    report(search, 0, 0.5, 1)
    assert report(search, 1, float("nan"), 1) == ["-1", "+4"]
    assert report(search, 2, "NaN", 1) == ["-2", "+5"]
    assert report(search, 3, "-Infinity", 1) == []
    assert report(search, 4, 0.1, float("nan")) == []
    assert rungs(method)[0][:2] == [float("-inf"), 0.5]


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"batches": 1}, "lacks the metric 'loss' that searcher.metric names; it has 'batches'"),
        ({"loss": 1.0}, "lacks the metric 'batches' that searcher.time_metric names"),
        ({"loss": "low", "batches": 1}, "must be a number, but a validation report has 'low'"),
        ({"loss": 1.0, "batches": None}, "must be a number, but a validation report has None"),
        ({"loss": True, "batches": 1}, "must be a number"),
    ],
)
def test_asha_cannot_go_on_without_its_metrics(metrics: dict[str, Any], words: str) -> None:
    search, method = asha()
    with pytest.raises(SearcherError, match=words):
        search.step(Validated(0, metrics))
    assert rungs(method) == [[], [], []]
    assert report(search, 0, 0.5, 1) == []


def test_asha_progress() -> None:
    search, _ = asha(trials=4)
    assert search.progress(0.0) == 0
    report(search, 0, 0.5, 4)
    report(search, 1, 0.6, 1)
    assert search.progress(0.0) == pytest.approx(2 / 4.8)
    report(search, 2, 0.6, 1)
    report(search, 3, 0.6, 1)
    assert search.progress(0.0) == pytest.approx(4 / 4.8)
    exits(search, *((i, "completed") for i in range(4)))
    assert search.progress(0.0) == 1.0


# Adaptive ASHA


@pytest.mark.parametrize(
    ("max_time", "trials", "divisor", "max_rungs", "mode", "expected"),
    [
        (16, 16, 4, 5, "standard", [3, 2]),
        (16, 16, 4, 5, "aggressive", [3]),
        (16, 16, 4, 5, "conservative", [3, 2, 1]),
        (10_000, 2000, 4, 5, "standard", [5, 4, 3]),
        (10_000, 2000, 4, 3, "conservative", [3, 2, 1]),
        (10_000, 1, 4, 5, "standard", [1]),
        (3, 1000, 4, 5, "standard", [1]),
        (1000, 5000, 10, 9, "aggressive", [3]),
        (100, 100, 2, 4, "standard", [4, 3, 2]),
    ],
)
def test_bracket_rungs(
    max_time: int, trials: int, divisor: float, max_rungs: int, mode: Mode, expected: list[int]
) -> None:
    assert bracket_rungs(max_time, trials, divisor, max_rungs, mode) == expected


@pytest.mark.parametrize(
    ("rung_counts", "trials", "concurrent", "expected"),
    [
        # weights 16/3 and 4/2: 11 and 4 trials, and the one left over to the first
        ([3, 2], 16, 16, [(3, 12, 8), (2, 4, 8)]),
        ([1, 2, 3], 16, 16, [(3, 12, 6), (2, 3, 5), (1, 1, 5)]),
        ([3, 2], 16, 0, [(3, 12, 4), (2, 4, 4)]),
        ([2, 1], 100, 0, [(2, 67, 33), (1, 33, 33)]),
        ([3, 2, 1], 16, 1, [(3, 12, 1), (2, 3, 1), (1, 1, 1)]),
        ([3], 16, 5, [(3, 16, 5)]),
        ([3, 2, 1], 2, 16, [(3, 1, 6), (2, 1, 5), (1, 1, 5)]),
    ],
)
def test_brackets(
    rung_counts: list[int], trials: int, concurrent: int, expected: list[tuple[int, int, int]]
) -> None:
    assert brackets(rung_counts, trials, 4, concurrent) == [Bracket(*bracket) for bracket in expected]


def test_adaptive_asha_keeps_its_brackets_apart() -> None:
    config = AdaptiveAshaConfig(
        metric="loss", max_trials=16, max_time=16, time_metric="batches", max_concurrent_trials=4
    )
    # Brackets of 3 rungs (1, 4, 16 batches; 12 trials) and of 2 (4, 16; 4 trials), two at a time each.
    search = new(config)
    assert brief(search.step(Started())) == ["+0", "+1", "+2", "+3"]
    assert report(search, 0, 0.5, 1) == []
    assert report(search, 1, 0.6, 1) == ["-1", "+4"]
    assert report(search, 2, 0.9, 1) == []  # no rung at 1 in its bracket
    assert report(search, 3, 0.8, 4) == []  # the first of its rung
    assert report(search, 2, 0.9, 4) == ["-2", "+5"]
    assert report(search, 5, 0.95, 4) == ["-5", "+6"]  # 5 took the place of 2, in the same bracket
    assert search.progress(0.0) == pytest.approx((2 / (1.2 * 12) + 3 / (1.2 * 4)) / 2)


def test_given_bracket_rungs_go_before_the_mode() -> None:
    config = AdaptiveAshaConfig(
        metric="loss",
        max_trials=4,
        max_time=16,
        time_metric="batches",
        bracket_rungs=[1],
        max_concurrent_trials=2,
    )
    search = new(config)
    assert brief(search.step(Started())) == ["+0", "+1"]
    assert report(search, 0, 0.5, 15) == []
    assert report(search, 0, 0.5, 16) == ["-0", "+2"]


# Mistakes of the caller


def test_events_about_trials_that_are_not_there_are_refused() -> None:
    search = new(SingleConfig(metric="loss"))
    with pytest.raises(ValueError, match="no trial 0"):
        search.step(Validated(0, {}))
    search.step(Started())
    with pytest.raises(ValueError, match="started already"):
        search.step(Started())
    search.step(Exited(0, "completed"))
    with pytest.raises(ValueError, match="exited already"):
        search.step(Exited(0, "completed"))
    with pytest.raises(ValueError, match="no time_metric or max_time"):
        new(AsyncHalvingConfig(metric="loss", num_rungs=2, max_trials=3))
