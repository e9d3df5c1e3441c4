"""The 43 routes of tier T1 (what the official client needs for experiments): each is there, and answers in shape."""

from __future__ import annotations

import io
import json
import re
import tarfile
from base64 import b64decode
from typing import Any

import pytest
import requests

from detlab_master.api import registry
from e2e.conftest import Place
from support.cluster import PASSWORD, Cluster, wait_for

# METHOD path -> the keys that a client reads whatever happens. `key: object` is one of OBJECTS, `key: [object]` a list
# of them; `lines of` is an answer of many JSON objects.
T1 = """
GET    /info -> version, master_id, cluster_id, cluster_name, telemetry, sso_providers
POST   /api/v1/auth/login -> token, user: User
POST   /api/v1/auth/logout ->
GET    /api/v1/me -> user: User
GET    /api/v1/master -> clusterId, clusterName, hasCustomLogo, masterId, strictJobQueueControl, version
POST   /api/v1/experiments -> config, experiment: Experiment, warnings
GET    /api/v1/experiments -> experiments: [Experiment], pagination: Pagination
GET    /api/v1/experiments/{experiment} -> experiment: Experiment, config, jobSummary: JobSummary
PATCH  /api/v1/experiments/{experiment} -> experiment: Experiment
DELETE /api/v1/experiments/{experiment} ->
POST   /api/v1/experiments/{experiment}/activate ->
POST   /api/v1/experiments/{experiment}/pause ->
POST   /api/v1/experiments/{experiment}/cancel ->
POST   /api/v1/experiments/{experiment}/kill ->
POST   /api/v1/experiments/{experiment}/archive ->
POST   /api/v1/experiments/{experiment}/unarchive ->
GET    /api/v1/experiments/{experiment}/model_def -> b64Tgz
GET    /api/v1/experiments/{experiment}/trials -> pagination: Pagination, trials: [Trial]
GET    /api/v1/experiments/{experiment}/checkpoints -> checkpoints: [Checkpoint], pagination: Pagination
GET    /api/v1/experiments/{experiment}/searcher/best_searcher_validation_metric -> metric
GET    /api/v1/trials/{trial} -> trial: Trial
GET    /api/v1/trials/{trial}/workloads -> pagination: Pagination, workloads: [WorkloadContainer]
GET    /api/v1/trials/{trial}/checkpoints -> checkpoints: [Checkpoint], pagination: Pagination
POST   /api/v1/trials/{trial}/kill ->
GET    /api/v1/trials/{trial}/logs -> lines of id, level, message, timestamp, trialId
GET    /api/v1/trials/metrics/trial_metrics -> lines of metrics: [MetricsReport]
GET    /api/v1/checkpoints/{checkpoint} -> checkpoint: Checkpoint
POST   /api/v1/checkpoints ->
PATCH  /api/v1/checkpoints ->
DELETE /api/v1/checkpoints ->
POST   /api/v1/checkpoints/rm ->
GET    /checkpoints/{checkpoint} -> a tar
GET    /api/v1/tasks/{task}/context_directory -> b64Tgz
POST   /api/v1/task/logs ->
GET    /api/v1/allocations/{allocation}/resources/{resources}/rendezvous -> rendezvousInfo: RendezvousInfo
GET    /api/v1/allocations/{allocation}/signals/preemption -> preempt
POST   /api/v1/allocations/{allocation}/signals/ack_preemption ->
POST   /api/v1/allocations/{allocation}/acceleratorData ->
POST   /api/v1/runs/start -> storageId
POST   /api/v1/trials/{trial}/metrics ->
POST   /api/v1/trials/{trial}/progress ->
POST   /api/v1/trials/{trial}/early_exit ->
POST   /api/v1/trials/{trial}/runner/metadata ->
"""
EXPECTED = {
    " ".join(route.split()): answer.strip()
    for route, _, answer in (line.partition("->") for line in T1.strip().splitlines())
}
OBJECTS = {
    "User": "active, admin, username",
    "Experiment": "archived, config, id, jobId, name, numTrials, originalConfig, projectId, projectOwnerId, searcherType,"
    " startTime, state, username",
    "JobSummary": "jobsAhead, state",
    "Pagination": "offset, limit, startIndex, endIndex, total",
    "Trial": "experimentId, hparams, id, restarts, startTime, state, totalBatchesProcessed, bestCheckpoint:"
    " CheckpointWorkload, bestValidation: MetricsWorkload, latestValidation: MetricsWorkload, summaryMetrics, taskId",
    "Checkpoint": "metadata, resources, state, training: CheckpointTrainingMetadata, uuid, taskId, allocationId, reportTime",
    "CheckpointTrainingMetadata": "experimentConfig, experimentId, hparams, searcherMetric, trialId, validationMetrics: Metrics",
    "CheckpointWorkload": "state, totalBatches, uuid",
    "Metrics": "avgMetrics",
    "MetricsWorkload": "metrics: Metrics, numInputs, totalBatches",
    "WorkloadContainer": "checkpoint: CheckpointWorkload, training: MetricsWorkload, validation: MetricsWorkload",
    "MetricsReport": "archived, endTime, group, id, metrics, totalBatches, trialId, trialRunId",
    "RendezvousInfo": "addresses, rank, slots",
}
NULLABLE = {
    "CheckpointWorkload",
    "MetricsWorkload",
    "JobSummary",
}  # objects that may be absent where they are named
TRAIN = """
import time
from determined import core

with core.init() as context:
    context.train.report_training_metrics(1, {"loss": 2.0})
    context.train.report_validation_metrics(1, {"loss": 1.0})
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "weights").write_text("weights")
    while not context.preempt.should_preempt():
        time.sleep(0.1)
"""
CONFIG = {
    "name": "routes",
    "entrypoint": "python3 train.py",
    "searcher": {"name": "single", "metric": "loss"},
    "max_restarts": 0,
}


def test_there_are_43_and_the_master_serves_each() -> None:
    assert len(EXPECTED) == 43
    served = [(method, re.compile(route.pattern)) for method, route, _ in registry()]
    for named in EXPECTED:
        method, path = named.split()
        path = re.sub(r"\{\w+\}", "1", path)
        assert any(m == method and pattern.match(path) for m, pattern in served), named


def check(found: Any, shape: str, where: str) -> None:
    """Every key of a shape is there, in this object and those below it."""
    for key, as_list, name in re.findall(r"(\w+)(?:: (\[)?(\w+)\]?)?", shape):
        assert key in found, f"{where} has no {key!r}"
        if not name or (found[key] is None and name in NULLABLE):
            continue
        assert found[key], f"{where}.{key} is empty: nothing is seen of its shape"
        for one in found[key] if as_list else [found[key]]:
            check(one, OBJECTS[name], f"{where}.{key}")


class Caller:
    """Calls routes of T1 by the name that they have there, and checks the answers' shapes."""

    def __init__(self, ours: Cluster) -> None:
        self.ours = ours
        self.things: dict[str, Any] = {}
        self.called: set[str] = set()

    def __call__(self, route: str, body: Any = None, **arguments: Any) -> Any:
        method, path = route.split()
        self.called.add(route)
        answer = self.ours.request(method, path.format(**self.things), json=body, **arguments)
        assert answer.status_code == 200, f"{route}: {answer.status_code} {answer.text}"
        shape = EXPECTED[route]
        if shape == "a tar":
            return answer.content
        if shape.startswith("lines of "):
            lines = [json.loads(line)["result"] for line in answer.text.splitlines()]
            assert lines, route
            for line in lines:
                check(line, shape.removeprefix("lines of "), route)
            return lines
        check(answer.json(), shape, route)
        return answer.json()


@pytest.fixture(scope="module")
def caller(place: Place) -> Caller:
    """With an experiment whose trial runs, has reported, and waits to be stopped."""
    ours = place.cluster
    call = Caller(ours)
    experiment = ours.create(CONFIG, {"train.py": TRAIN})
    trial = wait_for(lambda: ours.trials(experiment), "there is a trial")[0]
    call.things |= {"experiment": experiment, "trial": trial["id"], "task": trial["taskId"]}

    def saved() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ours.get(f"/api/v1/trials/{trial['id']}/checkpoints")["checkpoints"]
        return found

    (checkpoint,) = wait_for(saved, "it has saved a checkpoint")
    containers = ours.get("/api/v1/agents", user="admin")["agents"][0]["containers"]
    call.things |= {
        "checkpoint": checkpoint["uuid"],
        "allocation": checkpoint["allocationId"],
        "resources": next(iter(containers)),
    }
    return call


def test_each_answers_in_shape(caller: Caller) -> None:
    call, things, ours = caller, caller.things, caller.ours
    # The session
    call("GET /info")
    login = call(
        "POST /api/v1/auth/login", {"username": "determined", "password": PASSWORD, "isHashed": False}
    )
    assert login["user"]["username"] == call("GET /api/v1/me")["user"]["username"] == "determined"
    call("GET /api/v1/master")

    # What has been created, and is read
    body = {"config": "entrypoint: sleep 600\nsearcher: {name: single, metric: loss}", "activate": False}
    created = call("POST /api/v1/experiments", body)["experiment"]
    shown = call("GET /api/v1/experiments/{experiment}")
    assert (shown["experiment"]["state"], shown["jobSummary"]["state"]) == (
        "STATE_RUNNING",
        "STATE_SCHEDULED",
    )
    listed = call("GET /api/v1/experiments")["experiments"]
    assert {one["id"] for one in listed} >= {things["experiment"], created["id"]}
    packed = call("GET /api/v1/experiments/{experiment}/model_def")["b64Tgz"]
    assert packed == call("GET /api/v1/tasks/{task}/context_directory")["b64Tgz"]
    with tarfile.open(fileobj=io.BytesIO(b64decode(packed))) as archive:
        assert archive.getnames() == ["train.py"]
    (trial,) = call("GET /api/v1/experiments/{experiment}/trials")["trials"]
    assert trial == call("GET /api/v1/trials/{trial}")["trial"] | {"wallClockTime": trial["wallClockTime"]}
    assert trial["bestCheckpoint"]["uuid"] == things["checkpoint"]
    (of_experiment,) = call("GET /api/v1/experiments/{experiment}/checkpoints")["checkpoints"]
    (of_trial,) = call("GET /api/v1/trials/{trial}/checkpoints")["checkpoints"]
    assert of_experiment == of_trial == call("GET /api/v1/checkpoints/{checkpoint}")["checkpoint"]
    best = "GET /api/v1/experiments/{experiment}/searcher/best_searcher_validation_metric"
    assert call(best)["metric"] == of_trial["training"]["searcherMetric"] == 1.0
    workloads = call("GET /api/v1/trials/{trial}/workloads")["workloads"]
    assert {kind for one in workloads for kind, value in one.items() if value} == {
        "training",
        "validation",
        "checkpoint",
    }
    query = {"trialIds": things["trial"], "group": ""}
    (batch,) = call("GET /api/v1/trials/metrics/trial_metrics", params=query)
    assert [one["group"] for one in batch["metrics"]] == ["training", "validation"]

    # What a trial's process says
    run = {"runId": things["trial"], "checkpointStorage": {"type": "shared_fs", "host_path": "/nfs"}}
    assert call("POST /api/v1/runs/start", run)["storageId"] > 0
    about = {"trialId": things["trial"], "trialRunId": 1, "stepsCompleted": 2}
    report = {"group": "validation", "metrics": {**about, "metrics": {"avgMetrics": {"loss": 0.5}}}}
    call("POST /api/v1/trials/{trial}/metrics", report)
    assert call(best)["metric"] == 0.5
    call("POST /api/v1/trials/{trial}/progress", {"progress": 0.5, "is_raw": True})
    call("POST /api/v1/trials/{trial}/runner/metadata", {"state": "validating"})
    assert call("GET /api/v1/trials/{trial}")["trial"]["runnerState"] == "validating"
    call("POST /api/v1/task/logs", {"logs": [{"taskId": things["task"], "log": "shipped\n"}]})
    assert [line for line in call("GET /api/v1/trials/{trial}/logs") if line["log"] == "shipped\n"]
    accelerators = {"acceleratorType": "cpu", "containerId": things["resources"]}
    call("POST /api/v1/allocations/{allocation}/acceleratorData", {"acceleratorData": accelerators})
    rendezvous = "GET /api/v1/allocations/{allocation}/resources/{resources}/rendezvous"
    assert call(rendezvous)["rendezvousInfo"]["rank"] == 0

    # Checkpoints: one more, partly removed by the process, then by a person, then gone
    more = {**of_trial, "uuid": "5f0c5cf1-6b0a-4c8e-9c38-2f6d3f1f7a10", "state": "STATE_COMPLETED"}
    more |= {"metadata": {"steps_completed": 2}, "resources": {"weights": "7", "optimizer": "9"}}
    call("POST /api/v1/checkpoints", more)
    left = {"uuid": more["uuid"], "resources": {"resources": {"weights": 7}}}
    call("PATCH /api/v1/checkpoints", {"checkpoints": [left]})
    with tarfile.open(fileobj=io.BytesIO(call("GET /checkpoints/{checkpoint}"))) as archive:
        assert {"weights", "metadata.json"} <= {name.removeprefix("./") for name in archive.getnames()}
    removal = {"checkpointUuids": [things["checkpoint"]], "checkpointGlobs": ["meta*"]}
    call("POST /api/v1/checkpoints/rm", removal)
    state = call("GET /api/v1/checkpoints/{checkpoint}")["checkpoint"]["state"]
    assert state == "STATE_PARTIALLY_DELETED"
    call("DELETE /api/v1/checkpoints", {"checkpointUuids": [more["uuid"]]})

    # How it ends
    preemption = "GET /api/v1/allocations/{allocation}/signals/preemption"
    assert call(preemption, params={"timeout_seconds": 0})["preempt"] is False
    call("PATCH /api/v1/experiments/{experiment}", {"id": things["experiment"], "name": "renamed"})
    for verb in ("pause", "activate"):
        call(f"POST /api/v1/experiments/{{experiment}}/{verb}")
    assert call(preemption, params={"timeout_seconds": 0})["preempt"] is True
    call("POST /api/v1/allocations/{allocation}/signals/ack_preemption")
    call("POST /api/v1/trials/{trial}/early_exit", {"reason": "EXITED_REASON_INVALID_HP"})
    call("POST /api/v1/trials/{trial}/kill")
    ours.wait_for_end(things["experiment"])
    for verb in ("cancel", "kill", "archive", "unarchive"):
        call(f"POST /api/v1/experiments/{{experiment}}/{verb}")
    call("DELETE /api/v1/experiments/{experiment}")
    headers = {"Authorization": f"Bearer {login['token']}"}
    caller.called.add("POST /api/v1/auth/logout")
    answer = requests.post(f"{ours.url}/api/v1/auth/logout", timeout=30, headers=headers)
    assert answer.status_code == 200, answer.text
    assert requests.get(f"{ours.url}/api/v1/me", timeout=30, headers=headers).status_code == 401
    assert caller.called == EXPECTED.keys()
