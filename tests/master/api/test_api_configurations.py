"""Configurations without experiments, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from detlab_master.core.expconf.json_schema import json_schema
from master.api.rig import Rig

SEARCH: dict[str, Any] = {
    "hyperparameters": {"lr": {"type": "double", "minval": 0, "maxval": 1, "count": 4}},
    "searcher": {"name": "grid", "metric": "loss"},
}


async def test_a_preview_of_an_object_and_of_yaml(rig: Rig) -> None:
    text = "searcher: {name: asha, metric: loss, num_rungs: 1, max_trials: 3, max_length: {epochs: 5}}"
    for config, trials in (
        (SEARCH, [{"count": 4, "unit": {"name": "", "value": 0, "maxLength": True}}]),
        (text, [{"count": 3, "unit": {"name": "epochs", "value": 5, "maxLength": False}}]),
    ):
        answer = await rig.call("POST", "/api/v1/preview-hp-search", {"config": config, "seed": 7})
        assert answer.status == 200
        assert answer.json["summary"]["trials"] == trials
        assert answer.json["summary"]["config"]["metric"] == "loss"
        assert all(line.startswith("<config>.searcher.max_length: ") for line in answer.json["messages"])
    assert (await rig.call("GET", "/api/v1/experiments")).json["experiments"] == []


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "config is None: expected a configuration, as an object or as YAML"),
        ([1], "config is [1]: expected a configuration"),
        ({}, "<config>.searcher: is required: how to search"),
        ("searcher: {name: grdi}", "Did you mean 'grid'?"),
        ("a: [", "line 1"),
        ({**SEARCH, "data": {"x": 2**70}}, "does not fit in 64 bits"),
        ({**SEARCH, "data": {"x": list(range(60_000))}}, "holds more than 50000 values"),
        (
            {"searcher": {"name": "asha", "metric": "m", "num_rungs": 1, "max_trials": 10**9, "max_length": {"epochs": 5}}},
            "a preview plays the search through",
        ),
    ],
)  # fmt: skip
async def test_a_preview_that_is_refused(rig: Rig, config: Any, words: str) -> None:
    answer = await rig.call("POST", "/api/v1/preview-hp-search", {"config": config})
    assert answer.status == 400
    assert words in answer.error


async def test_a_preview_of_something_very_deep_is_refused(rig: Rig) -> None:
    deep: Any = 1
    for _ in range(100):
        deep = {"x": deep}
    answer = await rig.call("POST", "/api/v1/preview-hp-search", {"config": {**SEARCH, "data": deep}})
    assert (answer.status, "nested more than 64 deep" in answer.error) == (400, True)


async def test_the_schema_is_for_everybody(rig: Rig) -> None:
    answer = await rig.call("GET", "/api/v1/experiment-config-schema", by=None)
    assert answer.status == 200
    assert answer.json == json_schema()
