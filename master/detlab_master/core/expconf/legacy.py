"""Keys of older releases: translated, with a warning, where they still mean something; else refused.

`translate` works on one configuration before it is merged, `fill_times` on the merged one. Both take
configurations that are written out (`shorthand.py`). The facts are those of Determined's release notes.
"""

from collections.abc import Callable, Mapping
from typing import Any

from detlab_master.core.expconf.base import show
from detlab_master.core.expconf.errors import ConfigError, path_of

BATCHES_PER_STEP = 100  # what one step was, before 0.13
LENGTH_UNITS = ("batches", "records", "epochs")

_GONE_SEARCHERS = {
    "adaptive": "adaptive_asha with max_trials",
    "sync_halving": "async_halving with max_trials",
    "pbt": "adaptive_asha or random",
    "custom": "one of the searchers built in",
}


class Translation:
    """A configuration on its way to the present, with what there is to say about it."""

    def __init__(self, config: dict[str, Any], root: str = "<config>") -> None:
        self.config = config
        self.warnings: list[str] = []
        self.errors: list[ConfigError] = []
        self._root = root

    def section(self, name: str) -> dict[str, Any]:
        """A section to change in place; empty, and apart, where there is none."""
        section = self.config.get(name)
        return section if isinstance(section, dict) else {}

    def warn(self, loc: tuple[str, ...], message: str) -> None:
        self.warnings.append(f"{path_of(loc, self._root)}: {message}")

    def refuse(self, loc: tuple[str, ...], message: str) -> None:
        self.errors.append(ConfigError(path_of(loc, self._root), message))


def translate(config: Mapping[str, Any], root: str = "<config>") -> Translation:
    """The configuration in today's keys; `root` names it in messages."""
    copy = {key: dict(value) if isinstance(value, dict) else value for key, value in config.items()}
    translation = Translation(copy, root)
    for rule in _RULES:
        rule(translation)
    return translation


def old_kinds(config: Mapping[str, Any], root: str = "<config>") -> list[str]:
    """Warnings of the short forms that `shorthand.write_out` understands and that are of old."""
    environment = config.get("environment")
    return [
        f"{path_of(('environment', key, 'gpu'), root)}: is called cuda now."
        for key in ("image", "environment_variables")
        if isinstance(environment, dict)
        and isinstance(by_kind := environment.get(key), dict)
        and by_kind.get("gpu") is not None
    ]


def _searcher(t: Translation) -> None:
    searcher = t.section("searcher")
    name = searcher.get("name")
    if name == "asha":
        searcher["name"] = "async_halving"
    elif name == "adaptive_simple":
        searcher["name"] = "adaptive_asha"
        searcher.pop("train_stragglers", None)
        t.warn(
            ("searcher", "name"), "adaptive_simple is no longer there; adaptive_asha is used in its place."
        )
    elif isinstance(name, str) and name in _GONE_SEARCHERS:
        t.refuse(
            ("searcher", "name"),
            f"{name} is not offered here; use {_GONE_SEARCHERS[name]}.",
        )
        t.config.pop("searcher")
        return
    for key in ("max_steps", "target_trial_steps"):
        steps = searcher.pop(key, None)
        if isinstance(steps, int) and not isinstance(steps, bool):
            searcher.setdefault("max_length", {"batches": steps * BATCHES_PER_STEP})
            t.warn(
                ("searcher", key),
                f"is no longer used; taken as max_length of {steps * BATCHES_PER_STEP} batches.",
            )
        elif steps is not None:
            t.refuse(("searcher", key), f"is {show(steps)}, but must be an integer.")
    if searcher.get("stop_once"):
        t.warn(("searcher", "stop_once"), "has no effect: trials are always stopped early, never resumed.")


def _periods(t: Translation) -> None:
    for key in ("min_validation_period", "min_checkpoint_period"):
        steps = t.config.get(key)
        if isinstance(steps, int) and not isinstance(steps, bool):
            t.config[key] = {"batches": steps * BATCHES_PER_STEP}
            t.warn(
                (key,),
                f"a plain number counts steps of {BATCHES_PER_STEP} batches; "
                f"write `{{batches: {steps * BATCHES_PER_STEP}}}`.",
            )
    if "batches_per_step" in t.config:
        t.config.setdefault("scheduling_unit", t.config.pop("batches_per_step"))
        t.config.pop("batches_per_step", None)
        t.warn(("batches_per_step",), "is called scheduling_unit now.")


def _storage(t: Translation) -> None:
    storage = t.section("checkpoint_storage")
    if storage.get("type") == "hdfs":
        t.refuse(
            ("checkpoint_storage", "type"),
            "hdfs is no longer supported; use one of shared_fs, directory, s3, gcs, azure.",
        )
        t.config.pop("checkpoint_storage")
    elif storage.get("type") == "shared_fs":
        for key in ("checkpoint_path", "tensorboard_path"):
            path = storage.pop(key, None)
            if path is not None and "storage_path" not in storage:
                storage["storage_path"] = path
                t.warn(("checkpoint_storage", key), "is called storage_path now.")
            elif path is not None:
                t.warn(("checkpoint_storage", key), "has no effect beside storage_path.")
        if storage.pop("container_path", None) is not None:
            t.warn(("checkpoint_storage", "container_path"), "has no effect for shared_fs.")


def _unused(t: Translation) -> None:
    for key in ("data_layer", "tensorboard_storage", "security", "validation_freq"):
        if t.config.pop(key, None) is not None:
            t.warn((key,), "is no longer used and has no effect.")
    for name, keys in (
        ("resources", ("agent_label",)),
        ("environment", ("runtime_packages", "runtime_commands")),
    ):
        section = t.section(name)
        for key in keys:
            if section.pop(key, None) is not None:
                instead = "choose a resource_pool" if key == "agent_label" else "put it into startup-hook.sh"
                t.warn((name, key), f"is no longer used and has no effect; {instead} instead.")


def _native(t: Translation) -> None:
    if t.config.get("internal"):
        t.refuse(
            ("internal",),
            "belongs to the Native API, which is gone; give an entrypoint and remove this key.",
        )
        t.config.pop("internal")


_RULES: tuple[Callable[[Translation], None], ...] = (
    _searcher,
    _periods,
    _storage,
    _unused,
    _native,
)


def fill_times(config: Mapping[str, Any], root: str = "<config>") -> Translation:
    """Where a halving searcher has no time_metric or max_time, derive it from its max_length.

    `max_length` itself stays: it is how long a trial trains whose code does not say.
    """
    copy = {key: dict(value) if isinstance(value, dict) else value for key, value in config.items()}
    t = Translation(copy, root)
    searcher = t.section("searcher")
    if searcher.get("name") not in ("adaptive_asha", "async_halving"):
        return t
    length = searcher.get("max_length")
    if searcher.get("time_metric") is not None and searcher.get("max_time") is not None:
        return t
    unit, units = _unit_and_units(length, searcher.get("unit"))
    if units is None:
        for key, what in (
            ("time_metric", "the metric that says how long a trial has trained, such as batches or epochs"),
            ("max_time", "how much of time_metric the longest trials train"),
        ):
            if searcher.get(key) is None:
                t.refuse(("searcher", key), f"is required for {searcher['name']}: {what}.")
        return t
    if unit == "records":
        batch_size = _global_batch_size(t)
        if batch_size is None:
            t.refuse(
                ("searcher", "max_length"),
                "in records needs hyperparameters.global_batch_size to be one number of at least 1; "
                "give searcher.time_metric and searcher.max_time instead.",
            )
            return t
        unit, units = "batches", -(-units // batch_size)
    metric = searcher.get("time_metric")
    if metric is None and unit is None:
        t.refuse(
            ("searcher", "time_metric"),
            f"is required for {searcher['name']}: max_length, {show(length)}, has no unit to tell it from; "
            "write time_metric, or max_length as `{batches: ...}` or `{epochs: ...}`.",
        )
    elif metric is not None and unit is not None and metric != unit:
        t.refuse(
            ("searcher", "max_time"),
            f"is required for {searcher['name']}: max_length is in {unit}, "
            f"but time_metric is {show(metric)}.",
        )
    else:
        searcher.setdefault("time_metric", unit)
        searcher.setdefault("max_time", units)
        t.warn(
            ("searcher", "max_length"),
            f"searcher {searcher['name']} compares trials by time_metric and max_time; "
            f"taken from max_length: time_metric {searcher['time_metric']}, max_time {searcher['max_time']}.",
        )
    return t


def _unit_and_units(length: Any, unit: Any) -> tuple[str | None, int | None]:
    if isinstance(length, bool):
        return None, None
    if isinstance(length, int):
        return (unit if unit in LENGTH_UNITS else None), length
    if isinstance(length, dict) and len(length) == 1:
        unit, units = next(iter(length.items()))
        if unit in LENGTH_UNITS and isinstance(units, int) and not isinstance(units, bool):
            return unit, units
    return None, None


def _global_batch_size(t: Translation) -> int | None:
    size = t.section("hyperparameters").get("global_batch_size")
    if isinstance(size, dict) and size.get("type") == "const":
        size = size.get("val")
    return size if isinstance(size, int) and not isinstance(size, bool) and size >= 1 else None
