"""From a container's specification to what its shim must know: folders, command, environment, view of the files.

    run/          the task's own: workdir/, home/, tmp/ (0700, owned by the task's uid)

A task of the official determined package sees `run` as /run/determined and `run/tmp` as /tmp, because the package's
paths are fixed. Detlab's own package is told where its folders are, and needs no view of its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from detlab_agent.devices import SlotEnvironment
from detlab_agent.drivers.base import StartError
from detlab_agent.drivers.home import lasting_home
from detlab_agent.drivers.mounts import Need, Plan, plan_mounts
from detlab_agent.protocol import BindMount, ContainerSpec, FailureKind
from detlab_agent.pythons import Harness, PythonEnvironment

_LONGEST_TMPDIR = 50  # a Unix socket's path has 107 bytes, and multiprocessing adds 40 to TMPDIR
_OFFICIAL_RUN, _OFFICIAL_TMP, _OFFICIAL_SHARED_FS = "/run/determined", "/tmp", "/determined_shared_fs"
# The package reads its own checkpoints, pickles, by a plain `torch.load`, whose default has changed in PyTorch 2.6:
# without this no trial could go on from its checkpoint.
_OFFICIAL_VARIABLES = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
_OFFICIAL_TRIAL = Path(__file__).with_name("official_trial.sh").read_text()


@dataclass(frozen=True)
class Folders:
    """The task's folders: where they are, and under which names the task knows them."""

    run: Path
    tmp: Path
    seen_run: Path
    seen_tmp: Path


class Launching:
    """Prepares tasks.

    Args:
        pythons: by the name in `environments`, None the agent's own.
        base_environment: what every task gets.
    """

    def __init__(
        self,
        pythons: Mapping[str | None, PythonEnvironment],
        base_environment: Mapping[str, str],
        slot_environment: SlotEnvironment,
    ) -> None:
        self._pythons = pythons
        self._base_environment = base_environment
        self._slot_environment = slot_environment

    def prepare(
        self, spec: ContainerSpec, folder: Path, uid: int | None, ports: Mapping[str, str]
    ) -> dict[str, object]:
        """Makes the container's folders; gives what the shim must know.

        Args:
            uid: of the account that the task runs under; None for the agent's own.
            ports: variables that name the allocation's ports.

        Raises:
            StartError: the task cannot run here.
            MountError: it cannot be given a path that it needs.
            OSError: a folder cannot be made.
        """
        python = self._python(spec)
        official = python.harness is Harness.OFFICIAL
        folders = _make_folders(folder, uid, official)
        home = folders.seen_run / "home"
        mounts = [
            BindMount(m.host_path, str(folders.seen_run / "workdir" / m.container_path), m.read_only)
            for m in spec.bind_mounts
        ]
        if spec.shared_fs is not None:
            mounts.append(BindMount(spec.shared_fs, spec.shared_fs))
        if spec.home is not None:
            home = lasting_home(spec.home, uid)
            mounts.append(BindMount(spec.home, spec.home))
        if official:
            mounts += _official_mounts(spec, folders)
        plan = _plan(python, folders, mounts, uid)
        return {
            "argv": self._command(spec, python),
            "env": self._environment(spec, python, folders, home, ports),
            "cwd": str(folders.seen_run / "workdir"),
            "uid": uid,
            "mounts": plan.steps,
            "without_mounts": plan.reason,
        }

    def _python(self, spec: ContainerSpec) -> PythonEnvironment:
        python = self._pythons.get(spec.python_environment)
        if python is None:
            known = ", ".join(sorted(name for name in self._pythons if name)) or "none"
            raise StartError(
                f"this agent's agent.yaml has no environment {spec.python_environment!r} (it has: {known}): add it"
                " under `environments` on every agent of the pool",
                FailureKind.ENVIRONMENT_UNUSABLE,
            )
        if python.refusal:
            raise StartError(python.refusal, FailureKind.ENVIRONMENT_UNUSABLE)
        return python

    def _command(self, spec: ContainerSpec, python: PythonEnvironment) -> list[str]:
        if python.harness is Harness.OFFICIAL and spec.task_type == "TRIAL":
            shell = shutil.which("bash") or "/bin/sh"
            return [shell, "-c", _OFFICIAL_TRIAL, "official_trial.sh"]
        command = list(spec.command)
        if not command:
            raise StartError("the master sent no command")
        if command[0] in ("python", "python3"):
            command[0] = str(python.executable)
        return command

    def _environment(
        self,
        spec: ContainerSpec,
        python: PythonEnvironment,
        folders: Folders,
        home: Path,
        ports: Mapping[str, str],
    ) -> dict[str, str]:
        return {
            **self._base_environment,
            **self._slot_environment.defaults(spec.slot_ids),
            **ports,
            "PATH": f"{python.executable.parent}:{self._base_environment.get('PATH', os.defpath)}",
            "HOME": str(home),
            "TMPDIR": str(folders.seen_tmp),
            "USER": spec.owner,
            "LOGNAME": spec.owner,
            "PYTHONUNBUFFERED": "1",
            "PYTHONUSERBASE": str(folders.seen_run / "pythonuserbase"),
            **(_OFFICIAL_VARIABLES if python.harness is Harness.OFFICIAL else {}),
            **spec.environment,
            **self._slot_environment.fixed(spec.slot_ids),
            "DET_CONTAINER_ID": spec.container_id,
            "DET_RUN_DIR": str(folders.seen_run),
            "DET_WORKDIR": str(folders.seen_run / "workdir"),
        }


def tmp_folder(folder: Path) -> Path:
    """A task's TMPDIR where its own view has none: in its folder, unless that makes paths too long for Unix sockets."""
    inside = folder / "run" / "tmp"
    if len(str(inside)) <= _LONGEST_TMPDIR:
        return inside
    return Path(tempfile.gettempdir()) / f"detlab-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"


def _make_folders(folder: Path, uid: int | None, official: bool) -> Folders:
    """All closed to others, except that as root `folder` can be passed, for what lies in it belongs to two accounts."""
    run = folder / "run"
    tmp = run / "tmp" if official else tmp_folder(folder)
    for path in (folder, folder / "logs", folder / "root", run):
        path.mkdir(mode=0o700)
    folder.chmod(0o700 if uid is None else 0o711)
    mine = (run / "workdir", run / "home", tmp)
    for path in mine:
        path.mkdir(mode=0o700)
    if uid is not None:
        for path in (run, *mine):
            os.chown(path, uid, uid)
    if official:
        return Folders(run, tmp, Path(_OFFICIAL_RUN), Path(_OFFICIAL_TMP))
    return Folders(run, tmp, run, tmp)


def _official_mounts(spec: ContainerSpec, folders: Folders) -> list[BindMount]:
    mounts = [BindMount(str(folders.run), _OFFICIAL_RUN), BindMount(str(folders.tmp), _OFFICIAL_TMP)]
    if spec.shared_fs is not None:
        mounts.append(BindMount(spec.shared_fs, _OFFICIAL_SHARED_FS))
    return mounts


def _plan(python: PythonEnvironment, folders: Folders, mounts: list[BindMount], uid: int | None) -> Plan:
    needs = [Need(path, "the Python installation") for path in python.paths]
    if folders.seen_run == folders.run:
        needs += [Need(path, "the task's folder", read_only=False) for path in (folders.run, folders.tmp)]
    return plan_mounts(needs, mounts, uid)
