"""`determined.core` of the official package inside a trial: every method that talks to the master, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from interop.harness import config, first_trial, needs_namespaces
from interop.official import ENVIRONMENT, need_official_client
from support.cluster import Cluster, cluster, wait_for

pytestmark = needs_namespaces

# One run with a call of each kind; prints what the calls that answer have answered.
EVERY = """
import json, pathlib, warnings
import determined as det
from determined import core
from determined.experimental import client

info = det.get_cluster_info()
said = {"slots": len(info.slot_ids), "trial": info.trial.trial_id, "experiment": info.trial.experiment_id}
said["hparams"] = info.trial.hparams
with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    train, checkpoint = context.train, context.checkpoint
    said["no best yet"] = train.get_experiment_best_validation()
    train.set_status("warming up")
    train.report_training_metrics(1, {"loss": 4.0, "note": "text"}, batch_metrics=[{"loss": 3.0}, {"loss": 5.0}])
    train.report_validation_metrics(1, {"loss": 2.0, "wrong": float("nan")})
    train.report_metrics("inference", 1, {"seconds": 0.5})
    train.report_progress(0.25)

    with checkpoint.store_path({"steps_completed": 1, "kind": "stored"}) as (path, stored):
        (path / "weights").write_text("one")
    folder = pathlib.Path("saved")
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "weights").write_text("two")
    (folder / "left.out").write_text("no")
    uploaded = checkpoint.upload(
        folder, {"steps_completed": 2, "kind": "uploaded"}, selector=lambda name: not name.endswith(".out")
    )
    said["metadata"] = [checkpoint.get_metadata(one)["kind"] for one in (stored, uploaded)]
    with checkpoint.restore_path(stored, selector=lambda name: name == "weights") as path:
        said["restored"] = (path / "weights").read_text()
    checkpoint.download(uploaded, "again")
    said["downloaded"] = pathlib.Path("again/deep/weights").read_text()
    with checkpoint.store_path({"steps_completed": 3}) as (path, third):
        (path / "weights").write_text("three")
    checkpoint.delete(third)
    said |= {"stored": stored, "uploaded": uploaded, "deleted": third}

    charts = train.get_tensorboard_path()
    charts.mkdir(parents=True, exist_ok=True)
    (charts / "events.out.tfevents.1").write_bytes(b"chart")
    train.upload_tensorboard_files()
    context.profiler.on(sampling_interval=1, samples_per_report=1)
    import time
    time.sleep(3)
    context.profiler.off()

    warnings.simplefilter("ignore")
    said["units"] = str(context.searcher.get_configured_units())
    said["operations"] = []
    for operation in context.searcher.operations():
        for length in range(1, operation.length + 1):
            operation.report_progress(length)
        train.report_validation_metrics(5, {"loss": 1.0})
        operation.report_completed(1.0)
        said["operations"].append(operation.length)
    deadline = time.monotonic() + 30
    while train.get_experiment_best_validation() != 1.0 and time.monotonic() < deadline:
        time.sleep(0.1)  # reports are sent in the background
    said["best"] = train.get_experiment_best_validation()
    train.set_metadata({"data": {"rows": 640}})
    said["run"] = train.get_metadata()
    for level in ("debug", "info", "warn", "error"):
        context.alert(title="half way", description=level, level=level)
    context.experimental.report_task_using_checkpoint(client.get_checkpoint(stored))
    version = client.create_model("from a trial").register_version(uploaded)
    context.experimental.report_task_using_model_version(version)
    said["user"] = client.whoami().username
    said["preempt"] = context.preempt.should_preempt()
print("SAID", json.dumps(said))
"""

# Runs until it is told to stop, however it asks; two processes side by side with 2 slots.
ASKS = """
import os, time
import determined as det
from determined import core

mode = core.PreemptMode[det.get_cluster_info().trial.hparams["mode"]]
rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("SIZE", 1))
distributed = None
if size > 1:
    distributed = core.DistributedContext(
        rank=rank, size=size, local_rank=rank, local_size=size, cross_rank=0, cross_size=1, chief_ip="127.0.0.1",
        pub_port=int(os.environ["INTER_TRAIN_PROCESS_COMM_PORT_1"]),
        pull_port=int(os.environ["INTER_TRAIN_PROCESS_COMM_PORT_2"]),
    )
with core.init(preempt_mode=mode, distributed=distributed, tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    print("RANK", rank, "ASKS", flush=True)
    asks = mode is not core.PreemptMode.ChiefOnly or rank == 0
    by_hand = mode is core.PreemptMode.ChiefOnly
    while asks and not context.preempt.should_preempt(auto_ack=not by_hand):
        time.sleep(0.05)
    if by_hand and asks:
        context.preempt.acknowledge_preemption_signal()
    if rank == 0:
        with context.checkpoint.store_path({"steps_completed": 1}) as (path, _):
            (path / "weights").write_text("saved before the stop")
    print("RANK", rank, "STOPS", flush=True)
"""

# Starts itself once more for each further rank, and ends when all have.
RANKS = """
import os, subprocess, sys

size = int(sys.argv[1])
ranks = [
    subprocess.Popen([sys.executable, "asks.py"], env={**os.environ, "RANK": str(rank), "SIZE": str(size)})
    for rank in range(size)
]
sys.exit(max(rank.wait() for rank in ranks))
"""

# Reports one number under the time metric, and says whether it was stopped before its end.
STOPPED = """
import time
import determined as det
from determined import core

rate = det.get_cluster_info().trial.hparams["rate"]
with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    for step in range(1, 9):
        context.train.report_validation_metrics(step, {"loss": rate / step, "batches": step})
        if context.preempt.should_preempt():
            print("STOPPED AT", step)
            break
        time.sleep(0.2)
"""

EARLY = """
import time
import determined as det
from determined import core

with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
    context.train.report_early_exit(core.EarlyExitReason[det.get_cluster_info().trial.hparams["reason"]])
"""


# The methods of determined.core that talk to the master (sdk.md, section 2).
CALLS = """
set_status report_training_metrics report_validation_metrics report_metrics report_progress report_early_exit
get_experiment_best_validation set_metadata get_metadata upload_tensorboard_files
upload store_path download restore_path delete should_preempt acknowledge_preemption_signal
operations report_completed get_configured_units on off alert
report_task_using_checkpoint report_task_using_model_version
"""


def test_no_call_is_left_out() -> None:
    scripts = EVERY + ASKS + EARLY
    assert [name for name in CALLS.split() if f".{name}(" not in scripts] == []


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    need_official_client()
    environments = {"official": str(ENVIRONMENT)}
    with cluster(tmp_path_factory.mktemp("cluster"), slots=2, environments=environments) as running:
        yield running


def test_a_call_of_every_kind(ours: Cluster) -> None:
    search = {"name": "single", "metric": "loss", "max_length": {"batches": 3}}
    kept = {"save_trial_best": 3, "save_trial_latest": 3}
    changes = {"hyperparameters": {"lr": 0.5}, "searcher": search, "checkpoint_storage": kept}
    experiment = ours.create(config("python3 every.py", **changes), {"every.py": EVERY})
    trial = first_trial(ours, experiment)
    assert ours.wait_for_end(experiment) == "COMPLETED", ours.logs(trial)
    log = ours.logs(trial)
    said = json.loads(next(line for line in log.splitlines() if "SAID" in line).partition("SAID ")[2])
    assert (said["trial"], said["experiment"], said["hparams"]) == (trial, experiment, {"lr": 0.5})
    assert (said["slots"], said["no best yet"], said["best"]) == (1, None, 1.0)
    assert said["metadata"] == ["stored", "uploaded"]
    assert (said["restored"], said["downloaded"]) == ("one", "two")
    assert (said["units"], said["operations"], said["preempt"]) == ("Unit.BATCHES", [3], False)

    assert (said["run"], said["user"]) == ({"data": {"rows": 640}}, "determined")

    shown = ours.get(f"/api/v1/trials/{trial}")["trial"]
    assert shown["metadata"] == said["run"]
    assert shown["runnerState"] == "warming up"
    assert shown["summaryMetrics"]["inference"]["seconds"]["last"] == 0.5
    assert shown["summaryMetrics"]["validation_metrics"]["wrong"]["type"] == "number"
    assert ours.experiment(experiment)["progress"] == 1.0
    found = {c["uuid"]: c for c in ours.get(f"/api/v1/trials/{trial}/checkpoints")["checkpoints"]}
    assert found[said["stored"]]["metadata"]["kind"] == "stored"
    assert {"deep/weights"} <= found[said["uploaded"]]["resources"].keys()
    assert "left.out" not in found[said["uploaded"]]["resources"]
    assert found[said["deleted"]]["state"] == "STATE_DELETED"
    charts = list(ours.master_folder.glob("checkpoints/**/events.out.tfevents.1"))
    assert [chart.read_bytes() for chart in charts] == [b"chart"]

    def reports(group: str) -> list[dict[str, Any]]:
        query = {"trialIds": trial, "group": group}
        answer = ours.request("GET", "/api/v1/trials/metrics/trial_metrics", params=query)
        batches = [json.loads(line)["result"]["metrics"] for line in answer.text.splitlines()]
        return [one for batch in batches for one in batch]

    alerts = ours.request("GET", f"/api/v1/trials/{trial}/logs").text.splitlines()
    lines = [json.loads(line)["result"] for line in alerts if "alert: half way" in line]
    assert {(line["log"], line["level"]) for line in lines} == {
        (f"alert: half way: {said_level}\n", f"LOG_LEVEL_{level}")
        for said_level, level in zip(
            ("debug", "info", "warn", "error"), ("DEBUG", "INFO", "WARNING", "ERROR"), strict=True
        )
    }
    users = ours.get(f"/api/v1/checkpoints/{said['stored']}/metrics?metricGroup=inference")["metrics"]
    assert [(one["trialId"], one["metrics"]["avg_metrics"]) for one in users] == [(trial, {"seconds": 0.5})]

    (training,) = reports("training")
    assert training["metrics"] == {
        "avg_metrics": {"loss": 4, "note": "text"},
        "batch_metrics": [{"loss": 3}, {"loss": 5}],
    }
    assert reports("validation")[0]["metrics"]["validation_metrics"] == {"loss": 2, "wrong": "NaN"}
    assert reports("cpu"), "the profiler has reported"


@pytest.mark.parametrize(
    ("mode", "size"),
    [
        ("ChiefOnly", 1),
        ("WorkersAskMaster", 2),
        pytest.param("WorkersAskMaster", 1, marks=pytest.mark.full),
        pytest.param("WorkersAskChief", 2, marks=pytest.mark.full),
        pytest.param("ChiefOnly", 2, marks=pytest.mark.full),
    ],
)
def test_modes_of_preemption(ours: Cluster, mode: str, size: int) -> None:
    changes = {"hyperparameters": {"mode": mode}, "resources": {"slots_per_trial": size}}
    files = {"asks.py": ASKS, "ranks.py": RANKS}
    experiment = ours.create(config(f"python3 ranks.py {size}", **changes), files)
    trial = first_trial(ours, experiment)
    wait_for(lambda: ours.logs(trial).count(" ASKS") == size, "every rank asks")
    ours.post(f"/api/v1/experiments/{experiment}/pause")
    wait_for(lambda: "Ended with exit code 0" in ours.logs(trial), "the run has ended")
    assert ours.logs(trial).count(" STOPS") == size
    assert ours.experiment(experiment)["state"] == "STATE_PAUSED"
    (checkpoint,) = ours.get(f"/api/v1/trials/{trial}/checkpoints")["checkpoints"]
    assert checkpoint["metadata"]["steps_completed"] == 1
    ours.post(f"/api/v1/experiments/{experiment}/kill")
    assert ours.wait_for_end(experiment) == "CANCELED"


def test_a_search_stops_the_worse_trial(ours: Cluster) -> None:
    search = {
        "name": "async_halving",
        "metric": "loss",
        "time_metric": "batches",
        "max_time": 8,
        "num_rungs": 2,
        "divisor": 4,
        "max_trials": 4,
        "max_concurrent_trials": 2,
    }
    rates = {"type": "double", "minval": 1, "maxval": 9}
    experiment = ours.create(
        config("python3 stopped.py", searcher=search, hyperparameters={"rate": rates}),
        {"stopped.py": STOPPED},
    )
    assert ours.wait_for_end(experiment) == "COMPLETED"
    lengths = {one["id"]: one["totalBatchesProcessed"] for one in ours.trials(experiment)}
    stopped = {number for number in lengths if "STOPPED AT" in ours.logs(number)}
    assert len(lengths) == 4 and all((length < 8) == (n in stopped) for n, length in lengths.items())
    assert stopped, lengths


@pytest.mark.parametrize(
    ("reason", "state"),
    [("INVALID_HP", "COMPLETED"), pytest.param("USER_REQUESTED_STOP", "COMPLETED", marks=pytest.mark.full)],
)
def test_early_exit(ours: Cluster, reason: str, state: str) -> None:
    experiment = ours.create(
        config("python3 early.py", hyperparameters={"reason": reason}), {"early.py": EARLY}
    )
    ours.wait_for_end(experiment)
    trial = ours.trials(experiment)[0]
    assert trial["state"] == f"STATE_{state}", ours.logs(trial["id"])
    assert trial["restarts"] == 0
