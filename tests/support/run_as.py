"""Commands under an account that is not root, with what they need of root's folders."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

# Puts on another uid and executes the rest. The Python may lie in root's own folder, so it takes a view that has it.
# A process whose root is another folder gets no user namespace.
_SCRIPT = """
import json, os, sys
from pathlib import Path
from detlab_agent.drivers.mounts import Need, plan_mounts
from detlab_agent.namespace import enter_mount_namespace
from detlab_agent.pythons import find_pythons
uid, folder, user_namespaces, environments = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
needs = [Need(path, "python") for python in find_pythons(environments).values() for path in python.paths]
needs.append(Need(folder, "folder", read_only=False))
steps = [list(step) for step in plan_mounts(needs, (), uid).steps]
for name in ("root", "other-root"):
    (folder / name).mkdir(exist_ok=True)
if user_namespaces == "False":
    steps.append(["bind", "/", str(folder / "other-root"), False])
enter_mount_namespace(steps, str(folder / "root"))
if user_namespaces == "False":
    os.chroot(folder / "other-root")
os.chdir("/")
os.setgroups([])
os.setgid(uid)
os.setuid(uid)
os.execv(sys.argv[5], sys.argv[5:])
"""


def run_as(
    uid: int, folder: Path, *, user_namespaces: bool = True, environments: Mapping[str, str] | None = None
) -> list[str]:
    """What to put before a command; the first word of that must be a path.

    Args:
        folder: it can be reached, though its parents may be closed; must belong to the account.
        user_namespaces: whether the kernel gives them, where it gives them at all.
        environments: Python environments that can be reached, beside this one.
    """
    named = json.dumps(dict(environments or {}))
    return [sys.executable, "-c", _SCRIPT, str(uid), str(folder), str(user_namespaces), named]
