"""The second program of a trial's task: `python -m determined.exec.launch`.

It tries the checkpoint storage, and then becomes the trial's entrypoint: the process stays the same, so that
signals and the exit code are the entrypoint's own.
"""

import os
import re
import shlex
import sys
from typing import Any, NoReturn

from determined._info import get_cluster_info
from determined.common import storage
from determined.errors import ClusterInfoError, DeterminedError, PreparationError

# `model_def:Trial`, `package.module:Trial`
_TRIAL_CLASS = re.compile(r"[\w.]+:\w+")


def main() -> NoReturn:
    try:
        become_entrypoint()
    except (DeterminedError, OSError) as e:
        fail(f"cannot start the trial: {e}")


def become_entrypoint() -> NoReturn:
    """Replace this process by the entrypoint of the trial."""
    info = get_cluster_info()
    if info is None:
        raise ClusterInfoError("DET_ALLOCATION_ID is not set: this program is started by an agent")
    config = info.trial._config
    argv = entrypoint_argv(config.get("entrypoint"))
    slots = sum(info.container_slot_counts)
    if argv[1:3] == ["-m", "determined.exec.harness"] and slots > 1:
        raise PreparationError(
            f"the trial has {slots} slots, but this version trains a trial class in one process: "
            "set resources.slots_per_trial to 1"
        )
    storage.validate(storage.from_config(config.get("checkpoint_storage") or {}))
    become(argv)


def entrypoint_argv(entrypoint: Any) -> list[str]:
    """The command that an experiment config's `entrypoint` stands for. Raises PreparationError.

    A list is the command itself, `module:TrialClass` is run by the harness, and the shell runs any other string.
    """
    if isinstance(entrypoint, list) and entrypoint and all(isinstance(part, str) for part in entrypoint):
        return entrypoint
    if isinstance(entrypoint, str) and entrypoint.strip():
        if _TRIAL_CLASS.fullmatch(entrypoint.strip()):
            return [sys.executable, "-m", "determined.exec.harness", entrypoint.strip()]
        return ["sh", "-c", entrypoint]
    raise PreparationError(f"entrypoint is {entrypoint!r}: it must be a string or a list of strings")


def become(argv: list[str]) -> NoReturn:
    """Replace this process by a command, with the work folder on PYTHONPATH and our Python first on PATH."""
    env = dict(os.environ)
    env["PYTHONPATH"] = _joined(os.getcwd(), env.get("PYTHONPATH"))
    env["PATH"] = _joined(os.path.dirname(sys.executable), env.get("PATH", os.defpath))
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as e:
        # The codes of a shell: 127 for a command that is not there, 126 for one that cannot be run.
        code = 127 if isinstance(e, FileNotFoundError) else 126
        fail(f"cannot run the entrypoint {shlex.join(argv)}: {argv[0]}: {e.strerror}", code)


def fail(message: str, code: int = 1) -> NoReturn:
    """Say what is wrong in one line of the trial's log, and exit."""
    print(f"ERROR: {' '.join(message.split())}", file=sys.stderr, flush=True)
    sys.exit(code)


def _joined(first: str, rest: str | None) -> str:
    others = [part for part in (rest or "").split(os.pathsep) if part and part != first]
    return os.pathsep.join([first, *others])


if __name__ == "__main__":
    main()
