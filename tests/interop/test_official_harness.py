"""The official package as a trial's own code: trials whose `environment.image` names an environment with it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from interop.harness import config, first_trial, needs_namespaces
from interop.official import ENVIRONMENT, need_official_client
from support.cluster import Cluster, cluster, wait_for
from support.run_as import run_as

UID = 70001

# Runs until it is asked to stop; a run that goes on from a checkpoint makes two steps more.
CORE = """
import json, logging, os, time
import determined as det
from determined import core

logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
info = det.get_cluster_info()
with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    step, end = 0, 10_000
    if info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(info.latest_checkpoint) as path:
            step = int((path / "step").read_text())
            end = step + 2
    ports = [os.environ[f"INTER_TRAIN_PROCESS_COMM_PORT_{i}"] for i in (1, 2)]
    ports += [os.environ["C10D_PORT"], os.environ["DTRAIN_SSH_PORT"]]
    about = {"run": info.trial._trial_run_id, "start": step, "version": det.__version__, "ports": ports}
    print("ABOUT", json.dumps(about | {"hook": os.environ.get("HOOK"), "uid": os.getuid()}))
    with open("/run/determined/train/logs/stderr.log", "w") as log:  # as a rank on another machine would
        log.write("[rank=3] WARNING: from afar\\n")
    while step < end:
        step += 1
        context.train.report_training_metrics(step, {"loss": 1 / step})
        context.train.report_validation_metrics(step, {"loss": 1 / step})
        if context.preempt.should_preempt():
            break
        time.sleep(0.05)
    with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
        (path / "step").write_text(str(step))
"""


# Saves a checkpoint, and then does what `end` says.
ENDS = """
import time
import determined as det
from determined import core

info = det.get_cluster_info()
with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    step = 0
    if info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(info.latest_checkpoint) as path:
            step = int((path / "step").read_text())
    print("STARTS AT", step)
    if info.trial.hparams["end"] == "invalid":
        raise det.InvalidHP("this cannot work")
    context.train.report_validation_metrics(step + 1, {"loss": 1.0})
    with context.checkpoint.store_path({"steps_completed": step + 1}) as (path, _):
        (path / "step").write_text(str(step + 1))
    if step < info.trial.hparams["end"]:
        raise RuntimeError("the training has failed")
"""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need_official_client()
    environments = {"official": str(ENVIRONMENT)}
    with cluster(tmp_path_factory.mktemp("cluster"), slots=2, environments=environments) as running:
        yield running


def abouts(ours: Cluster, trial_id: int) -> list[dict[str, Any]]:
    """What the runs of a trial have said of themselves."""
    lines = [line for line in ours.logs(trial_id).splitlines() if "ABOUT" in line]
    return [json.loads(line.partition("ABOUT ")[2]) for line in lines]


@needs_namespaces
def test_a_core_api_script_is_paused_and_goes_on(ours: Cluster) -> None:
    hook = {"startup-hook.sh": "export HOOK=sourced\n"}
    experiment = ours.create(config("python3 train.py"), {"train.py": CORE, **hook})
    beside = ours.create(config("python3 train.py"), {"train.py": CORE, **hook})
    trial, other = first_trial(ours, experiment), first_trial(ours, beside)

    def validated(trial_id: int) -> bool:
        return bool(ours.get(f"/api/v1/trials/{trial_id}")["trial"].get("latestValidation"))

    wait_for(lambda: validated(trial) and validated(other), "both report")
    ours.post(f"/api/v1/experiments/{experiment}/pause")

    def rests() -> bool:
        return "Ended with exit code 0" in ours.logs(trial)

    wait_for(rests, "the paused trial has ended its run")
    assert ours.experiment(experiment)["state"] == "STATE_PAUSED"
    ours.post(f"/api/v1/experiments/{experiment}/activate")
    assert ours.wait_for_end(experiment) == "COMPLETED"
    ours.post(f"/api/v1/experiments/{beside}/kill")
    assert ours.wait_for_end(beside) == "CANCELED"

    first, second = abouts(ours, trial)
    assert first["start"] == 0 < second["start"]
    assert [first["run"], second["run"]] == [1, 2]
    assert (first["version"], first["hook"]) == ("0.38.1", "sourced")
    ports = {*first["ports"], *abouts(ours, other)[0]["ports"]}
    assert len(ports) == 8, "two trials side by side on one machine"

    ended = ours.get(f"/api/v1/trials/{trial}")["trial"]
    assert ended["restarts"] == 0
    assert ended["totalBatchesProcessed"] == second["start"] + 2
    found = ours.get(f"/api/v1/trials/{trial}/checkpoints")["checkpoints"]
    assert {c["metadata"]["steps_completed"] for c in found} == {second["start"], second["start"] + 2}
    assert "[rank=3] || WARNING: from afar" in ours.logs(trial)


@needs_namespaces
@pytest.mark.parametrize(
    ("end", "state", "starts", "restarts"),
    [
        (1, "COMPLETED", [0, 1], 1),  # fails once, and goes on from its checkpoint
        (9, "ERROR", [0, 1], 1),  # fails more often than it may
        ("invalid", "COMPLETED", [0], 0),
    ],
)
def test_how_a_trial_ends(
    ours: Cluster, end: int | str, state: str, starts: list[int], restarts: int
) -> None:
    hyperparameters = {"end": end}
    experiment = ours.create(
        config("python3 train.py", hyperparameters=hyperparameters, max_restarts=1), {"train.py": ENDS}
    )
    ours.wait_for_end(experiment)
    trial = ours.trials(experiment)[0]
    assert trial["state"] == f"STATE_{state}", ours.logs(trial["id"])
    assert trial["restarts"] == restarts
    assert re.findall(r"STARTS AT (\d+)", ours.logs(trial["id"])) == [str(step) for step in starts]
    assert trial["logPolicyMatched"] is None, (
        "the configuration that the harness prints matches no log policy"
    )


@pytest.mark.full
@needs_namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start an agent under another account")
def test_without_root_too(tmp_path: Path) -> None:
    need_official_client()
    home = tmp_path / "agent-home"
    for folder in (home, home / "data", home / "storage"):
        folder.mkdir()
        os.chown(folder, UID, UID)
    environments = {"official": str(ENVIRONMENT)}
    running = Cluster(tmp_path, slots=1, environments=environments)
    try:
        running.start_master()
        token = home / "token"
        token.write_bytes((running.master_folder / "agent-token").read_bytes())
        settings = home / "agent.yaml"
        settings.write_text(yaml.safe_dump({"environments": environments}))
        for file in (token, settings):
            os.chown(file, UID, UID)
        command = [*run_as(UID, home, environments=environments), sys.executable, "-m", "detlab_agent"]
        command += ["--master-url", running.url, "--slots", "1", "--agent-id", "agent-1"]
        command += [
            "--config-file",
            str(settings),
            "--token-file",
            str(token),
            "--data-dir",
            str(home / "data"),
        ]
        with (running.folder / "detlab_agent.log").open("ab") as log:
            running.agent = subprocess.Popen(command, stdout=log, stderr=log, env=running.environment)
        running.wait_for_agent()
        storage = {"type": "shared_fs", "host_path": str(home / "storage")}
        experiment = running.create(
            config(
                "python3 train.py", hyperparameters={"end": 1}, max_restarts=1, checkpoint_storage=storage
            ),
            {"train.py": ENDS},
        )
        running.wait_for_end(experiment)
        trial = running.trials(experiment)[0]
        assert trial["state"] == "STATE_COMPLETED", running.logs(trial["id"])
        assert re.findall(r"STARTS AT (\d+)", running.logs(trial["id"])) == ["0", "1"]
    finally:
        running.stop()
