"""The official client, in an environment of its own, as a person at another machine would use it."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.cluster import PASSWORD, REPO, Cluster

ENVIRONMENT = REPO / ".venv-official"
DIGITS = REPO / "examples" / "digits"


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


@dataclass(frozen=True)
class Official:
    """`det` and the Python SDK of determined 0.38.1.

    Args:
        folder: for the client's settings and whatever it writes.
    """

    cluster: Cluster
    folder: Path

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
        return self._run(command, self.environment(user), code=code, typed=typed, cwd=cwd)

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
        ended = subprocess.run(
            command,
            input=typed,
            capture_output=True,
            text=True,
            env=dict(environment),
            cwd=cwd or self.folder,
            timeout=120,
            check=False,
        )
        said = Said(ended.returncode, ended.stdout, ended.stderr)
        assert said.code == code, f"{' '.join(command)}\nexit code {said.code}\n{said.out}\n{said.err}"
        return said


def need_official_client() -> None:
    """Skip what cannot run without it."""
    if not (ENVIRONMENT / ".installed").exists():
        pytest.skip("the official client is not installed; type: make .venv-official/.installed")
