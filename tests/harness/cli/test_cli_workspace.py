"""`det workspace`, `det project`, `det template`, and experiments in them: against the master itself."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from detlab_master.store.writes import SaveExperiment
from harness.real_master import RealDet, real_det, rig
from master.api.rig import ALICE, BOB, CONFIG, Rig, experiment_record

__all__ = ["real_det", "rig"]


def table(text: str) -> list[list[str]]:
    """The cells of a table, its headers first."""
    lines = [line for line in text.splitlines() if set(line) - set("-+")]
    return [[cell.strip() for cell in line.split("|")] for line in lines]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    return path


async def test_workspaces(rig: Rig, real_det: RealDet, tmp_path: Path) -> None:
    storage = tmp_path / "storage.yaml"
    storage.write_text("type: shared_fs\nhost_path: /nfs\n")
    shown = await real_det("workspace", "create", "vision", "--default-compute-pool", "default")
    assert table(shown.out)[1][:5] == ["2", "vision", "0", "default", ""]
    shown = await real_det(
        "w", "edit", "vision", "--name", "sight", "--checkpoint-storage-config-file", storage, "--json"
    )
    assert json.loads(shown.out)["checkpointStorageConfig"] == {"type": "shared_fs", "host_path": "/nfs"}
    text = "{type: s3, bucket: theirs}"
    await real_det("w", "edit", "sight", "--checkpoint-storage-config", text, "--default-compute-pool", "")
    described = (await real_det("workspace", "describe", "sight")).out
    assert "theirs" in described and "default" not in described.splitlines()[2]
    await real_det("w", "create", "a")
    listed = table((await real_det("w", "ls", "--sort-by", "name", "--order-by", "desc")).out)
    assert listed[0] == ["ID", "Name", "# Projects", "Default Compute Pool", "Default Aux Pool"]
    assert [row[1] for row in listed[1:]] == ["Uncategorized", "sight", "a"]
    assert len(json.loads((await real_det("w", "list", "--json", "--limit", 1, "--offset", 1)).out)) == 1
    assert [row[1] for row in table((await real_det("workspace")).out)[1:]] == ["Uncategorized", "sight", "a"]
    await real_det("w", "archive", "sight")
    assert "True" in (await real_det("w", "describe", "sight")).out
    await real_det("w", "unarchive", "sight")
    assert table((await real_det("w", "list-pools", "sight")).out)[1:] == [["default"]]
    refused = await real_det("w", "delete", "sight", code=1)
    assert "pass --yes to agree" in refused.err
    assert (await real_det("w", "delete", "sight", "--yes")).out == "Deleted workspace sight\n"
    assert (await real_det("w", "describe", "sight", code=1)).err == "there is no workspace 'sight'\n"
    assert "nothing to change" in (await real_det("w", "edit", "a", code=1)).err
    assert "there is a workspace 'a' already" in (await real_det("w", "create", "a", code=1)).err


async def test_projects(rig: Rig, real_det: RealDet) -> None:
    await real_det("w", "create", "vision")
    shown = await real_det("project", "create", "vision", "digits", "--description", "ten of them")
    headers = ["ID", "Key", "Name", "Description", "# Experiments", "# Active Experiments"]
    assert table(shown.out)[0][:6] == headers
    assert table(shown.out)[1][:6] == ["2", "DIG", "digits", "ten of them", "0", "0"]
    await real_det(
        "p", "edit", "vision", "digits", "--new_name", "numbers", "--key", "nu", "--description", ""
    )
    for command in (("project", "list", "vision"), ("w", "list-projects", "vision")):
        listed = table((await real_det(*command)).out)
        assert (listed[0], listed[1][:4]) == (headers, ["2", "NU", "numbers", ""])
    assert "nothing to change" in (await real_det("p", "edit", "vision", "numbers", code=1)).err
    for number, changes in (
        (5, {}),
        (6, {"archived": True}),
        (7, {"owner": BOB}),
    ):
        owner = int(changes.pop("owner", ALICE))
        record = experiment_record(number, owner, rig.folder, project_id=2, **changes)
        await rig.keep(SaveExperiment(record))

    async def ids(*options: str) -> list[str]:
        listed = table((await real_det("project", "list-experiments", "vision", "numbers", *options)).out)
        assert listed[0][:3] == ["ID", "Owner", "Name"]
        return [row[0] for row in listed[1:]]

    assert await ids() == ["5"]
    assert await ids("--all") == ["5", "6"]
    assert await ids("--all", "--order-by", "desc", "--limit", "1") == ["6"]
    shown = await real_det("p", "list-experiments", "vision", "numbers", "--json")
    assert [one["id"] for one in json.loads(shown.out)] == [5]
    described = (await real_det("p", "describe", "vision", "numbers")).out
    assert "numbers" in described and "digits 5" in described
    assert [
        one["id"]
        for one in json.loads((await real_det("p", "describe", "vision", "numbers", "--json")).out)[
            "experiments"
        ]
    ] == [5]
    await real_det("p", "archive", "vision", "numbers")
    await real_det("p", "unarchive", "vision", "numbers")
    refused = await real_det("p", "delete", "vision", "numbers", "--yes", code=1)
    assert "holds experiments of other users" in refused.err
    await real_det("experiment", "move", 5, "Uncategorized", "Uncategorized")
    assert (await rig.call("GET", "/api/v1/experiments/5")).json["experiment"]["projectId"] == 1
    missing = await real_det("e", "move", 5, "vision", "none", code=1)
    assert missing.err == "there is no project 'none' in workspace 'vision'\n"
    await real_det("p", "create", "vision", "other")
    assert (await real_det("p", "delete", "vision", "other", "--yes")).out == "Deleted project other\n"


async def test_templates(rig: Rig, real_det: RealDet, config: Path, tmp_path: Path) -> None:
    file = tmp_path / "template.yaml"
    file.write_text("hyperparameters: {decay: 1e-3}\nmax_restarts: 1\n")
    await real_det("w", "create", "vision")
    assert (await real_det("template", "create", "t", file, "-w", "vision")).out == "Created template t\n"
    assert "already" in (await real_det("tpl", "create", "t", file, code=1)).err
    assert table((await real_det("template")).out) == [["Name", "Workspace"], ["t", "vision"]]
    assert "max_restarts: 1" in (await real_det("tpl", "ls", "-d")).out
    kept = yaml.safe_load((await real_det("tpl", "describe", "t")).out)
    assert kept == {"hyperparameters": {"decay": 0.001}, "max_restarts": 1}
    await real_det("e", "create", config, "--template", "t", "--paused")
    experiment = (await rig.call("GET", "/api/v1/experiments/1")).json["experiment"]
    assert experiment["config"]["max_restarts"] == 1
    file.write_text("max_restarts: 2\n")
    await real_det("tpl", "set-value", "config", "t", file)
    assert yaml.safe_load((await real_det("tpl", "describe", "t")).out) == {"max_restarts": 2}
    file.write_text("max_restart: 2\n")
    refused = await real_det("tpl", "set", "t", file, code=1)
    assert "<template>.max_restart: unknown key" in refused.err
    file.write_text("debug: true\n")
    await real_det("tpl", "set", "t", file)
    await real_det("tpl", "set", "new", file)
    assert [row[0] for row in table((await real_det("tpl", "list")).out)[1:]] == ["new", "t"]
    assert (await real_det("tpl", "rm", "t")).out == "Removed template t\n"
    assert (await real_det("tpl", "describe", "t", code=1)).err == "template 't' not found\n"


async def test_experiments_into_a_project(rig: Rig, real_det: RealDet, config: Path) -> None:
    await real_det("w", "create", "vision")
    project = json.loads((await real_det("p", "create", "vision", "digits", "--json")).out)
    await real_det("e", "create", config, "--project_id", project["id"], "--paused")
    named = ["--config", "workspace=vision", "--config", "project=digits"]
    await real_det("e", "create", config, *named, "--paused")
    await real_det("e", "create", config, "--paused")
    shown = await real_det("e", "list", "--show_project", "--csv")
    rows: list[dict[str, Any]] = list(csv.DictReader(io.StringIO(shown.out)))
    places = [(row["ID"], row["Workspace"], row["Project"]) for row in rows]
    assert places == [
        ("1", "vision", "digits"),
        ("2", "vision", "digits"),
        ("3", "Uncategorized", "Uncategorized"),
    ]
    refused = await real_det("e", "create", config, "--config", "workspace=vision", code=1)
    assert "<config>.project: is required where workspace is given" in refused.err
    refused = await real_det("p", "delete", "vision", "digits", "--yes", code=1)
    assert "have not ended (1, 2)" in refused.err
