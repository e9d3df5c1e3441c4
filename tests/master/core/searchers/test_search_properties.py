"""What holds for every search, however its trials go: it can be replayed, keeps its limits and ends."""

import json
import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detlab_master.core.expconf.searcher import (
    AdaptiveAshaConfig,
    AsyncHalvingConfig,
    GridConfig,
    RandomConfig,
    SearcherConfig,
    SingleConfig,
)
from detlab_master.core.hyperparameters import Grid, parse
from detlab_master.core.searchers import (
    Create,
    Event,
    Exited,
    Shutdown,
    Started,
    Stop,
    Validated,
    event_from_json,
    event_to_json,
)
from detlab_master.core.searchers.make import make
from detlab_master.core.searchers.simulate import simulate

SPACE = parse(
    {
        "lr": {"type": "log", "minval": -4, "maxval": 0, "base": 10, "count": 4},
        "layers": {"type": "int", "minval": 1, "maxval": 4, "count": 4},
    }
)

_small = {"max_trials": st.integers(1, 30), "max_concurrent_trials": st.integers(0, 8)}
_timed: dict[str, Any] = {
    "time_metric": st.just("epochs"),
    "max_time": st.integers(1, 40),
    "divisor": st.sampled_from([1.5, 2, 3, 4]),
    "smaller_is_better": st.booleans(),
}
CONFIGS: st.SearchStrategy[SearcherConfig] = st.one_of(
    st.builds(SingleConfig, metric=st.just("loss")),
    st.builds(RandomConfig, metric=st.just("loss"), **_small),
    st.builds(GridConfig, metric=st.just("loss"), max_concurrent_trials=st.integers(0, 8)),
    st.builds(AsyncHalvingConfig, metric=st.just("loss"), num_rungs=st.integers(1, 5), **_small, **_timed),
    st.builds(
        AdaptiveAshaConfig,
        metric=st.just("loss"),
        mode=st.sampled_from(["aggressive", "standard", "conservative"]),
        **_small,
        **_timed,
    ),
)


@settings(max_examples=150, deadline=None)
@given(config=CONFIGS, seed=st.integers(0, 2**32 - 1), chance=st.randoms(use_true_random=False))
def test_any_search_ends_within_its_limits_and_can_be_replayed(
    config: SearcherConfig, seed: int, chance: random.Random
) -> None:
    search = make(config, SPACE, random.Random(seed))
    length: int = config.max_time or 8
    events: list[Event] = []
    answers = []
    trained: dict[int, int] = {}
    stopped: set[int] = set()
    ended: list[tuple[int, str]] = []
    shutdown: Shutdown | None = None
    created = 0

    def step(event: Event) -> None:
        nonlocal shutdown, created
        assert shutdown is None, "heard of after its end"
        events.append(event)
        actions = search.step(event)
        answers.append(actions)
        for action in actions:
            match action:
                case Create(request_id):
                    assert request_id == created
                    created += 1
                    trained[request_id] = 0
                case Stop(request_id):
                    assert request_id in trained and request_id not in stopped
                    stopped.add(request_id)
                case Shutdown():
                    assert action is actions[-1] and not trained
                    shutdown = action
        assert 0 <= search.progress(0.5 * len(trained)) <= 1

    step(Started())
    limit = getattr(config, "max_concurrent_trials", 1)
    if limit >= 5:  # below the number of brackets, each bracket still gets one
        assert created <= limit
    invalid_left = 5
    while shutdown is None:
        request_id = chance.choice(sorted(trained))
        reason = None
        if chance.random() < 0.05:
            reason = chance.choice(["errored", "canceled", "invalid_hp"])
            if reason == "invalid_hp":
                reason = reason if invalid_left else "errored"
                invalid_left -= 1
        elif trained[request_id] < length and request_id not in stopped:
            trained[request_id] += chance.randint(1, 3)
            loss = chance.choice([chance.random(), 0.5, float("nan")])
            step(Validated(request_id, {"loss": loss, "epochs": min(trained[request_id], length)}))
        else:
            reason = "completed"
        if reason is not None and shutdown is None:
            del trained[request_id]
            stopped.discard(request_id)
            ended.append((request_id, reason))
            step(Exited(request_id, reason))  # type: ignore[arg-type]  # one of the four

    valid = sum(reason != "invalid_hp" for _, reason in ended)
    match config:
        case SingleConfig():
            assert created == 1
        case GridConfig():
            assert created == len(Grid(SPACE))
        case RandomConfig():
            assert valid == config.max_trials
        case AsyncHalvingConfig():
            assert valid <= config.max_trials
        case AdaptiveAshaConfig():
            assert valid <= config.max_trials + config.max_rungs  # each bracket has at least one
    assert shutdown.failure == all(reason in ("errored", "invalid_hp") for _, reason in ended)
    assert shutdown.cancel == all(reason == "canceled" for _, reason in ended)

    again = make(config, SPACE, random.Random(seed))
    recorded = [json.loads(json.dumps(event_to_json(event), allow_nan=False)) for event in events]
    assert [again.step(event_from_json(event)) for event in recorded] == answers


def _loss(hparams: Any, units: int) -> float:
    return abs(float(hparams["lr"]) - 0.01) + 1 / (1 + units)


def _adaptive(**more: Any) -> AdaptiveAshaConfig:
    options = {"metric": "loss", "max_trials": 64, "max_time": 64, "time_metric": "batches", **more}
    return AdaptiveAshaConfig(**options)


def test_a_simulation_trains_the_good_ones_long_and_most_not() -> None:
    result = simulate(make(_adaptive(), SPACE, random.Random(5)), metric="loss", model=_loss, length=64)
    assert result.shutdown == Shutdown()
    assert len(result.trials) == 64
    lengths = result.lengths()
    assert set(lengths) == {1, 4, 16, 64}  # the rungs of brackets of 4, 3 and 2 rungs
    assert sum(lengths.values()) == 64
    assert lengths[64] < 16 and lengths[1] > 24
    assert result.most_open <= 16 + 3  # the replaced may be on their way out
    spent = sum(trial.length for trial in result.trials)
    assert spent < 64 * 64 / 2
    best = min(result.trials, key=lambda trial: abs(trial.hparams["lr"] - 0.01))
    assert best.length > 1


def test_simulations_are_the_same_for_the_same_seed() -> None:
    runs = [
        simulate(
            make(_adaptive(), SPACE, random.Random(5)),
            metric="loss",
            model=_loss,
            length=64,
            period=3,
            rng=random.Random(seed),
        )
        for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_random_search_trains_every_trial_to_the_end() -> None:
    config = RandomConfig(metric="loss", max_trials=7)
    result = simulate(make(config, SPACE, random.Random(5)), metric="loss", model=_loss, length=10, period=4)
    assert result.lengths() == {10: 7}


@pytest.mark.parametrize(
    "bad", [{}, {"type": "exited", "request_id": 1, "reason": "bored"}, {"type": "validated"}]
)
def test_what_is_no_event_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a searcher event"):
        event_from_json(bad)


def test_an_event_costs_the_same_in_a_large_search() -> None:
    config = AsyncHalvingConfig(
        metric="loss",
        num_rungs=4,
        max_trials=40_000,
        max_time=64,
        time_metric="epochs",
        max_concurrent_trials=1000,
    )
    search = make(config, SPACE, random.Random(0))
    search.step(Started())

    def cost(trials: range) -> float:
        begin = time.perf_counter()
        for request_id in trials:
            search.step(Validated(request_id, {"loss": (request_id * 7919) % 10007, "epochs": 1}))
            search.step(Exited(request_id, "errored"))
        return time.perf_counter() - begin

    early = min(cost(range(start, start + 500)) for start in (0, 500, 1000))
    cost(range(1500, 30_000))
    late = min(cost(range(start, start + 500)) for start in (30_000, 30_500, 31_000))
    assert late < 4 * early
