"""The Python installations that tasks can run with: the agent's own, and those of agent.yaml's `environments`.

Each is asked which `determined` it imports, because the two are started in different ways: Detlab's own, and the
official package, whose fixed paths need a mount namespace.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from detlab_agent import namespace

log = logging.getLogger(__name__)

OFFICIAL_VERSION = "0.38.1"  # whose ways we know
# -I: what counts is the installation, not this process's folder or PYTHONPATH.
_PROBE = """
import json, os, sys
paths = [sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path]
harness, version, problem = "none", "", ""
try:
    import determined
except Exception as e:
    if not (isinstance(e, ModuleNotFoundError) and e.name == "determined"):
        problem = f"{type(e).__name__}: {e}"
else:
    paths.append(os.path.dirname(os.path.dirname(os.path.abspath(determined.__file__))))
    ours = getattr(determined, "__detlab_version__", None)
    harness, version = ("detlab", ours) if ours else ("official", str(determined.__version__))
print(json.dumps({"paths": paths, "harness": harness, "version": version, "problem": problem}))
"""


class PythonError(Exception):
    """An environment that is none, and why."""


class Harness(StrEnum):
    """The `determined` that an environment imports."""

    DETLAB = "detlab"
    OFFICIAL = "official"
    NONE = "none"


@dataclass(frozen=True)
class PythonEnvironment:
    executable: Path
    paths: tuple[
        Path, ...
    ]  # folders (or archives) that must be readable for it to work, editable installs included
    harness: Harness = Harness.DETLAB
    version: str = ""  # of the harness
    refusal: str = ""  # why no task can run with it, and what to do


def find_pythons(environments: Mapping[str, str]) -> dict[str | None, PythonEnvironment]:
    """By name, None for the agent's own; `environments` maps names to prefixes. PythonError names the bad one.

    One that can be there, but run no task, is found all the same, with the reason in `refusal`.
    """
    pythons: dict[str | None, PythonEnvironment] = {
        None: _probe(Path(sys.executable), "the agent's own Python")
    }
    for name, prefix in environments.items():
        executable = Path(prefix) / "bin" / "python"
        if not executable.exists():
            raise PythonError(
                f"environments.{name}: there is no {executable}; give the prefix of a Python or a venv"
            )
        found = pythons[name] = _probe(executable, f"environments.{name}")
        if found.refusal:
            log.warning("%s", found.refusal)
        else:
            log.info("environments.%s: %s, determined %s (%s)", name, prefix, found.version, found.harness)
            if found.harness is Harness.OFFICIAL and found.version != OFFICIAL_VERSION:
                log.warning(
                    "environments.%s has determined %s; what is known to work is %s",
                    name,
                    found.version,
                    OFFICIAL_VERSION,
                )
    return pythons


def _probe(executable: Path, name: str) -> PythonEnvironment:
    result = subprocess.run([executable, "-I", "-c", _PROBE], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise PythonError(f"{name}: {executable} does not run: {result.stderr.strip()[-500:]}")
    said = json.loads(result.stdout.splitlines()[-1])
    paths = tuple(dict.fromkeys(Path(path) for path in said["paths"] if Path(path).exists()))
    harness = Harness(said["harness"])
    refusal = _refusal(executable, name, harness, said["problem"])
    return PythonEnvironment(executable, paths, harness, said["version"], refusal)


def _refusal(executable: Path, name: str, harness: Harness, problem: str) -> str:
    if problem:
        return (
            f"{name}: `import determined` fails in {executable} ({problem}): repair it, and restart the agent"
        )
    if harness is Harness.NONE:
        return (
            f"{name}: {executable} has no `determined`: install Detlab's or the official package there"
            f" ({executable} -m pip install determined=={OFFICIAL_VERSION}), and restart the agent"
        )
    if harness is Harness.OFFICIAL and (refused := namespace.refusal()):
        return (
            f"{name}: {executable} has the official determined package, which works in /run/determined only."
            " To give each task a folder of its own there, the agent needs a mount namespace, which this machine"
            f" refuses ({refused}): run the agent as root, allow user namespaces"
            " (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone), or install Detlab's package there"
        )
    return ""
