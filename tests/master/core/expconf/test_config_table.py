"""Configurations, right and wrong, with their exact answers: the rows of table/*.yaml.

The answers were written by hand from the facts about Determined's configurations and from our rules for the rest.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from detlab_master.core.expconf import ConfigErrors, Resolved, parse_experiment_config, parse_yaml, resolve

TABLE = Path(__file__).parent / "table"
BASE = {"entrypoint": "python3 train.py", "searcher": {"name": "single", "metric": "loss"}}
DEFAULTS = {"checkpoint_storage": {"type": "shared_fs", "host_path": "/ckpt"}}
KEYS = {"is", "config", "template", "defaults", "gives", "warns", "refused", "schema"}


def rows(*kinds: str) -> list[Any]:
    """The rows that have all of these keys."""
    return list(_rows(kinds))


def _rows(kinds: tuple[str, ...]) -> Iterator[Any]:
    for file in sorted(TABLE.glob("*.yaml")):
        for number, row in enumerate(yaml.safe_load(file.read_text()), 1):
            assert set(row) <= KEYS and ("gives" in row) != ("refused" in row), f"{file.name}, row {number}"
            if all(kind in row for kind in kinds):
                yield pytest.param(row, id=f"{file.stem}-{number}")


def submitted(row: dict[str, Any]) -> dict[str, Any]:
    return {**BASE, **parse_experiment_config(row["config"])}


def resolved(row: dict[str, Any]) -> Resolved:
    template = row.get("template")
    return resolve(
        submitted(row),
        template=parse_yaml(template, "<template>") if template else None,
        defaults={**DEFAULTS, **row.get("defaults", {})},
        experiment_seed=77,
        default_name="brave-blue-whale",
    )


def at(config: Any, path: str) -> Any:
    for key in path.split("."):
        config = config[key]
    return config


@pytest.mark.parametrize("row", rows("gives"))
def test_right(row: dict[str, Any]) -> None:
    result = resolved(row)
    assert {path: at(result.as_dict, path) for path in row["gives"]} == row["gives"]
    assert result.warnings == row.get("warns", [])


@pytest.mark.parametrize("row", rows("refused"))
def test_wrong(row: dict[str, Any]) -> None:
    with pytest.raises(ConfigErrors) as caught:
        resolved(row)
    assert [str(error) for error in caught.value.errors] == row["refused"]


def test_the_table_is_large() -> None:
    assert len(rows()) >= 150
