"""`det preview-search` against a stub master."""

from pathlib import Path

import pytest
import yaml

from harness.api_stub import StubMaster, failure
from harness.cli.conftest import Det

ROUTE = "/api/v1/preview-hp-search"


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "config.yaml"
    file.write_text("searcher: {name: adaptive_asha, metric: loss}\nhyperparameters: {lr: 1e-3}\n")
    return str(file)


def test_the_search_and_its_trials_are_shown(master: StubMaster, det: Det, config: str) -> None:
    trials = [
        {"count": 12, "unit": {"name": "batches", "value": 100, "maxLength": False}},
        {"count": 4, "unit": {"name": "", "value": 0, "maxLength": True}},
    ]
    searcher = {"name": "adaptive_asha", "metric": "loss", "source_trial_id": None}
    master.answer(
        "POST", ROUTE, {"summary": {"config": searcher, "trials": trials}, "messages": ["take care"]}
    )
    ran = det("preview-search", config, "--config", "searcher.max_trials=16")
    assert ran.code == 0
    assert ran.err == "Warning: take care\n"
    head, _, table = ran.out.partition("\n\n")
    assert head == "Using search configuration:\nname: adaptive_asha\nmetric: loss"
    assert [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if "|" in line] == [
        ["Trials", "Training Time"],
        ["12", "train for 100 batches"],
        ["4", "train to completion"],
    ]
    (request,) = master.sent("POST", ROUTE)
    assert yaml.safe_load(request.body["config"])["searcher"]["max_trials"] == 16


def test_without_overrides_the_text_is_sent_as_it_is(master: StubMaster, det: Det, config: str) -> None:
    master.answer("POST", ROUTE, {"summary": {"config": {}, "trials": []}})
    assert det("preview-search", config).code == 0
    assert master.sent("POST", ROUTE)[0].body == {"config": Path(config).read_text()}


def test_a_wrong_configuration_is_explained(master: StubMaster, det: Det, config: str) -> None:
    refusal = "invalid experiment configuration:\n  <config>.searcher.max_trials: is required"
    master.answer("POST", ROUTE, failure(400, "InvalidArgument", refusal))
    ran = det("preview-search", config)
    assert (ran.code, ran.err) == (1, f"{refusal}\n")
