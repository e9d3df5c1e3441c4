"""A real cluster for tests: master and agent as processes of their own, on free ports, in a temporary folder."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
import requests
import sqlalchemy as sa
import yaml

REPO = Path(__file__).resolve().parents[2]
T = TypeVar("T")
PASSWORD = "Test-passw0rd"


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


def wait_for(condition: Callable[[], T | None], what: str, timeout: float = 60.0) -> T:
    """Wait until ``condition`` gives something true, and return that; AssertionError with ``what`` after the time."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(0.05)


@dataclass
class Cluster:
    """One master and one agent. Processes are started and ended by the test, also the hard way."""

    folder: Path
    slots: int = 2
    reconnect_wait: float = 25.0  # seconds for which the master waits for an agent that is away
    config: dict[str, Any] = field(default_factory=dict)  # more of master.yaml
    environments: dict[str, str] = field(default_factory=dict)  # of agent.yaml
    variables: dict[str, str] = field(default_factory=dict)  # more of master's and agents' environment
    db_url: str = "sqlite:///{folder}/master/master.db"  # with {folder} for the cluster's
    port: int = field(default_factory=free_port)
    master: subprocess.Popen[bytes] | None = None
    agent: subprocess.Popen[bytes] | None = None
    more_agents: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _tokens: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def master_folder(self) -> Path:
        return self.folder / "master"

    @property
    def _db_url(self) -> str:
        return self.db_url.format(folder=self.folder)

    @property
    def environment(self) -> dict[str, str]:
        """For child processes: this machine's, without anything of another cluster."""
        return {k: v for k, v in os.environ.items() if not k.startswith(("DET_", "DETLAB_"))}

    def start_master(self) -> None:
        self.launch_master()
        self.wait_for_master()

    def launch_master(self) -> None:
        """Start its process; it does not answer yet."""
        config = {
            "port": self.port,
            "data_dir": str(self.master_folder),
            "security": {"initial_user_password": PASSWORD},
            "resource_pools": [{"pool_name": "default", "agent_reconnect_wait": self.reconnect_wait}],
            **self.config,
        }
        config.setdefault("db", {"url": self._db_url})
        file = self.folder / "master.yaml"
        file.write_text(yaml.safe_dump(config))
        self.master = self._spawn("detlab_master", ["--config-file", str(file)])

    def wait_for_master(self) -> None:
        def answers() -> bool:
            assert self.master is not None
            assert self.master.poll() is None, f"the master has ended:\n{self.said('detlab_master')}"
            try:
                return requests.get(f"{self.url}/health", timeout=5).status_code == 200
            except requests.ConnectionError:
                return False

        wait_for(answers, "the master answers")

    def start_agent(self) -> None:
        self.agent = self._spawn_agent("agent-1", self.folder / "agent", self.slots)

    def add_agent(self, agent_id: str, slots: int) -> None:
        """One more agent, which runs until the end; done when it is connected."""
        self.more_agents.append(self._spawn_agent(agent_id, self.folder / agent_id, slots))
        wait_for(
            lambda: agent_id in [a["id"] for a in self.get("/api/v1/agents", user="admin")["agents"]],
            f"{agent_id} is connected",
        )

    def _spawn_agent(self, agent_id: str, folder: Path, slots: int) -> subprocess.Popen[bytes]:
        arguments = ["--master-url", self.url, "--slots", str(slots), "--agent-id", agent_id]
        arguments += ["--data-dir", str(folder)]
        file = folder.with_name(f"{agent_id}.yaml")
        file.write_text(yaml.safe_dump({"environments": self.environments}))
        arguments += ["--config-file", str(file)]
        arguments += ["--token-file", str(self.master_folder / "agent-token")]
        return self._spawn("detlab_agent", arguments)

    def wait_for_agent(self) -> None:
        def connected() -> bool:
            assert self.agent is not None
            assert self.agent.poll() is None, f"the agent has ended:\n{self.said('detlab_agent')}"
            agents = self.get("/api/v1/agents", user="admin")["agents"]
            return any(agent["slots"] for agent in agents)

        wait_for(connected, "the agent is connected")

    def start(self) -> None:
        self.start_master()
        self.start_agent()
        self.wait_for_agent()

    def _spawn(self, module: str, arguments: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{module}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self.environment, **self.variables},
                cwd=self.folder,
            )

    def said(self, module: str) -> str:
        """What a process has printed, the end of it."""
        return (self.folder / f"{module}.log").read_text()[-4000:]

    def kill_master(self) -> None:
        assert self.master is not None
        self.master.kill()
        self.master.wait()

    def kill_agent(self) -> None:
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait()

    def task_processes(self) -> list[psutil.Process]:
        """Processes that tasks of this cluster have left or run: shims and all below them."""
        found = []
        for process in psutil.process_iter():
            try:
                if str(self.folder) in " ".join(process.cmdline()) and process.pid not in self._own_pids():
                    found += [process, *process.children(recursive=True)]
            except psutil.Error:
                continue
        return found

    def _own_pids(self) -> set[int]:
        return {process.pid for process in self._processes()}

    def _processes(self) -> list[subprocess.Popen[bytes]]:
        return [p for p in (self.master, self.agent, *self.more_agents) if p is not None]

    def stop(self) -> None:
        """End everything; nothing of this cluster is left running."""
        for process in self._processes():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for left in self.task_processes():
            try:
                left.kill()
            except psutil.NoSuchProcess:
                continue

    def rows(self, query: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """What the master's database holds, past the master."""
        engine = sa.create_engine(self._db_url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text(query), parameters)]

    # The API

    def token(self, user: str = "determined") -> str:
        if user not in self._tokens:
            body = {"username": user, "password": PASSWORD}
            answer = requests.post(f"{self.url}/api/v1/auth/login", json=body, timeout=30)
            answer.raise_for_status()
            self._tokens[user] = answer.json()["token"]
        return self._tokens[user]

    def request(
        self, method: str, path: str, *, user: str = "determined", **arguments: Any
    ) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.token(user)}"}
        return requests.request(method, self.url + path, headers=headers, timeout=60, **arguments)

    def get(self, path: str, *, user: str = "determined", **arguments: Any) -> Any:
        answer = self.request("GET", path, user=user, **arguments)
        assert answer.status_code == 200, f"GET {path}: {answer.status_code} {answer.text}"
        return answer.json()

    def post(self, path: str, body: Any = None, *, user: str = "determined") -> Any:
        answer = self.request("POST", path, user=user, json=body)
        assert answer.status_code == 200, f"POST {path}: {answer.status_code} {answer.text}"
        return answer.json()

    def add_user(self, username: str, *, admin: bool = False) -> None:
        user = {"username": username, "active": True, "admin": admin}
        self.post("/api/v1/users", {"user": user, "password": PASSWORD}, user="admin")

    def create(self, config: Mapping[str, Any], files: Mapping[str, str], *, user: str = "determined") -> int:
        """Create an experiment from files of text; returns its id."""
        from base64 import b64encode

        definition = [
            {
                "path": name,
                "type": 48,
                "content": b64encode(text.encode()).decode(),
                "mtime": "0",
                "mode": 0o100644,
                "uid": 0,
                "gid": 0,
            }
            for name, text in files.items()
        ]
        body = {"config": yaml.safe_dump(dict(config)), "modelDefinition": definition, "activate": True}
        created = self.post("/api/v1/experiments", body, user=user)
        experiment_id = created["experiment"]["id"]
        assert isinstance(experiment_id, int)
        return experiment_id

    def experiment(self, experiment_id: int) -> dict[str, Any]:
        found = self.get(f"/api/v1/experiments/{experiment_id}")["experiment"]
        assert isinstance(found, dict)
        return found

    def trials(self, experiment_id: int) -> list[dict[str, Any]]:
        found = self.get(f"/api/v1/experiments/{experiment_id}/trials")["trials"]
        assert isinstance(found, list)
        return found

    def logs(self, trial_id: int) -> str:
        """All lines of a trial's log so far."""
        answer = self.request("GET", f"/api/v1/trials/{trial_id}/logs")
        lines = [json.loads(line) for line in answer.text.splitlines()]
        return "".join(line["result"]["message"] for line in lines)

    def wait_for_end(self, experiment_id: int, timeout: float = 120.0) -> str:
        """The state in which the experiment ends, without its STATE_ prefix."""
        ends = {"STATE_COMPLETED", "STATE_ERROR", "STATE_CANCELED"}

        def ended() -> str | None:
            state = self.experiment(experiment_id)["state"]
            assert isinstance(state, str)
            return state.removeprefix("STATE_") if state in ends else None

        return wait_for(ended, f"experiment {experiment_id} ends", timeout)


@contextmanager
def cluster(folder: Path, **options: Any) -> Iterator[Cluster]:
    """A cluster that runs until the context ends."""
    running = Cluster(folder, **options)
    try:
        running.start()
        yield running
    finally:
        running.stop()
