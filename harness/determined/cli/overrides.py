"""Configuration files and what `--config key=value` changes in them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from determined.cli.terminal import CliError


def read_config(path: str | None, overrides: Sequence[str]) -> str:
    """The text of a configuration as it is to be sent: verbatim, or written anew when there are overrides."""

    if path is None:
        return _overridden({}, overrides)
    text = _read(path)
    config = parse_object(text, f"the configuration file {path!r}")
    return _overridden(config, overrides) if overrides else text


def _overridden(config: dict[str, Any], overrides: Sequence[str]) -> str:
    import yaml

    for override in overrides:
        apply(config, override)
    return yaml.safe_dump(config, sort_keys=False)


def read_object(path: str) -> dict[str, Any]:
    """The keys and values in a YAML file."""
    return parse_object(_read(path), f"the configuration file {path!r}")


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as e:
        raise CliError(f"cannot read the configuration file {path!r}: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise CliError(f"the configuration file {path!r} is not text: {e}") from e


def parse_object(text: str, what: str) -> dict[str, Any]:
    """The keys and values in a YAML text; ``what`` is what messages call it."""
    import yaml

    from determined.common.config_yaml import ConfigLoader

    try:
        config = yaml.load(text, ConfigLoader)
    except yaml.YAMLError as e:
        raise CliError(f"{what} is not YAML:\n{e}") from e
    if not isinstance(config, dict):
        raise CliError(f"{what} holds no keys: it should begin like `name: my-experiment`")
    return config


def apply(config: dict[str, Any], override: str) -> None:
    """Set `a.b.c=value` in a nested mapping; the value is JSON, YAML, or a comma-separated list of them."""
    key, equals, value = override.partition("=")
    parts = key.split(".")
    if not equals or not all(parts):
        raise CliError(
            f"--config {override!r} is not of the form key=value, such as resources.slots_per_trial=2"
        )
    place = config
    for depth, part in enumerate(parts[:-1]):
        inner = place.get(part)
        if inner is None:
            inner = place[part] = {}
        if not isinstance(inner, dict):
            raise CliError(
                f"--config {override!r}: {'.'.join(parts[: depth + 1])} is {json.dumps(inner, default=str)}, "
                f"which has no key {parts[depth + 1]!r}"
            )
        place = inner
    place[parts[-1]] = parse_value(value)


def parse_value(text: str) -> Any:
    import yaml

    try:
        return json.loads(text)  # before YAML, in which 1e-3 is no number
    except json.JSONDecodeError:
        pass
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise CliError(f"--config: {text!r} is neither JSON nor YAML: {e}") from e
    if isinstance(value, str) and "," in value and not text.lstrip().startswith(('"', "'")):
        return [parse_value(part.strip()) for part in value.split(",")]
    return value
