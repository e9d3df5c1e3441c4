"""Configurations as YAML, read as the master reads them."""

import re

import yaml


class ConfigLoader(yaml.SafeLoader):
    """Reads 1e-3 as the number that it is; PyYAML's own rule wants 1.0e-3."""


ConfigLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)
