"""The only place where the master's concrete parts meet."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tornado.netutil import bind_sockets

from detlab_master import api
from detlab_master.api.cluster import DefaultPools
from detlab_master.config import MasterConfig, PoolYaml
from detlab_master.core.states import TaskType
from detlab_master.core.task_spec import ClusterFacts
from detlab_master.engine import clock
from detlab_master.engine.allocations import AllocationService
from detlab_master.engine.checkpoint_files import CheckpointFiles
from detlab_master.engine.checkpoint_holds import CheckpointHolds
from detlab_master.engine.checkpoints import CheckpointService
from detlab_master.engine.collector import CheckpointCollector
from detlab_master.engine.contexts import Contexts
from detlab_master.engine.deletion import ExperimentDeletion
from detlab_master.engine.experiment_inbox import Pools
from detlab_master.engine.experiments import ExperimentService
from detlab_master.engine.experiments_at_work import ExperimentsAtWork
from detlab_master.engine.identity import Identity
from detlab_master.engine.launch import Launcher
from detlab_master.engine.log_policies import LogPolicies
from detlab_master.engine.log_retention import LogRetention
from detlab_master.engine.logs import LogService
from detlab_master.engine.master_logs import MasterLogs
from detlab_master.engine.place_deletion import PlaceDeletion
from detlab_master.engine.previews import Previews
from detlab_master.engine.registry import ModelRegistry
from detlab_master.engine.servers import ServerService
from detlab_master.engine.services import Services
from detlab_master.engine.submissions import ClusterDefaults, Submissions
from detlab_master.engine.templates import TemplateService
from detlab_master.engine.topics import Topics
from detlab_master.engine.unmanaged import UnmanagedService
from detlab_master.engine.workspaces import WorkspaceService
from detlab_master.resources.agents import Agents, PoolConfig
from detlab_master.store.base import Store
from detlab_master.store.sql import open_store

logger = logging.getLogger(__name__)
API_VERSION = "0.38.1"  # of the API that is spoken; clients compare it with their own


class PortTaken(Exception):
    """Another program listens there; the text says what to do."""


@asynccontextmanager
async def running(config: MasterConfig) -> AsyncIterator[Services]:
    """A master that serves requests until the context ends."""
    folder = config.folder
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o711)  # tasks pass through to their checkpoints, and see nothing else
    sockets = _bind(config)
    store = await asyncio.to_thread(open_store, config.db_url)
    services = await wire(config, store, folder)
    manager = config.resource_manager
    pools = DefaultPools(manager.default_compute_resource_pool, manager.default_aux_resource_pool)
    server = api.server(api.application(services, pools))
    logging.getLogger().addHandler(services.master_logs)
    try:
        await services.at_work.restore()
        await services.deletion.restore()
        await services.collector.restore()
        await services.place_deletion.restore()
        await services.servers.restore()
        services.log_retention.start()
        services.unmanaged.listen()
        server.add_sockets(sockets)
        logger.info("the master answers at http://%s:%d", config.bind_ip, config.port)
        yield services
    finally:
        server.stop()
        await server.close_all_connections()
        services.agents.close()
        await services.unmanaged.close()
        await services.place_deletion.close()
        await services.log_retention.close()
        await services.deletion.close()
        await services.collector.close()
        await services.at_work.close()
        await services.servers.close()
        await services.allocations.close()
        services.readers.shutdown(wait=True, cancel_futures=True)
        await asyncio.to_thread(services.files.close)
        await asyncio.to_thread(store.close)
        logging.getLogger().removeHandler(services.master_logs)


def _bind(config: MasterConfig) -> list[Any]:
    try:
        return bind_sockets(config.port, config.bind_ip)
    except OSError as error:
        raise PortTaken(
            f"port {config.port} on {config.bind_ip} cannot be used: {error.strerror}."
            " Choose another with --port (with `make up`: make up PORT=9000)"
        ) from None


async def wire(config: MasterConfig, store: Store, folder: Path) -> Services:
    """Put the parts together.

    Args:
        folder: the data folder; it exists.
    """
    cluster = ClusterFacts(store.cluster_id(), str(uuid.uuid4()), config.cluster_name, API_VERSION)
    ids = clock.Ids(store.highest_ids())
    topics = Topics()
    logs = LogService(store, topics)
    agents = Agents([_pool(config, pool) for pool in config.resource_pools], cluster)
    allocations = AllocationService(store, topics, logs)
    identity = Identity(
        store,
        ids,
        agent_token=secret_file(folder / "agent-token"),
        hub_token=secret_file(folder / "hub-token"),
        passwords=not config.security.jupyterhub,
    )
    contexts = Contexts(folder)
    files = CheckpointFiles(store, cluster.cluster_id, config.checkpoint_storage)
    holds = CheckpointHolds(store)
    registry = ModelRegistry(store, ids, holds)
    checkpoints = CheckpointService(store=store, files=files, holds=holds)
    collector = CheckpointCollector(store=store, checkpoints=checkpoints)
    priorities = {pool.pool_name: _pool(config, pool).default_priority for pool in config.resource_pools}
    defaults = config.task_container_defaults
    cluster_defaults = ClusterDefaults(
        config=_experiment_defaults(config, folder, cluster.cluster_id),
        reject_impossible=config.launch_error,
    )
    submissions = Submissions(store, agents, cluster_defaults, holds)
    at_work = ExperimentsAtWork(
        store=store,
        ids=ids,
        allocations=allocations,
        resources=agents,
        pools=Pools(priorities.__getitem__, defaults.preemption_timeout),
        logs=logs,
        collect=collector.request,
    )
    experiments = ExperimentService(
        store=store,
        ids=ids,
        allocations=allocations,
        at_work=at_work,
        submissions=submissions,
        contexts=contexts,
        collector=collector,
        holds=holds,
    )
    master_url = config.task_master_url or f"http://{_reachable(config.bind_ip)}:{config.port}"
    launcher = Launcher(store, cluster, agents, holds, master_url)
    agents.wire(allocations)
    allocations.wire(agents, launcher.spec)
    allocations.owned_by(TaskType.TRIAL, at_work.allocation_ended)
    allocations.on_end(identity.forget_allocation)
    logs.read_by(LogPolicies(store, allocations, at_work).read)
    servers = ServerService(
        store=store,
        ids=ids,
        allocations=allocations,
        resources=agents,
        default_pool=config.resource_manager.default_aux_resource_pool,
        default_priority=priorities,
    )
    allocations.owned_by(TaskType.NOTEBOOK, servers.allocation_ended)
    deletion = ExperimentDeletion(
        store=store,
        files=files,
        contexts=contexts,
        holds=holds,
        collector=collector,
        at_work=at_work,
        shown_state=experiments.shown_state,
    )
    place_deletion = PlaceDeletion(store, deletion)
    if not config.security.jupyterhub:
        await identity.ensure_built_in_users(_first_password(config, folder))
    return Services(
        store=store,
        cluster=cluster,
        identity=identity,
        at_work=at_work,
        experiments=experiments,
        unmanaged=UnmanagedService(
            store=store, at_work=at_work, experiments=experiments, patience=config.detached.patience
        ),
        checkpoints=checkpoints,
        collector=collector,
        previews=Previews(cluster_defaults),
        deletion=deletion,
        allocations=allocations,
        servers=servers,
        registry=registry,
        workspaces=WorkspaceService(
            store, ids, pools=lambda: [pool.name for pool in agents.pools()], deletion=place_deletion
        ),
        place_deletion=place_deletion,
        templates=TemplateService(store),
        logs=logs,
        log_retention=LogRetention(
            store, at_work, config.retention_policy.log_retention_days, config.retention_policy.times
        ),
        master_logs=MasterLogs(),
        agents=agents,
        contexts=contexts,
        files=files,
    )


def _pool(config: MasterConfig, pool: PoolYaml) -> PoolConfig:
    scheduler = pool.scheduler or config.resource_manager.scheduler
    return PoolConfig(
        name=pool.pool_name,
        description=pool.description,
        preemption=scheduler.preemption,
        fitting_policy=scheduler.fitting_policy,
        default_priority=scheduler.default_priority,
        max_aux_per_agent=pool.max_aux_containers_per_agent,
        reconnect_wait=pool.reconnect_seconds,
    )


def _experiment_defaults(config: MasterConfig, folder: Path, cluster_id: str) -> dict[str, Any]:
    """What the cluster adds to every experiment's configuration."""
    storage = config.checkpoint_storage
    if storage is None:
        checkpoints = folder / "checkpoints"
        boards = checkpoints / cluster_id / "tensorboard"
        for shared in (checkpoints, checkpoints / cluster_id, boards, boards / "experiment"):
            shared.mkdir(exist_ok=True)
            # Tasks run under accounts of their own: like /tmp, everybody may add, and nobody touch another's things.
            shared.chmod(0o1777)
        storage = {"type": "shared_fs", "host_path": str(checkpoints)}
    manager = config.resource_manager
    return {
        "checkpoint_storage": storage,
        "task_container_defaults": config.task_container_defaults.model_dump(exclude_none=True),
        "default_compute_resource_pool": manager.default_compute_resource_pool,
        "default_aux_resource_pool": manager.default_aux_resource_pool,
        "pools": {
            pool.pool_name: {
                "task_container_defaults": pool.task_container_defaults.given
                if pool.task_container_defaults
                else {},
                "default_priority": _pool(config, pool).default_priority,
            }
            for pool in config.resource_pools
        },
    }


def _reachable(bind_ip: str) -> str:
    return "127.0.0.1" if bind_ip in ("0.0.0.0", "::", "") else bind_ip


def _first_password(config: MasterConfig, folder: Path) -> str:
    """The password that the built-in users get on an empty database."""
    if config.security.initial_user_password or config.security.allow_blank_passwords:
        return config.security.initial_user_password
    return secret_file(folder / "initial-password")


def secret_file(path: Path) -> str:
    """The secret in a file that only its owner reads; made at the first time."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        secret = secrets.token_urlsafe(16) + "aA1"  # meets the client's rule: upper, lower, digit
        temporary = path.with_suffix(".new")  # a crash here must not leave an empty secret
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secret + "\n")
        temporary.rename(path)
        return secret
