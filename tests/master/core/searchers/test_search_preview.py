"""What a search would do, asked before it runs."""

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
from detlab_master.core.searchers.preview import MAX_PLAYED_TRIALS, Planned, TooManyTrials, preview

SPACE = parse(
    {
        "lr": {"type": "double", "minval": 0, "maxval": 1, "count": 3},
        "net": {
            "type": "categorical",
            "vals": ["linear", {"width": {"type": "int", "minval": 1, "maxval": 4, "count": 4}}],
        },
    }
)
ALL: dict[str, Any] = {"metric": "loss", "time_metric": "epochs"}


def asked(config: SearcherConfig, seed: int = 0) -> list[Planned]:
    return preview(config, SPACE, random.Random(seed))


@pytest.mark.parametrize(
    ("config", "planned"),
    [
        (SingleConfig(metric="loss"), [Planned(1, None)]),
        (RandomConfig(metric="loss", max_trials=10**7), [Planned(10**7, None)]),
        (GridConfig(metric="loss"), [Planned(3 * 5, None)]),
        (
            AsyncHalvingConfig(**ALL, max_trials=9, num_rungs=1, max_time=7),
            [Planned(9, 7, "epochs")],
        ),
        (AdaptiveAshaConfig(**ALL, max_trials=1, max_time=64), [Planned(1, 64, "epochs")]),
    ],
)
def test_what_does_not_depend_on_chance(config: Any, planned: list[Planned]) -> None:
    assert asked(config) == planned


def test_a_halving_search_is_played_through() -> None:
    config = AdaptiveAshaConfig(**ALL, max_trials=200, max_time=256)
    planned = asked(config)
    # R = min(5, log4(256) + 1, log4(200) + 1) = 4 rungs; brackets of 4, 3 and 2 of them.
    assert [each.units for each in planned] == [4, 16, 64, 256]
    assert sum(each.count for each in planned) == 200
    assert planned[0].count > 200 / 2
    assert planned[-1].count < 200 / 4
    assert planned == asked(config)
    other = asked(config, seed=1)
    assert [each.units for each in other] == [4, 16, 64, 256]
    assert all(abs(a.count - b.count) < 40 for a, b in zip(planned, other, strict=True))


def test_the_largest_search_that_is_played_and_the_next() -> None:
    config = AdaptiveAshaConfig(**ALL, max_trials=5_000, max_time=10**9)
    assert sum(each.count for each in asked(config)) == 5_000
    with pytest.raises(TooManyTrials, match="up to 50000 trials"):
        asked(AdaptiveAshaConfig(**ALL, max_trials=MAX_PLAYED_TRIALS + 1, max_time=9))
