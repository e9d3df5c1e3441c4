"""Trials that fail, are stopped or give up, on a real cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest

from e2e.conftest import Place
from e2e.trials import WITNESS, Record, hyperparameters, script_config, searcher, witness_config
from support.cluster import wait_for

FAMILY = """
import os, pathlib, subprocess, sys, time
side = pathlib.Path(os.environ["SIDE"])
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", stubborn])
stray = subprocess.Popen([sys.executable, "-c", stubborn], start_new_session=True)  # left the process group
(side / "family.new").write_text(f"{os.getpid()} {child.pid} {stray.pid}")
(side / "family.new").rename(side / "family")
time.sleep(600)
"""


def start(place: Place, **changes: object) -> tuple[int, Record]:
    """An experiment of one witness that trains for a long time, and the record of its trial once that trains."""
    config = witness_config(place.side, **changes)
    config["hyperparameters"] = hyperparameters(steps=2000)
    experiment_id = place.cluster.create(config, {"train.py": WITNESS})
    trial = wait_for(lambda: place.cluster.trials(experiment_id), "there is a trial")[0]
    record = place.record(trial["id"])
    wait_for(lambda: record.last("acknowledged") >= 3, "the trial trains")
    return experiment_id, record


@pytest.mark.parametrize("entrypoint", ["python3 train.py", "train:NoSuchTrial"])
def test_code_that_fails_at_import(place: Place, entrypoint: str) -> None:
    config = script_config(place.side, entrypoint=entrypoint, max_restarts=1)
    experiment_id = place.cluster.create(config, {"train.py": "import a_module_that_nobody_has\n"})
    assert place.cluster.wait_for_end(experiment_id) == "ERROR"
    (trial,) = place.cluster.trials(experiment_id)
    assert trial["state"] == "STATE_ERROR" and trial["restarts"] == 1
    log = place.cluster.logs(trial["id"])
    assert log.count("No module named 'a_module_that_nobody_has'") == 2  # both runs
    assert log.rstrip().endswith("exit code 1"), log[-500:]
    shown = place.det("trial", "logs", "--tail", "4", str(trial["id"]))
    assert "No module named 'a_module_that_nobody_has'" in shown.stdout


def test_det_follows_a_failing_experiment_to_its_end(place: Place, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "train.py").write_text("raise SystemExit('out of luck')\n")
    (tmp_path / "config.yaml").write_text(json.dumps(script_config(place.side)))
    followed = place.det("experiment", "create", "config.yaml", "model", "-f", cwd=tmp_path)
    assert followed.returncode == 1 and "out of luck" in followed.stdout
    assert "ERROR" in followed.stdout and "Failed: trial" in followed.stdout, followed.stdout


MISNAMED = """
from determined import core
with core.init() as context:
    context.train.report_validation_metrics(1, {"acuracy": 1.0, "batches": 1})
    while not context.preempt.should_preempt():
        pass
"""


def test_a_search_whose_metric_nobody_reports_says_so(place: Place, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "train.py").write_text(MISNAMED)
    search = searcher("adaptive_asha", max_trials=1, time_metric="batches", max_time=4)
    (tmp_path / "config.yaml").write_text(json.dumps(script_config(place.side, searcher=search)))
    followed = place.det("experiment", "create", "config.yaml", "model", "-f", cwd=tmp_path)
    why = "a validation report lacks the metric 'accuracy' that searcher.metric names; it has 'acuracy', 'batches'"
    assert f"\n{why}" in followed.stdout, followed.stdout
    assert f"Asked to stop within 3600 s: the search has failed: {why}" in followed.stdout
    assert "canceled by the user" not in followed.stdout


def test_code_that_fails_in_training_starts_again_from_its_checkpoint(place: Place) -> None:
    config = witness_config(place.side, max_restarts=2)
    config["hyperparameters"] = hyperparameters(fail_at=4)
    experiment_id = place.cluster.create(config, {"train.py": WITNESS})
    assert place.cluster.wait_for_end(experiment_id) == "ERROR"
    (trial,) = place.cluster.trials(experiment_id)
    assert trial["restarts"] == 2
    assert place.record(trial["id"]).notes("start") == [(1, 0), (2, 2), (3, 2)]
    assert place.cluster.logs(trial["id"]).count("RuntimeError: the training has failed") == 3


def test_a_trial_process_that_is_killed_starts_again_from_its_checkpoint(place: Place) -> None:
    experiment_id, record = start(place, max_restarts=1)
    process = record.process
    assert process is not None
    process.kill()
    wait_for(lambda: len(record.notes("start")) == 2, "it runs again")
    assert record.last("start") > 0
    record.assert_resumed_from_its_checkpoints()
    (trial,) = place.cluster.trials(experiment_id)
    assert trial["restarts"] == 1
    place.cluster.post(f"/api/v1/experiments/{experiment_id}/kill")
    assert place.cluster.wait_for_end(experiment_id) == "CANCELED"


def test_a_pause_saves_a_checkpoint_and_frees_the_slot(place: Place) -> None:
    experiment_id, record = start(place)
    place.cluster.post(f"/api/v1/experiments/{experiment_id}/pause")
    wait_for(lambda: record.notes("preempted") and record.process is None, "the trial leaves")
    left_at = record.last("preempted")
    wait_for(lambda: not _slots_in_use(place), "its slot is free")
    assert place.cluster.experiment(experiment_id)["state"] == "STATE_PAUSED"
    assert record.last("saved") == left_at
    place.cluster.post(f"/api/v1/experiments/{experiment_id}/activate")
    wait_for(lambda: record.last("acknowledged") > left_at, "the trial trains on")
    assert record.notes("start") == [(1, 0), (2, left_at)]
    (trial,) = place.cluster.trials(experiment_id)
    assert trial["restarts"] == 0
    place.cluster.post(f"/api/v1/experiments/{experiment_id}/kill")
    assert place.cluster.wait_for_end(experiment_id) == "CANCELED"


def _slots_in_use(place: Place) -> int:
    agents = place.cluster.get("/api/v1/agents", user="admin")["agents"]
    return sum(slot["container"] is not None for agent in agents for slot in agent["slots"].values())


def test_a_cancellation_saves_a_checkpoint(place: Place) -> None:
    experiment_id, record = start(place)
    place.cluster.post(f"/api/v1/experiments/{experiment_id}/cancel")
    assert place.cluster.wait_for_end(experiment_id) == "CANCELED"
    left_at = record.last("preempted")
    assert left_at and record.last("saved") == left_at
    saved = place.cluster.get(f"/api/v1/trials/{record.trial_id}/checkpoints")["checkpoints"]
    assert left_at in [checkpoint["metadata"]["steps_completed"] for checkpoint in saved]
    assert record.process is None


def test_a_kill_ends_the_whole_process_tree(place: Place) -> None:
    experiment_id = place.cluster.create(script_config(place.side), {"train.py": FAMILY})
    family = place.side / "family"
    wait_for(family.exists, "the trial has children")
    pids = [int(pid) for pid in family.read_text().split()]
    assert all(psutil.pid_exists(pid) for pid in pids)
    place.cluster.post(f"/api/v1/experiments/{experiment_id}/kill")
    assert place.cluster.wait_for_end(experiment_id) == "CANCELED"
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids), "all its processes have ended", 15)


STALE = """
import os
os.environ["DET_TRIAL_RUN_ID"] = "7"
from determined import core
with core.init() as context:
    context.train.report_validation_metrics(1, {"accuracy": 1.0})
    context.train.get_experiment_best_validation()
    print("this is never reached")
"""


def test_a_report_from_a_wrong_run_fails_the_trial_plainly(place: Place) -> None:
    experiment_id = place.cluster.create(script_config(place.side), {"train.py": STALE})
    assert place.cluster.wait_for_end(experiment_id) == "ERROR"
    (trial,) = place.cluster.trials(experiment_id)
    log = place.cluster.logs(trial["id"])
    assert f"trial {trial['id']} is in run 1, and this report comes from run 7" in log
    assert "never reached" not in log
    assert trial["totalBatchesProcessed"] == 0


def test_one_trial_of_a_search_is_killed(place: Place) -> None:
    config = witness_config(place.side, searcher=searcher("random", max_trials=2))
    config["hyperparameters"] = hyperparameters(steps=12, seconds=0.1)
    experiment_id = place.cluster.create(config, {"train.py": WITNESS})
    first, second = wait_for(
        lambda: trials if len(trials := place.cluster.trials(experiment_id)) == 2 else None, "two trials"
    )
    wait_for(lambda: place.record(first["id"]).last("acknowledged"), "the first trains")
    place.cluster.post(f"/api/v1/trials/{first['id']}/kill")
    assert place.cluster.wait_for_end(experiment_id) == "COMPLETED"
    states = {trial["id"]: trial["state"] for trial in place.cluster.trials(experiment_id)}
    assert states == {first["id"]: "STATE_CANCELED", second["id"]: "STATE_COMPLETED"}
    assert place.record(second["id"]).last("saved") == 12


def test_invalid_hyperparameters_end_a_trial_without_a_restart(place: Place) -> None:
    config = witness_config(place.side, searcher=searcher("random", max_trials=4), max_restarts=3)
    config["hyperparameters"] = hyperparameters(
        steps=3, invalid={"type": "categorical", "vals": [True, False]}
    )
    config["reproducibility"] = {"experiment_seed": 7}
    experiment_id = place.cluster.create(config, {"train.py": WITNESS})
    assert place.cluster.wait_for_end(experiment_id) == "COMPLETED"
    trials = place.cluster.trials(experiment_id)
    invalid = [trial for trial in trials if trial["hparams"]["invalid"]]
    assert invalid, "choose a seed that draws one"
    for trial in trials:
        assert trial["state"] == "STATE_COMPLETED" and trial["restarts"] == 0
        assert place.record(trial["id"]).runs == 1
        trained = place.record(trial["id"]).last("acknowledged")
        assert trained == (0 if trial["hparams"]["invalid"] else 3)
    # The search draws others in place of those that could not be tried.
    assert len(trials) - len(invalid) == 4


def test_no_task_is_left_behind(place: Place) -> None:
    """The last of this file: all its experiments have ended, by whatever way."""
    wait_for(lambda: not place.cluster.task_processes(), "all tasks' processes have ended", 20)
    containers = place.cluster.folder / "agent" / "containers"
    wait_for(lambda: not os.listdir(containers), "the agent has tidied up", 20)
