"""From a captured cell and a few options to an experiment configuration; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from detlab_magics import searchspace
from detlab_magics.capture import Captured
from detlab_magics.errors import OptionError

SEARCHERS = ("single", "random", "grid", "asha", "adaptive_asha")
_HALVING = ("async_halving", "adaptive_asha")
_WITH_TRIALS = ("random", *_HALVING)
_COMMON = ("metric", "smaller_is_better", "source_trial_id", "source_checkpoint_uuid", "max_length", "unit")
_DIVISOR, _MOST_RUNGS = 4, 5  # adaptive_asha's own defaults


@dataclass(frozen=True)
class Options:
    """What a person says of an experiment beside its code. None: as the configuration file says, or the default."""

    name: str | None = None
    searcher: str | None = None  # of SEARCHERS
    max_trials: int | None = None
    metric: str | None = None
    smaller_is_better: bool | None = None
    max_length: int | None = None  # batches that a trial trains at most
    slots: int | None = None  # per trial
    pool: str | None = None
    validation_period: int | None = None  # batches
    batch_size: int | None = None  # of all slots of a trial together


def experiment_config(captured: Captured, options: Options, base: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration to submit: `base`, over it what the cell declares, over it the options.

    Raises OptionError for what is missing or does not go together.
    """
    _check_numbers(options)
    config = dict(base)
    config["name"] = options.name or base.get("name") or captured.target
    config["entrypoint"] = captured.entrypoint
    hyperparameters = {**_section(base, "hyperparameters"), **captured.hyperparameters}
    if options.batch_size is not None:
        hyperparameters["global_batch_size"] = options.batch_size
    if captured.needs_batch_size and "global_batch_size" not in hyperparameters:
        raise OptionError(
            "the cell asks its context for the batch size: say it with --batch-size, such as 64"
        )
    config["hyperparameters"] = hyperparameters
    config["searcher"] = searcher = _searcher(captured, options, _section(base, "searcher"), hyperparameters)
    if options.validation_period is not None:
        config["min_validation_period"] = {"batches": options.validation_period}
    elif options.max_length is not None and "min_validation_period" not in base:
        config["min_validation_period"] = {"batches": _period(searcher, options.max_length)}
    resources = _section(base, "resources")
    if options.slots is not None:
        resources["slots_per_trial"] = options.slots
    if options.pool is not None:
        resources["resource_pool"] = options.pool
    if resources:
        config["resources"] = resources
    return config


def summary(config: Mapping[str, Any]) -> str:
    """What the search is going to do, in a few words."""
    searcher = config["searcher"]
    trials = searcher.get("max_trials")
    count = f" of {trials} trial{'s' * (trials != 1)}" if trials else ""
    least = "lowest" if searcher.get("smaller_is_better", True) else "highest"
    return f"{searcher['name']}{count}, looking for the {least} {searcher['metric']}"


def _searcher(
    captured: Captured, options: Options, base: Mapping[str, Any], hyperparameters: Mapping[str, Any]
) -> dict[str, Any]:
    name = options.searcher or base.get("name")
    if name is None:
        name = "adaptive_asha" if searchspace.varies(hyperparameters) else "single"
    if options.searcher is not None and options.searcher not in SEARCHERS:
        raise OptionError(f"there is no searcher {name!r}; there are {', '.join(SEARCHERS)}")
    name = {"asha": "async_halving"}.get(name, name)
    searcher = dict(base)
    if base.get("name") not in (None, name):  # the other method's own settings mean nothing here
        searcher = {key: value for key, value in base.items() if key in _COMMON}
    searcher["name"] = name
    if options.metric is not None:
        searcher["metric"] = options.metric
    if not searcher.get("metric"):
        raise OptionError(
            "say with --metric which validation metric to go by, such as --metric accuracy --larger-is-better"
        )
    if options.smaller_is_better is not None:
        searcher["smaller_is_better"] = options.smaller_is_better
    if options.max_trials is not None:
        if name not in _WITH_TRIALS:
            what = "one trial" if name == "single" else "every combination of the hyperparameters"
            raise OptionError(
                f"searcher {name} runs {what}: leave --max-trials out, or choose another --searcher"
            )
        searcher["max_trials"] = options.max_trials
    if name in _WITH_TRIALS and not searcher.get("max_trials"):
        raise OptionError(f"say with --max-trials how many trials {name} may run, such as 16")
    _set_length(searcher, options, captured)
    return searcher


def _set_length(searcher: dict[str, Any], options: Options, captured: Captured) -> None:
    name, length = searcher["name"], options.max_length
    if length is None:
        in_code = not captured.is_trial_class and name not in _HALVING  # a script may say it itself
        if not in_code and not searcher.get("max_length") and not searcher.get("max_time"):
            raise OptionError(
                "say with --max-length how long a trial trains at most, in batches, such as 600"
            )
    else:
        searcher["max_length"] = {"batches": length}
        searcher.pop("unit", None)
        if name in _HALVING:
            searcher |= {"time_metric": "batches", "max_time": length}
        else:
            searcher.pop("time_metric", None)
            searcher.pop("max_time", None)
    if name == "async_halving" and not searcher.get("num_rungs"):
        searcher["num_rungs"] = _rungs(
            length or _longest(searcher), searcher["max_trials"], _divisor(searcher)
        )


def _longest(searcher: Mapping[str, Any]) -> int:
    """How long a trial may train, in whatever unit the configuration file uses."""
    length = searcher.get("max_time") or searcher.get("max_length")
    if isinstance(length, dict):
        length = next(iter(length.values()), None)
    return length if isinstance(length, int) and length > 0 else 1


def _rungs(length: int, trials: int, divisor: float) -> int:
    """As many comparisons as both the training and the number of trials can be divided into."""
    rungs = 1
    while rungs < _MOST_RUNGS and divisor**rungs <= min(length, trials):
        rungs += 1
    return rungs


def _period(searcher: Mapping[str, Any], length: int) -> int:
    """Batches between validations: a search that stops trials early needs one at its lowest rung."""
    if searcher["name"] not in _HALVING:
        return max(length // 10, 1)
    divisor = _divisor(searcher)
    rungs = _number(searcher.get("num_rungs")) or min(
        _rungs(length, searcher["max_trials"], divisor),
        int(_number(searcher.get("max_rungs")) or _MOST_RUNGS),
    )
    return max(int(length / divisor ** (rungs - 1)), 1)


def _divisor(searcher: Mapping[str, Any]) -> float:
    divisor = _number(searcher.get("divisor"))
    return (
        divisor if divisor is not None and divisor > 1 else _DIVISOR
    )  # the master says what is wrong with others


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) else None


def _check_numbers(options: Options) -> None:
    for option in ("max_trials", "max_length", "validation_period", "batch_size", "slots"):
        value = getattr(options, option)
        least = 0 if option == "slots" else 1
        if value is not None and value < least:
            raise OptionError(f"--{option.replace('_', '-')} is {value}: it must be at least {least}")


def _section(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = config.get(name) or {}
    if not isinstance(section, Mapping):
        raise OptionError(f"{name} is {section!r:.40} in the configuration file: it must hold keys")
    return dict(section)
