"""The API over the real engine and the in-memory store, with users, and things that belong to them."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tornado.httpclient import AsyncHTTPClient, HTTPRequest, HTTPResponse
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port

from detlab_master.api import application, server
from detlab_master.app import wire
from detlab_master.config import MasterConfig
from detlab_master.core.records import (
    Allocation,
    Checkpoint,
    Experiment,
    MetricReport,
    Model,
    Project,
    Task,
    Template,
    Trial,
    User,
    Workspace,
)
from detlab_master.core.states import AllocationState, CheckpointState, ExperimentState, TaskType, TrialState
from detlab_master.engine.identity import new_session
from detlab_master.engine.launch import FIRST_TASK_UID
from detlab_master.engine.services import Services
from detlab_master.store.base import Store
from detlab_master.store.memory import MemoryStore
from detlab_master.store.writes import (
    InsertReport,
    SaveAllocation,
    SaveCheckpoint,
    SaveExperiment,
    SaveModel,
    SaveProject,
    SaveSession,
    SaveTask,
    SaveTemplate,
    SaveTrial,
    SaveUser,
    SaveWorkspace,
    Write,
)

T0 = 1_800_000_000.0
ADMIN, ALICE, BOB = 1, 2, 3
USERS = {"admin": ADMIN, "alice": ALICE, "bob": BOB}
CONFIG = """
name: digits
entrypoint: python3 train.py
searcher: {name: single, metric: accuracy, smaller_is_better: false}
hyperparameters: {lr: 0.1}
resources: {slots_per_trial: 1}
"""


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        """The items of a streaming answer."""
        return [json.loads(line) for line in self.body.splitlines()]

    @property
    def error(self) -> str:
        """The text of a refusal."""
        error = self.json.get("error")
        return str(error["error"] if error else self.json["message"])


@dataclass(frozen=True)
class Things:
    """A finished experiment with one trial and its checkpoint, all of one owner."""

    experiment: Experiment
    trial: Trial
    task: Task
    allocation: Allocation
    checkpoint: Checkpoint
    model: Model  # without versions
    workspace: Workspace  # with the project and the template
    project: Project  # without experiments
    template: Template
    token: str  # of the allocation
    task_token: str  # DET_USER_TOKEN of the same task


@dataclass
class Rig:
    services: Services
    store: Store
    url: str
    port: int
    folder: Path
    agent_token: str
    hub_token: str
    tokens: dict[str, str] = field(default_factory=dict)  # by user name
    _made: int = 0

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        by: str | None = "alice",
        container: str | None = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        timeout: float = 20.0,
    ) -> Answer:
        """One request.

        Args:
            body: JSON, or bytes as they are.
            by: a user's name, or a token, or None for nobody.
            container: an allocation's token, sent in its own header instead of a user's.
        """
        sent = dict(headers or {})
        if container is not None:
            sent["Grpc-Metadata-x-allocation-token"] = f"Bearer {container}"
        elif by is not None:
            sent["Authorization"] = f"Bearer {self.tokens.get(by, by)}"
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = HTTPRequest(
            self.url + path + ("?" + urlencode(query, doseq=True) if query else ""),
            method=method,
            headers=sent,
            body=data,
            allow_nonstandard_methods=True,
            request_timeout=timeout,
            decompress_response=False,
        )
        response: HTTPResponse = await AsyncHTTPClient().fetch(request, raise_error=False)
        if response.code == 599:
            raise ConnectionError(str(response.error))
        return Answer(response.code, response.body, response.headers)

    async def keep(self, *writes: Write) -> None:
        self.store.commit(writes).result()

    async def token(self, user_id: int, kind: str = "user", allocation_id: str | None = None) -> str:
        token, session = new_session(user_id, kind, 3600.0, allocation_id)
        await self.keep(SaveSession(session))
        return token

    async def things(
        self, owner: int = ALICE, *, state: ExperimentState = ExperimentState.COMPLETED
    ) -> Things:
        """Another set of things."""
        self._made += 1
        number = 1000 + self._made
        storage = self.folder / "checkpoints"
        checkpoint_uuid = str(uuid.uuid4())
        files = storage / checkpoint_uuid
        (files / "code").mkdir(parents=True)
        (files / "weights").write_bytes(b"w" * 1000)
        (files / "code" / "train.py").write_text("print('hi')\n")
        if os.geteuid() == 0:
            os.chown(files, FIRST_TASK_UID + owner, -1)  # as the owner's tasks would leave it
        experiment = experiment_record(number, owner, storage, state=state)
        trial = trial_record(number, number)
        task = Task(
            trial.task_id, TaskType.TRIAL, owner, experiment.job_id, T0, T0 + 60, experiment.id, trial.id
        )
        allocation = allocation_record(task)
        checkpoint = checkpoint_record(checkpoint_uuid, task, allocation)
        model = Model(number, f"model of {number}", owner, workspace_id=1, created_at=T0, updated_at=T0 + 60)
        workspace = Workspace(number, f"workspace {number}", owner)
        project = Project(number, number, f"project {number}", owner, key=f"P{number}")
        template = Template(f"template {number}", number, owner, {"max_restarts": 1})
        await self.keep(
            SaveWorkspace(workspace),
            SaveProject(project),
            SaveTemplate(template),
            SaveExperiment(experiment),
            SaveTask(task),
            SaveTrial(trial),
            SaveAllocation(allocation),
            SaveCheckpoint(checkpoint),
            SaveModel(model),
            *(InsertReport(report) for report in reports(trial)),
        )
        return Things(
            experiment,
            trial,
            task,
            allocation,
            checkpoint,
            model,
            workspace,
            project,
            template,
            token=await self.token(owner, "allocation", allocation.id),
            task_token=await self.token(owner, "task", allocation.id),
        )


def experiment_record(number: int, owner: int, storage: Path, **changes: Any) -> Experiment:
    values: dict[str, Any] = {
        "project_id": 1,
        "state": ExperimentState.COMPLETED,
        "config": {
            "name": "digits",
            "searcher": {"name": "single", "metric": "accuracy", "smaller_is_better": False},
            "hyperparameters": {"lr": {"type": "const", "val": 0.5}},
            "resources": {
                "resource_pool": "default",
                "slots_per_trial": 1,
                "priority": None,
                "max_slots": None,
            },
            "checkpoint_storage": {
                "type": "shared_fs",
                "host_path": str(storage),
                "save_experiment_best": 0,
                "save_trial_best": 1,
                "save_trial_latest": 1,
            },
            "max_restarts": 5,
            "reproducibility": {"experiment_seed": 1},
        },
        "original_config": CONFIG,
        "context_sha256": "",
        "context_bytes": 0,
        "start_time": T0,
        "end_time": T0 + 60,
        "name": f"digits {number}",
        "description": "a search",
        "labels": ("mnist", "small"),
        "progress": 1.0,
    }
    return Experiment(id=number, job_id=f"job-{number}", owner_id=owner, **{**values, **changes})


def trial_record(number: int, experiment_id: int, **changes: Any) -> Trial:
    best = {"end_time": T0 + 50.5, "total_batches": 200, "metrics": {"accuracy": 0.75, "loss": 2.0}}
    values: dict[str, Any] = {
        "state": TrialState.COMPLETED,
        "hparams": {"lr": 0.5, "layers": 2},
        "seed": 7,
        "start_time": T0,
        "end_time": T0 + 60,
        "run_id": 1,
        "restarts": 0,
        "total_batches": 200,
        "latest_validation": best,
        "best_validation": best,
        "searcher_metric": 0.75,
        "summary_metrics": {"validation_metrics": {"accuracy": {"type": "number", "count": 1, "last": 0.75}}},
    }
    return Trial(
        id=number,
        experiment_id=experiment_id,
        request_id=0,
        task_id=f"{experiment_id}.{uuid.UUID(int=number)}",
        **{**values, **changes},
    )


def allocation_record(task: Task, **changes: Any) -> Allocation:
    values: dict[str, Any] = {
        "run_id": 1,
        "state": AllocationState.TERMINATED,
        "queued_at": T0,
        "queue_order": 1,
        "started_at": T0 + 1,
        "ended_at": T0 + 60,
        "exit_code": 0,
    }
    return Allocation(
        id=f"{task.id}.1",
        task_id=task.id,
        owner_id=task.owner_id,
        resource_pool="default",
        slots=1,
        priority=42,
        **{**values, **changes},
    )


def checkpoint_record(checkpoint_uuid: str, task: Task, allocation: Allocation, **changes: Any) -> Checkpoint:
    assert task.experiment_id is not None
    assert task.trial_id is not None
    values: dict[str, Any] = {
        "state": CheckpointState.COMPLETED,
        "reported_at": T0 + 51,
        "steps_completed": 200,
        "resources": {"weights": 1000, "code/": 0, "code/train.py": 12},
        "metadata": {"steps_completed": 200, "framework": "torch-2.13.0"},
        "storage_id": 1,
    }
    return Checkpoint(
        uuid=checkpoint_uuid,
        task_id=task.id,
        allocation_id=allocation.id,
        experiment_id=task.experiment_id,
        trial_id=task.trial_id,
        **{**values, **changes},
    )


def reports(trial: Trial) -> list[MetricReport]:
    """Two training reports and a validation."""
    return [
        MetricReport(trial.id, 1, "training", 100, T0 + 20, {"loss": 3.0}, ({"loss": 4.0}, {"loss": 2.0})),
        MetricReport(trial.id, 1, "training", 200, T0 + 50, {"loss": 1.5}),
        MetricReport(trial.id, 1, "validation", 200, T0 + 50.5, {"accuracy": 0.75, "loss": 2.0}),
    ]


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Rig]:
    store = MemoryStore()
    users = [User(number, name, None, admin=name == "admin", active=True) for name, number in USERS.items()]
    store.commit([SaveUser(user) for user in users]).result()
    services = await wire(MasterConfig(data_dir=folder), store, folder)
    listening: HTTPServer = server(application(services))
    socket, port = bind_unused_port()
    listening.add_socket(socket)
    agent_token, hub_token = ((folder / name).read_text().strip() for name in ("agent-token", "hub-token"))
    rig = Rig(services, store, f"http://127.0.0.1:{port}", port, folder, agent_token, hub_token)
    try:
        for name, number in USERS.items():
            rig.tokens[name] = await rig.token(number)
        yield rig
    finally:
        listening.stop()
        await listening.close_all_connections()
        services.agents.close()
        await services.servers.close()
        await services.place_deletion.close()
        await services.deletion.close()
        await services.collector.close()
        await services.at_work.close()
        await services.allocations.close()
        services.readers.shutdown(wait=True)
        services.files.close()
        store.close()
