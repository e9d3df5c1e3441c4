"""The API's objects, as exact tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detlab_master.api.encode import checkpoints, cluster, experiments, logs, metrics, trials, users, wire
from detlab_master.api.paging import Paging, ordered
from detlab_master.core.errors import Invalid
from detlab_master.core.records import LogLine, Project, Task, User, Workspace
from detlab_master.core.states import CheckpointState, ExperimentState, TaskType
from detlab_master.resources.base import AgentSummary, PoolSummary, SlotSummary
from detlab_master.store.base import ExperimentTotals
from master.api.rig import (
    ALICE,
    T0,
    allocation_record,
    checkpoint_record,
    experiment_record,
    reports,
    trial_record,
)

STORAGE = Path("/storage")
START, END, BEST = "2027-01-15T08:00:00Z", "2027-01-15T08:01:00Z", "2027-01-15T08:00:50.500Z"
EXPERIMENT = experiment_record(7, ALICE, STORAGE)
TRIAL = trial_record(9, 7)
TASK = Task(TRIAL.task_id, TaskType.TRIAL, ALICE, "job-7", T0, T0 + 60, 7, 9)
ALLOCATION = allocation_record(TASK)
CHECKPOINT = checkpoint_record("some-uuid", TASK, ALLOCATION)


@pytest.mark.parametrize(
    ("seconds", "digits", "text"),
    [
        (0, 6, "1970-01-01T00:00:00Z"),
        (1.5, 6, "1970-01-01T00:00:01.500Z"),
        (1.000001, 6, "1970-01-01T00:00:01.000001Z"),
        (1.000001, 3, "1970-01-01T00:00:01Z"),
        (1.0004, 3, "1970-01-01T00:00:01Z"),
        (1.2346, 3, "1970-01-01T00:00:01.235Z"),
        (None, 6, None),
    ],
)
def test_times(seconds: float | None, digits: int, text: str | None) -> None:
    assert wire.timestamp(seconds, digits=digits) == text


def test_values_that_json_cannot_carry() -> None:
    value = {"a": 3.0, "b": float("nan"), "c": (float("inf"), float("-inf")), "d": 0.1, "e": 1e300, "f": True}
    assert wire.dumps(value) == b'{"a":3,"b":"NaN","c":["Infinity","-Infinity"],"d":0.1,"e":1e+300,"f":true}'
    assert wire.dumps({"a": "\ud800"}) == b'{"a":"\\ud800"}'
    assert wire.dumps({"a": 1}, pretty=True) == b'{\n  "a": 1\n}\n'


def test_user() -> None:
    assert users.user(
        User(2, "alice", "hash", admin=False, active=True, display_name="Alice", modified_at=T0)
    ) == {
        "id": 2,
        "username": "alice",
        "admin": False,
        "active": True,
        "displayName": "Alice",
        "remote": False,
        "agentUserGroup": None,
        "modifiedAt": START,
        "lastAuthAt": None,
    }


def test_experiment() -> None:
    view = experiments.ExperimentView(
        EXPERIMENT,
        User(ALICE, "alice", None, admin=False, active=True, display_name="Alice A."),
        Project(1, 1, "Uncategorized", owner_id=1, key="UNCAT"),
        Workspace(1, "Uncategorized", owner_id=1),
        ExperimentTotals(7, 2, (9, 10), 3, 5_000_000_000),
        TRIAL,
    )
    assert experiments.experiment(view, "COMPLETED", now=T0 + 999) == {
        "id": 7,
        "jobId": "job-7",
        "name": "digits 7",
        "description": "a search",
        "notes": "",
        "labels": ["mnist", "small"],
        "state": "STATE_COMPLETED",
        "archived": False,
        "progress": 1.0,
        "error": "",
        "startTime": START,
        "endTime": END,
        "duration": 60,
        "username": "alice",
        "displayName": "Alice A.",
        "userId": 2,
        "projectId": 1,
        "projectName": "Uncategorized",
        "projectOwnerId": 1,
        "parentArchived": False,
        "workspaceId": 1,
        "workspaceName": "Uncategorized",
        "config": EXPERIMENT.config,
        "originalConfig": EXPERIMENT.original_config,
        "hyperparameters": {"lr": {"type": "const", "val": 0.5}},
        "searcherType": "single",
        "searcherMetric": "accuracy",
        "resourcePool": "default",
        "forkedFrom": None,
        "modelDefinitionSize": 0,
        "numTrials": 2,
        "trialIds": [9, 10],
        "checkpointCount": 3,
        "checkpointSize": "5000000000",
        "bestTrialId": 9,
        "bestTrialSearcherMetric": 0.75,
        "unmanaged": False,
        "pachydermIntegration": None,
    }


@pytest.mark.parametrize(
    ("state", "shown", "summary"),
    [
        (ExperimentState.ACTIVE, "QUEUED", {"state": "STATE_QUEUED", "jobsAhead": 4}),
        (ExperimentState.PAUSED, "PAUSED", {"state": "STATE_QUEUED", "jobsAhead": 4}),
        (ExperimentState.ACTIVE, "RUNNING", {"state": "STATE_SCHEDULED", "jobsAhead": 0}),
        (ExperimentState.COMPLETED, "COMPLETED", None),
    ],
)
def test_job_summary(state: ExperimentState, shown: str, summary: object) -> None:
    record = experiment_record(7, ALICE, STORAGE, state=state)
    assert experiments.job_summary(record, shown, 4) == summary


VALIDATION = {
    "endTime": BEST,
    "totalBatches": 200,
    "numInputs": 0,
    "metrics": {"avgMetrics": {"accuracy": 0.75, "loss": 2.0}, "batchMetrics": []},
}
CHECKPOINT_WORKLOAD = {
    "uuid": "some-uuid",
    "state": "STATE_COMPLETED",
    "totalBatches": 200,
    "endTime": "2027-01-15T08:00:51Z",
    "resources": {"weights": "1000", "code/": "0", "code/train.py": "12"},
    "metadata": {"steps_completed": 200, "framework": "torch-2.13.0"},
}


def test_trial() -> None:
    running = allocation_record(TASK, ended_at=None, started_at=T0 + 70)
    deleted = checkpoint_record("other", TASK, ALLOCATION, state=CheckpointState.DELETED)
    view = trials.TrialView(TRIAL, [CHECKPOINT, deleted], [ALLOCATION, running], max_restarts=5)
    assert trials.trial(view, "RUNNING", now=T0 + 80) == {
        "id": 9,
        "experimentId": 7,
        "state": "STATE_RUNNING",
        "hparams": {"lr": 0.5, "layers": 2},
        "startTime": START,
        "endTime": END,
        "restarts": 0,
        "totalBatchesProcessed": 200,
        "latestValidation": VALIDATION,
        "bestValidation": VALIDATION,
        "bestCheckpoint": CHECKPOINT_WORKLOAD,
        "searcherMetricValue": 0.75,
        "summaryMetrics": TRIAL.summary_metrics,
        "checkpointCount": 1,
        "totalCheckpointSize": "1012",
        "warmStartCheckpointUuid": "",
        "runnerState": "",
        "taskId": TRIAL.task_id,
        "taskIds": [TRIAL.task_id],
        "wallClockTime": 69.0,
        "metadata": {},
        "logRetentionDays": None,
        "logPolicyMatched": None,
    }


def test_restarts_are_capped() -> None:
    failed = trial_record(9, 7, restarts=6, best_validation=None)
    shown = trials.trial(trials.TrialView(failed, [CHECKPOINT], [], max_restarts=5), "ERROR", now=T0)
    assert (shown["restarts"], shown["bestCheckpoint"]) == (5, None)


def test_checkpoint() -> None:
    view = checkpoints.CheckpointView(CHECKPOINT, EXPERIMENT, TRIAL, {"loss": 1.5}, {"accuracy": 0.75})
    assert checkpoints.checkpoint(view) == {
        "uuid": "some-uuid",
        "taskId": TASK.id,
        "allocationId": f"{TASK.id}.1",
        "reportTime": "2027-01-15T08:00:51Z",
        "state": "STATE_COMPLETED",
        "resources": {"weights": "1000", "code/": "0", "code/train.py": "12"},
        "metadata": {"steps_completed": 200, "framework": "torch-2.13.0"},
        "storageId": 1,
        "training": {
            "trialId": 9,
            "experimentId": 7,
            "experimentConfig": EXPERIMENT.config,
            "hparams": {"lr": 0.5, "layers": 2},
            "trainingMetrics": {"avgMetrics": {"loss": 1.5}, "batchMetrics": []},
            "validationMetrics": {"avgMetrics": {"accuracy": 0.75}, "batchMetrics": []},
            "searcherMetric": 0.75,
        },
    }


def test_metric_reports() -> None:
    training, _, validation = reports(TRIAL)
    shown = {"id": 0, "trialId": 9, "trialRunId": 1, "archived": False}
    assert metrics.report(training) == {
        **shown,
        "group": "training",
        "totalBatches": 100,
        "endTime": "2027-01-15T08:00:20Z",
        "metrics": {"avg_metrics": {"loss": 3.0}, "batch_metrics": ({"loss": 4.0}, {"loss": 2.0})},
    }
    assert metrics.report(validation) == {
        **shown,
        "group": "validation",
        "totalBatches": 200,
        "endTime": BEST,
        "metrics": {"validation_metrics": {"accuracy": 0.75, "loss": 2.0}},
    }


LINE = LogLine(
    "task", "task.1", T0 + 0.25, "epoch 1\n", container_id="0123456789", agent_id="a1", stdtype="stdout", id=5
)


@pytest.mark.parametrize(
    ("rank", "level", "message"),
    [
        (None, "", "[2027-01-15T08:00:00.250000Z] 01234567 || epoch 1\n"),
        (3, "LOG_LEVEL_INFO", "[2027-01-15T08:00:00.250000Z] 01234567 [rank=3] || INFO: epoch 1\n"),
    ],
)
def test_log_lines(rank: int | None, level: str, message: str) -> None:
    from dataclasses import replace

    shown = logs.line(replace(LINE, rank_id=rank, level=level), trial_id=9)
    assert shown == {
        "id": "5",
        "trialId": 9,
        "taskId": "task",
        "timestamp": "2027-01-15T08:00:00.250Z",
        "message": message,
        "log": "epoch 1\n",
        "level": level or "LOG_LEVEL_UNSPECIFIED",
        "allocationId": "task.1",
        "agentId": "a1",
        "containerId": "0123456789",
        "source": "task",
        "stdtype": "stdout",
        **({"rankId": rank} if rank is not None else {}),
    }
    assert logs.message(LogLine("t", "a", T0, "x")) == "[2027-01-15T08:00:00.000000Z]          || x"


AGENT = AgentSummary(
    "a1",
    "default",
    (
        SlotSummary(0, "cuda", "RTX", "gpu-0", True, "1.x.1", "c-1"),
        SlotSummary(1, "cuda", "RTX", "gpu-1", False, None, None),
    ),
    connected=True,
    enabled=True,
    draining=False,
    registered_at=T0,
    version="0.1",
    addresses=("10.0.0.1",),
    containers={"c-1": "1.x.1"},
)


def test_agent() -> None:
    device = {"id": 0, "brand": "RTX", "uuid": "gpu-0", "type": "TYPE_CUDA"}
    container = {
        "id": "c-1",
        "parent": "a1",
        "state": "STATE_RUNNING",
        "devices": [device],
        "permissionDenied": False,
    }
    stats = {"total": 2, "disabled": 1, "draining": 0, "states": {"STATE_RUNNING": 1}}
    other = {"id": 1, "brand": "RTX", "uuid": "gpu-1", "type": "TYPE_CUDA"}
    assert cluster.agent(AGENT, everything=True) == {
        "id": "a1",
        "registeredTime": START,
        "slots": {
            "0": {"id": "0", "device": device, "enabled": True, "draining": False, "container": container},
            "1": {"id": "1", "device": other, "enabled": False, "draining": False, "container": None},
        },
        "containers": {"c-1": container},
        "addresses": ["10.0.0.1"],
        "enabled": True,
        "draining": False,
        "version": "0.1",
        "resourcePools": ["default"],
        "slotStats": {"brandStats": {"RTX": stats}, "typeStats": {"TYPE_CUDA": stats}},
    }
    assert "c-1" not in json.dumps(cluster.agent(AGENT, everything=False))


def test_pool_has_every_key_that_clients_want() -> None:
    summary = PoolSummary(
        name="gpu",
        description="the big ones",
        slot_type="cuda",
        agents=2,
        slots_total=8,
        slots_used=3,
        aux_running=1,
        aux_capacity_per_agent=100,
        scheduler="priority",
        fitting_policy="best",
        preemption=True,
        default_priority=42,
        queued=4,
        scheduled=2,
        environments={},
    )
    shown = cluster.pool(summary, cluster_name="lab", default_compute=True, default_aux=False)
    wanted = {
        "name": "gpu",
        "numAgents": 2,
        "slotsAvailable": 8,
        "slotsUsed": 3,
        "slotsPerAgent": 4,
        "slotType": "TYPE_CUDA",
        "auxContainerCapacity": 200,
        "defaultAuxPool": False,
        "defaultComputePool": True,
        "schedulerType": "SCHEDULER_TYPE_PRIORITY",
        "schedulerFittingPolicy": "FITTING_POLICY_BEST",
        "stats": {"queuedCount": 4, "scheduledCount": 2},
        "type": "RESOURCE_POOL_TYPE_STATIC",
    }
    assert {key: shown[key] for key in wanted} == wanted
    assert shown["details"]["priorityScheduler"]["defaultPriority"] == 42
    keys = """agentDockerImage agentDockerNetwork agentDockerRuntime agentFluentImage auxContainerCapacityPerAgent
        auxContainersRunning clusterName containerStartupScript description imageId instanceType location
        masterCertName masterUrl maxAgentStartingPeriod maxAgents maxIdleAgentPeriod minAgents preemptible
        resourceManagerMetadata startupScript"""
    assert set(keys.split()) <= set(shown)


@pytest.mark.parametrize(
    ("offset", "limit", "items", "start", "end"),
    [
        (0, None, "abcde", 0, 5),
        (1, 2, "bc", 1, 3),
        (-2, None, "de", 3, 5),
        (-9, 1, "a", 0, 1),
        (5, 2, "", 5, 5),
    ],
)
def test_paging(offset: int, limit: int | None, items: str, start: int, end: int) -> None:
    page, pagination = Paging(offset, limit, False).cut("abcde")
    assert page == items
    assert pagination == {
        "offset": offset,
        "limit": limit or 0,
        "startIndex": start,
        "endIndex": end,
        "total": 5,
    }


def test_paging_behind_the_end() -> None:
    with pytest.raises(Invalid, match="the list has only 5 items"):
        Paging(6, None, False).cut("abcde")


def test_what_has_no_value_comes_last() -> None:
    values = [2.0, None, 1.0, float("nan"), 3.0]
    assert ordered(values, lambda v: v, False)[:3] == [1.0, 2.0, 3.0]
    assert ordered(values, lambda v: v, True)[:3] == [3.0, 2.0, 1.0]
