"""From a submitted configuration to the one that runs: check, merge, fill in, check again.

Order: what was submitted (and the template) is checked by itself, for types and unknown keys; then all layers
are merged; then what is required must be there, and rules between keys hold. Problems are collected, not
found one by one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from detlab_master.core import hyperparameters as hp
from detlab_master.core.expconf import legacy
from detlab_master.core.expconf.base import show
from detlab_master.core.expconf.defaults import cluster_config, pod_spec
from detlab_master.core.expconf.errors import ConfigError, ConfigErrors, from_pydantic, path_of
from detlab_master.core.expconf.merge import merge
from detlab_master.core.expconf.schema import ExperimentConfig
from detlab_master.core.expconf.searcher import (
    AdaptiveAshaConfig,
    AsyncHalvingConfig,
    GridConfig,
    RandomConfig,
)
from detlab_master.core.expconf.shorthand import write_out
from detlab_master.core.searchers.adaptive_asha import bracket_rungs, brackets
from detlab_master.core.searchers.async_halving import initial_trials

MAX_TRIALS_AT_ONCE = 10_000
MAX_GRID_POINTS = 1_000_000


@dataclass(frozen=True)
class Resolved:
    config: ExperimentConfig
    space: hp.Nested  # of config.hyperparameters
    as_dict: dict[
        str, Any
    ]  # the configuration with every key, as JSON: what is kept and what tasks are given
    warnings: list[str]


def resolve(
    submitted: Mapping[str, Any],
    *,
    template: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any],
    experiment_seed: int,
    default_name: str,
    unmanaged: bool = False,
) -> Resolved:
    """The configuration that an experiment runs with.

    Args:
        submitted: as `parse_experiment_config` gives it.
        template: goes below it.
        defaults: the cluster's; see `defaults.cluster_config`.
        experiment_seed: where none is set; below 2**32.
        default_name: where none is set.
        unmanaged: the experiment runs elsewhere and needs no entrypoint.

    Raises:
        ConfigErrors: all problems of the first stage that finds any.
    """
    warnings: list[str] = []
    config = _checked(submitted, "<config>", warnings)
    if template:
        config = merge(config, _checked(template, "<template>", warnings))
    config = merge(config, cluster_config(defaults))
    config.setdefault("name", default_name)
    if "experiment_seed" not in config.setdefault("reproducibility", {}):
        config["reproducibility"] = {"experiment_seed": experiment_seed}
    _fill_pool(config, defaults)

    timed = legacy.fill_times(config)
    warnings += timed.warnings
    errors = list(timed.errors)
    try:
        complete = ExperimentConfig.model_validate(timed.config)
    except ValidationError as error:
        raise ConfigErrors(
            [*from_pydantic(error, ExperimentConfig), *errors, *_required_anyway(config, unmanaged)]
        ) from None
    errors += _required_anyway(config, unmanaged)
    space = hp.Nested()
    try:
        space = hp.parse(complete.hyperparameters)
    except hp.HyperparameterErrors as error:
        errors += [
            ConfigError(path_of(("hyperparameters", *path)), message) for path, message in error.errors
        ]
    errors += _between_keys(complete, defaults)
    if not errors:
        errors += _search_errors(complete, space)
    if errors:
        raise ConfigErrors(errors)
    return Resolved(complete, space, complete.model_dump(mode="json"), warnings + _advice(complete))


def restore(stored: Mapping[str, Any]) -> ExperimentConfig:
    """The configuration that `Resolved.as_dict` was kept of: complete, so nothing is filled in or judged."""
    return ExperimentConfig.model_validate(dict(stored))


def _checked(config: Mapping[str, Any], root: str, warnings: list[str]) -> dict[str, Any]:
    """One layer in today's keys, its types checked, with nothing that it lacks held against it."""
    translation = legacy.translate(write_out(dict(config)), root)
    errors = list(translation.errors)
    try:
        ExperimentConfig.model_validate(translation.config)
    except ValidationError as error:
        errors += from_pydantic(error, ExperimentConfig, root, missing=False)
    if errors:
        raise ConfigErrors(errors)
    warnings += translation.warnings
    return translation.config


def _fill_pool(config: dict[str, Any], defaults: Mapping[str, Any]) -> None:
    resources = config["resources"] = dict(config.get("resources") or {})
    slots = resources.get("slots_per_trial", 1)
    if not resources.get("resource_pool"):
        kind = "compute" if slots else "aux"
        resources["resource_pool"] = defaults.get(f"default_{kind}_resource_pool") or ""
    pod = pod_spec(defaults, slots)
    if pod is not None:
        config["environment"] = merge(config.get("environment") or {}, {"pod_spec": pod}, ("environment",))


def _required_anyway(config: Mapping[str, Any], unmanaged: bool) -> list[ConfigError]:
    if unmanaged or config.get("entrypoint"):
        return []
    return [
        ConfigError(
            "<config>.entrypoint", "is required: the command that a trial runs, or module:TrialClass."
        )
    ]


def _between_keys(config: ExperimentConfig, defaults: Mapping[str, Any]) -> list[ConfigError]:
    errors = []
    if bool(config.workspace) != bool(config.project):
        given, missing = ("workspace", "project") if config.workspace else ("project", "workspace")
        errors.append(
            ConfigError(f"<config>.{missing}", f"is required where {given} is given; name both or neither.")
        )
    halving = isinstance(
        config.searcher, AsyncHalvingConfig | AdaptiveAshaConfig
    )  # checked with its max_length
    if not halving and (config.searcher.time_metric is None) != (config.searcher.max_time is None):
        missing = "time_metric" if config.searcher.time_metric is None else "max_time"
        errors.append(
            ConfigError(f"<config>.searcher.{missing}", "is required: time_metric and max_time go together.")
        )
    resources = config.resources
    if resources.max_slots is not None and resources.max_slots < resources.slots_per_trial:
        errors.append(
            ConfigError(
                "<config>.resources.max_slots",
                f"is {resources.max_slots}, but one trial needs {resources.slots_per_trial} slots "
                "(slots_per_trial).",
            )
        )
    pools: Sequence[str] | None = defaults.get("resource_pools")
    if pools is not None and resources.resource_pool not in pools:
        near = get_close_matches(resources.resource_pool, pools, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        errors.append(
            ConfigError(
                "<config>.resources.resource_pool",
                f"there is no resource pool {show(resources.resource_pool)}; "
                f"there are {', '.join(pools)}.{hint}",
            )
        )
    names = [policy.name for policy in config.log_policies if policy.name is not None]
    for name in sorted({name for name in names if names.count(name) > 1}):
        errors.append(ConfigError("<config>.log_policies", f"the name {show(name)} stands twice."))
    return errors


def _search_errors(config: ExperimentConfig, space: hp.Nested) -> list[ConfigError]:
    searcher = config.searcher
    at_once = 1
    if isinstance(searcher, GridConfig):
        missing = list(hp.without_count(space))
        if missing:
            return [
                ConfigError(
                    path_of(("hyperparameters", *path, "count")),
                    "is required in a grid search: how many values to try between minval and maxval.",
                )
                for path in missing
            ]
        points = hp.Grid(space).size
        if points > MAX_GRID_POINTS:
            return [
                ConfigError(
                    "<config>.hyperparameters",
                    f"this grid has {points} points; at most {MAX_GRID_POINTS} are searched. "
                    "Lower the counts, or search at random.",
                )
            ]
        at_once = min(points, searcher.max_concurrent_trials or points)
    elif isinstance(searcher, RandomConfig):
        at_once = min(searcher.max_trials, searcher.max_concurrent_trials or searcher.max_trials)
    elif isinstance(searcher, AsyncHalvingConfig):
        at_once = initial_trials(
            searcher.num_rungs, searcher.max_trials, searcher.divisor, searcher.max_concurrent_trials
        )
    elif isinstance(searcher, AdaptiveAshaConfig):
        rungs = searcher.bracket_rungs or bracket_rungs(
            searcher.max_time or 1, searcher.max_trials, searcher.divisor, searcher.max_rungs, searcher.mode
        )
        shares = brackets(rungs, searcher.max_trials, searcher.divisor, searcher.max_concurrent_trials)
        at_once = sum(
            initial_trials(share.num_rungs, share.max_trials, searcher.divisor, share.max_concurrent_trials)
            for share in shares
        )
    if at_once <= MAX_TRIALS_AT_ONCE:
        return []
    return [
        ConfigError(
            "<config>.searcher.max_concurrent_trials",
            f"would start {at_once} trials at once; at most {MAX_TRIALS_AT_ONCE} may. Set a limit.",
        )
    ]


def _advice(config: ExperimentConfig) -> list[str]:
    if config.searcher.max_length is None or _is_trial_class(config.entrypoint):
        return []
    advice = (
        "<config>.searcher.max_length: is deprecated; set the training length in code, as in "
        "Trainer.fit(max_length=...). It still counts where the code sets none."
    )
    return [advice]


def _is_trial_class(entrypoint: str | list[str] | None) -> bool:
    """module:TrialClass has no code of its own that calls `Trainer.fit`: max_length is where its length stands."""
    return isinstance(entrypoint, str) and re.fullmatch(r"[\w.]+:\w+", entrypoint.strip()) is not None
