"""How many trials a search would run, and for how long: what a person asks before the search costs anything."""

from dataclasses import dataclass

from detlab_master.core.expconf.searcher import (
    AdaptiveAshaConfig,
    AsyncHalvingConfig,
    GridConfig,
    RandomConfig,
    SearcherConfig,
    SingleConfig,
)
from detlab_master.core.hyperparameters import Generator, Grid, Nested
from detlab_master.core.searchers.async_halving import rung_units
from detlab_master.core.searchers.make import make, planned_brackets
from detlab_master.core.searchers.simulate import simulate

MAX_PLAYED_TRIALS = 50_000


class TooManyTrials(ValueError):
    """The search is too large to be played through; the message is for its author."""


@dataclass(frozen=True)
class Planned:
    """So many trials that train for so long."""

    count: int
    units: int | None  # None: to the end that their code sets
    unit: str = ""  # the time metric; "" where units is None


def preview(config: SearcherConfig, space: Nested, rng: Generator) -> list[Planned]:
    """The trials of a search, the shortest first.

    A halving search is played through, with metrics drawn at random: how many trials reach a rung depends on
    their order, not on what they measure. Its counts are those of one run; another differs by a few.

    Args:
        config, space: of the resolved configuration.
        rng: for the metrics and the points of the space.

    Raises:
        TooManyTrials: a halving search of more than `MAX_PLAYED_TRIALS`.
    """
    match config:
        case SingleConfig():
            return [Planned(1, None)]
        case RandomConfig():
            return [Planned(config.max_trials, None)]
        case GridConfig():
            return [Planned(Grid(space).size, None)]
        case AsyncHalvingConfig() | AdaptiveAshaConfig():
            return _halving(config, space, rng)


def _halving(config: AsyncHalvingConfig | AdaptiveAshaConfig, space: Nested, rng: Generator) -> list[Planned]:
    if config.max_trials > MAX_PLAYED_TRIALS:
        raise TooManyTrials(
            f"searcher.max_trials is {config.max_trials}: a preview plays the search through, and does so for up to "
            f"{MAX_PLAYED_TRIALS} trials. Look at a smaller max_trials; the shares stay about the same"
        )
    assert config.max_time is not None and config.time_metric is not None  # a resolved configuration
    rungs = {
        units
        for bracket in planned_brackets(config)
        for units in rung_units(config.max_time, config.divisor, bracket.num_rungs)
    }
    played = simulate(
        make(config, space, rng),
        metric=config.metric,
        model=lambda hparams, units: rng.random(),
        length=config.max_time,
        time_metric=config.time_metric,
        reports=sorted(rungs),
    )
    return [Planned(count, units, config.time_metric) for units, count in played.lengths().items()]
