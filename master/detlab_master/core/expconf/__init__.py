"""Experiment configurations: reading, checking, merging, and the keys of older releases."""

from detlab_master.core.expconf.errors import ConfigError, ConfigErrors
from detlab_master.core.expconf.parse import parse_experiment_config, parse_object, parse_yaml
from detlab_master.core.expconf.parts import check_storage, check_template, without_secrets
from detlab_master.core.expconf.schema import ExperimentConfig
from detlab_master.core.expconf.validate import Resolved, resolve, restore

__all__ = [
    "ConfigError",
    "ConfigErrors",
    "ExperimentConfig",
    "Resolved",
    "check_storage",
    "check_template",
    "parse_experiment_config",
    "parse_object",
    "parse_yaml",
    "resolve",
    "restore",
    "without_secrets",
]
