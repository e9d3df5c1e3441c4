"""Records to put into a store, with every field filled: what a test does not name is unlike its default."""

from __future__ import annotations

from typing import Any

from detlab_master.core.states import (
    AllocationState,
    CheckpointState,
    ExperimentState,
    PlaceState,
    TaskType,
    TrialState,
)
from detlab_master.store import records
from detlab_master.store.base import Store
from detlab_master.store.writes import SaveAllocation, SaveExperiment, SaveTask, SaveTrial, Write


def user(id: int = 1, **changes: Any) -> records.User:
    values: dict[str, Any] = {
        "username": f"user-{id}",
        "password_hash": "$argon2id$…",
        "admin": True,
        "active": True,
        "display_name": "Ада",
        "remote": True,
        "modified_at": 1.5,
        "last_auth_at": 2.25,
    }
    return records.User(id=id, **{**values, **changes})


def session(token_hash: str = "hash", **changes: Any) -> records.Session:
    values: dict[str, Any] = {
        "user_id": 1,
        "kind": "allocation",
        "created_at": 1.0,
        "expires_at": 2.0,
        "allocation_id": "1.task.1",
    }
    return records.Session(token_hash=token_hash, **{**values, **changes})


def experiment(id: int = 1, **changes: Any) -> records.Experiment:
    values: dict[str, Any] = {
        "job_id": f"job-{id}",
        "owner_id": 1,
        "project_id": 1,
        "state": ExperimentState.ACTIVE,
        "config": {"name": "digits", "searcher": {"name": "single", "limits": [1, 2.5, None, True]}},
        "original_config": "name: digits\n",
        "context_sha256": "ab" * 32,
        "context_bytes": 1 << 40,
        "start_time": 1000.125,
        "end_time": 2000.25,
        "name": f"experiment {id}",
        "description": "Größe",
        "notes": "two\nlines",
        "labels": ("a", "b"),
        "archived": True,
        "forked_from": 7,
        "progress": 0.5,
        "error": "the searcher broke",
        "gc_due": 2000.5,
        "unmanaged": True,
        "external_id": "laptop 1/ü",
    }
    return records.Experiment(id=id, **{**values, **changes})


def trial(id: int = 1, experiment_id: int = 1, **changes: Any) -> records.Trial:
    values: dict[str, Any] = {
        "request_id": id,
        "task_id": f"{experiment_id}.task-{id}",
        "state": TrialState.ACTIVE,
        "hparams": {"lr": 0.1, "layers": [1, 2], "nested": {"deep": None}},
        "seed": (1 << 31) + 5,
        "start_time": 1001.0,
        "end_time": 1002.0,
        "run_id": 2,
        "restarts": 1,
        "allocation_id": "1.task.2",
        "stopped_by_searcher": True,
        "early_exit_reason": "EXITED_REASON_INVALID_HP",
        "warm_start_checkpoint": "uuid",
        "progress": 0.25,
        "runner_state": "training",
        "total_batches": 1 << 33,
        "summary_metrics": {"avg_metrics": {"loss": {"type": "number", "max": "Infinity"}}},
        "latest_validation": {"end_time": 5.0, "total_batches": 3, "metrics": {"loss": "NaN"}},
        "best_validation": {"end_time": 4.0, "total_batches": 2, "metrics": {"loss": 0.5}},
        "searcher_metric": 0.5,
        "metadata": {"note": "x"},
        "log_policy_matched": "CUDA OOM",
        "retries_canceled": True,
        "excluded_agents": ("agent-1", "agent-2"),
        "log_retention_days": -1,
        "external_id": "fold 1",
        "last_activity": 1001.5,
        "lost_contact": True,
    }
    return records.Trial(id=id, experiment_id=experiment_id, **{**values, **changes})


def task(id: str = "1.task-1", **changes: Any) -> records.Task:
    values: dict[str, Any] = {
        "type": TaskType.TRIAL,
        "owner_id": 1,
        "job_id": "job-1",
        "start_time": 1001.0,
        "end_time": 1002.0,
        "experiment_id": 1,
        "trial_id": 1,
        "config": {"command": ["python3"]},
        "address": "127.0.0.1:2900",
    }
    return records.Task(id=id, **{**values, **changes})


def allocation(id: str = "1.task-1.1", **changes: Any) -> records.Allocation:
    values: dict[str, Any] = {
        "task_id": "1.task-1",
        "owner_id": 1,
        "run_id": 1,
        "resource_pool": "default",
        "slots": 2,
        "priority": 42,
        "state": AllocationState.RUNNING,
        "queued_at": 1000.5,
        "queue_order": 1,
        "started_at": 1001.0,
        "ended_at": None,
        "containers": (
            records.Container(
                id="container-1",
                agent_id="agent-1",
                slot_ids=(0, 1),
                state=AllocationState.TERMINATED,
                exit_code=137,
                failure="container_failed",
                failure_message="killed",
                address="10.0.0.1",
                daemon=True,
            ),
            records.Container(id="container-2", agent_id="agent-2", slot_ids=()),
        ),
        "ready": True,
        "preempt_requested_at": 1003.0,
        "preempt_acked": True,
        "kill_requested": True,
        "aborted": True,
        "preemption_timeout": 60.0,
        "exit_reason": "the reason",
        "exit_code": 137,
        "failure": "container_failed",
    }
    return records.Allocation(id=id, **{**values, **changes})


def report(
    steps_completed: int, group: str = "training", *, trial_id: int = 1, **changes: Any
) -> records.MetricReport:
    values: dict[str, Any] = {"run_id": 1, "reported_at": 10.5, "metrics": {"loss": 0.5, "name": "x"}}
    return records.MetricReport(
        trial_id=trial_id, group=group, steps_completed=steps_completed, **{**values, **changes}
    )


def checkpoint(uuid: str = "uuid-1", **changes: Any) -> records.Checkpoint:
    values: dict[str, Any] = {
        "task_id": "1.task-1",
        "allocation_id": "1.task-1.1",
        "experiment_id": 1,
        "trial_id": 1,
        "state": CheckpointState.COMPLETED,
        "reported_at": 20.0,
        "steps_completed": 100,
        "resources": {"code/": 0, "state_dict.pth": 1 << 34},
        "metadata": {"steps_completed": 100, "framework": "torch"},
        "storage_id": 3,
    }
    return records.Checkpoint(uuid=uuid, **{**values, **changes})


def model(id: int = 1, **changes: Any) -> records.Model:
    values: dict[str, Any] = {
        "name": f"model {id}",
        "owner_id": 1,
        "workspace_id": 1,
        "created_at": 40.5,
        "updated_at": 41.25,
        "description": "Größe",
        "notes": "two\nlines",
        "labels": ("b", "a"),
        "metadata": {"accuracy": 0.5, "nested": {"deep": [1, None]}},
        "archived": True,
        "last_version": 7,
    }
    return records.Model(id=id, **{**values, **changes})


def model_version(version: int = 1, model_id: int = 1, **changes: Any) -> records.ModelVersion:
    values: dict[str, Any] = {
        "id": 10 * model_id + version,
        "checkpoint_uuid": "uuid-1",
        "owner_id": 1,
        "created_at": 42.5,
        "updated_at": 43.25,
        "name": "the first",
        "comment": "Ада",
        "notes": "two\nlines",
        "labels": ("b", "a"),
        "metadata": {"accuracy": 0.5},
    }
    return records.ModelVersion(model_id=model_id, version=version, **{**values, **changes})


def workspace(id: int = 2, **changes: Any) -> records.Workspace:
    values: dict[str, Any] = {
        "name": f"workspace {id}",
        "owner_id": 2,
        "archived": True,
        "immutable": True,
        "checkpoint_storage": {"type": "shared_fs", "host_path": "/nfs", "propagation": None},
        "default_compute_pool": "gpus",
        "default_aux_pool": "cpus",
        "state": PlaceState.DELETE_FAILED,
        "error_message": "the reason",
    }
    return records.Workspace(id=id, **{**values, **changes})


def project(id: int = 2, **changes: Any) -> records.Project:
    values: dict[str, Any] = {
        "workspace_id": 1,
        "name": f"project {id}",
        "owner_id": 2,
        "key": f"P{id}",
        "description": "Größe",
        "notes": (records.Note("first", "two\nlines"), records.Note("", "")),
        "archived": True,
        "immutable": True,
        "state": PlaceState.DELETING,
        "error_message": "the reason",
    }
    return records.Project(id=id, **{**values, **changes})


def template(name: str = "gpus", **changes: Any) -> records.Template:
    values: dict[str, Any] = {
        "workspace_id": 1,
        "owner_id": 2,
        "config": {"resources": {"slots_per_trial": 2}, "labels": ["a"], "debug": None},
    }
    return records.Template(name=name, **{**values, **changes})


def log(text: str = "hello\n", **changes: Any) -> records.LogLine:
    values: dict[str, Any] = {
        "task_id": "1.task-1",
        "allocation_id": "1.task-1.1",
        "timestamp": 30.25,
        "container_id": "container-1",
        "agent_id": "agent-1",
        "rank_id": 3,
        "level": "LOG_LEVEL_INFO",
        "stdtype": "stderr",
        "source": "agent",
    }
    return records.LogLine(log=text, **{**values, **changes})


def commit(store: Store, *writes: Write) -> None:
    """One transaction, and wait until it is on disk."""
    store.commit(writes).result(timeout=30)


def family(id: int = 1) -> list[Write]:
    """An experiment with a trial, its task and an allocation, which bear the experiment's number."""
    return [
        SaveExperiment(experiment(id)),
        SaveTask(task(f"{id}.task-{id}", experiment_id=id, trial_id=id)),
        SaveTrial(trial(id, id)),
        SaveAllocation(allocation(f"{id}.task-{id}.1", task_id=f"{id}.task-{id}", queue_order=id)),
    ]
