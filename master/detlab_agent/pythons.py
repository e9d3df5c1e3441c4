"""The Python installations that tasks can run with: the agent's own, and those of agent.yaml's `environments`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PROBE = """
import importlib.util, json, os, sys
paths = [sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path]
spec = importlib.util.find_spec("determined")
if spec and spec.origin:
    paths.append(os.path.dirname(os.path.dirname(spec.origin)))
print(json.dumps(paths))
"""


class PythonError(Exception):
    """An environment that is none, and why."""


@dataclass(frozen=True)
class PythonEnvironment:
    executable: Path
    paths: tuple[
        Path, ...
    ]  # folders (or archives) that must be readable for it to work, editable installs included


def find_pythons(environments: Mapping[str, str]) -> dict[str | None, PythonEnvironment]:
    """By name, None for the agent's own; `environments` maps names to prefixes. PythonError names the bad one."""
    pythons: dict[str | None, PythonEnvironment] = {
        None: _probe(Path(sys.executable), "the agent's own Python")
    }
    for name, prefix in environments.items():
        executable = Path(prefix) / "bin" / "python"
        if not executable.exists():
            raise PythonError(
                f"environments.{name}: there is no {executable}; give the prefix of a Python or a venv"
            )
        pythons[name] = _probe(executable, f"environments.{name}")
    return pythons


def _probe(executable: Path, name: str) -> PythonEnvironment:
    # -I: what counts is the installation, not this process's folder or PYTHONPATH.
    result = subprocess.run([executable, "-I", "-c", _PROBE], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise PythonError(f"{name}: {executable} does not run: {result.stderr.strip()[-500:]}")
    paths = dict.fromkeys(Path(path) for path in json.loads(result.stdout) if Path(path).exists())
    return PythonEnvironment(executable, tuple(paths))
