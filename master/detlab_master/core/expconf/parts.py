"""Configurations that are parts of one: templates, and the checkpoint storage of a workspace."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from detlab_master.core.expconf import legacy
from detlab_master.core.expconf.base import Model
from detlab_master.core.expconf.errors import ConfigErrors, from_pydantic
from detlab_master.core.expconf.parse import parse_object
from detlab_master.core.expconf.storage import AnyStorage
from detlab_master.core.expconf.validate import check_layer

_SECRETS = ("access_key", "secret_key", "connection_string", "credential")
MASK = "********"


class _Storage(Model):
    checkpoint_storage: AnyStorage


def check_template(config: Mapping[str, Any]) -> list[str]:
    """Whether a template is right as far as it goes; what it lacks comes from whoever uses it.

    Returns:
        Warnings, for people.

    Raises:
        ConfigErrors: unknown keys and wrong types, by path.
    """
    return _layer(config, "<template>").warnings


def check_storage(storage: Mapping[str, Any], root: str = "<workspace>") -> dict[str, Any]:
    """A whole checkpoint_storage section, in today's keys, with nothing filled in.

    Args:
        root: what it is a section of, in the paths of errors.

    Raises:
        ConfigErrors: what is wrong with it, or missing.
    """
    layer = _layer({"checkpoint_storage": storage}, root).config
    try:
        _Storage.model_validate(layer)
    except ValidationError as error:
        raise ConfigErrors(from_pydantic(error, _Storage, root)) from None
    kept: dict[str, Any] = layer["checkpoint_storage"]
    return kept


def _layer(config: Mapping[str, Any], root: str) -> legacy.Translation:
    layer = check_layer(parse_object(config, root), root)
    if layer.errors:
        raise ConfigErrors(layer.errors)
    return layer


def without_secrets(storage: Mapping[str, Any]) -> dict[str, Any]:
    """The section for those who may know where checkpoints go, and not by which key."""
    return {key: MASK if key in _SECRETS and value else value for key, value in storage.items()}
