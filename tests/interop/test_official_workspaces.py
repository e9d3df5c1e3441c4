"""Workspaces, projects and templates, through the official client's `det` and SDK."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from interop.official import Official
from support.cluster import wait_for

CONFIG = {
    "name": "tiny",
    "entrypoint": "true",
    "searcher": {"name": "single", "metric": "accuracy"},
}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


@pytest.fixture(scope="module")
def template(official: Official, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "quick.yaml"
    path.write_text("max_restarts: 1\nresources: {slots_per_trial: 0}\n")
    official.det("template", "create", "quick", path)
    return path


def test_sdk(official: Official, config: Path, template: Path) -> None:
    script = Path(__file__).with_name("workspaces_script.py")
    said = official.python(script, config, config.parent)
    assert said["into"] == [True, True]
    assert said["shown"] == ["numbers", "all of them", ["plan"], True]
    assert said["inside"] == [said["experiment"]]
    assert said["found"] == {
        "workspaces": ["Uncategorized", "from the SDK"],
        "projects": ["numbers"],
        "by_name": True,
        "pools": ["default"],
    }
    assert (said["moved"], said["state"], said["restarts"], said["gone"]) == (1, "COMPLETED", 1, True)


def test_workspaces(official: Official) -> None:
    storage = {"type": "shared_fs", "host_path": "/nfs"}
    shown = official.det("workspace", "create", "vision", "--default-compute-pool", "default", "--json").json
    assert (shown["name"], shown["defaultComputePool"]) == ("vision", "default")
    again = official.det("workspace", "create", "vision", code=1)
    assert "there is a workspace 'vision' already" in again.out + again.err
    official.det("w", "edit", "vision", "--checkpoint-storage-config", json.dumps(storage))
    described = official.det("w", "describe", "vision", "--json").json
    assert described["checkpointStorageConfig"] == storage
    assert described["defaultComputePool"] == "default"
    official.det("w", "archive", "vision")
    assert official.cluster.get(f"/api/v1/workspaces/{shown['id']}")["workspace"]["archived"] is True
    official.det("w", "unarchive", "vision")
    listed = official.det("w", "list", "--sort-by", "name", "--order-by", "desc").out
    assert listed.index("vision") < listed.index("Uncategorized")
    refused = official.det("w", "edit", "vision", "--agent-uid", 7, "--agent-user", "ada", code=1)
    assert "not linked with Unix accounts" in refused.out + refused.err
    assert "Uncategorized" in official.det("w", "list-projects", "Uncategorized").out
    official.det("w", "delete", "vision", "--yes")
    official.det("w", "describe", "vision", code=1)


def test_projects(official: Official, config: Path) -> None:
    official.det("w", "create", "text")
    project = official.det("project", "create", "text", "words", "--description", "all", "--json").json
    edited = official.det(
        "p", "edit", "text", "words", "--new_name", "letters", "--key", "abc", "--json"
    ).json
    assert (edited["name"], edited["key"], edited["description"]) == ("letters", "ABC", "all")
    listed = official.det("p", "list", "text").out
    assert "letters" in listed and "ABC" in listed
    said = official.det("e", "create", config, config.parent, "--project_id", project["id"], "--paused")
    found = re.search(r"Created experiment (\d+)", said.out)
    assert found
    number = found[1]
    assert "tiny" in official.det("p", "list-experiments", "text", "letters").out
    assert "letters" in official.det("p", "describe", "text", "letters").out
    refused = official.det("p", "delete", "text", "letters", "--yes", code=1)
    assert f"have not ended ({number})" in refused.out + refused.err
    official.det("e", "move", number, "Uncategorized", "Uncategorized")
    rows = {row["ID"]: row for row in official.det("e", "list", "--csv", "--show_project").rows}
    assert (rows[number]["Workspace"], rows[number]["Project"]) == ("Uncategorized", "Uncategorized")
    official.det("e", "move", number, "text", "letters")
    official.det("p", "archive", "text", "letters")
    refused = official.det("e", "create", config, config.parent, "--project_id", project["id"], code=1)
    assert "is archived" in refused.out + refused.err
    official.det("p", "unarchive", "text", "letters")
    official.det("e", "kill", number)
    official.cluster.wait_for_end(int(number))
    official.det("p", "delete", "text", "letters", "--yes")
    wait_for(
        lambda: official.cluster.request("GET", f"/api/v1/projects/{project['id']}").status_code == 404,
        "the project is deleted",
    )
    official.det("w", "delete", "text", "--yes")


def test_templates(official: Official, config: Path, template: Path, tmp_path: Path) -> None:
    said = official.det("e", "create", config, config.parent, "--template", "quick", "--paused")
    found = re.search(r"Created experiment (\d+)", said.out)
    assert found
    shown = official.cluster.get(f"/api/v1/experiments/{found[1]}")["experiment"]["config"]
    assert (shown["max_restarts"], shown["resources"]["slots_per_trial"]) == (1, 0)
    changed = tmp_path / "changed.yaml"
    changed.write_text("max_restarts: 2\n")
    official.det("tpl", "set", "quick", changed)
    assert "max_restarts: 2" in official.det("template", "describe", "quick").out
    assert "Uncategorized" in official.det("template", "list", "-d").out
    changed.write_text("max_restart: 2\n")
    refused = official.det("tpl", "create", "other", changed, code=1)
    assert "<template>.max_restart: unknown key" in refused.out + refused.err
    missing = official.det("e", "create", config, config.parent, "--template", "quik", code=1)
    assert "Did you mean 'quick'?" in missing.out + missing.err
    official.det("tpl", "remove", "quick")
    official.det("tpl", "describe", "quick", code=1)
