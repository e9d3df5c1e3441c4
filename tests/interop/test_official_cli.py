"""The official client's `det` against our master and agent: what it prints, and what the API says."""

from __future__ import annotations

import csv
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from interop.official import DIGITS, Official, Said
from support.cluster import PASSWORD, wait_for

LOOP = """
import time
from determined import core

with core.init() as context:
    print("the loop runs", flush=True)
    while not context.preempt.should_preempt():
        time.sleep(0.1)
"""
LOOP_CONFIG = {
    "name": "loop",
    "entrypoint": "python3 loop.py",
    "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
    "max_restarts": 0,
}


@dataclass(frozen=True)
class Finished:
    """examples/digits/single.yaml, created with -f and followed to its end."""

    said: Said
    experiment: int
    trial: int


@pytest.fixture(scope="module")
def finished(official: Official) -> Finished:
    said = official.det("experiment", "create", DIGITS / "single.yaml", DIGITS, "-f")
    experiment = created(said)
    assert official.cluster.wait_for_end(experiment) == "COMPLETED"
    return Finished(said, experiment, official.cluster.trials(experiment)[0]["id"])


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Configuration and folder of an experiment that runs until it is stopped."""
    folder = tmp_path_factory.mktemp("loop")
    (folder / "loop.py").write_text(LOOP)
    config = folder / "loop.yaml"
    config.write_text(yaml.safe_dump(LOOP_CONFIG))
    return config, folder


def created(said: Said) -> int:
    found = re.search(r"Created experiment (\d+)", said.out)
    assert found, said
    return int(found[1])


def checkpoints(official: Official, experiment: int) -> list[dict[str, Any]]:
    """By step."""
    found: list[dict[str, Any]] = official.cluster.get(f"/api/v1/experiments/{experiment}/checkpoints")[
        "checkpoints"
    ]
    return sorted(found, key=lambda checkpoint: int(checkpoint["metadata"]["steps_completed"]))


# Who one is


def test_login_and_logout(official: Official) -> None:
    refused = official.det("user", "login", "determined", user=None, typed="Wrong-passw0rd\n", code=1)
    assert "Invalid username/password" in refused.err
    official.det("user", "login", "determined", user=None, typed=f"{PASSWORD}\n")
    assert "'determined'" in official.det("user", "whoami", user=None).out
    official.det("user", "logout", user=None)
    official.det("user", "whoami", user=None, code=1)


def test_user_from_the_environment(official: Official) -> None:
    assert "'admin'" in official.det("user", "whoami", user="admin").out
    users = official.det("user", "list").out
    assert all(name in users for name in ("admin", "determined"))


def test_master_info(official: Official) -> None:
    info = official.det("master", "info", "--json").json
    ours = official.cluster.get("/api/v1/master")
    assert info == {key: ours[key] for key in info}
    assert info["version"] == "0.38.1"


def test_agents(official: Official) -> None:
    (agent,) = official.det("agent", "list", "--csv").rows
    assert (agent["Agent ID"], agent["Slots"], agent["Resource Pool"]) == ("agent-1", "2", "default")


# A run of the example


def test_create_and_follow(official: Official, finished: Finished) -> None:
    log = official.cluster.logs(finished.trial)
    assert log in finished.said.out
    assert "exit code 0" in log


def test_wait(official: Official, finished: Finished) -> None:
    official.det("experiment", "wait", finished.experiment)


def test_list(official: Official, finished: Finished) -> None:
    rows = {row["ID"]: row for row in official.det("experiment", "list", "--csv", "--show_project").rows}
    row = rows[str(finished.experiment)]
    assert (row["Owner"], row["Name"], row["State"]) == ("determined", "digits-single", "COMPLETED")
    assert (row["Workspace"], row["Project"], row["Progress"]) == ("Uncategorized", "Uncategorized", "100.0%")


def test_list_leaves_other_users_experiments_out(official: Official, finished: Finished) -> None:
    official.cluster.add_user("alice")
    assert official.det("experiment", "list", "--csv", user="alice").rows == []
    for command in ("describe", "logs", "kill"):
        refused = official.det("experiment", command, finished.experiment, user="alice", code=1)
        assert f"experiment '{finished.experiment}' not found" in refused.err


def test_describe_json(official: Official, finished: Finished) -> None:
    (shown,) = official.det("experiment", "describe", finished.experiment, "--json").json
    ours = official.cluster.experiment(finished.experiment)
    assert shown["config"] == shown["experiment"]["config"] == ours["config"]
    for key in ("id", "state", "name", "jobId", "startTime", "endTime", "numTrials", "searcherType"):
        assert shown["experiment"][key] == ours[key], key


def test_describe_metrics(official: Official, finished: Finished, tmp_path: Path) -> None:
    best = official.cluster.trials(finished.experiment)[0]["bestValidation"]
    kept = {best["totalBatches"], 300}  # by the default policy: the best of the trial, and its latest

    def collected() -> bool:
        found = official.cluster.get(f"/api/v1/experiments/{finished.experiment}/checkpoints")["checkpoints"]
        there = [checkpoint for checkpoint in found if checkpoint["state"] == "STATE_COMPLETED"]
        return {checkpoint["metadata"]["steps_completed"] for checkpoint in there} == kept

    wait_for(collected, "only what the policy keeps is left")
    official.det("experiment", "describe", finished.experiment, "--metrics", "--outdir", tmp_path)
    with (tmp_path / "workloads.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["# of Batches"] for row in rows] == ["100", "200", "300"]
    assert {row["Validation State"] for row in rows} == {"COMPLETED"}
    states = {int(row["# of Batches"]): row["Checkpoint State"] for row in rows}
    assert states == {steps: "COMPLETED" if steps in kept else "DELETED" for steps in (100, 200, 300)}
    (accuracy,) = (
        row["Validation Metric: accuracy"] for row in rows if row["# of Batches"] == str(best["totalBatches"])
    )
    assert float(accuracy) == best["metrics"]["avgMetrics"]["accuracy"] > 0.9
    assert all(float(row["Training Metric: loss"]) > 0 for row in rows)
    table = official.det("experiment", "describe", finished.experiment).out
    assert all(f"{title}:" in table for title in ("Experiment", "Trials", "Workloads"))


def test_trial_describe(official: Official, finished: Finished) -> None:
    shown = official.det("trial", "describe", finished.trial, "--json").json
    ours = official.cluster.trials(finished.experiment)[0]
    assert shown["trial"]["summaryMetrics"] == ours["summaryMetrics"]
    assert shown["trial"]["hparams"] == ours["hparams"]
    table = official.det("trial", "describe", finished.trial, "--metrics").out
    assert all(checkpoint["uuid"] in table for checkpoint in checkpoints(official, finished.experiment))


def test_list_trials(official: Official, finished: Finished) -> None:
    (row,) = official.det("experiment", "list-trials", finished.experiment, "--csv").rows
    assert (row["Trial ID"], row["State"], row["# of Batches"]) == (
        str(finished.trial),
        "COMPLETED",
        "300",
    )


def test_logs(official: Official, finished: Finished) -> None:
    log = official.cluster.logs(finished.trial)
    lines = log.splitlines(keepends=True)
    assert official.det("experiment", "logs", finished.experiment).out.startswith(log)
    followed = official.det("trial", "logs", "-f", finished.trial)
    assert followed.out.startswith(log)
    first = official.det("trial", "logs", finished.trial, "--head", 1).out
    assert first.startswith(lines[0])
    assert lines[1] not in first
    assert official.det("trial", "logs", finished.trial, "--tail", 2).out.startswith("".join(lines[-2:]))
    assert not official.det("trial", "logs", finished.trial, "--level", "CRITICAL").out.startswith("[")


def test_checkpoints(official: Official, finished: Finished, tmp_path: Path) -> None:
    ours = checkpoints(official, finished.experiment)
    listed = official.det("experiment", "list-checkpoints", finished.experiment, "--csv").rows
    assert {row["UUID"]: float(row["Validation Metric"]) for row in listed} == pytest.approx(
        {one["uuid"]: one["training"]["searcherMetric"] for one in ours}
    )
    last = ours[-1]
    described = official.det("checkpoint", "describe", last["uuid"]).out
    assert last["uuid"] in described
    assert '"steps_completed": 300' in described
    for mode in ("direct", "master"):
        target = tmp_path / mode
        official.det("checkpoint", "download", last["uuid"], "--mode", mode, "-o", target)
        sizes = {
            str(path.relative_to(target)): str(path.stat().st_size)
            for path in target.rglob("*")
            if path.is_file()
        }
        stored = {name: size for name, size in last["resources"].items() if not name.endswith("/")}
        sizes.pop("metadata.json"), stored.pop("metadata.json")  # the client writes this one itself
        sizes.pop(".detlab-manifest.json")  # it knows nothing of checksums
        assert sizes == stored
    quiet = official.det("experiment", "download", finished.experiment, "--top-n", 1, "-q", cwd=tmp_path)
    best = max(ours, key=lambda one: float(one["training"]["searcherMetric"]))
    assert best["uuid"] in quiet.out
    assert list(tmp_path.rglob(f"{best['uuid']}/state_dict.pth"))


def test_config_and_model_definition(official: Official, finished: Finished, tmp_path: Path) -> None:
    shown = yaml.safe_load(official.det("experiment", "config", finished.experiment).out)
    assert shown == official.cluster.experiment(finished.experiment)["config"]
    official.det("experiment", "download-model-def", finished.experiment, cwd=tmp_path)
    with tarfile.open(tmp_path / f"experiment_{finished.experiment}_model_def.tgz") as archive:
        member = archive.extractfile("model_def.py")
        assert member is not None
        assert member.read() == (DIGITS / "model_def.py").read_bytes()


def test_edits(official: Official, finished: Finished) -> None:
    def ours() -> tuple[Any, ...]:
        experiment = official.cluster.experiment(finished.experiment)
        return tuple(experiment[key] for key in ("name", "description", "labels", "archived"))

    official.det("experiment", "set", "name", finished.experiment, "a name")
    official.det("experiment", "set", "description", finished.experiment, "a description")
    official.det("experiment", "label", "add", finished.experiment, "one")
    official.det("experiment", "label", "add", finished.experiment, "two")
    official.det("experiment", "label", "remove", finished.experiment, "one")
    official.det("experiment", "archive", finished.experiment)
    assert ours() == ("a name", "a description", ["two"], True)
    number = str(finished.experiment)
    assert number not in {row["ID"] for row in official.det("experiment", "list", "--csv").rows}
    listed = {row["ID"]: row for row in official.det("experiment", "list", "--all", "--csv").rows}
    assert listed[number]["Archived"] == "True"
    official.det("experiment", "unarchive", finished.experiment)
    official.det("experiment", "set", "name", finished.experiment, "digits-single")
    assert ours() == ("digits-single", "a description", ["two"], False)


# The verbs, on something that runs


def test_pause_activate_cancel(official: Official, loop: tuple[Path, Path]) -> None:
    experiment = created(official.det("experiment", "create", *loop, "--paused"))
    assert official.cluster.experiment(experiment)["state"] == "STATE_PAUSED"
    official.det("experiment", "activate", experiment)
    wait_until_it_runs(official, experiment, times=1)
    official.det("experiment", "pause", experiment)

    def paused() -> bool:
        trial = official.cluster.trials(experiment)[0]
        return (
            trial["state"] == "STATE_PAUSED"
            and not official.cluster.get("/api/v1/agents")["agents"][0]["containers"]
        )

    wait_for(paused, "the paused trial leaves its slot")
    assert "PAUSED" in official.det("experiment", "describe", experiment).out
    official.det("experiment", "wait", experiment, "--polling-interval", 1, code=1)  # it would wait for ever
    official.det("experiment", "activate", experiment)
    wait_until_it_runs(official, experiment, times=2)
    official.det("experiment", "cancel", experiment)
    official.det("experiment", "wait", experiment, "--polling-interval", 1, code=1)
    assert official.cluster.experiment(experiment)["state"] == "STATE_CANCELED"


def test_kill(official: Official, loop: tuple[Path, Path]) -> None:
    one, other = (
        created(official.det("experiment", "create", *loop, "--config", "max_restarts=1")) for _ in range(2)
    )
    assert official.cluster.experiment(one)["config"]["max_restarts"] == 1
    for experiment in (one, other):
        wait_until_it_runs(official, experiment, times=1)
    refused = official.det("experiment", "delete", one, "--yes", code=1)
    assert "only one that has ended can be deleted" in refused.err
    official.det("experiment", "kill", one)
    official.det("trial", "kill", official.cluster.trials(other)[0]["id"])
    for experiment in (one, other):
        assert official.cluster.wait_for_end(experiment) == "CANCELED"

    official.det("experiment", "delete", one, "--yes")
    path = f"/api/v1/experiments/{one}"
    wait_for(lambda: official.cluster.request("GET", path).status_code == 404, "the experiment is gone")
    assert str(one) not in {row["ID"] for row in official.det("experiment", "list", "--all", "--csv").rows}


def wait_until_it_runs(official: Official, experiment: int, times: int) -> None:
    def runs() -> bool:
        trials = official.cluster.trials(experiment)
        return bool(trials) and official.cluster.logs(trials[0]["id"]).count("the loop runs") == times

    wait_for(runs, f"the loop of experiment {experiment} runs for the {times}. time")


# What is wrong


def test_what_is_not_there(official: Official) -> None:
    for command, text in (
        (("experiment", "describe", 999), "experiment '999' not found"),
        (("trial", "logs", 999), "trial '999' not found"),
        (("checkpoint", "describe", "nope"), "checkpoint 'nope' not found"),
    ):
        assert text in official.det(*command, code=1).err


def test_wrong_configuration(official: Official, tmp_path: Path) -> None:
    config = tmp_path / "wrong.yaml"
    config.write_text(yaml.safe_dump({**LOOP_CONFIG, "resources": {"slot_per_trial": 1}}))
    refused = official.det("experiment", "create", config, DIGITS, code=1)
    assert "resources.slot_per_trial" in refused.err
    assert "slots_per_trial" in refused.err


def test_preview_search(official: Official, tmp_path: Path) -> None:
    config = tmp_path / "search.yaml"
    search = {"metric": "loss", "max_trials": 9, "num_rungs": 1, "time_metric": "batches", "max_time": 640}
    for searcher, row in (
        ({"name": "async_halving", **search}, r"9 \| train for 640 batches"),
        ({"name": "random", "metric": "loss", "max_trials": 8}, r"8 \| train to completion"),
    ):
        config.write_text(yaml.safe_dump({"searcher": searcher}))
        said = official.det("preview-search", config)
        assert f"\nname: {searcher['name']}\n" in said.out
        assert re.search(rf"^ +{row}$", said.out, re.MULTILINE), said.out
    config.write_text("searcher: {name: rando, metric: loss}")
    assert "Did you mean 'random'?" in official.det("preview-search", config, code=1).err


def test_a_command_for_which_there_is_no_route(official: Official) -> None:
    said = official.det("dev", "curl", "/api/v1/nowhere", "-s")
    assert "there is no GET /api/v1/nowhere" in said.json["error"]["error"]
