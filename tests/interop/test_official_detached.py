"""`determined.experimental.core_v2` of the official client against our master."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from interop.official import ENVIRONMENT, LIMIT, Official

SCRIPT = Path(__file__).with_name("detached_script.py")


def run(official: Official, folder: Path, name: str, last: int, how: str = "close", code: int = 0) -> Any:
    command = [str(ENVIRONMENT / "bin" / "python"), str(SCRIPT), str(folder), name, str(last), how]
    environment = official.environment("determined")
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert ended.returncode == code, ended.stderr
    return json.loads(next(line for line in ended.stdout.splitlines() if line.startswith("{")))


def test_a_script_by_its_names_twice(official: Official, tmp_path: Path) -> None:
    ours = official.cluster
    first = run(official, tmp_path, "resumed", 2)
    assert (first["run"], first["begin"], first["restored"], first["preempt"]) == (1, 0, None, False)
    assert first["page"] == f"{ours.url}/det/experiments/{first['experiment']}"
    experiment = ours.experiment(first["experiment"])
    assert (experiment["state"], experiment["unmanaged"]) == ("STATE_COMPLETED", True)
    assert (experiment["name"], experiment["labels"]) == ("detached resumed", ["laptop"])
    second = run(official, tmp_path, "resumed", 4)
    assert (second["experiment"], second["trial"], second["run"]) == (first["experiment"], first["trial"], 2)
    assert (second["begin"], second["restored"]) == (2, "of step 2")
    (trial,) = ours.trials(first["experiment"])
    assert (trial["state"], trial["totalBatchesProcessed"]) == ("STATE_COMPLETED", 4)
    assert trial["bestValidation"]["metrics"]["avgMetrics"] == {"accuracy": 0.4}
    assert (trial["hparams"], trial["checkpointCount"]) == ({"lr": 0.1}, 4)
    log = ours.logs(trial["id"])
    assert "step 1 of run 1" in log and "step 4 of run 2" in log
    # And its own det shows it.
    number = str(first["experiment"])
    assert "COMPLETED" in official.det("experiment", "describe", number).out
    assert "detached resumed" in official.det("experiment", "list").out
    assert number in official.det("experiment", "list-trials", number).out
    assert second["saved"] in official.det("experiment", "list-checkpoints", number).out
    assert "step 4 of run 2" in official.det("trial", "logs", trial["id"]).out
    official.det("experiment", "delete", "--yes", number)


def test_a_script_that_fails(official: Official, tmp_path: Path) -> None:
    failed = run(official, tmp_path, "", 1, "fail", code=1)
    (trial,) = official.cluster.trials(failed["experiment"])
    experiment = official.cluster.experiment(failed["experiment"])
    assert (experiment["state"], trial["state"]) == ("STATE_ERROR", "STATE_ERROR")
    refused = official.det("experiment", "kill", failed["experiment"])
    assert refused.code == 0  # what has ended is not worth an error, as of every experiment
