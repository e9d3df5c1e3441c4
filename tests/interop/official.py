"""The official client, in an environment of its own, as a person at another machine would use it."""

from __future__ import annotations

import csv
import io
import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from interop.driven import note
from support.cluster import PASSWORD, REPO, Cluster

ENVIRONMENT = REPO / ".venv-official"
DIGITS = REPO / "examples" / "digits"
LIMIT = 120  # seconds for a command
WRONG_USAGE = 2


@dataclass(frozen=True)
class Said:
    """What one call of the command has printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[dict[str, str]]:
        """A table that was asked for with --csv."""
        return list(csv.DictReader(io.StringIO(self.out)))


class Forks:
    """`det` without the second that loading it takes: a process that has loaded it forks for each command."""

    def __init__(self) -> None:
        command = [str(ENVIRONMENT / "bin" / "python"), str(Path(__file__).with_name("forks.py"))]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], *, typed: str, folder: Path
    ) -> Said:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryDirectory() as name:
            files = {key: str(Path(name) / key) for key in ("input", "output", "errors")}
            Path(files["input"]).write_text(typed)
            command = {
                # The client reads DET_MASTER when it is loaded: here, for all.
                "arguments": ["-m", environment["DET_MASTER"], *arguments],
                "environment": dict(environment),
                "folder": str(folder),
                **files,
            }
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
            ready, _, _ = select.select([self._process.stdout], [], [], LIMIT)
            if not ready:
                self.close()
            assert ready, f"not within {LIMIT} s: det {' '.join(arguments)}"
            code = int(self._process.stdout.readline())
            return Said(code, *(Path(files[key]).read_text() for key in ("output", "errors")))

    def close(self) -> None:
        """End it, and a command that still runs."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


@dataclass(frozen=True)
class Official:
    """`det` and the Python SDK of determined 0.38.1.

    Args:
        folder: for the client's settings and whatever it writes.
        forks: runs `det`; without it, each command is started like a person's.
    """

    cluster: Cluster
    folder: Path
    forks: Forks | None = None

    def environment(self, user: str | None) -> dict[str, str]:
        """The user's variables; with None, those of somebody who has to log in first."""
        login = {"DET_USER": user, "DET_PASS": PASSWORD} if user else {}
        return {
            **self.cluster.environment,
            **login,
            "DET_MASTER": self.cluster.url,
            "DET_DEBUG_CONFIG_PATH": str(self.folder),
        }

    def det(
        self,
        *arguments: object,
        user: str | None = "determined",
        code: int = 0,
        typed: str = "",
        cwd: Path | None = None,
    ) -> Said:
        """Run `det` and check its exit code.

        Args:
            typed: what the person types when asked.
        """
        command = [str(ENVIRONMENT / "bin" / "det"), *map(str, arguments)]
        said = self._run(command, self.environment(user), code=code, typed=typed, cwd=cwd)
        if code != WRONG_USAGE:
            note(command[1:])
        return said

    def python(self, script: Path, *arguments: object, user: str = "determined") -> Any:
        """Run a script that prints one JSON object, and return that."""
        command = [str(ENVIRONMENT / "bin" / "python"), str(script), *map(str, arguments)]
        return json.loads(self._run(command, self.environment(user)).out.splitlines()[-1])

    def _run(
        self,
        command: list[str],
        environment: Mapping[str, str],
        *,
        code: int = 0,
        typed: str = "",
        cwd: Path | None = None,
    ) -> Said:
        folder = cwd or self.folder
        if self.forks is not None and Path(command[0]).name == "det":
            said = self.forks.run(command[1:], environment, typed=typed, folder=folder)
        else:
            ended = subprocess.run(
                command,
                input=typed,
                capture_output=True,
                text=True,
                env=dict(environment),
                cwd=folder,
                timeout=LIMIT,
                check=False,
            )
            said = Said(ended.returncode, ended.stdout, ended.stderr)
        assert said.code == code, f"{' '.join(command)}\nexit code {said.code}\n{said.out}\n{said.err}"
        return said


def need_official_client() -> None:
    """Skip what cannot run without it."""
    if not (ENVIRONMENT / ".installed").exists():
        pytest.skip("the official client is not installed; type: make .venv-official/.installed")
