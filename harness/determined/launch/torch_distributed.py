"""Starts a trial's training: `python -m determined.launch.torch_distributed [--] COMMAND...`.

The command may begin with a Python file. Also `--trial module:TrialClass` in place of a command. This version starts one process, for a trial of up to
one slot; it says so when the trial has more.
"""

import argparse
import os
import sys
from typing import NoReturn

from determined._info import get_cluster_info
from determined.errors import DeterminedError
from determined.exec.launch import become, fail

C10D_PORT = 29400  # where the processes of torch.distributed meet


def main(arguments: list[str] | None = None) -> NoReturn:
    parser = argparse.ArgumentParser(
        prog="python -m determined.launch.torch_distributed",
        description="Start the training processes of a trial.",
    )
    parser.add_argument("--trial", metavar="module:TrialClass", help="train this class instead of a command")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command of a training process")
    given = parser.parse_args(arguments)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if bool(given.trial) == bool(command):
        parser.error("give a command, or --trial module:TrialClass")
    try:
        info = get_cluster_info()
    except DeterminedError as e:
        fail(str(e))
    slots = sum(info.container_slot_counts) if info is not None else 1
    if slots > 1:
        fail(
            f"the trial has {slots} slots, but this version of the launcher starts one process: "
            "set resources.slots_per_trial to 1"
        )
    for name, value in _environment().items():
        os.environ.setdefault(name, value)
    if command and command[0].endswith(".py"):
        command = [sys.executable, *command]
    become([sys.executable, "-m", "determined.exec.harness", given.trial] if given.trial else command)


def _environment() -> dict[str, str]:
    """What torchrun gives a process that trains alone: a script reads it whatever the number of slots."""
    alone = {
        "RANK": 0,
        "LOCAL_RANK": 0,
        "GROUP_RANK": 0,
        "WORLD_SIZE": 1,
        "LOCAL_WORLD_SIZE": 1,
        "GROUP_WORLD_SIZE": 1,
        "MASTER_PORT": os.environ.get("C10D_PORT", C10D_PORT),
    }
    hosts = {"MASTER_ADDR": "127.0.0.1", "DET_CHIEF_IP": "127.0.0.1"}
    return {name: str(value) for name, value in alone.items()} | hosts | {"USE_TORCH_DISTRIBUTED": "True"}


if __name__ == "__main__":
    main()
