"""The official `det`: a trial's log with every flag, its retention, the master's log and the support bundle."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from interop.official import Official

PROGRAM = """
import sys
print("plain")
print("ERROR: it went wrong")
print("WARNING: it might go wrong")
print("[rank=3] from rank three")
print("to stderr", file=sys.stderr)
"""
CONFIG = {
    "name": "talker",
    "entrypoint": "python3 train.py",
    "searcher": {"name": "single", "metric": "accuracy", "smaller_is_better": False},
    "hyperparameters": {},
    "max_restarts": 0,
}


@dataclass(frozen=True)
class Talker:
    experiment: int
    trial: int
    task: str
    lines: list[dict[str, object]]

    def of(self, **fields: object) -> set[str]:
        """The texts of the lines with these fields."""
        return {str(one["log"]) for one in self.lines if all(one.get(k) == v for k, v in fields.items())}


@pytest.fixture(scope="module")
def talker(official: Official) -> Talker:
    cluster = official.cluster
    experiment = cluster.create(CONFIG, {"train.py": PROGRAM})
    assert cluster.wait_for_end(experiment) == "COMPLETED"
    (trial,) = cluster.trials(experiment)
    answer = cluster.request("GET", f"/api/v1/trials/{trial['id']}/logs")
    lines = [json.loads(line)["result"] for line in answer.text.splitlines()]
    return Talker(experiment, trial["id"], trial["taskId"], lines)


def logs(official: Official, *command: object) -> set[str]:
    """The texts of the lines that a command with --json prints."""
    shown = official.det(*command, "--json").out.lstrip()
    found, decoder = set(), json.JSONDecoder()
    while shown.startswith("{"):  # objects over several lines; what follows them is for people
        entry, end = decoder.raw_decode(shown)
        found.add(entry["log"])
        shown = shown[end:].lstrip()
    return found


@pytest.mark.parametrize("kind", ["trial", "experiment", "task"])
def test_every_flag_that_selects_lines(official: Official, talker: Talker, kind: str) -> None:
    number = {"trial": talker.trial, "experiment": talker.experiment, "task": talker.task}[kind]
    everything = talker.of()
    assert len(everything) >= 7
    of_task = next(one for one in talker.lines if one["source"] == "task")
    middle = talker.lines[len(talker.lines) // 2]["timestamp"]
    selections: list[tuple[list[Any], set[str]]] = [
        ([], everything),
        (["--agent-id", "agent-1"], talker.of(agentId="agent-1")),
        (["--container-id", of_task["containerId"]], talker.of(containerId=of_task["containerId"])),
        (["--rank-id", "3"], {"from rank three\n"}),
        (["--source", "master"], talker.of(source="master")),
        (["--stdtype", "stderr"], {"to stderr\n"}),
        (["--level", "WARNING"], {"it went wrong\n", "it might go wrong\n"}),
        (
            ["--timestamp-after", middle],
            {str(o["log"]) for o in talker.lines if str(o["timestamp"]) > str(middle)},
        ),
        (
            ["--timestamp-before", middle],
            {str(o["log"]) for o in talker.lines if str(o["timestamp"]) <= str(middle)},
        ),
        (["--head", "1"], {str(talker.lines[0]["log"])}),
        (["--tail", "1"], {str(talker.lines[-1]["log"])}),
        (["-f"], everything),
    ]
    if kind == "task":  # there the client itself fails over --level, and does not send --allocation-id
        selections = [one for one in selections if "--level" not in one[0]]
    for flags, expected in selections[1::2] if kind == "task" else selections:
        assert logs(official, kind, "logs", number, *flags) == expected, flags


def test_retention(official: Official, talker: Talker) -> None:
    def kept(trial: int) -> object:
        return official.cluster.get(f"/api/v1/trials/{trial}")["trial"]["logRetentionDays"]

    official.det("trial", "set", "log-retention", talker.trial, "--days", 5)
    assert kept(talker.trial) == 5
    official.det("experiment", "set", "log-retention", talker.experiment, "--forever")
    assert kept(talker.trial) == -1
    official.det("experiment", "set", "log-retention", talker.experiment, "--days", 99999, code=1)
    official.det("task", "cleanup-logs", code=1)  # for administrators

    experiment = official.cluster.create(CONFIG, {"train.py": "print('short-lived')"})
    assert official.cluster.wait_for_end(experiment) == "COMPLETED"
    (trial,) = official.cluster.trials(experiment)
    assert "short-lived" in official.cluster.logs(trial["id"])
    official.det("trial", "set", "log-retention", trial["id"], "--days", 0)
    official.det("task", "cleanup-logs", user="admin")
    assert official.cluster.logs(trial["id"]) == ""
    assert len(logs(official, "trial", "logs", talker.trial)) == len(talker.of())


def test_the_masters_log(official: Official, talker: Talker) -> None:
    shown = official.det("master", "logs", user="admin").out
    assert f"experiment {talker.experiment} is COMPLETED" in shown
    assert "[INFO]" in shown
    assert len(official.det("master", "logs", "--tail", 1, user="admin").out.strip().splitlines()) == 1
    assert "administrators" in official.det("master", "logs", code=1).err


def test_support_bundle(official: Official, talker: Talker, tmp_path: Path) -> None:
    official.det("trial", "support-bundle", talker.trial, "-o", tmp_path, user="admin")
    (bundle,) = tmp_path.glob(f"det-bundle-trial-{talker.trial}-*.tar.gz")
    with tarfile.open(bundle) as archive:
        names = archive.getnames()
        texts = {}
        for name in names:
            member = archive.extractfile(name)
            texts[name.rpartition("/")[2]] = member.read().decode() if member else ""
    assert any("it went wrong" in text for text in texts.values()), names
    assert any("is COMPLETED" in text for text in texts.values()), names


def test_describe_and_kill(official: Official, talker: Talker) -> None:
    for flags in (["--metrics-summary"], ["--metrics"], ["--csv"], ["--json"], ["--metrics", "--csv"]):
        assert str(talker.experiment) in official.det("trial", "describe", talker.trial, *flags).out
    official.det("trial", "kill", talker.trial)  # one that has ended: nothing happens
    assert official.cluster.experiment(talker.experiment)["state"] == "STATE_COMPLETED"
