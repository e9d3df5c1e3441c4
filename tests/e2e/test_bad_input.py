"""What a person gets wrong, and what they are told: through the API of a real master and through `det`."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from e2e.conftest import Place
from e2e.trials import script_config, searcher
from support.cluster import free_port

MIB = 1 << 20
# Nobody may wait for another's large request: measured at some 50 ms with idle cores, and it decodes for seconds.
QUICK = 1.5  # seconds

BAD_CONFIGS = {
    "unknown key": ({"resources": {"slots": 1}}, "<config>.resources.slots: unknown key", "slots_per_trial"),
    "wrong type": (
        {"resources": {"slots_per_trial": "many"}},
        "<config>.resources.slots_per_trial",
        "must be an integer",
    ),
    "no searcher metric": (
        {"searcher": {"name": "single"}},
        "<config>.searcher.metric",
        "the validation metric that the search goes by",
    ),
    "unknown searcher": (
        {"searcher": {**searcher("adaptive-asha")}},
        "<config>.searcher.name",
        "single, random, grid, async_halving, adaptive_asha",
    ),
}


@pytest.mark.parametrize(("change", "key", "allowed"), BAD_CONFIGS.values(), ids=BAD_CONFIGS.keys())
def test_a_bad_configuration_names_the_key_and_what_is_allowed(
    place: Place, tmp_path: Path, change: dict[str, Any], key: str, allowed: str
) -> None:
    config = script_config(place.side, **change)
    answer = place.cluster.request("POST", "/api/v1/experiments", json={"config": json.dumps(config)})
    assert answer.status_code == 400
    error = answer.json()["error"]["error"]
    assert key in error and allowed in error, error
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    (tmp_path / "train.py").write_text("")
    shown = place.det("experiment", "create", "config.yaml", "train.py", cwd=tmp_path)
    assert shown.returncode == 1
    assert key in shown.stderr and allowed in shown.stderr, shown.stderr
    assert "Traceback" not in shown.stderr
    assert place.cluster.get("/api/v1/experiments")["pagination"]["total"] == 0


def model(content: bytes, path: str = "data.bin", **changes: Any) -> dict[str, Any]:
    entry = {"path": path, "type": 48, "content": b64encode(content).decode(), "mtime": "0", "mode": 0o100644}
    return {**entry, "uid": 0, "gid": 0, **changes}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (model(b"x", "/etc/cron.d/mine"), "'/etc/cron.d/mine' leaves the context"),
        (model(b"x", "lib/../../mine"), "'lib/../../mine' leaves the context"),
        (model(b"/etc/passwd", "link", type=50), "'link' in the context is a symbolic link"),
        (model(b"/etc/passwd", "link", type=49), "'link' in the context is a hard link"),
        (model(bytes(96 * MIB)), "the context has 96.0 MiB of files: the limit is 95 MiB"),
    ],
    ids=["absolute", "parent", "symbolic link", "hard link", "too large"],
)
def test_the_master_refuses_a_bad_context(place: Place, entry: Mapping[str, Any], message: str) -> None:
    body = {"config": json.dumps(script_config(place.side)), "modelDefinition": [entry]}
    answer = place.cluster.request("POST", "/api/v1/experiments", json=body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["error"]
    assert not os.listdir(place.cluster.master_folder / "contexts"), "something of it was kept"


def test_a_body_that_is_larger_than_any_context_is_refused(place: Place) -> None:
    body = {"config": "{}", "modelDefinition": [model(bytes(120 * MIB))]}
    answer = place.cluster.request("POST", "/api/v1/experiments", json=body)
    assert answer.status_code in (400, 413)
    assert "this route takes up to 136 MiB" in answer.json()["error"]["error"]


@pytest.mark.parametrize(
    ("name", "target", "message"),
    [
        ("out", "../elsewhere", "the link 'out' leads out of the model folder"),
        ("gone", "nowhere", "cannot read 'gone' in the model folder"),
        ("round", ".", "the link 'round' leads back to a folder that contains it"),
    ],
)
def test_det_refuses_a_link_that_leaves_the_folder(
    place: Place, tmp_path: Path, name: str, target: str, message: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "elsewhere").write_text("a secret")
    (folder / name).symlink_to(target)
    shown = _create(place, folder)
    assert shown.returncode == 1
    assert message in shown.stderr and "Traceback" not in shown.stderr, shown.stderr


def test_det_refuses_a_context_that_is_too_large(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with (folder / "data.bin").open("wb") as file:
        file.truncate(96 * MIB)
    shown = _create(place, folder)
    assert shown.returncode == 1
    assert "at most 95.0 MiB can be sent" in shown.stderr and "data.bin" in shown.stderr, shown.stderr
    (folder / ".detignore").write_text("*.bin\n")
    assert _create(place, folder, "--paused").returncode == 0


def _create(place: Place, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    config = folder.parent / "config.yaml"
    config.write_text(json.dumps(script_config(place.side)))
    return place.det("experiment", "create", str(config), str(folder), *flags)


CHECK = """
import hashlib, os, pathlib
digest = hashlib.sha256(pathlib.Path("data.bin").read_bytes()).hexdigest()
(pathlib.Path(os.environ["SIDE"]) / "digest").write_text(digest)
"""


def test_a_large_context_is_accepted_and_nobody_waits_for_it(place: Place, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    data = os.urandom(94 * MIB)  # does not compress
    (folder / "data.bin").write_bytes(data)
    (folder / "train.py").write_text(CHECK)
    with _latencies(place) as latencies:
        created = _create(place, folder)
        assert created.returncode == 0, created.stderr
        experiment_id = int(created.stdout.split()[-1])
        assert place.cluster.wait_for_end(experiment_id) == "COMPLETED"  # its task fetches it, too
    assert (place.side / "digest").read_text() == hashlib.sha256(data).hexdigest()
    assert len(latencies) > 20
    assert max(latencies) < QUICK, f"a request took {max(latencies):.2f} s"


@contextmanager
def _latencies(place: Place) -> Iterator[list[float]]:
    """Seconds that requests take meanwhile: reads of the database, by a user who is logged in."""
    taken: list[float] = []
    stop = threading.Event()
    headers = {"Authorization": f"Bearer {place.cluster.token()}"}

    def ask() -> None:
        with requests.Session() as session:
            while not stop.wait(0.05):
                before = time.monotonic()
                session.get(
                    f"{place.cluster.url}/api/v1/experiments", headers=headers, timeout=60
                ).raise_for_status()
                taken.append(time.monotonic() - before)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield taken
    finally:
        stop.set()
        asking.join()


# Starting


def _start(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments], check=False, capture_output=True, text=True, timeout=60
    )


def test_a_taken_port_is_named_with_the_way_to_another(place: Place, tmp_path: Path) -> None:
    port = str(place.cluster.port)
    ended = _start("detlab_master", "--port", port, "--data-dir", str(tmp_path))
    assert ended.returncode == 1
    assert f"port {port}" in ended.stderr and "make up PORT=9000" in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_second_master_on_the_same_folder_is_told_who_holds_it(place: Place) -> None:
    master = place.cluster.master
    assert master is not None
    ended = _start(
        "detlab_master", "--port", str(free_port()), "--data-dir", str(place.cluster.master_folder)
    )
    assert ended.returncode == 1
    assert f"pid {master.pid}" in ended.stderr and str(place.cluster.port) in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr
    assert requests.get(f"{place.cluster.url}/health", timeout=10).status_code == 200
