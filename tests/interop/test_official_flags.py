"""The official `det` of tier T1: forms and flags that the other tests have no need of. (The table is commands.py.)"""

from __future__ import annotations

import re
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from interop.official import Official, Said
from interop.test_official_cli import created
from support.cluster import PASSWORD, wait_for

SAVES = """
from pathlib import Path
from determined import core

print("sent along:", sorted(str(path) for path in Path().rglob("*.txt")))
with core.init() as context:
    for step, loss in ((1, 0.5), (2, 0.25), (3, 0.75)):
        context.train.report_training_metrics(step, {"loss": loss})
        context.train.report_validation_metrics(step, {"loss": loss, "steps": step})
        with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
            (path / "weights").write_text(f"weights of {step}")
"""
CONFIG = {
    "name": "saves",
    "entrypoint": "python3 saves.py",
    "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 3}},
    "checkpoint_storage": {"save_trial_best": 3, "save_trial_latest": 3},
    "max_restarts": 0,
}


@dataclass(frozen=True)
class Saved:
    """An experiment that has ended, with a checkpoint at each of 3 steps; the second is the best."""

    said: Said
    experiment: int
    trial: int
    uuids: list[str]  # by step


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    (made / "saves.py").write_text(SAVES)
    (made / "saves.yaml").write_text(yaml.safe_dump(CONFIG))
    return made


@pytest.fixture(scope="module")
def saved(official: Official, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    beside = tmp_path_factory.mktemp("beside")
    (beside / "one.txt").write_text("1")
    (beside / "more").mkdir()
    (beside / "more" / "two.txt").write_text("2")
    includes = ("-i", beside / "one.txt", "--include", beside / "more")
    said = official.det("e", "create", folder / "saves.yaml", folder, *includes, "-f")
    number = created(said)
    assert official.cluster.wait_for_end(number) == "COMPLETED"
    found = official.cluster.get(f"/api/v1/experiments/{number}/checkpoints")["checkpoints"]
    by_step = sorted(found, key=lambda one: int(one["metadata"]["steps_completed"]))
    trial = official.cluster.trials(number)[0]["id"]
    return Saved(said, number, trial, [one["uuid"] for one in by_step])


# Who and where


def test_master_and_user_before_the_command(official: Official) -> None:
    started = replace(official, forks=None)  # as a person would: nothing but flags tells where the master is
    url = official.cluster.url
    said = started.det("-m", url, "-u", "admin", "user", "whoami", user=None, typed=f"{PASSWORD}\n")
    assert "'admin'" in said.out
    assert started.det("-v").out == "det 0.38.1\n"
    refused = started.det("-m", url, "-u", "nobody", "user", "whoami", user=None, typed="x\n", code=1)
    assert refused.out == ""


def test_version(official: Official) -> None:
    shown = yaml.safe_load(official.det("version").out)
    ours = official.cluster.get("/api/v1/master")
    assert shown["client"] == {"version": "0.38.1"}
    assert shown["master_address"] == official.cluster.url
    assert (shown["master"]["version"], shown["master"]["cluster_id"]) == ("0.38.1", ours["clusterId"])
    assert (shown["master"]["master_id"], shown["master"]["sso_providers"]) == (ours["masterId"], [])


def test_master_info(official: Official) -> None:
    as_yaml = yaml.safe_load(official.det("master", "info", "--yaml").out)
    assert as_yaml == official.det("master", "info", "--json").json
    assert as_yaml == yaml.safe_load(official.det("master", "info").out)


def test_no_single_sign_on(official: Official) -> None:
    for command in (("list-providers",), ("login",), ("login", "-p", "x"), ("login", "--headless")):
        assert official.det("auth", *command).out == "No SSO providers found.\n"


def test_logout_of_everybody(official: Official) -> None:
    for user in ("determined", "admin"):
        official.det("u", "login", user, user=None, typed=f"{PASSWORD}\n")
    assert "'admin'" in official.det("user", "whoami", user=None).out
    official.det("user", "logout", "--all", user=None)
    for user in ("determined", "admin"):
        official.det("-u", user, "user", "whoami", user=None, typed="\n", code=1)


def test_a_group_without_a_verb(official: Official, saved: Saved) -> None:
    assert f" {saved.experiment} | determined " in official.det("experiment").out
    assert "determined" in official.det("u").out
    for group in ("auth", "c", "checkpoint", "t", "trial", "experiment set", "experiment label", "trial set"):
        assert "usage: " in official.det(*group.split()).out


# `det experiment create`


def test_includes(official: Official, saved: Saved) -> None:
    assert "sent along: ['more/two.txt', 'one.txt']" in official.cluster.logs(saved.trial)
    assert f"det trial logs -f {saved.trial}" in saved.said.out


def test_what_is_sent(official: Official, folder: Path, tmp_path: Path) -> None:
    (folder / ".detignore").write_text("*.yaml\n")
    for model, names in (((folder,), ["saves.py"]), ((), [])):
        number = created(official.det("e", "create", folder / "saves.yaml", *model, "--paused"))
        target = tmp_path / str(number)
        target.mkdir()
        official.det("e", "download-model-def", number, "--output-dir", target)
        if names:
            with tarfile.open(target / f"experiment_{number}_model_def.tgz") as archive:
                assert archive.getnames() == names
        official.det("e", "kill", number)
    (folder / ".detignore").unlink()
    refused = official.det("e", "create", folder / "saves.yaml", folder / "saves.py", code=1)
    assert "must be a directory" in refused.err  # as this client has it


def test_overrides(official: Official, folder: Path) -> None:
    overrides = {
        "hyperparameters.lr": "0.5",
        "hyperparameters.layers": "3,4",
        "searcher": "{name: random, metric: loss, max_trials: 2}",
        "name": "overridden",
    }
    flags = [word for key, value in overrides.items() for word in ("--config", f"{key}={value}")]
    number = created(official.det("e", "create", folder / "saves.yaml", folder, "--paused", *flags))
    ours = official.cluster.experiment(number)
    assert (ours["name"], ours["config"]["searcher"]["max_trials"]) == ("overridden", 2)
    assert ours["config"]["hyperparameters"]["lr"] == 0.5
    assert ours["config"]["hyperparameters"]["layers"] == [3, 4]
    official.det("e", "kill", number)
    both = official.det("e", "create", folder / "saves.yaml", folder, "--paused", "-f", code=2)
    assert "not allowed with" in both.err


def test_a_test_run(official: Official, folder: Path) -> None:
    said = official.det("e", "create", folder / "saves.yaml", folder, "--test-mode")
    found = re.search(r"Created test experiment (\d+)", said.out)
    assert found
    for stage in ("Scheduling task", "Testing training", "Testing validation", "Testing checkpointing"):
        assert re.search(rf"{stage}\.+ \[✔\]", said.out), said.out
    ours = official.cluster.experiment(int(found[1]))
    assert ours["description"].startswith("[test-mode] ")
    assert (ours["config"]["searcher"]["name"], ours["config"]["max_restarts"]) == ("single", 0)


# What it has made


def test_lists(official: Official, saved: Saved) -> None:
    listed = {row["ID"]: row for row in official.det("e", "ls", "--csv").rows}
    assert listed[str(saved.experiment)]["State"] == "COMPLETED"
    (best,) = official.det("e", "lc", saved.experiment, "--best", 1, "--csv").rows
    assert (best["UUID"], best["# of Batches"], best["Validation Metric"]) == (saved.uuids[1], "2", "0.25")
    assert official.det("e", "lt", saved.experiment, "--csv", "--offset", 1).rows == []


def test_pages_of_workloads(official: Official, saved: Saved) -> None:
    def steps(*flags: object) -> list[int]:
        """# of batches of each row."""
        out = official.det("t", "describe", saved.trial, "--csv", *flags).out
        return [int(line.partition(",")[0]) for line in out.splitlines() if re.match(r"\d+,2\d{3}-", line)]

    everything = steps()
    assert sorted(set(everything)) == [1, 2, 3]
    assert steps("--limit", 2) == everything
    assert steps("--limit", 2, "--offset", 1, "--pages", 1) == everything[1:3]


def test_downloads(official: Official, saved: Saved, tmp_path: Path) -> None:
    quiet = official.det("c", "download", saved.uuids[0], "-o", tmp_path / "one", "-q")
    assert quiet.out.strip() == str(tmp_path / "one")
    assert (tmp_path / "one" / "weights").read_text() == "weights of 1"
    worst = ("--sort-by", "loss", "--smaller-is-better", "false")
    official.det("e", "download", saved.experiment, *worst, "--top-n", 2, "-o", tmp_path / "two")
    assert {path.name for path in (tmp_path / "two").iterdir()} == {saved.uuids[2], saved.uuids[0]}
    # Of a trial, this client takes from the wrong end of the list (rest-api.md 4.6): the flags are driven, no more.
    official.det("t", "download", saved.trial, "--best", *worst, "-o", tmp_path / "three")
    assert (tmp_path / "three" / "weights").read_text().startswith("weights of ")


def test_retention_of_a_trial(official: Official, saved: Saved) -> None:
    official.det("trial", "set", "log-retention", saved.trial, "--forever")
    found = official.cluster.get(f"/api/v1/trials/{saved.trial}")["trial"]
    assert found["logRetentionDays"] == -1


def test_continue_and_follow(official: Official, folder: Path) -> None:
    number = created(
        official.det("e", "create", folder / "saves.yaml", folder, "--config", "entrypoint=exit 3")
    )
    assert official.cluster.wait_for_end(number) == "ERROR"
    said = official.det("e", "continue", number, "--config", "entrypoint=python3 saves.py", "-f")
    assert "sent along: []" in said.out
    assert official.cluster.wait_for_end(number) == "COMPLETED"
    (trial,) = official.cluster.trials(number)

    def bests() -> Any:
        return official.cluster.get(f"/api/v1/trials/{trial['id']}")["trial"]["bestValidation"]

    assert wait_for(bests, "the best validation")["metrics"]["avgMetrics"]["loss"] == 0.25
