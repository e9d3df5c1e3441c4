"""Keepers: a part is started again, outlives a Hub that is killed, and ends as it should."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from detlab_hub.keeper import running_part
from support.cluster import wait_for

# Notes how it ended: "term" unless it was killed.
PART = """
import signal, sys, time
def end(*_):
    open({end!r}, "a").write("term")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("running", flush=True)
time.sleep(1000)
"""


@dataclass
class Rig:
    """A keeper below a process that stands for the Hub."""

    folder: Path
    hubs: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def note(self) -> Path:
        return self.folder / "part.process"

    @property
    def log(self) -> Path:
        return self.folder / "part.log"

    def start(self, *options: str, part: str | None = None) -> None:
        code = part if part is not None else PART.format(end=str(self.folder / "end"))
        keeper = [sys.executable, "-m", "detlab_hub.keeper", "--name", "part", "--note", str(self.note)]
        keeper += ["--log", str(self.log), "--ending", str(self.folder / "ending"), *options, "--"]
        keeper += [sys.executable, "-c", code]
        hub = (
            "import subprocess, sys\n"
            f"keeper = subprocess.Popen({keeper!r}, start_new_session=True)\n"
            "print(keeper.pid, flush=True)\n"
            "keeper.wait()\n"
        )
        self.hubs.append(
            subprocess.Popen([sys.executable, "-c", hub], stdout=subprocess.PIPE, text=True, cwd=self.folder)
        )
        stdout = self.hubs[-1].stdout
        assert stdout is not None
        self.keeper = psutil.Process(int(stdout.readline()))

    def part(self) -> psutil.Process:
        return wait_for(lambda: running_part(self.note), "the part runs", 20)

    def running(self) -> psutil.Process:
        """The part, once it listens to signals."""
        part = self.part()
        wait_for(lambda: self.log.exists() and "running" in self.log.read_text(), "the part says so", 20)
        return part

    def line(self) -> str:
        """What the keeper says next."""
        stdout = self.hubs[-1].stdout
        assert stdout is not None
        return stdout.readline()

    def said(self) -> str:
        """By the keeper, after it has ended."""
        stdout = self.hubs[-1].stdout
        assert stdout is not None
        return stdout.read()

    def end_keeper(self) -> None:
        self.keeper.send_signal(signal.SIGINT)  # as the Hub does
        self.hubs[-1].wait(30)

    def stop(self) -> None:
        for hub in self.hubs:
            if hub.poll() is None:
                self.keeper.kill()
                hub.wait(20)
            if hub.stdout is not None:
                hub.stdout.close()
        if (part := running_part(self.note)) is not None:
            part.kill()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    try:
        yield made
    finally:
        made.stop()


def gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_it_starts_its_part_and_ends_it(rig: Rig) -> None:
    rig.start()
    part = rig.running()
    rig.end_keeper()
    assert gone(part)
    assert (rig.folder / "end").read_text() == "term"
    assert not rig.note.exists()


def test_a_part_that_must_be_killed_to_keep_its_tasks(rig: Rig) -> None:
    rig.start("--kill-to-keep")
    part = rig.running()
    rig.end_keeper()
    assert gone(part)
    assert not (rig.folder / "end").exists()


def test_the_same_part_when_the_tasks_are_to_end(rig: Rig) -> None:
    rig.start("--kill-to-keep")
    part = rig.running()
    (rig.folder / "ending").touch()
    rig.end_keeper()
    assert gone(part)
    assert (rig.folder / "end").read_text() == "term"


def test_a_part_that_ends_is_started_again(rig: Rig) -> None:
    rig.start()
    first = rig.part()
    first.kill()
    second = wait_for(lambda: (p := running_part(rig.note)) and p.pid != first.pid and p, "it runs again", 20)
    assert second is not None
    rig.end_keeper()
    assert "The part ended unexpectedly (exit code -9) and is started again" in rig.said()


def test_a_part_outlives_the_hub_and_is_kept_by_the_next(rig: Rig) -> None:
    rig.start()
    part = rig.running()
    first = rig.keeper
    rig.hubs[0].kill()
    wait_for(lambda: gone(first), "the keeper sees that its Hub is gone", 20)
    assert not gone(part)
    rig.start()
    assert rig.line() == f"The part (pid {part.pid}) runs already and is kept.\n"
    assert rig.part() == part
    part.kill()
    wait_for(lambda: (p := running_part(rig.note)) and p.pid != part.pid, "it runs again", 20)
    rig.end_keeper()
    assert "The part ended unexpectedly and is started again" in rig.said()


def test_a_part_that_was_kept_is_ended_too(rig: Rig) -> None:
    rig.start()
    part = rig.running()
    first = rig.keeper
    rig.hubs[0].kill()
    wait_for(lambda: gone(first), "the keeper sees that its Hub is gone", 20)
    rig.start()
    assert "is kept" in rig.line()
    rig.end_keeper()
    wait_for(lambda: gone(part), "the part has ended", 20)


def test_a_part_that_cannot_start_is_quoted_once(rig: Rig) -> None:
    rig.start(part="import sys; sys.exit('port 8080 is taken')")
    wait_for(lambda: rig.log.exists() and "taken" in rig.log.read_text(), "it has tried", 20)
    assert rig.line() == "The part cannot start: port 8080 is taken\n"
    rig.end_keeper()


def test_a_part_waits_for_what_it_needs(rig: Rig) -> None:
    rig.start("--needs", str(rig.folder / "token"))
    with pytest.raises(AssertionError, match="the part runs"):
        wait_for(lambda: running_part(rig.note), "the part runs", 1)
    (rig.folder / "token").touch()
    rig.part()
    rig.end_keeper()


def test_a_part_does_not_get_the_hubs_secrets(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret")
    monkeypatch.setenv("DETLAB_SHARED_TRUST", "1")
    rig.start()
    environment = rig.part().environ()
    assert "JUPYTERHUB_API_TOKEN" not in environment
    assert environment["DETLAB_SHARED_TRUST"] == "1"
    rig.end_keeper()


def test_a_note_of_another_process_with_that_pid_is_no_part(tmp_path: Path) -> None:
    note = tmp_path / "note"
    assert running_part(note) is None
    note.write_text(json.dumps({"pid": os.getpid(), "create_time": 1.0}))
    assert running_part(note) is None
    note.write_text(json.dumps({"pid": os.getpid(), "create_time": psutil.Process().create_time()}))
    assert running_part(note) == psutil.Process()
