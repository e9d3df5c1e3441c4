"""The official client's `det experiment` verbs: what they do to an experiment's life, and what lists of it show."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from interop.official import Official
from interop.test_official_cli import LOOP, LOOP_CONFIG, created, wait_until_it_runs
from support.cluster import wait_for

QUICK = """
from determined import core

with core.init() as context:
    for step in (1, 2):
        context.train.report_validation_metrics(step, {"loss": 1.0 / step})
"""
SEARCH = {
    "name": "search",
    "entrypoint": "python3 quick.py",
    "hyperparameters": {"lr": {"type": "categorical", "vals": [1, 2, 3]}},
    "searcher": {"name": "grid", "metric": "loss"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("code")
    (made / "loop.py").write_text(LOOP)
    (made / "quick.py").write_text(QUICK)
    (made / "loop.yaml").write_text(yaml.safe_dump(LOOP_CONFIG))
    (made / "search.yaml").write_text(yaml.safe_dump(SEARCH))
    return made


@pytest.fixture(scope="module")
def search(official: Official, folder: Path) -> int:
    """A grid of three trials that has completed."""
    number = created(official.det("e", "create", folder / "search.yaml", folder))
    assert official.cluster.wait_for_end(number) == "COMPLETED"
    return number


@pytest.fixture
def loop(official: Official, folder: Path) -> Iterator[int]:
    """An experiment that is paused, and would run until it is stopped."""
    number = created(official.det("e", "create", folder / "loop.yaml", folder, "--paused"))
    yield number
    official.cluster.request("POST", f"/api/v1/experiments/{number}/kill")
    official.cluster.wait_for_end(number)


def resources(official: Official, number: int) -> dict[str, Any]:
    found: dict[str, Any] = official.cluster.experiment(number)["config"]["resources"]
    return found


def test_continue(official: Official, loop: int, tmp_path: Path) -> None:
    refused = official.det("e", "continue", loop, code=1)
    assert "is PAUSED: only one that has ended can be continued" in refused.err
    official.det("e", "activate", loop)
    wait_until_it_runs(official, loop, times=1)
    official.det("e", "cancel", loop)
    assert official.cluster.wait_for_end(loop) == "CANCELED"
    (trial,) = official.cluster.trials(loop)

    official.det("e", "continue", loop)
    wait_until_it_runs(official, loop, times=2)
    (again,) = official.cluster.trials(loop)
    assert (again["id"], again["endTime"], again["restarts"]) == (trial["id"], None, 0)
    official.det("e", "kill", loop)
    assert official.cluster.wait_for_end(loop) == "CANCELED"

    more = tmp_path / "more.yaml"
    more.write_text("max_restarts: 1\n")
    official.det("e", "continue", loop, "--config-file", more, "--config", "hyperparameters.lr=0.5")
    wait_until_it_runs(official, loop, times=3)
    (again,) = official.cluster.trials(loop)
    assert (again["hparams"], official.cluster.experiment(loop)["config"]["max_restarts"]) == ({"lr": 0.5}, 1)


def test_continue_a_search(official: Official, search: int) -> None:
    refused = official.det("e", "continue", search, code=1)
    assert "all of its trials are COMPLETED" in refused.err
    refused = official.det("e", "continue", search, "--config", "max_restarts=1", code=1)
    assert "only be continued as it is" in refused.err


def test_set(official: Official, loop: int) -> None:
    for name, value, kept in (
        ("priority", 7, 7),
        ("weight", 2.5, 2.5),
        ("max-slots", 1, 1),
        ("max-slots", "none", None),
    ):
        official.det("e", "set", name, loop, value)
        assert resources(official, loop)[name.replace("-", "_")] == kept
    refused = official.det("e", "set", "priority", loop, 100, code=1)
    assert "it must be from 1 to 99" in refused.err


def test_max_slots_has_effect_at_once(official: Official, loop: int) -> None:
    official.det("e", "activate", loop)
    wait_until_it_runs(official, loop, times=1)
    official.det("e", "set", "max-slots", loop, 0)
    log = official.cluster.logs
    (trial,) = official.cluster.trials(loop)
    wait_for(lambda: "than its max_slots allows" in log(trial["id"]), "it is preempted")
    wait_for(lambda: official.cluster.trials(loop)[0]["state"] == "STATE_QUEUED", "it waits")
    official.det("e", "set", "max-slots", loop, 1)
    wait_until_it_runs(official, loop, times=2)
    assert official.cluster.trials(loop)[0]["restarts"] == 0


def test_verbs_may_be_repeated(official: Official, loop: int) -> None:
    for verb in ("pause", "activate", "unpause", "pause", "kill", "kill", "cancel", "archive", "archive"):
        official.det("e", verb, loop)
    assert official.cluster.experiment(loop)["archived"] is True
    for verb in ("unarchive", "unarchive"):
        official.det("e", verb, loop)
    assert "has ended" in official.det("e", "activate", loop, code=1).err


def test_list_pages(official: Official, search: int, folder: Path) -> None:
    others = [
        created(official.det("e", "create", folder / "search.yaml", folder, "--paused")) for _ in range(2)
    ]
    all_ = [int(row["ID"]) for row in official.det("e", "list", "--csv").rows]
    assert {search, *others} <= set(all_)
    one_by_one = official.det("e", "list", "--csv", "--limit", 1).rows
    assert [int(row["ID"]) for row in one_by_one] == all_
    second = official.det("e", "list", "--csv", "--limit", 1, "--offset", 1, "--pages", 1).rows
    assert [int(row["ID"]) for row in second] == all_[1:2]
    for number in others:
        official.det("e", "kill", number)


def test_describe(official: Official, search: int, tmp_path: Path) -> None:
    out = official.det("e", "describe", search, "--csv").out
    tables = [list(csv.reader(io.StringIO(part))) for part in re.split(r"\n(?=\w+:\n|\n)", out)]
    cells = {cell for table in tables for row in table for cell in row}
    assert {"COMPLETED", "search", str(search)} <= cells
    both = official.det("e", "describe", f"{search},{search}", "--json").json
    assert [one["experiment"]["id"] for one in both] == [search, search]
    official.det("e", "describe", search, "--metrics", "--outdir", tmp_path)
    with (tmp_path / "trials.csv").open(newline="") as file:
        assert [row["State"] for row in csv.DictReader(file)] == ["COMPLETED"] * 3


def test_list_trials(official: Official, search: int) -> None:
    rows = official.det("e", "list-trials", search, "--csv").rows
    assert [(row["State"], row["# of Batches"]) for row in rows] == [("COMPLETED", "2")] * 3
    assert {yaml.safe_load(row["H-Params"])["lr"] for row in rows} == {1, 2, 3}
    paged = official.det("e", "lt", search, "--csv", "--limit", 2).rows
    assert paged == rows
    assert len(official.det("e", "lt", search, "--csv", "--limit", 2, "--pages", 1).rows) == 2


def test_fork_of_what_is_not_there(official: Official, search: int) -> None:
    body = {"config": yaml.safe_dump(SEARCH), "parentId": search, "activate": False}
    answer = official.cluster.request("POST", "/api/v1/experiments", json=body)
    assert answer.json()["experiment"]["forkedFrom"] == search
    listed = {row["ID"]: row for row in official.det("e", "list", "--csv").rows}
    forked = str(answer.json()["experiment"]["id"])
    assert listed[forked]["Parent ID"] == str(search)
    official.det("e", "kill", forked)
