"""Detached mode: scripts with our own `core_v2`, processes of their own, against a real master."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import Place, running_place
from e2e.trials import script_config
from support.cluster import PASSWORD, REPO, wait_for

SCRIPT = Path(__file__).with_name("detached_script.py")
SILENCE = 3.0  # seconds


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with running_place(slots=1, config={"detached": {"heartbeat_timeout": SILENCE}}) as started:
        yield started


@dataclass
class Script:
    """A script that runs, and what it found."""

    place: Place
    process: subprocess.Popen[str]
    name: str

    @property
    def found(self) -> dict[str, Any]:
        file = self.place.side / f"{self.name}.json"

        def written() -> bool:
            assert self.process.poll() in (None, 0) or file.exists(), self.process.communicate()
            return file.exists()

        wait_for(written, "the script has trained")
        noted: dict[str, Any] = json.loads(file.read_text())
        return noted

    def let_go(self) -> None:
        (self.place.side / f"{self.name}.go").touch()

    def ends(self) -> tuple[str, str]:
        """What it printed to its own stdout and stderr, when it has ended."""
        return self.process.communicate(timeout=60)


def laptop(place: Place) -> dict[str, str]:
    """The environment of a user's own machine."""
    return {
        **place.cluster.environment,
        "DET_MASTER": place.cluster.url,
        "DET_USER": "determined",
        "DET_PASS": PASSWORD,
        "DET_DEBUG_CONFIG_PATH": str(place.cluster.folder / "laptop"),
        "XDG_DATA_HOME": str(place.cluster.folder / "laptop"),
    }


@contextmanager
def script(place: Place, name: str, steps: int, how: str = "end") -> Iterator[Script]:
    for suffix in ("json", "go"):
        (place.side / f"{name}.{suffix}").unlink(missing_ok=True)
    command = [sys.executable, str(SCRIPT), str(place.side), name, str(steps), how]
    process = subprocess.Popen(
        command, env=laptop(place), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield Script(place, process, name)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_the_example_of_the_docs(place: Place) -> None:
    ended = subprocess.run(
        [sys.executable, str(REPO / "examples" / "detached.py")],
        env=laptop(place),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "step 200: y = 3.0" in ended.stdout or "step 200: y = 2.9" in ended.stdout
    (shown,) = (
        one for one in place.cluster.get("/api/v1/experiments")["experiments"] if "line" in one["name"]
    )
    assert (shown["state"], shown["checkpointCount"]) == ("STATE_COMPLETED", 4)
    (trial,) = place.cluster.trials(shown["id"])
    assert trial["searcherMetricValue"] < 0.1
    greeting = f"Reports to {place.cluster.url} as trial {trial['id']} of experiment {shown['id']}"
    assert greeting in ended.stderr and greeting not in place.cluster.logs(trial["id"])


def states(place: Place, experiment: int) -> tuple[str, str]:
    (trial,) = place.cluster.trials(experiment)
    return place.cluster.experiment(experiment)["state"], trial["state"]


def wait_for_states(place: Place, experiment: int, state: str) -> None:
    both = (f"STATE_{state}",) * 2
    wait_for(lambda: states(place, experiment) == both, f"experiment {experiment} is {state}")


def test_killed_and_started_again_it_goes_on_from_its_checkpoint(place: Place) -> None:
    with script(place, "killed", 3, "wait") as first:
        found = first.found
        assert (found["run"], found["begin"], found["latest"], found["preempt"]) == (1, 0, None, False)
        assert found["data"] == {"source": "disk"}
        assert found["page"] == f"{place.cluster.url}/det/experiments/{found['experiment']}"
        assert states(place, found["experiment"]) == ("STATE_RUNNING", "STATE_RUNNING")
        wait_for(lambda: "trained" in place.cluster.logs(found["trial"]), "its log is at the master")
        first.process.kill()
    wait_for_states(place, found["experiment"], "ERROR")
    error = place.cluster.experiment(found["experiment"])["error"]
    assert error == f"nothing was heard of trial {found['trial']} for {SILENCE:g} seconds"

    with script(place, "killed", 6) as second:
        again = second.found
        out, _ = second.ends()
    assert (again["experiment"], again["trial"], again["run"]) == (found["experiment"], found["trial"], 2)
    assert (again["begin"], again["latest"], again["restored"]) == (2, found["saved"], "of step 2")
    wait_for_states(place, found["experiment"], "COMPLETED")
    experiment = place.cluster.experiment(found["experiment"])
    (trial,) = place.cluster.trials(found["experiment"])
    assert (experiment["name"], experiment["labels"]) == ("detached killed", ["laptop"])
    assert (experiment["progress"], experiment["resourcePool"], experiment["error"]) == (1, "", "")
    assert (trial["totalBatchesProcessed"], trial["hparams"]) == (6, {"lr": 0.1})
    assert trial["bestValidation"]["metrics"]["avgMetrics"] == {"accuracy": 0.6}
    assert trial["checkpointCount"] == 3
    # Printed here as ever, and kept there: of both runs, with levels.
    assert [line for line in out.splitlines() if line.startswith("step")] == [
        f"step {n} of run 2" for n in (3, 4, 5, 6)
    ]
    log = place.cluster.logs(found["trial"])
    for line in ("step 3 of run 1", "Nothing was heard", "step 6 of run 2", "WARNING: trained"):
        assert line in log


@pytest.mark.parametrize(
    ("how", "state", "code"),
    [
        *(("end", "COMPLETED", 0), ("close", "COMPLETED", 0), ("fail", "ERROR", 1)),
        *(("finally", "ERROR", 1), ("exit", "ERROR", 3), ("interrupt", "CANCELED", -2)),
    ],
)
def test_the_trial_ends_as_the_script(place: Place, how: str, state: str, code: int) -> None:
    with script(place, how, 1, how) as running:
        found = running.found
        _, err = running.ends()
        assert running.process.returncode in (code, 128 - code if code < 0 else code)
    assert states(place, found["experiment"]) == (f"STATE_{state}",) * 2
    assert ("the data is bad" in err) == (how in ("fail", "finally"))
    log = place.cluster.logs(found["trial"])
    assert ("ValueError: the data is bad" in log) == (how == "fail")


def test_a_laptop_that_was_closed_for_a_while_goes_on(place: Place) -> None:
    with script(place, "asleep", 1, "wait") as running:
        found = running.found
        os.kill(running.process.pid, signal.SIGSTOP)
        wait_for_states(place, found["experiment"], "ERROR")
        os.kill(running.process.pid, signal.SIGCONT)
        wait_for_states(place, found["experiment"], "RUNNING")
        running.let_go()
        running.ends()
    assert states(place, found["experiment"]) == ("STATE_COMPLETED", "STATE_COMPLETED")


def test_a_master_that_is_killed_is_no_matter(place: Place) -> None:
    with script(place, "away", 2, "wait-and-fail") as running:
        found = running.found
        place.cluster.kill_master()
        running.let_go()  # it ends while nobody hears of it, and says so for as long as that takes
        place.cluster.start_master()
        running.ends()
    wait_for_states(place, found["experiment"], "ERROR")
    assert "ValueError: the data is bad" in place.cluster.logs(found["trial"])


def test_two_scripts_of_one_name_the_later_one_counts(place: Place) -> None:
    with script(place, "twice", 1, "wait") as first:
        assert first.found["run"] == 1
        file = place.side / "twice.json"
        file.rename(place.side / "twice-first.json")
        with script(place, "twice", 4, "wait") as second:
            found = second.found
            assert found["run"] == 2
            first.let_go()
            first.ends()
            second.let_go()
            second.ends()
    (trial,) = place.cluster.trials(found["experiment"])
    assert trial["totalBatchesProcessed"] == 4


def test_det_shows_it_and_does_not_steer_it(place: Place) -> None:
    with script(place, "steered", 2, "wait") as running:
        found = running.found
        number = str(found["experiment"])
        refused = place.det("experiment", "kill", number)
        assert refused.returncode == 1
        assert f"experiment {number} is detached" in refused.stderr and "Traceback" not in refused.stderr
        for command in ("describe", "list-checkpoints", "logs"):
            shown = place.det("experiment", command, number)
            assert shown.returncode == 0, shown.stderr
        assert "detached steered" in place.det("experiment", "list").stdout
        described = place.det("trial", "describe", str(found["trial"]))
        assert (described.returncode, "RUNNING" in described.stdout) == (0, True)
        running.let_go()
        running.ends()
    kept = place.side / "checkpoints-steered" / found["saved"] / "weights"
    assert kept.exists()
    get = ("checkpoint", "download", found["saved"], "-o", str(place.side / "fetched"))
    if os.geteuid() == 0:  # the script's user is not the account of the owner's tasks
        elsewhere = place.det(*get, "--mode", "master")
        assert elsewhere.returncode == 1
        assert "get them where its script ran" in elsewhere.stderr
    fetched = place.det(*get)
    assert fetched.returncode == 0, fetched.stderr
    assert (place.side / "fetched" / "weights").read_text() == "of step 2"
    assert place.det("experiment", "delete", "--yes", number).returncode == 0
    wait_for(
        lambda: place.cluster.request("GET", f"/api/v1/experiments/{number}").status_code == 404,
        "it is deleted",
    )


def test_in_a_trial_of_the_cluster_it_is_that_trial(place: Place) -> None:
    """The same script, submitted: it joins, and no detached experiment comes to be."""
    text = SCRIPT.read_text()
    before = place.cluster.get("/api/v1/experiments")["experiments"]
    config = script_config(place.side, name="on the cluster")
    config["entrypoint"] = f"python3 train.py {place.side} managed 2 close"
    config["searcher"] = {"name": "single", "metric": "accuracy", "smaller_is_better": False}
    experiment = place.cluster.create(config, {"train.py": text})
    assert place.cluster.wait_for_end(experiment) == "COMPLETED", place.cluster.logs(
        place.cluster.trials(experiment)[0]["id"]
    )
    (trial,) = place.cluster.trials(experiment)
    found = json.loads((place.side / "managed.json").read_text())
    assert (found["trial"], found["experiment"]) == (trial["id"], experiment)
    assert trial["totalBatchesProcessed"] == 2
    after = place.cluster.get("/api/v1/experiments")["experiments"]
    assert {one["id"] for one in after} - {one["id"] for one in before} == {experiment}
