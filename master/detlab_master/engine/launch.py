"""What an agent is told to run: the specification of a container, with tokens made for it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from detlab_agent import protocol
from detlab_master.core import task_spec
from detlab_master.core.errors import NotFound
from detlab_master.core.records import Allocation, Container, Experiment, Task
from detlab_master.core.states import TaskType
from detlab_master.engine.checkpoint_holds import STARTED_FROM, CheckpointHolds
from detlab_master.engine.identity import new_session
from detlab_master.resources.base import ResourceManager
from detlab_master.store.base import Store
from detlab_master.store.writes import SaveSession

FIRST_TASK_UID = 70_000  # Unix account of user n's tasks, where the agent runs as root: this + n


class Launcher:
    """Builds container specifications.

    Args:
        master_url: under which tasks reach the master.
    """

    def __init__(
        self,
        store: Store,
        cluster: task_spec.ClusterFacts,
        resources: ResourceManager,
        holds: CheckpointHolds,
        master_url: str,
    ) -> None:
        self._store = store
        self._holds = holds
        self._cluster = cluster
        self._resources = resources
        self._master_url = master_url

    async def spec(self, task: Task, allocation: Allocation, container: Container) -> protocol.ContainerSpec:
        """The specification of one container of a task.

        Raises:
            NotFound: what the task belongs to is gone.
            Invalid: a trial's warm-start checkpoint was deleted, and it has none of its own.
            StoreUnavailable: the database cannot be reached; try again.
        """
        owner = await asyncio.to_thread(self._store.users.get, task.owner_id)
        if owner is None:
            raise NotFound(f"task {task.id}: its owner '{task.owner_id}' not found")
        session_token, session = new_session(owner.id, "allocation", None, allocation.id)
        user_token, user_session = new_session(owner.id, "task", None, allocation.id)
        await asyncio.wrap_future(self._store.commit([SaveSession(session), SaveSession(user_session)]))
        environment = task_spec.task_environment(
            cluster=self._cluster,
            master_url=self._master_url,
            owner=owner.username,
            task=task,
            allocation=allocation,
            container=container,
            secrets=task_spec.Secrets(session_token, user_token),
        )
        spec = protocol.ContainerSpec(
            container_id=container.id,
            allocation_id=allocation.id,
            task_id=task.id,
            task_type=str(task.type),
            owner=owner.username,
            owner_uid=FIRST_TASK_UID + owner.id,
            command=task_spec.TRIAL_COMMAND,
            environment=environment,
            slot_ids=container.slot_ids,
        )
        if task.type is TaskType.TRIAL:
            return await self._trial(spec, task, allocation)
        return self._server(spec, task)

    async def _trial(
        self, spec: protocol.ContainerSpec, task: Task, allocation: Allocation
    ) -> protocol.ContainerSpec:
        assert task.trial_id is not None  # a trial's task
        assert task.experiment_id is not None
        trial = await asyncio.to_thread(self._store.trials.get, task.trial_id)
        experiment = await asyncio.to_thread(self._store.experiments.get, task.experiment_id)
        if trial is None or experiment is None:
            raise NotFound(f"task {task.id}: its trial '{task.trial_id}' not found")
        checkpoint = await asyncio.to_thread(self._store.checkpoints.latest, trial.id)
        if checkpoint is None and trial.warm_start_checkpoint:
            await self._holds.refuse_unfit(trial.warm_start_checkpoint, STARTED_FROM)
        pool = next((p for p in self._resources.pools() if p.name == allocation.resource_pool), None)
        slot_type = (pool.slot_type if pool else "") or "cpu"
        environment = spec.environment | task_spec.trial_environment(experiment, trial, checkpoint)
        environment |= task_spec.user_environment(experiment, slot_type)
        image = task_spec.image(experiment.config, slot_type)
        storage = experiment.config["checkpoint_storage"]
        return replace(
            spec,
            environment=environment,
            bind_mounts=_mounts(experiment),
            shared_fs=storage["host_path"] if storage["type"] == "shared_fs" else None,
            # Where another agent of the pool has it, this one refuses: running with another Python is no answer.
            python_environment=image if pool and image in pool.environments else None,
        )

    def _server(self, spec: protocol.ContainerSpec, task: Task) -> protocol.ContainerSpec:
        return replace(
            spec,
            command=tuple(task.config["command"]),
            environment=spec.environment | dict(task.config["environment"]),
            home=task.config.get("home"),
        )


def _mounts(experiment: Experiment) -> tuple[protocol.BindMount, ...]:
    """The folders of the host that the configuration asks for."""
    return tuple(
        protocol.BindMount(m["host_path"], m["container_path"], bool(m.get("read_only")))
        for m in experiment.config.get("bind_mounts") or ()
    )
