"""From a submitted configuration to the one that runs: check, merge, fill in, check again.

Order: what was submitted and the template are checked, each by itself, for types and unknown keys; then all layers
are merged; then what is required must be there, and rules between keys hold. Problems are collected, not
found one by one. Resolving a resolved configuration again changes nothing, so a fork is what its parent was.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from detlab_master.core import hyperparameters as hp
from detlab_master.core.expconf import advice, legacy
from detlab_master.core.expconf.base import show
from detlab_master.core.expconf.defaults import cluster_config, pool_of
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
    own, below = check_layer(submitted, "<config>"), check_layer(template or {}, "<template>")
    errors, warnings = own.errors + below.errors, own.warnings + below.warnings
    if errors:
        raise ConfigErrors(errors)
    config = merge(own.config, below.config)
    pool, slots = pool_of(config, defaults)
    cluster = cluster_config(defaults, pool, slots)
    config = merge(config, cluster)
    config.setdefault("name", default_name)
    config["resources"] = {**config.get("resources", {}), "resource_pool": pool}
    config["reproducibility"] = {"experiment_seed": experiment_seed, **config.get("reproducibility", {})}

    timed = legacy.fill_times(config)
    warnings += timed.warnings
    errors += timed.errors
    try:
        complete = ExperimentConfig.model_validate(timed.config)
    except ValidationError as error:
        raise ConfigErrors(
            [*from_pydantic(error, ExperimentConfig), *errors, *_required_anyway(config, unmanaged)]
        ) from None
    errors += _required_anyway(config, unmanaged)
    errors += _between_keys(complete, defaults)
    space = hp.parse(complete.hyperparameters)
    if not errors:
        errors += _search_errors(complete, space)
    if errors:
        raise ConfigErrors(errors)
    warnings += advice.on(complete, cluster)
    return Resolved(complete, space, complete.model_dump(mode="json"), warnings)


def restore(stored: Mapping[str, Any]) -> ExperimentConfig:
    """The configuration that `Resolved.as_dict` was kept of: complete, so nothing is filled in or judged."""
    return ExperimentConfig.model_validate(dict(stored))


def check_layer(layer: Mapping[str, Any], root: str) -> legacy.Translation:
    """One layer in today's keys, its types checked, with nothing that it lacks held against it.

    Args:
        root: what messages call it.
    """
    translation = legacy.translate(write_out(dict(layer)), root)
    translation.warnings = [*legacy.old_kinds(layer, root), *translation.warnings]
    try:
        ExperimentConfig.model_validate(translation.config)
    except ValidationError as error:
        translation.errors += from_pydantic(error, ExperimentConfig, root, missing=False)
    hyperparameters = translation.config.get("hyperparameters")
    if isinstance(hyperparameters, dict):
        try:
            hp.parse(hyperparameters)
        except hp.HyperparameterErrors as error:
            translation.errors += [
                ConfigError(path_of(("hyperparameters", *path), root), message)
                for path, message in error.errors
            ]
        translation.warnings += advice.on_untyped(hyperparameters, root)
    translation.errors += _repeated_names(translation.config.get("log_policies"), root)
    return translation


def _repeated_names(policies: Any, root: str) -> list[ConfigError]:
    if not isinstance(policies, list):
        return []
    names = [policy.get("name") if isinstance(policy, dict) else None for policy in policies]
    return [
        ConfigError(
            path_of(("log_policies", i, "name"), root),
            f"is {show(name)}, which log_policies[{names.index(name)}] is called already; "
            "a name may stand once.",
        )
        for i, name in enumerate(names)
        if isinstance(name, str) and names.index(name) < i
    ]


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
    pools = defaults.get("pools")
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
