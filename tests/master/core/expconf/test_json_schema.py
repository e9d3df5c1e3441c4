"""The JSON Schema takes what the master takes, and marks what it can see is wrong."""

from typing import Any

import pytest
from jsonschema import Draft7Validator

from detlab_master import schema
from detlab_master.core.expconf import ConfigErrors, parse_experiment_config, parse_yaml
from detlab_master.core.expconf.json_schema import json_schema
from master.core.expconf.test_config_table import resolved, rows, submitted
from support.cluster import REPO

VALIDATOR = Draft7Validator(json_schema())


def complaints(config: Any) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(config)]


def test_the_file_is_what_the_models_say() -> None:
    file = REPO / "docs" / "experiment-config.schema.json"
    assert file.read_text() == schema.text(), "type `make schema`"


def test_it_is_a_schema_in_which_every_reference_leads_somewhere() -> None:
    Draft7Validator.check_schema(VALIDATOR.schema)
    assert isinstance(VALIDATOR.schema, dict)
    definitions, used = VALIDATOR.schema["definitions"], set()

    def walk(part: Any) -> None:
        if isinstance(part, dict):
            if "$ref" in part:
                used.add(part["$ref"].removeprefix("#/definitions/"))
            for below in part.values():
                walk(below)
        elif isinstance(part, list):
            for below in part:
                walk(below)

    walk(VALIDATOR.schema)
    assert used == set(definitions)


@pytest.mark.parametrize("row", rows("gives"))
def test_what_the_master_takes_is_right(row: dict[str, Any]) -> None:
    assert complaints(submitted(row)) == []
    assert complaints(parse_yaml(row.get("template", "{}"))) == []
    assert complaints(resolved(row).as_dict) == [], "a resolved configuration may be submitted again"


@pytest.mark.parametrize("row", rows("refused"))
def test_what_the_master_refuses_is_wrong_if_a_schema_can_see_it(row: dict[str, Any]) -> None:
    try:
        config = parse_experiment_config(row["config"])
    except ConfigErrors:
        return  # no configuration at all
    assert bool(complaints(config)) == (row.get("schema") != "accepts")


@pytest.mark.parametrize(
    ("config", "unknown"),
    [
        ({"serch": {}}, "serch"),
        ({"resources": {"slot": 1}}, "slot"),
        ({"environment": {"image": {"tpu": "x"}}}, None),
        ({"searcher": {"name": "random", "max_trial": 3}}, None),
        ({"checkpoint_storage": {"type": "gcs", "access_key": "x"}}, None),
        ({"bind_mounts": [{"host_path": "/a", "container_path": "b", "mode": "r"}]}, "mode"),
        ({"hyperparameters": {"a": {"b": {"type": "int", "minval": 0, "maxval": 1, "step": 1}}}}, "step"),
        (
            {"hyperparameters": {"a": {"type": "categorical", "vals": [{"b": {"type": "log", "minval": 0, "x": 1}}]}}},
            "x",
        ),
    ],
)  # fmt: skip
def test_an_unknown_key_is_wrong_wherever_it_stands(config: dict[str, Any], unknown: str | None) -> None:
    found = complaints(config)
    assert found
    assert unknown is None or any(f"{unknown!r} was unexpected" in text for text in found)
