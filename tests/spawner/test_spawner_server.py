"""What runs in a server's task before Jupyter does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from detlab_spawner import server


def test_examples_are_copied_once_and_nothing_is_overwritten(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    (sources / "digits").mkdir(parents=True)
    (sources / "digits" / "model_def.py").write_text("new")
    (sources / "digits.ipynb").write_text("new")
    home = tmp_path / "home"
    (home / "examples").mkdir(parents=True)
    (home / "examples" / "digits.ipynb").write_text("mine")
    found = [sources / "digits", sources / "digits.ipynb"]
    server.copy_examples(home, found)
    assert (home / "examples" / "digits" / "model_def.py").read_text() == "new"
    assert (home / "examples" / "digits.ipynb").read_text() == "mine"
    (home / "examples" / "digits" / "model_def.py").unlink()
    server.copy_examples(home, found)  # what the user deleted does not come back
    assert not (home / "examples" / "digits" / "model_def.py").exists()


def test_the_examples_are_there() -> None:
    names = {path.name for path in server.examples()}
    assert "digits" in names


def test_the_address_is_the_one_on_the_way_to_the_master() -> None:
    assert server.own_address("http://127.0.0.1:8080") == "127.0.0.1"


def test_a_free_port_can_be_had() -> None:
    port = server.free_port("127.0.0.1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


def test_the_environment_of_the_server() -> None:
    given = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/homes/anna",
        "PYTHONUSERBASE": "/run/of/the/task",
        "JUPYTERHUB_SERVICE_PREFIX": "/user/anna/",
        "DET_MASTER": "http://127.0.0.1:8080",
    }
    made = server.server_environment(given, "127.0.0.1", 4000)
    assert made["PATH"] == f"{Path(sys.executable).parent}:/usr/bin:/bin"
    assert made["JUPYTERHUB_SERVICE_URL"] == "http://127.0.0.1:4000/user/anna/"
    assert made["JUPYTERHUB_ROOT_DIR"] == "/homes/anna"
    assert made["JUPYTERHUB_DEFAULT_URL"] == "/lab"
    assert "PYTHONUSERBASE" not in made
    assert made["DET_MASTER"] == given["DET_MASTER"]
    again = server.server_environment({**given, "JUPYTERHUB_DEFAULT_URL": "/tree"}, "::1", 4000)
    assert again["JUPYTERHUB_DEFAULT_URL"] == "/tree"
    assert again["JUPYTERHUB_SERVICE_URL"] == "http://[::1]:4000/user/anna/"


def test_its_kernel_is_the_python_one_with_the_magics() -> None:
    made = server.server_environment({"HOME": "/h", "JUPYTERHUB_SERVICE_PREFIX": "/"}, "127.0.0.1", 1)
    listed = subprocess.run(
        [sys.executable, "-m", "jupyter_client.kernelspecapp", "list", "--json"],
        env={**os.environ, "JUPYTER_PATH": made["JUPYTER_PATH"]},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    spec = json.loads(listed.stdout)["kernelspecs"]["python3"]["spec"]
    assert "--InteractiveShellApp.extra_extensions=detlab_magics" in spec["argv"]


def test_importing_it_does_not_import_the_hub() -> None:
    code = "import sys, detlab_spawner.server; sys.exit('jupyterhub' in sys.modules or 'sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_an_unknown_name_of_the_package() -> None:
    import detlab_spawner

    with pytest.raises(AttributeError, match="no attribute 'Spawner'"):
        _ = detlab_spawner.Spawner
    assert detlab_spawner.DetlabSpawner.__name__ == "DetlabSpawner"
