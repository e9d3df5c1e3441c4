"""An IPython shell with the magics, and a stub master that takes submissions."""

import atexit
import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from determined.common.api.token_store import TokenStore
from determined.experimental import client
from detlab_magics import load_ipython_extension
from detlab_widgets import follow
from harness import api_stub
from harness.api_stub import Answer, Reply, Request, StubMaster, master

__all__ = ["master"]

API = "/api/v1"


@dataclass(frozen=True)
class Ran:
    """What a cell left behind."""

    error: BaseException | None
    out: str
    err: str
    result: Any


class Shell:
    """Runs cells as a notebook does."""

    def __init__(self, ip: Any) -> None:
        self.ip = ip  # an InteractiveShell, which is only partly typed

    def run(self, cell: str) -> Ran:
        with capture_output() as captured:
            done = self.ip.run_cell(cell, store_history=False)
        error = done.error_before_exec or done.error_in_exec
        return Ran(error, captured.stdout, captured.stderr, done.result)

    def fails(self, cell: str) -> str:
        """The one message of a cell that fails, which shows no traceback."""
        ran = self.run(cell)
        assert ran.error is not None, ran.out
        shown = ran.out + ran.err
        assert "Traceback" not in shown
        assert "detlab_magics/" not in shown
        assert 'File "' not in shown
        assert str(ran.error) in shown
        return str(ran.error)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.syspath_prepend(str(tmp_path / "home"))  # a kernel has its folder there
    ip: Any = InteractiveShell.instance(config=config)
    load_ipython_extension(ip)
    yield Shell(ip)
    follow.shared.join(10)
    atexit.unregister(ip.atexit_operations)  # it works once
    ip.atexit_operations()
    InteractiveShell.clear_instance()


class Submissions:
    """Experiments that were submitted to a stub master, by ada."""

    def __init__(self, master: StubMaster) -> None:
        self.master = master
        self.state = "STATE_COMPLETED"
        self.messages: list[str] = []
        self.warnings: list[str] = []
        self._made: list[dict[str, Any]] = []
        TokenStore(master.url).put("ada", "ada-token", activate=True)
        master.answer("POST", f"{API}/experiments", self._create)
        master.answer("GET", f"{API}/experiments", self._list)

    @property
    def configs(self) -> list[dict[str, Any]]:
        return [yaml.safe_load(request.body["config"]) for request in self._requests()]

    def files(self, number: int = -1) -> dict[str, str]:
        """The text of each file that was sent with an experiment."""
        sent = self._requests()[number].body["modelDefinition"]
        return {file["path"]: base64.b64decode(file["content"]).decode() for file in sent}

    def _requests(self) -> list[Request]:
        return self.master.sent("POST", f"{API}/experiments")

    def _create(self, request: Request) -> Answer:
        config = yaml.safe_load(request.body["config"])
        id = 3 + len(self._made)
        experiment = api_stub.experiment(id, config=config, name=config["name"], state=self.state)
        self._made.append(experiment)
        path = f"{API}/experiments/{id}"
        self.master.answer("GET", path, {"experiment": experiment})
        self.master.paged(f"{path}/trials", "trials", [])
        return Reply({"experiment": experiment, "warnings": self.warnings, "messages": self.messages})

    def _list(self, request: Request) -> Answer:
        assert request.query["users"] == ["ada"]
        found = [dict(made, state=self.state) for made in reversed(self._made)]
        pagination = {"offset": 0, "limit": 0, "startIndex": 0, "endIndex": len(found), "total": len(found)}
        return Reply({"experiments": found, "pagination": pagination})


@pytest.fixture
def submissions(master: StubMaster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Submissions]:
    monkeypatch.setattr(client, "_shared", None)
    yield Submissions(master)
    shared = client.current()
    if shared is not None:
        shared.close()
