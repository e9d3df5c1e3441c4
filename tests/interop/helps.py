"""Asks a `det` for the help of its commands. Prints one JSON object: {command: {"aliases", "flags"}}.

Arguments: the commands whose trees are walked, as "user login" (all without).
Runs in the environment of the official client, or in ours: what is known of a client is what it prints.
"""

import contextlib
import io
import json
import os
import re
import sys
from importlib.metadata import entry_points
from typing import Any

SUBCOMMAND = re.compile(r" {4}(?P<name>[a-z][\w-]*)(?: \((?P<aliases>[\w, -]+)\))?(?: |$)")
FLAG = re.compile(r" {2}(?P<names>-\S.*?)(?: {2}|$)")


def help_of(*path: str) -> str:
    """What `det PATH --help` prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        det([*path, "--help"])
    return printed.getvalue()


def wanted(path: list[str]) -> bool:
    """Whether a command is one of those asked for, or above or below one."""
    return not ROOTS or any(all(a == b for a, b in zip(root, path, strict=False)) for root in ROOTS)


def walk(tree: dict[str, Any], path: list[str], aliases: list[str]) -> None:
    flags, verbs = [], []
    for line in help_of(*path).splitlines():
        if found := FLAG.match(line):
            names = re.findall(r"(?<!\S)--?[a-zA-Z][\w.-]*", found["names"])
            if "--help" not in names:
                flags.append(names)
        elif (found := SUBCOMMAND.match(line)) and found["name"] != "help":
            verbs.append((found["name"], re.findall(r"[\w-]+", found["aliases"] or "")))
    tree[" ".join(path)] = {"aliases": aliases, "flags": flags}
    for name, others in verbs:
        if wanted([*path, name]):
            walk(tree, [*path, name], others)


ROOTS = [root.split() for root in sys.argv[1:]]
os.environ["COLUMNS"] = "1000"  # no line of the help is broken
(found,) = entry_points(group="console_scripts", name="det")
det = found.load()
sys.argv = ["det"]
tree: dict[str, Any] = {}
walk(tree, [], [])
print(json.dumps(tree))
