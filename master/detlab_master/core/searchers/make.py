"""From a searcher's configuration to a search."""

from detlab_master.core.expconf.searcher import (
    AdaptiveAshaConfig,
    AsyncHalvingConfig,
    GridConfig,
    RandomConfig,
    SearcherConfig,
    SingleConfig,
)
from detlab_master.core.hyperparameters import Generator, Nested
from detlab_master.core.searchers.adaptive_asha import Bracket, bracket_rungs, brackets
from detlab_master.core.searchers.async_halving import AsyncHalving
from detlab_master.core.searchers.base import Method, Search, Searcher
from detlab_master.core.searchers.grid import GridSearch
from detlab_master.core.searchers.random import RandomSearch
from detlab_master.core.searchers.single import SingleSearch
from detlab_master.core.searchers.tournament import Tournament


def make(config: SearcherConfig, space: Nested, rng: Generator) -> Searcher:
    """The search that a resolved configuration asks for, at its beginning.

    Args:
        config: of the resolved experiment configuration: times are set where the method needs them.
        space: `hyperparameters.parse(...)` of the same configuration.
        rng: `random.Random(experiment_seed)`, of which the search becomes the only user.
    """
    return Search(_method(config, space), space, rng)


def _method(config: SearcherConfig, space: Nested) -> Method:
    match config:
        case SingleConfig():
            return SingleSearch()
        case RandomConfig():
            return RandomSearch(config.max_trials, config.max_concurrent_trials)
        case GridConfig():
            return GridSearch(space, config.max_concurrent_trials)
        case AsyncHalvingConfig():
            (bracket,) = planned_brackets(config)
            return _async_halving(config, bracket)
        case AdaptiveAshaConfig():
            return Tournament([_async_halving(config, bracket) for bracket in planned_brackets(config)])


def planned_brackets(config: AsyncHalvingConfig | AdaptiveAshaConfig) -> list[Bracket]:
    """The brackets of a halving search, most rungs first."""
    if isinstance(config, AsyncHalvingConfig):
        return [Bracket(config.num_rungs, config.max_trials, config.max_concurrent_trials)]
    _, max_time = _time(config)
    rungs = config.bracket_rungs or bracket_rungs(
        max_time, config.max_trials, config.divisor, config.max_rungs, config.mode
    )
    return brackets(rungs, config.max_trials, config.divisor, config.max_concurrent_trials)


def _async_halving(config: AsyncHalvingConfig | AdaptiveAshaConfig, bracket: Bracket) -> AsyncHalving:
    time_metric, max_time = _time(config)
    return AsyncHalving(
        metric=config.metric,
        smaller_is_better=config.smaller_is_better,
        time_metric=time_metric,
        max_time=max_time,
        num_rungs=bracket.num_rungs,
        max_trials=bracket.max_trials,
        divisor=config.divisor,
        max_concurrent_trials=bracket.max_concurrent_trials,
    )


def _time(config: AsyncHalvingConfig | AdaptiveAshaConfig) -> tuple[str, int]:
    if config.time_metric is None or config.max_time is None:
        raise ValueError(
            f"searcher {config.name} has no time_metric or max_time; resolve the configuration first"
        )
    return config.time_metric, config.max_time
