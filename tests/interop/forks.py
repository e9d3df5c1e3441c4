"""Runs `det` many times: loads the client once, and forks for each command. Runs in the official client's environment.

A line of standard input is one command: {"arguments", "environment", "folder", "input", "output", "errors"}, the last
three being paths. Its exit code is the answer, a line of standard output.
"""

import contextlib
import json
import os
import sys
from importlib.metadata import entry_points
from typing import Any


def become(command: dict[str, Any]) -> None:
    """In the child: have the files, the environment and the arguments of the command."""
    for descriptor, path, flags in (
        (0, command["input"], os.O_RDONLY),
        (1, command["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, command["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(command["environment"])
    os.chdir(command["folder"])
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    sys.argv = ["det", *command["arguments"]]


(found,) = entry_points(group="console_scripts", name="det")
det = found.load()
requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")  # the client closes what it finds
with (
    open(os.devnull, "w") as nowhere,
    contextlib.redirect_stdout(nowhere),
    contextlib.redirect_stderr(nowhere),
    contextlib.suppress(SystemExit),
):
    det(["-m", "http://127.0.0.1:1", "experiment", "list"])  # nobody is there; it loads what it loads late
while True:
    line = requests.readline()
    if not line:
        break
    pid = os.fork()
    if pid == 0:
        command = json.loads(line)
        become(command)
        sys.exit(det(command["arguments"]))
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), file=answers, flush=True)
