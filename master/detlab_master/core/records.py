"""The facts that the master keeps, as frozen dataclasses. Times are Unix seconds (UTC); JSON values are plain Python.

Metric values that JSON cannot carry are the strings ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, as on the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from detlab_master.core.states import (
    AllocationState,
    CheckpointState,
    ExperimentState,
    PlaceState,
    TaskType,
    TrialState,
)

Json = Mapping[str, Any]


@dataclass(frozen=True)
class User:
    id: int
    username: str
    password_hash: str | None  # Argon2 of the client's salted hash; None: only the empty password opens it
    admin: bool
    active: bool
    display_name: str = ""
    remote: bool = False  # True: identity comes from outside (the Hub), no password login
    modified_at: float = 0.0
    last_auth_at: float | None = None


@dataclass(frozen=True)
class Session:
    """A token that was handed out. Only its SHA-256 is kept."""

    token_hash: str
    user_id: int
    kind: str  # "user": a login; "access": made to log in with elsewhere; "task": DET_USER_TOKEN of a task; "allocation": DET_SESSION_TOKEN of a task
    created_at: float
    expires_at: float | None  # None: until it is deleted
    allocation_id: str | None = None  # of kinds "task" and "allocation": gone when that allocation ends


@dataclass(frozen=True)
class Workspace:
    """Projects that belong together, and what their experiments inherit."""

    id: int
    name: str  # of one workspace only
    owner_id: int
    archived: bool = False
    immutable: bool = False
    checkpoint_storage: Json | None = None  # of experiments that name none; None: the master's
    default_compute_pool: str = ""  # of experiments with slots that name none; "": the master's
    default_aux_pool: str = ""  # the same for those without slots
    state: PlaceState = PlaceState.NORMAL
    error_message: str = ""  # why it could not be deleted


@dataclass(frozen=True)
class Note:
    name: str
    contents: str


@dataclass(frozen=True)
class Project:
    """Experiments that belong together."""

    id: int
    workspace_id: int
    name: str  # of one project of its workspace only
    owner_id: int
    key: str  # 1 to 5 capital letters and digits, of one project of the cluster only
    description: str = ""
    notes: tuple[Note, ...] = ()
    archived: bool = False  # itself; what lies in an archived workspace is as good as archived
    immutable: bool = False
    state: PlaceState = PlaceState.NORMAL
    error_message: str = ""  # why it could not be deleted


@dataclass(frozen=True)
class Template:
    """A part of a configuration that experiments start from."""

    name: str
    workspace_id: int
    owner_id: int
    config: Json


@dataclass(frozen=True)
class Experiment:
    id: int
    job_id: str
    owner_id: int
    project_id: int
    state: ExperimentState
    config: Json  # merged and defaulted, what tasks get
    original_config: str  # the submitted text
    context_sha256: str  # names the model definition's tar.gz in the master's data folder; "" = none
    context_bytes: int
    start_time: float
    end_time: float | None = None
    name: str = ""
    description: str = ""
    notes: str = ""
    labels: tuple[str, ...] = ()
    archived: bool = False
    forked_from: int | None = None
    progress: float = 0.0  # 0..1
    error: str = ""  # for people: why the search itself failed, or why the experiment could not be deleted
    gc_due: float | None = None  # since when its checkpoints wait to be looked through; None: they do not
    unmanaged: bool = False  # detached: its trials run elsewhere and report, see core.unmanaged
    external_id: str | None = (
        None  # its owner's name for an unmanaged one, unlike those of the owner's others
    )


@dataclass(frozen=True)
class Trial:
    id: int
    experiment_id: int
    request_id: int  # ordinal of its creation by the searcher
    task_id: str
    state: TrialState
    hparams: Json
    seed: int
    start_time: float
    end_time: float | None = None
    run_id: int = 0  # number of allocations so far; reports must carry it
    restarts: int = 0
    allocation_id: str | None = None  # the allocation whose end the trial still waits for
    stopped_by_searcher: bool = False
    early_exit_reason: str | None = None
    warm_start_checkpoint: str | None = None
    progress: float = 0.0
    runner_state: str = ""
    total_batches: int = 0  # highest steps_completed reported
    summary_metrics: Json = field(default_factory=dict)  # rest-api.md 4.2
    latest_validation: Json | None = None  # {"end_time", "total_batches", "metrics"}
    best_validation: Json | None = None  # the same, best by searcher metric
    searcher_metric: float | None = None  # value of best_validation
    metadata: Json = field(default_factory=dict)
    log_policy_matched: str | None = None  # name of the policy that matched last
    retries_canceled: bool = False  # by a log policy: the next failure is the last
    excluded_agents: tuple[str, ...] = ()  # on which, by log policies, the trial runs no more
    log_retention_days: int | None = None  # of its own; None: as its experiment says; -1: for ever
    external_id: str | None = None  # its owner's name for an unmanaged one, unlike those of its siblings
    last_activity: float | None = None  # of an unmanaged one: when it was last heard of; None: a managed one
    lost_contact: bool = False  # it is ERROR only because nothing was heard of it any more

    @property
    def unmanaged(self) -> bool:
        return self.last_activity is not None


@dataclass(frozen=True)
class Task:
    id: str
    type: TaskType
    owner_id: int
    job_id: str
    start_time: float
    end_time: float | None = None
    experiment_id: int | None = None
    trial_id: int | None = None
    config: Json = field(
        default_factory=dict
    )  # of tasks that are no trials: what they run, see engine.servers
    address: str = ""  # "host:port" at which the task serves, once it has said so


@dataclass(frozen=True)
class Container:
    """One container of an allocation: what runs on one agent."""

    id: str
    agent_id: str
    slot_ids: tuple[int, ...]
    state: AllocationState = AllocationState.ASSIGNED
    exit_code: int | None = None
    failure: str | None = None  # kind of the failure, see detlab_agent.protocol.Failure
    failure_message: str = ""
    address: str = ""
    daemon: bool = False

    @property
    def ended(self) -> bool:
        return self.state is AllocationState.TERMINATED


@dataclass(frozen=True)
class Allocation:
    id: str
    task_id: str
    owner_id: int
    run_id: int
    resource_pool: str
    slots: int
    priority: int
    state: AllocationState
    queued_at: float
    queue_order: int  # submission order within the cluster
    started_at: float | None = None  # slots granted
    ended_at: float | None = None
    containers: tuple[Container, ...] = ()
    ready: bool = False  # rendezvous complete: from here on a stop is a signal, not a kill
    preempt_requested_at: float | None = None
    preempt_acked: bool = False
    kill_requested: bool = False
    aborted: bool = False  # ended by us before it was ready: no failure
    preemption_timeout: float = 3600.0  # seconds of grace after the signal
    exit_reason: str = ""
    exit_code: int | None = None  # of the container that failed first, else 0
    failure: str | None = None  # kind of that failure, see detlab_agent.protocol.Failure


@dataclass(frozen=True)
class MetricReport:
    trial_id: int
    run_id: int
    group: str
    steps_completed: int
    reported_at: float
    metrics: Json  # avg_metrics
    batch_metrics: tuple[Json, ...] | None = None
    archived: bool = False  # rolled back by a later run
    id: int = 0  # given by the store


@dataclass(frozen=True)
class Checkpoint:
    uuid: str
    task_id: str
    allocation_id: str
    experiment_id: int
    trial_id: int
    state: CheckpointState
    reported_at: float
    steps_completed: int
    resources: Mapping[str, int]  # path -> bytes; folders end in "/"
    metadata: Json
    storage_id: int | None = None

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(self.resources.values())


@dataclass(frozen=True)
class TrialSource:
    """What a trial said it works with: a checkpoint of another one, maybe as a version of a registered model."""

    trial_id: int
    checkpoint_uuid: str
    kind: str  # INFERENCE or FINE_TUNING
    model_id: int = 0  # this and the version: 0 where it is no registered model
    model_version: int = 0


@dataclass(frozen=True)
class Model:
    """A model of the registry: a name under which checkpoints are kept as versions."""

    id: int
    name: str  # one of its owner's only
    owner_id: int
    workspace_id: int
    created_at: float
    updated_at: float  # the model itself, or a version added
    description: str = ""
    notes: str = ""
    labels: tuple[str, ...] = ()
    metadata: Json = field(default_factory=dict)
    archived: bool = False
    last_version: int = 0  # the highest number that a version of it ever had: numbers are not used again


@dataclass(frozen=True)
class ModelVersion:
    id: int
    model_id: int
    version: int  # 1, 2, 3... within the model
    checkpoint_uuid: str
    owner_id: int  # who registered it
    created_at: float
    updated_at: float
    name: str = ""
    comment: str = ""
    notes: str = ""
    labels: tuple[str, ...] = ()
    metadata: Json = field(default_factory=dict)


@dataclass(frozen=True)
class SearcherEvent:
    experiment_id: int
    seq: int  # 0, 1, 2... in the order in which the searcher saw them
    event: Json


@dataclass(frozen=True)
class LogLine:
    task_id: str
    allocation_id: str
    timestamp: float
    log: str  # ends in "\n" when the line did
    container_id: str = ""
    agent_id: str = ""
    rank_id: int | None = None
    level: str = ""  # LOG_LEVEL_... or "" when the line did not say
    stdtype: str = ""
    source: str = "task"  # task, master or agent
    offset: int | None = None  # position in its container's output: a repeated line is dropped
    id: int = 0  # given by the store; increases in the order of arrival
