"""A real Detlab JupyterHub for tests: Hub, proxy, master and agent as they are started for people."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import requests

from support.cluster import REPO, wait_for

TOKEN = "0123456789abcdef-the-tests-own-token"


def free_ports(count: int = 4) -> int:
    """The first of some ports side by side that nobody listens on at the moment."""
    for first in range(21000 + os.getpid() % 1000 * 8, 32000, count):
        try:
            with ExitStack() as stack:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
    raise AssertionError("no free ports")


@dataclass
class Hub:
    """One installation in a folder. Processes are started and ended by the test, also the hard way."""

    folder: Path
    slots: int = 2
    more: str = ""  # of jupyterhub_config.py
    environment: Mapping[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_ports)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def master_url(self) -> str:
        return f"http://127.0.0.1:{self.port + 3}"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def passwords(self) -> dict[str, str]:
        """By kind of user: "admin", "user"."""
        kept = json.loads((self.data / "passwords").read_text())
        assert isinstance(kept, dict)
        return kept

    # ---- processes

    def start(self) -> None:
        """Start the Hub, and wait until it, the master and the agent are up."""
        self.begin()
        wait_for(lambda: self.greeted(), "the Hub greets", 60)

    def begin(self, terminal: Path | None = None) -> None:
        """Start it without waiting. `terminal`: where it writes to, if not to what `said` shows."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "jupyterhub_config.py").write_text(
            "from detlab_hub import configure\n"
            f"configure(c, port={self.port}, folder={str(self.data)!r}, slots={self.slots})\n"
            f"c.JupyterHub.services += [dict(name='tests', api_token={TOKEN!r}, admin=True)]\n"
            "c.JupyterHub.tornado_settings = {'slow_spawn_timeout': 1}  # until a spawn is answered with 202\n"
            + self.more
        )
        mine = {k: v for k, v in os.environ.items() if not k.startswith(("DET_", "DETLAB_", "JUPYTER"))}
        with (terminal or self.folder / "out").open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", "jupyterhub_config.py"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**mine, **self.environment},
                cwd=self.folder,
            )

    @property
    def said(self) -> str:
        """What the Hub has written to its terminal since its last start."""
        return (self.folder / "out").read_text()

    def greeted(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the Hub has ended:\n{self.said}"
        return "Detlab is up at" in self.said

    def log(self, part: str) -> str:
        return (self.data / f"{part}.log").read_text()

    def signal(self, number: signal.Signals) -> None:
        """Send the Hub a signal and wait for its end."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(60)

    def part(self, name: str) -> psutil.Process:
        """The process of "master" or "agent", which lives."""
        return psutil.Process(self.pid(name))

    def pid(self, name: str) -> int:
        """Of "master" or "agent", as it was started last."""
        return int(json.loads((self.data / "hub" / f"{name}.process").read_text())["pid"])

    def processes(self) -> list[psutil.Process]:
        """All that this installation has started and that still runs, tasks included."""
        found = []
        for process in psutil.process_iter():
            try:
                if str(self.folder) in " ".join(process.cmdline()):
                    found += [process, *process.children(recursive=True)]
            except psutil.Error:
                continue
        return [process for process in dict.fromkeys(found) if process.pid != os.getpid()]

    def stop(self) -> None:
        """End everything as Ctrl-C does; nothing is left running."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for left in self.processes():
            try:
                left.kill()
            except psutil.NoSuchProcess:
                continue

    # ---- the Hub's API, as the tests' own service

    def api(self, method: str, path: str, **arguments: Any) -> requests.Response:
        return requests.request(
            method,
            f"{self.url}/hub/api{path}",
            headers={"Authorization": f"token {TOKEN}"},
            timeout=60,
            **arguments,
        )

    def add_user(self, name: str, *, admin: bool = False) -> None:
        answer = self.api("POST", f"/users/{name}", json={"admin": admin})
        assert answer.status_code == 201, answer.text

    def spawn(self, name: str, options: Mapping[str, Any] | None = None) -> requests.Response:
        """Ask for a server; 201 when it is ready, 202 while it is pending."""
        return self.api("POST", f"/users/{name}/server", json={"user_options": dict(options or {})})

    def up(self, name: str, options: Mapping[str, Any] | None = None) -> None:
        """Start a server and wait until it is ready."""
        answer = self.spawn(name, options)
        assert answer.status_code in (201, 202), answer.text
        self.wait_ready(name)

    def server(self, name: str) -> dict[str, Any] | None:
        """What the Hub says of a user's server; None when there is none."""
        servers = self.api("GET", f"/users/{name}").json()["servers"]
        found = servers.get("")
        assert found is None or isinstance(found, dict)
        return found

    def wait_ready(self, name: str, timeout: float = 60) -> None:
        def ready() -> bool:
            server = self.server(name)
            assert server is not None, f"the server of {name} is gone:\n{self.log('hub')[-3000:]}"
            return bool(server["ready"])

        wait_for(ready, f"the server of {name} is ready", timeout)

    def wait_gone(self, name: str, timeout: float = 60) -> None:
        wait_for(lambda: self.server(name) is None, f"the server of {name} is gone", timeout)

    def progress(self, name: str) -> Iterator[dict[str, Any]]:
        """The events of the spawn page."""
        with requests.get(
            f"{self.url}/hub/api/users/{name}/server/progress",
            headers={"Authorization": f"token {TOKEN}"},
            timeout=60,
            stream=True,
        ) as answer:
            for line in answer.iter_lines():
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))

    def task(self, task_id: str) -> dict[str, Any]:
        """What the master says of a server."""
        token = (self.data / "master" / "hub-token").read_text().strip()
        answer = requests.get(
            f"{self.master_url}/api/v1/hub/servers/{task_id}",
            headers={"Authorization": f"Bearer {token}"},
            timeout=30,
        )
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert isinstance(found, dict)
        return found

    def task_id(self, name: str) -> str:
        """The task of a user's server, from the Hub's database."""
        with sqlite3.connect(self.data / "hub" / "jupyterhub.sqlite") as database:
            rows = database.execute(
                "select spawners.state from spawners join users on users.id = spawners.user_id where users.name = ?",
                (name,),
            ).fetchall()
        return str(json.loads(rows[0][0])["task_id"])


class Person(requests.Session):
    """Somebody at a browser."""

    def __init__(self, hub: Hub, name: str, password: str) -> None:
        """Log in; AssertionError when the Hub does not let them in."""
        super().__init__()
        self.hub = hub
        self.name = name
        self.trust_env = False
        self.get(f"{hub.url}/hub/login", timeout=30)
        form = {"username": name, "password": password, "_xsrf": self.xsrf("/hub/")}
        answer = self.post(f"{hub.url}/hub/login", data=form, timeout=60, allow_redirects=False)
        assert answer.status_code == 302, f"{name} was not let in: {answer.status_code}"

    def xsrf(self, path: str) -> str:
        return next(
            cookie.value or "" for cookie in self.cookies if cookie.name == "_xsrf" and cookie.path == path
        )

    def page(self, path: str) -> requests.Response:
        return self.get(self.hub.url + path, timeout=60)

    def submit(self, path: str, **fields: str) -> requests.Response:
        """A form of the Hub."""
        return self.post(
            self.hub.url + path,
            data={**fields, "_xsrf": self.xsrf("/hub/")},
            timeout=60,
            allow_redirects=False,
        )

    def status(self, url: str, **headers: str) -> int:
        """Of a GET with these headers, and with all cookies whatever their path."""
        cookies = "; ".join(f"{c.name}={c.value}" for c in self.cookies)
        headers.setdefault("Cookie", cookies)
        return requests.get(url, headers=headers, timeout=30, allow_redirects=False).status_code

    def cookie_header(self, url: str) -> str:
        """The cookies for an address, for clients other than requests."""
        path = urlsplit(url).path
        return "; ".join(f"{c.name}={c.value}" for c in self.cookies if path.startswith(c.path))


@contextmanager
def running_hub(folder: Path, **options: Any) -> Iterator[Hub]:
    """A Hub that runs until the context ends."""
    hub = Hub(folder, **options)
    try:
        hub.start()
        yield hub
    finally:
        hub.stop()


__all__ = ["REPO", "Hub", "Person", "free_ports", "running_hub"]
