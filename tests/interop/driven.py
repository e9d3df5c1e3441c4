"""What the tests have called the official `det` with, and the tree of its commands that those calls are laid over."""

from __future__ import annotations

import json
import os
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from interop.commands import T1

_CALLS: dict[tuple[str, str], list[tuple[str, ...]]] = defaultdict(list)


def note(arguments: Sequence[str]) -> None:
    """The test that runs now has called `det` with these."""
    node, _, phase = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")
    file, _, test = node.rpartition("/")[2].partition(".py::")
    _CALLS[file, "" if phase == "(setup)" else test].append(tuple(arguments))


def calls(file: str, test: str) -> list[tuple[str, ...]]:
    """Those of one test (of all its parameters unless it names them), and those of its file's fixtures."""
    found = list(_CALLS[file, ""])
    for (in_file, name), of_test in list(_CALLS.items()):
        if in_file == file and test in (name, name.partition("[")[0]):
            found += of_test
    return found


@dataclass(frozen=True)
class Tree:
    """The commands of a `det`, each with its aliases and flags, as its help tells."""

    commands: dict[str, dict[str, Any]]

    @property
    def items(self) -> set[tuple[str, str]]:
        """Everything that can be typed: (command, ""), (command, flag), (command, "@alias")."""
        found = set()
        for command, about in self.commands.items():
            found |= {(command, max(flag, key=len)) for flag in about["flags"]}
            found |= {(command, f"@{alias}") for alias in about["aliases"]} | {(command, "")}
        return found

    def driven(self, arguments: Sequence[str]) -> set[tuple[str, str]]:
        """What of it one call has driven."""
        words, path, found = list(arguments), "", set()
        while words:
            word = words[0]
            flag = self._flag(path, word)
            if flag:
                found.add((path, flag))
                del words[: 1 if path else 2]  # the flags before the command all take a value
            elif below := self._below(path, word):
                path = below
                found |= {(path, f"@{word}")} if word != path.rpartition(" ")[2] else set()
                del words[0]
            else:
                break
        found |= {(path, flag) for word in words if (flag := self._flag(path, word))}
        return found | {(path, "")}

    def _below(self, path: str, word: str) -> str:
        for command, about in self.commands.items():
            above, _, name = command.rpartition(" ")
            if command and above == path and word in (name, *about["aliases"]):
                return command
        return ""

    def _flag(self, path: str, word: str) -> str:
        name = word.partition("=")[0]
        return next((max(flag, key=len) for flag in self.commands[path]["flags"] if name in flag), "")


@cache
def tree_of(python: str | Path) -> Tree:
    """T1's commands of the `det` that is installed beside an interpreter."""
    command = [str(python), str(Path(__file__).with_name("helps.py")), *T1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DET_")}
    walked = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    return Tree(json.loads(walked.stdout))
