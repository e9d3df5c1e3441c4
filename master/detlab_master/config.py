"""The master's configuration: master.yaml, DET_<KEY> in the environment, and flags; flags win, then the environment.

The keys are Determined's (reference: experiment-config.md 12), with a few of Detlab's own, marked so. A key that is known
but without effect here is named in a warning; an unknown one is an error.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from sqlalchemy import URL

from detlab_master.core.expconf import ConfigErrors, check_storage
from detlab_master.core.expconf.defaults import container_problems
from detlab_master.core.log_retention import FOREVER, LONGEST
from detlab_master.engine.schedules import Schedule, cron, every

MIN_CLEANUP_INTERVAL = 1.0  # seconds
DEFAULT_CONFIG_FILE = Path("/etc/determined/master.yaml")
# Keys of old files that mean nothing here, with the reason.
WITHOUT_EFFECT = {
    "root": "Detlab needs no folder of web assets",
    "telemetry": "Detlab sends no telemetry",
    "cache": "Detlab needs no cache folder",
    "enable_cors": "Detlab does not answer requests of other sites",
    "ui_customization": "Detlab's web pages are part of JupyterHub",
    "observability": "not available yet",
    "det_cloud": "Determined's own cloud",
    "scim": "JupyterHub is the place for identity",
    "oidc": "JupyterHub is the place for identity",
    "saml": "JupyterHub is the place for identity",
}
_AS_PROCESS = "tasks run as processes of the agent"
CONTAINER_WITHOUT_EFFECT = {
    "network_mode": f"{_AS_PROCESS}, in the host's network",
    "dtrain_network_interface": "training chooses its interface by itself",
    "nccl_port_range": "training chooses its ports by itself",
    "gloo_port_range": "training chooses its ports by itself",
    "checkpoint_gc_pod_spec": f"{_AS_PROCESS}, not as pods",
    "startup_hook": "a folder of training code may have a startup-hook.sh",
    "work_dir": f"{_AS_PROCESS}, in a folder of their own",
    "kubernetes": f"{_AS_PROCESS}, not as pods",
}


class MasterConfigError(Exception):
    """The configuration cannot be used; the text says every reason."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SchedulerConfig(_Model):
    type: Literal["priority"] = "priority"
    fitting_policy: Literal["best", "worst"] = "best"
    preemption: bool = False
    default_priority: int = Field(default=42, ge=1, le=99)


class RetentionPolicyConfig(_Model):
    """Of the logs of tasks that have ended."""

    log_retention_days: int | None = Field(default=None, ge=FOREVER, le=LONGEST)  # None, -1: for ever
    schedule: float | str = "1h"  # of the cleanup: seconds, a duration such as "24h", or a cron expression

    @field_validator("schedule")
    @classmethod
    def _can_be_read(cls, value: float | str) -> float | str:
        _schedule(value)
        return value

    @property
    def times(self) -> Schedule:
        return _schedule(self.schedule)


def _schedule(value: float | str) -> Schedule:
    if isinstance(value, str) and " " in value.strip():
        return cron(value)
    try:
        interval = seconds(value)
    except ValueError:
        raise ValueError(
            f"{value!r} is neither a duration such as '24h' nor a cron expression such as '0 3 * * *'"
        ) from None
    if not MIN_CLEANUP_INTERVAL <= interval < math.inf:
        raise ValueError(f"{value!r}: the cleanup may run every {MIN_CLEANUP_INTERVAL:g} seconds at most")
    return every(interval)


class TaskContainerDefaults(_Model):
    """What trials get where their configuration says nothing; the values are checked as parts of one."""

    preemption_timeout: int = Field(default=3600, ge=1)  # seconds
    shm_size_bytes: int = Field(default=4 << 30, ge=0)
    image: str | dict[str, str] | None = None
    registry_auth: dict[str, Any] | None = None
    force_pull_image: bool | None = None
    environment_variables: list[str] | dict[str, list[str]] | None = None
    add_capabilities: list[str] | None = None
    drop_capabilities: list[str] | None = None
    devices: list[str | dict[str, Any]] | None = None
    bind_mounts: list[dict[str, Any]] | None = None
    log_policies: list[dict[str, Any]] | None = None
    cpu_pod_spec: dict[str, Any] | None = None
    gpu_pod_spec: dict[str, Any] | None = None
    slurm: dict[str, Any] | None = None
    pbs: dict[str, Any] | None = None

    @property
    def given(self) -> dict[str, Any]:
        """What somebody has set."""
        return self.model_dump(exclude_none=True, exclude_unset=True)


class PoolYaml(_Model):
    pool_name: str = Field(min_length=1)
    description: str = ""
    max_aux_containers_per_agent: int = Field(default=100, ge=0)
    agent_reconnect_wait: float | str = 25.0  # seconds, or a duration such as "25s"
    scheduler: SchedulerConfig | None = None
    task_container_defaults: TaskContainerDefaults | None = None  # go before the cluster's

    @property
    def reconnect_seconds(self) -> float:
        return seconds(self.agent_reconnect_wait)


class ResourceManagerConfig(_Model):
    type: Literal["agent"] = "agent"
    default_aux_resource_pool: str = "default"
    default_compute_resource_pool: str = "default"
    scheduler: SchedulerConfig = SchedulerConfig()


class DbConfig(_Model):
    """PostgreSQL; without it, or with `url` (Detlab's own), a SQLite file in the data folder."""

    user: str | None = None
    password: str | None = None
    host: str | None = None
    port: int = 5432
    name: str = "determined"
    ssl_mode: str = "disable"
    ssl_root_cert: str | None = None
    url: str | None = None


class SecurityConfig(_Model):
    initial_user_password: str = ""
    allow_blank_passwords: bool = False  # Detlab's own: in as many words
    jupyterhub: bool = False  # Detlab's own: the Hub's users are the users; no built-in users, no passwords


class DetachedConfig(_Model):
    """Detlab's own: of experiments whose scripts run outside of the cluster."""

    heartbeat_timeout: float | str = "5m"  # seconds, or a duration; clients send one every minute

    @field_validator("heartbeat_timeout")
    @classmethod
    def _positive(cls, value: float | str) -> float | str:
        if not 0 < seconds(value) < math.inf:
            raise ValueError(f"{value!r}: it must be more than 0 seconds")
        return value

    @property
    def patience(self) -> float:
        return seconds(self.heartbeat_timeout)


class LogConfig(_Model):
    level: Literal["trace", "debug", "info", "warning", "error"] = "info"
    color: bool = True


class MasterConfig(_Model):
    port: int = Field(default=8080, ge=1, le=65535)
    bind_ip: str = "127.0.0.1"  # Detlab's own: a public address is an explicit choice
    data_dir: Path = Path("~/.local/share/detlab/master")  # Detlab's own: all that is kept
    task_master_url: str | None = (
        None  # Detlab's own: under which tasks reach the master, where not by its port here
    )
    db: DbConfig = DbConfig()
    cluster_name: str = ""
    launch_error: bool = True
    checkpoint_storage: dict[str, Any] | None = None
    task_container_defaults: TaskContainerDefaults = TaskContainerDefaults()
    resource_manager: ResourceManagerConfig = ResourceManagerConfig()
    resource_pools: list[PoolYaml] = Field(
        default_factory=lambda: [PoolYaml(pool_name="default")], min_length=1
    )
    security: SecurityConfig = SecurityConfig()
    log: LogConfig = LogConfig()
    retention_policy: RetentionPolicyConfig = RetentionPolicyConfig()
    detached: DetachedConfig = DetachedConfig()

    @field_validator("checkpoint_storage")
    @classmethod
    def _whole(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        try:
            return None if value is None else check_storage(value, "<master.yaml>")
        except ConfigErrors as error:
            raise ValueError("\n".join(map(str, error.errors))) from None

    @model_validator(mode="after")
    def _pools_exist(self) -> MasterConfig:
        names = [pool.pool_name for pool in self.resource_pools]
        if len(set(names)) < len(names):
            raise ValueError("resource_pools: two pools have the same pool_name")
        for key in ("default_aux_resource_pool", "default_compute_resource_pool"):
            name = getattr(self.resource_manager, key)
            if name not in names:
                raise ValueError(f"resource_manager.{key} is {name!r}, which resource_pools does not name")
        return self

    @model_validator(mode="after")
    def _containers_fit_in_experiments(self) -> MasterConfig:
        containers = {"task_container_defaults": self.task_container_defaults}
        for pool in self.resource_pools:
            if pool.task_container_defaults:
                root = f"resource_pools[{pool.pool_name}].task_container_defaults"
                containers[root] = pool.task_container_defaults
        problems = [
            problem
            for root, container in containers.items()
            for problem in container_problems(container.given, root)
        ]
        if problems:
            raise ValueError("\n".join(map(str, problems)))
        return self

    @property
    def folder(self) -> Path:
        return self.data_dir.expanduser().absolute()

    @property
    def db_url(self) -> str:
        """Where the database is, as SQLAlchemy wants it."""
        if self.db.url:
            return self.db.url
        if self.db.host:
            query = {"sslmode": self.db.ssl_mode}
            if self.db.ssl_root_cert:
                query["sslrootcert"] = self.db.ssl_root_cert
            url = URL.create(
                "postgresql+psycopg2",
                self.db.user,
                self.db.password,
                self.db.host,
                self.db.port,
                self.db.name,
                query,
            )
            return url.render_as_string(hide_password=False)
        return f"sqlite:///{self.folder / 'master.db'}"


def load(
    file: Path | None, environment: Mapping[str, str] = os.environ, flags: Mapping[str, Any] | None = None
) -> tuple[MasterConfig, list[str]]:
    """Read the configuration.

    Args:
        file: master.yaml; None takes /etc/determined/master.yaml where that exists.
        flags: what was said on the command line; None values were not said.

    Returns:
        The configuration, and warnings for people.

    Raises:
        MasterConfigError: it cannot be used.
    """
    raw = _read(file)
    warnings = _dropped(raw, WITHOUT_EFFECT)
    for section, where in [(raw, ""), *_pools_in(raw)]:
        container = section.get("task_container_defaults")
        if isinstance(container, dict):
            section["task_container_defaults"] = container = dict(container)
            warnings += _dropped(container, CONTAINER_WITHOUT_EFFECT, f"{where}task_container_defaults.")
    for key in ("port", "bind_ip", "data_dir", "cluster_name", "task_master_url"):
        if (value := environment.get(f"DET_{key.upper()}")) is not None:
            raw[key] = value
    for key, value in (flags or {}).items():
        if value is not None:
            raw[key] = value
    if url := raw.pop("db_url", None) or environment.get("DET_DB_URL"):
        raw["db"] = {**(raw.get("db") or {}), "url": url}
    try:
        return MasterConfig.model_validate({k: v for k, v in raw.items() if v is not None}), warnings
    except ValidationError as error:
        lines = "\n".join(_explain(problem) for problem in error.errors())
        raise MasterConfigError(f"the master's configuration cannot be used:\n{lines}") from None


def _dropped(section: dict[str, Any], without_effect: Mapping[str, str], where: str = "") -> list[str]:
    """Take the keys without effect out of a section; a warning for each."""
    return [
        f"{where}{key}: has no effect: {why}"
        for key, why in without_effect.items()
        if section.pop(key, None) is not None
    ]


def _pools_in(raw: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    pools = raw.get("resource_pools")
    if not isinstance(pools, list):
        return []
    raw["resource_pools"] = pools = [dict(pool) if isinstance(pool, dict) else pool for pool in pools]
    return [(pool, f"resource_pools[{i}].") for i, pool in enumerate(pools) if isinstance(pool, dict)]


def _read(file: Path | None) -> dict[str, Any]:
    if file is None:
        if not DEFAULT_CONFIG_FILE.exists():
            return {}
        file = DEFAULT_CONFIG_FILE
    try:
        raw = yaml.safe_load(file.read_text())
    except OSError as error:
        raise MasterConfigError(f"{file} cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise MasterConfigError(f"{file} is not YAML: {error}") from None
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise MasterConfigError(f"{file} must hold keys and values, such as `port: 8080`")
    return raw


def _explain(problem: Any) -> str:
    path = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "value_error" and not path:  # it says itself where, and values may be secret
        return "\n".join(f"  {line}" for line in str(problem["ctx"]["error"]).splitlines())
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(problem["loc"][-1]), _known_keys(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"  {path}: no such key{hint}"
    return f"  {path or 'configuration'}: {problem['msg']} (it is {problem['input']!r})"


def _known_keys() -> list[str]:
    models: tuple[type[BaseModel], ...] = (
        *(MasterConfig, PoolYaml, SchedulerConfig, ResourceManagerConfig),
        *(DbConfig, SecurityConfig, LogConfig, DetachedConfig, TaskContainerDefaults),
    )
    return sorted({name for model in models for name in model.model_fields})


def seconds(duration: float | str) -> float:
    """Seconds of a number or of a duration such as "25s", "2m" or "1h"."""
    if isinstance(duration, int | float):
        return float(duration)
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    try:
        return float(duration[:-1]) * units[duration[-1]]
    except (KeyError, ValueError, IndexError):
        raise ValueError(f"{duration!r} is no duration: give seconds, or a number with s, m or h") from None
