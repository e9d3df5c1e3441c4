"""All that the API may call, in one place. `app.py` puts it together; nothing here is global."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from detlab_master.core.task_spec import ClusterFacts
from detlab_master.engine import clock
from detlab_master.engine.allocations import AllocationService
from detlab_master.engine.checkpoint_files import CheckpointFiles
from detlab_master.engine.checkpoints import CheckpointService
from detlab_master.engine.collector import CheckpointCollector
from detlab_master.engine.contexts import Contexts
from detlab_master.engine.deletion import ExperimentDeletion
from detlab_master.engine.experiments import ExperimentService
from detlab_master.engine.experiments_at_work import ExperimentsAtWork
from detlab_master.engine.identity import Identity
from detlab_master.engine.log_retention import LogRetention
from detlab_master.engine.logs import LogService
from detlab_master.engine.master_logs import MasterLogs
from detlab_master.engine.place_deletion import PlaceDeletion
from detlab_master.engine.previews import Previews
from detlab_master.engine.registry import ModelRegistry
from detlab_master.engine.servers import ServerService
from detlab_master.engine.templates import TemplateService
from detlab_master.engine.unmanaged import UnmanagedService
from detlab_master.engine.workspaces import WorkspaceService
from detlab_master.resources.agents import Agents
from detlab_master.store.base import Store

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Services:
    store: Store
    cluster: ClusterFacts
    identity: Identity
    at_work: ExperimentsAtWork
    experiments: ExperimentService
    unmanaged: UnmanagedService
    checkpoints: CheckpointService
    collector: CheckpointCollector
    deletion: ExperimentDeletion
    previews: Previews
    allocations: AllocationService
    servers: ServerService
    registry: ModelRegistry
    workspaces: WorkspaceService
    place_deletion: PlaceDeletion
    templates: TemplateService
    logs: LogService
    log_retention: LogRetention
    master_logs: MasterLogs
    agents: Agents
    contexts: Contexts
    files: CheckpointFiles
    readers: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(max_workers=4, thread_name_prefix="store-read")
    )

    async def read(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """A read of the store, in a thread: the event loop never waits for the database."""
        return await asyncio.get_running_loop().run_in_executor(self.readers, lambda: fn(*args, **kwargs))

    def now(self) -> float:
        """Unix seconds."""
        return clock.now()
