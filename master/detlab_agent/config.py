"""What an agent is told: flags, then the environment (`DET_<KEY>`), then agent.yaml, then defaults.

The keys are those of Determined's agent.yaml. A key that has no meaning for an agent without Docker is refused where
ignoring it would change what the user gets, and warned about where it would not; an unknown one is refused.
"""

from __future__ import annotations

import difflib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from detlab_agent.devices import SLOT_TYPES
from detlab_agent.link import Tls

DEFAULT_CONFIG_FILE = Path("/etc/determined/agent.yaml")

# Key -> what is expected. Dots are nesting; in the environment they are underscores: DET_SECURITY_TLS_ENABLED.
_KEYS: Mapping[str, type] = {
    "master_url": str,
    "master_host": str,
    "master_port": int,
    "agent_id": str,
    "resource_pool": str,
    "container_master_host": str,
    "container_master_port": int,
    "slot_type": str,
    "visible_gpus": list,
    "slots": int,
    "artificial_slots": int,
    "security.tls.enabled": bool,
    "security.tls.skip_verify": bool,
    "security.tls.master_cert": str,
    "security.tls.client_cert": str,
    "security.tls.client_key": str,
    "http_proxy": str,
    "https_proxy": str,
    "ftp_proxy": str,
    "no_proxy": str,
    "agent_reconnect_attempts": int,
    "agent_reconnect_backoff": float,
    "container_auto_remove_disabled": bool,
    "container_runtime": str,
    "hooks.on_connection_lost": list,
    "debug": bool,
    "log.level": str,
    # not in Determined:
    "agent_token_file": str,
    "data_dir": str,
    "environments": dict,
    "stop_tasks_on_exit": bool,
}
_NO_API = "this agent has no HTTP interface of its own"
_WITHOUT_EFFECT: Mapping[str, str] = {
    "log.color": "the log has no colours",
    "bind_ip": _NO_API,
    "bind_port": _NO_API,
    "tls": _NO_API,
    "tls_cert": _NO_API,
    "tls_key": _NO_API,
    "config_file": "it is read from the command line or DET_CONFIG_FILE only",
}
_REFUSED: Mapping[str, str] = {
    "security.tls.master_cert_name": "the master's certificate must be for the name in master_host",
    "api_enabled": _NO_API,
}
_LOG_LEVELS: Mapping[str, str] = {
    "trace": "DEBUG",
    "debug": "DEBUG",
    "info": "INFO",
    "warn": "WARNING",
    "warning": "WARNING",
    "error": "ERROR",
    "fatal": "CRITICAL",
}


class ConfigError(Exception):
    """A configuration that cannot be used: the key, what is wrong, what is allowed."""


@dataclass(frozen=True)
class AgentConfig:
    master_url: str
    agent_id: str
    resource_pool: str
    data_dir: Path
    token: str = field(repr=False)
    slot_type: str = "auto"
    slots: int | None = None
    visible_gpus: tuple[str, ...] | None = None
    container_master_url: str | None = None
    tls: Tls = field(default_factory=Tls)
    proxies: Mapping[str, str] = field(default_factory=dict)
    reconnect_attempts: int | None = None
    reconnect_backoff: float | None = None
    keep_folders: bool = False
    on_connection_lost: tuple[str, ...] = ()
    log_level: str = "INFO"
    environments: Mapping[str, str] = field(default_factory=dict)
    stop_tasks_on_exit: bool = False
    shared_trust: bool = False
    warnings: tuple[str, ...] = ()  # to be said once there is a log


def load_config(
    config_file: Path | None, flags: Mapping[str, Any], environ: Mapping[str, str]
) -> AgentConfig:
    """`flags`: keys as in agent.yaml, values that are None are left out. ConfigError on anything that is not right."""
    warnings: list[str] = []
    path = config_file or (Path(environ["DET_CONFIG_FILE"]) if "DET_CONFIG_FILE" in environ else None)
    from_file = _read_file(path)
    values = _checked(from_file, f"{path or DEFAULT_CONFIG_FILE}", warnings)
    values |= _from_environment(environ, warnings)
    given = {key: value for key, value in flags.items() if value is not None}
    token_file = given.pop("token_file", None)
    values |= given
    return _build(values, token_file, environ, warnings)


def _build(
    values: Mapping[str, Any], token_file: Path | None, environ: Mapping[str, str], warnings: list[str]
) -> AgentConfig:
    runtime = values.get("container_runtime", "process")
    if runtime != "process":
        raise ConfigError(
            f"container_runtime is {runtime!r}, but this agent runs tasks as processes: `process`"
        )
    slot_type = _choice(values, "slot_type", "auto", SLOT_TYPES)
    level = _choice(values, "log.level", "info", _LOG_LEVELS)
    slots = values.get("slots", values.get("artificial_slots") or None)
    if slots is not None and slots < 0:
        raise ConfigError(f"the number of slots is {slots}, expected 0 or more")
    visible = values.get("visible_gpus")
    agent_id = values.get("agent_id") or socket.gethostname()
    data_dir = Path(values.get("data_dir") or _default_data_dir(environ)).absolute()
    master_url = _master_url(values)
    return AgentConfig(
        master_url=master_url,
        agent_id=agent_id,
        resource_pool=values.get("resource_pool") or "default",
        data_dir=data_dir,
        token=_token(values, token_file, environ),
        slot_type=slot_type,
        slots=slots,
        visible_gpus=None if not visible else tuple(str(gpu) for gpu in visible),
        container_master_url=_container_master_url(values, master_url),
        tls=Tls(
            skip_verify=values.get("security.tls.skip_verify", False),
            master_cert=values.get("security.tls.master_cert"),
            client_cert=values.get("security.tls.client_cert"),
            client_key=values.get("security.tls.client_key"),
        ),
        proxies={
            name: values[name]
            for name in ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy")
            if name in values
        },
        reconnect_attempts=values.get("agent_reconnect_attempts"),
        reconnect_backoff=values.get("agent_reconnect_backoff"),
        keep_folders=values.get("container_auto_remove_disabled", False),
        on_connection_lost=tuple(str(word) for word in values.get("hooks.on_connection_lost", ())),
        log_level="DEBUG" if values.get("debug") else _LOG_LEVELS[level],
        environments={str(name): str(prefix) for name, prefix in values.get("environments", {}).items()},
        stop_tasks_on_exit=values.get("stop_tasks_on_exit", False),
        shared_trust=environ.get("DETLAB_SHARED_TRUST") == "1",
        warnings=tuple(warnings),
    )


def _read_file(path: Path | None) -> Mapping[str, Any]:
    if path is None:
        if not DEFAULT_CONFIG_FILE.exists():
            return {}
        path = DEFAULT_CONFIG_FILE
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as e:
        raise ConfigError(f"the configuration {path} cannot be read: {e.strerror}") from None
    except yaml.YAMLError as e:
        raise ConfigError(f"the configuration {path} is not YAML: {e}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"the configuration {path} must be a map of keys, it is a {type(content).__name__}")
    return _flatten(content)


def _flatten(content: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        path = f"{prefix}{key}"
        inner = any(known.startswith(f"{path}.") for known in (*_KEYS, *_WITHOUT_EFFECT, *_REFUSED))
        if inner and isinstance(value, dict):
            flat |= _flatten(value, f"{path}.")
        else:
            flat[path] = value
    return flat


def _checked(raw: Mapping[str, Any], source: str, warnings: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if value is None:
            continue
        if key in _REFUSED and value:
            raise ConfigError(f"{source}: {key} cannot be used: {_REFUSED[key]}")
        if key in _WITHOUT_EFFECT:
            warnings.append(f"{source}: {key} has no effect: {_WITHOUT_EFFECT[key]}")
        elif key in _KEYS:
            values[key] = _typed(key, value, source)
        elif key not in _REFUSED:
            near = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_KEYS)}"
            raise ConfigError(f"{source}: unknown key {key!r}; {hint}")
    return values


def _typed(key: str, value: Any, source: str) -> Any:
    expected = _KEYS[key]
    if expected is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)  # `agent_id: 7`
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if key == "agent_reconnect_backoff" and isinstance(value, str) and value.endswith("s"):
        return _typed(key, yaml.safe_load(value[:-1]), source)
    if key == "visible_gpus" and isinstance(value, str | int):
        return [part.strip() for part in str(value).split(",") if part.strip()]
    if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
        names = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
        wanted = names.get(expected, "a list" if expected is list else "a map")
        raise ConfigError(f"{source}: {key} is {value!r}, expected {wanted}")
    return value


def _from_environment(environ: Mapping[str, str], warnings: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key in (*_KEYS, *_REFUSED):
        name = f"DET_{key.replace('.', '_').upper()}"
        text = environ.get(name)
        if text is None:
            continue
        wants_text = _KEYS.get(key) is str
        values |= _checked(
            {key: text if wants_text else yaml.safe_load(text)}, f"environment {name}", warnings
        )
    return values


def _choice(
    values: Mapping[str, Any], key: str, default: str, allowed: Mapping[str, str] | tuple[str, ...]
) -> str:
    value = str(values.get(key, default))
    if value not in allowed:
        raise ConfigError(f"{key} is {value!r}, expected one of {', '.join(allowed)}")
    return value


def _master_url(values: Mapping[str, Any]) -> str:
    tls = values.get("security.tls.enabled", False)
    if url := values.get("master_url"):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"the master's URL is {url!r}, expected http://host:port")
        return str(url).rstrip("/")
    host = values.get("master_host")
    if not host:
        raise ConfigError("which master? Give --master-url http://host:port, or master_host in agent.yaml")
    return _url(host, values.get("master_port"), tls)


def _container_master_url(values: Mapping[str, Any], master_url: str) -> str | None:
    """What tasks use instead of the URL that the master names; None: that one."""
    host, port = values.get("container_master_host"), values.get("container_master_port")
    if host is None and port is None:
        return None
    parts = urlsplit(master_url)
    return _url(host or str(parts.hostname), port or parts.port, parts.scheme == "https")


def _url(host: str, port: int | None, tls: bool) -> str:
    return f"{'https' if tls else 'http'}://{host}:{port or (443 if tls else 80)}"


def _token(values: Mapping[str, Any], token_file: Path | None, environ: Mapping[str, str]) -> str:
    if token_file is None:
        if token := environ.get("DET_AGENT_TOKEN", "").strip():
            return token
        if "agent_token_file" not in values:
            raise ConfigError(
                "an agent needs the master's agent token: --token-file, agent_token_file in agent.yaml, or"
                " DET_AGENT_TOKEN; the master keeps it in its data folder"
            )
        token_file = Path(values["agent_token_file"])
    try:
        token = token_file.read_text().strip()
    except OSError as e:
        raise ConfigError(f"the agent token {token_file} cannot be read: {e.strerror}") from None
    if not token:
        raise ConfigError(f"the agent token {token_file} is empty")
    return token


def _default_data_dir(environ: Mapping[str, str]) -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/detlab/agent")
    state = environ.get("XDG_STATE_HOME") or os.path.join(environ.get("HOME", "."), ".local", "state")
    return Path(state) / "detlab" / "agent"
