"""`configure(c)`: JupyterHub, the master and an agent on one machine, from a short jupyterhub_config.py."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jupyterhub.app import JupyterHub  # type: ignore[import-untyped]

from detlab_hub.greeting import next_steps
from detlab_hub.hub_proxy import find_proxy
from detlab_hub.keeper import running_part
from detlab_hub.logins import Logins, logins
from detlab_hub.place import AlreadyRuns, CannotStart, Place, check_ports, claim, secret

PROXY_MODULE = "detlab_hub.proxy"
_KEEPER_SECONDS = 30  # for a keeper to end its part


def configure(
    c: Any,
    *,
    port: int = 8080,
    ip: str = "127.0.0.1",
    folder: str | Path = ".detlab",
    slots: int | None = None,
    master: Mapping[str, Any] | None = None,
    agent: Mapping[str, Any] | None = None,
) -> None:
    """Set everything that this JupyterHub needs to be Detlab; what jupyterhub_config.py sets afterwards wins.

    Args:
        c: the configuration object of jupyterhub_config.py.
        port: of the Hub. The three ports above it are used on the loopback: the Hub's API, the proxy's API, the master.
        ip: on which people reach the Hub. Another one than the loopback's is an explicit choice: put TLS in front.
        folder: where everything is kept.
        slots: that the agent offers; None for the GPUs, or else the CPU's cores.
        master: keys of master.yaml, such as resource_pools.
        agent: keys of agent.yaml, such as environments; without any, the agent reads /etc/determined/agent.yaml.

    Exits with 1 and one readable message when a Hub is started and cannot run here.
    """
    place = Place(ip, port, Path(folder).absolute())
    for path in (place.folder, place.hub):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o711 if path == place.folder and os.geteuid() == 0 else 0o700)
    if (
        JupyterHub.initialized()
    ):  # a Hub starts; it is not one of its small commands, such as `jupyterhub token`
        try:
            _take(place)
        except AlreadyRuns as error:
            print(f"{error}\n\n{next_steps(error.url, place.activate)}")
            sys.exit(0)
        except CannotStart as error:
            print(error, file=sys.stderr)
            sys.exit(1)
    who = logins(place.passwords)
    _hub(c, place)
    _proxy(c, place, who)
    _users(c, place, who)
    _spawner(c, place)
    _parts(c, place, slots, dict(master or {}), dict(agent or {}))


def _take(place: Place) -> None:
    claim(place)  # until this process ends
    signal.signal(signal.SIGINT, _interrupted)  # until supervision.py listens
    place.ending.unlink(missing_ok=True)
    ours: set[int] = set()
    if running_part(_note(place, "master")) is not None:
        ours.add(place.master_port)
    if find_proxy(str(_proxy_pid(place)), _proxy_command(place)) is not None:
        ours |= {place.port, place.proxy_api_port}
    check_ports(place, frozenset(ours))


def _interrupted(*_: object) -> None:
    print("Detlab was not started.", flush=True)
    os._exit(130)  # nothing has been started, and Python would show where it was interrupted


def _hub(c: Any, place: Place) -> None:
    c.JupyterHub.bind_url = f"http://{place.ip}:{place.port}"
    c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{place.hub_port}"
    c.JupyterHub.db_url = f"sqlite:///{place.hub / 'jupyterhub.sqlite'}"
    c.JupyterHub.cookie_secret_file = str(place.hub / "cookie-secret")
    c.JupyterHub.pid_file = str(place.hub / "hub.pid")
    c.JupyterHub.cleanup_servers = False  # see supervision.py
    c.JupyterHub.concurrent_spawn_limit = (
        0  # the master's queue is the limit, and who waits in it is pending too
    )
    c.JupyterHub.init_spawners_timeout = 1  # servers are found again as soon as the master answers
    c.JupyterHub.log_level = "ERROR"  # on the terminal; everything else goes to the file
    c.JupyterHub.logging_config = {
        "handlers": {
            "file": {
                "class": "logging.FileHandler",
                "formatter": "console",
                "level": "INFO",
                "filename": str(place.log("hub")),
            }
        },
        "loggers": {"JupyterHub": {"level": "DEBUG", "handlers": ["console", "file"]}},
    }


def _proxy(c: Any, place: Place, who: Logins) -> None:
    c.JupyterHub.proxy_class = "detlab_hub.hub_proxy.DetlabProxy"
    c.DetlabProxy.place = place
    c.DetlabProxy.logins = who
    c.DetlabProxy.command = _proxy_command(place)
    c.DetlabProxy.api_url = f"http://127.0.0.1:{place.proxy_api_port}"
    c.DetlabProxy.auth_token = secret(place.hub / "proxy-token", secrets.token_hex())
    c.DetlabProxy.pid_file = str(_proxy_pid(place))


def _users(c: Any, place: Place, who: Logins) -> None:
    c.JupyterHub.authenticator_class = "detlab_hub.identity.DetlabAuthenticator"
    c.DetlabAuthenticator.master_url = place.master_url
    c.DetlabAuthenticator.hub_token_file = str(place.master / "hub-token")
    c.DetlabAuthenticator.admin_users = {who.admin}
    c.DetlabAuthenticator.admin_password = who.admin_password
    if who.user_password:
        c.DetlabAuthenticator.user_password = who.user_password
        c.DetlabAuthenticator.allow_all = True
    else:
        c.DetlabAuthenticator.allowed_users = {who.admin}


def _spawner(c: Any, place: Place) -> None:
    c.JupyterHub.spawner_class = "detlab_spawner.spawner.DetlabSpawner"
    c.DetlabSpawner.master_url = place.master_url
    c.DetlabSpawner.hub_token_file = str(place.master / "hub-token")
    c.DetlabSpawner.homes = str(place.homes)


def _parts(
    c: Any, place: Place, slots: int | None, master: dict[str, Any], agent_yaml: dict[str, Any]
) -> None:
    """The master and the agent, as services that the Hub manages; ended in this order."""
    security = {**master.pop("security", {}), "jupyterhub": True}
    config = {**master, "port": place.master_port, "data_dir": str(place.master), "security": security}
    file = _written(place.hub / "master.yaml", config)
    token = str(place.master / "agent-token")  # made by the master
    agent = [sys.executable, "-m", "detlab_agent", "--master-url", place.master_url, "--agent-id", "local"]
    agent += ["--data-dir", str(place.agent), "--token-file", token]
    if agent_yaml:
        agent += ["--config-file", str(_written(place.hub / "agent.yaml", agent_yaml))]
    agent += ["--stop-tasks-on-exit", *([] if slots is None else ["--slots", str(slots)])]
    trust = {"DETLAB_SHARED_TRUST": os.environ.get("DETLAB_SHARED_TRUST", "")}
    c.JupyterHub.services = [
        {
            "name": "master",
            "command": _kept(
                place, "master", [sys.executable, "-m", "detlab_master", "--config-file", str(file)]
            ),
        },
        # Asked to end, it ends its tasks; killed, it leaves them to the next one.
        {
            "name": "agent",
            "command": _kept(place, "agent", agent, "--kill-to-keep", "--needs", token),
            "environment": trust,
        },
    ]
    c.LocalProcessSpawner.interrupt_timeout = _KEEPER_SECONDS  # of services; the servers' spawner is another


def _written(file: Path, config: Mapping[str, Any]) -> Path:
    file.write_text(yaml.safe_dump(dict(config)))
    file.chmod(0o600)
    return file


def _kept(place: Place, name: str, command: Sequence[str], *options: str) -> list[str]:
    return [
        *(sys.executable, "-m", "detlab_hub.keeper", "--name", name, "--note", str(_note(place, name))),
        *("--log", str(place.log(name)), "--ending", str(place.ending), *options, "--", *command),
    ]


def _note(place: Place, name: str) -> Path:
    return place.hub / f"{name}.process"


def _proxy_pid(place: Place) -> Path:
    return place.hub / "proxy.pid"


def _proxy_command(place: Place) -> list[str]:
    return [sys.executable, "-m", PROXY_MODULE, "--log-file", str(place.log("proxy"))]
