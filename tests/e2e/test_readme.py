"""The README's two commands, as a stranger types them: in a fresh copy, with no environment active.

The tests of this file are steps of one session with one Detlab, in their order.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from support.cluster import REPO, wait_for
from support.hub import free_ports

pytestmark = pytest.mark.timeout(900)  # making the environment alone takes a minute or two
BANNER = "Or, in another terminal, in this folder:"
NO_VENV = "This Python cannot make environments. On Debian or Ubuntu, type: sudo apt install python3-venv"
QUICK_TEST = "tests/master/engine/test_inbox.py"
Report = Callable[[str, object], None]


def _environment() -> dict[str, str]:
    """Of somebody who has just logged in: no virtual environment, nothing of a make or a test that runs around this."""
    unwanted = ("VIRTUAL_ENV", "PYTHON", "CONDA", "DET_", "DETLAB_", "MAKE", "MFLAGS", "PYTEST", "COVERAGE")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(unwanted)}
    folders = environment["PATH"].split(os.pathsep)
    plain = [folder for folder in folders if not (Path(folder).parent / "pyvenv.cfg").exists()]
    return {**environment, "PATH": os.pathsep.join(plain)}


def _copy_of_the_repository(to: Path) -> None:
    """What a clone would bring, with the changes that are not committed yet."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, check=False, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("these tests copy what git tracks: run them in a clone")
    for name in filter(None, listed.stdout.split("\0")):
        if (REPO / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPO / name, to / name)


def _python(environment: dict[str, str]) -> list[str]:
    """The variable to give to make, where `python3` is older than what Detlab needs."""
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    found = subprocess.run(["python3", "-c", check], env=environment, check=False).returncode == 0
    return [] if found else [f"PYTHON={Path(sys.base_prefix) / 'bin' / 'python3'}"]


@dataclass
class Terminal:
    """A terminal in which `make up` runs."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    @property
    def text(self) -> str:
        return "".join(list(self.lines))

    def wait_for_banner(self) -> None:
        def shown() -> bool:
            ended = self.process.poll() is not None
            assert not ended, f"make up has ended:\n{self.text}"
            return BANNER in self.text and self.text.split(BANNER)[1].count("\n") >= 3

        wait_for(shown, "make up says what to type next", 600)

    def next_lines(self) -> str:
        """What is to be typed in the other terminal."""
        after = self.text.split(BANNER)[1].splitlines()
        return "\n".join(line.strip() for line in after if line.startswith("    "))

    def ctrl_c(self) -> float:
        """Press Ctrl-C; returns the seconds until all has ended."""
        before = time.monotonic()
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(60)
        self._reader.join(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return time.monotonic() - before


@dataclass
class Stranger:
    """Somebody with a fresh copy of the repository."""

    folder: Path
    environment: dict[str, str]
    make_arguments: list[str]
    port: int = field(default_factory=free_ports)
    terminal: Terminal | None = None

    def make_up(self) -> Terminal:
        self.terminal = Terminal(
            subprocess.Popen(
                ["make", "up", f"PORT={self.port}", *self.make_arguments],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                process_group=0,  # as a shell does; Ctrl-C goes to the group
            )
        )
        return self.terminal

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run(["make", *arguments, *self.make_arguments])

    def type(self, lines: str) -> subprocess.CompletedProcess[str]:
        """Type lines into another terminal, in the same folder."""
        return self._run(["bash", "-e", "-c", lines])

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            text=True,
            timeout=600,
        )

    def det(self, command: str) -> str:
        done = self.type(f"source .detlab/activate\ndet {command}")
        assert done.returncode == 0, done.stdout
        return done.stdout

    def processes(self) -> list[psutil.Process]:
        """All that run from this folder."""
        found = []
        for process in psutil.process_iter():
            try:
                if str(self.folder) in " ".join([*process.cmdline(), process.cwd()]):
                    found.append(process)
            except psutil.Error:
                continue
        return found


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    # Not below pytest's own folder, which is closed to the accounts that tasks run under.
    made = Path(tempfile.mkdtemp(prefix="detlab-readme-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def stranger(folder: Path) -> Iterator[Stranger]:
    environment = _environment()
    # Tokens of this session do not belong to who runs the tests.
    environment["DET_DEBUG_CONFIG_PATH"] = str(folder / "client")
    clone = folder / "detlab"
    _copy_of_the_repository(clone)
    found = Stranger(clone, environment, _python(environment))
    yield found
    if found.terminal is not None and found.terminal.process.poll() is None:
        found.terminal.ctrl_c()
    for left in found.processes():
        left.kill()


@pytest.fixture
def report(record_property: Report, capsys: pytest.CaptureFixture[str]) -> Report:
    def both(name: str, value: object) -> None:
        record_property(name, value)
        with capsys.disabled():
            print(f"\n  {name}: {value}")

    return both


def test_without_python3_venv_there_is_one_line_to_type(stranger: Stranger, tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(stranger.folder / name, tmp_path)
    real = shutil.which("python3", path=stranger.environment["PATH"]) or sys.executable
    fake = tmp_path / "python-without-venv"
    fake.write_text(
        '#!/bin/sh\ncase "$*" in "-m venv "*) echo "ensurepip is not available"; exit 1;; esac\n'
        f'exec {real} "$@"\n'
    )
    fake.chmod(0o755)
    said = subprocess.run(
        ["make", "--no-print-directory", "up", f"PYTHON={fake}"],
        cwd=tmp_path,
        env=stranger.environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert said.returncode != 0
    assert said.stdout == NO_VENV + "\n"
    assert not (tmp_path / ".venv").exists()


def test_the_two_commands(stranger: Stranger, report: Report) -> None:
    begun = time.monotonic()
    terminal = stranger.make_up()
    terminal.wait_for_banner()
    report("make up, from nothing to the banner (s)", round(time.monotonic() - begun))
    assert f"http://127.0.0.1:{stranger.port}" in terminal.text
    lines = terminal.next_lines()
    assert lines == (
        "source .detlab/activate\ndet experiment create examples/digits/adaptive.yaml examples/digits -f"
    )
    assert all(line in (stranger.folder / "README.md").read_text() for line in lines.splitlines())
    begun = time.monotonic()
    shown = stranger.type(lines)
    report("the search, from typing to the result (s)", round(time.monotonic() - begun))
    assert shown.returncode == 0, shown.stdout[-3000:]
    assert re.search(r"^Experiment 1 COMPLETED after .*, 16 trials$", shown.stdout, re.MULTILINE), (
        shown.stdout[-800:]
    )
    best = re.search(r"^Best validation: accuracy = ([0-9.]+) ", shown.stdout, re.MULTILINE)
    assert best is not None
    report("best validation accuracy", best[1])
    assert float(best[1]) >= 0.95


def test_what_the_readme_says_next(stranger: Stranger) -> None:
    assert re.search(r"^ *1 .*digits .*COMPLETED", stranger.det("experiment list"), re.MULTILINE)
    assert (
        stranger.det("experiment describe 1").count("COMPLETED") > 16
    )  # the experiment, its trials, their validations
    assert "Ended with exit code 0" in stranger.det("trial logs 1")
    checkpoints = stranger.det("experiment list-checkpoints 1 --best 1 --csv")
    uuid = re.search(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", checkpoints)
    assert uuid is not None, checkpoints
    stranger.det(f"checkpoint download {uuid[0]}")
    files = stranger.folder / "checkpoints" / uuid[0]
    assert {"metadata.json", "state_dict.pth"} <= {path.name for path in files.iterdir()}


def test_secrets_are_their_owners(stranger: Stranger) -> None:
    kept, terminal = stranger.folder / ".detlab", stranger.terminal
    assert terminal is not None
    files = ("activate", "passwords", "master/agent-token", "master/hub-token", "master/master.db")
    for name in files:
        assert stat.S_IMODE((kept / name).stat().st_mode) == 0o600, name
    passwords = json.loads((kept / "passwords").read_text())
    assert passwords["admin"] in terminal.text
    assert (passwords["user"] in terminal.text) == (os.geteuid() == 0)  # else there is but one user
    secrets = [*passwords.values()]
    secrets += [(kept / name).read_text().strip() for name in files[2:4]]
    commands = [" ".join(process.cmdline()) for process in stranger.processes()]
    assert not any(secret in command for secret in secrets for command in commands)


def test_twice_does_no_harm(stranger: Stranger) -> None:
    again = stranger.make("up", f"PORT={stranger.port}")
    assert again.returncode == 0, again.stdout
    assert (
        f"Detlab runs already in {stranger.folder}/.detlab (http://127.0.0.1:{stranger.port}" in again.stdout
    )
    assert "It goes on running" in again.stdout
    assert "COMPLETED" in stranger.det("experiment list")


def test_a_second_copy_needs_another_port(stranger: Stranger) -> None:
    for port in (stranger.port, stranger.port - 3):  # the first of the four is taken, and the last
        other = stranger.make("up", f"PORT={port}", "DATA=.detlab-other")
        assert other.returncode != 0
        assert re.search(r"Port \d+, wanted for", other.stdout) and "make up PORT=9000" in other.stdout
        assert "Traceback" not in other.stdout


def test_make_test(stranger: Stranger, report: Report) -> None:
    begun = time.monotonic()
    tested = stranger.make("test", f"PYTEST_ARGS={QUICK_TEST}")
    report("make test, with one quick test (s)", round(time.monotonic() - begun))
    assert tested.returncode == 0, tested.stdout[-3000:]
    assert re.search(r"\d+ passed", tested.stdout)


def test_ctrl_c_ends_everything_and_the_next_make_up_goes_on(stranger: Stranger, report: Report) -> None:
    stranger.det("experiment create examples/digits/single.yaml examples/digits")
    wait_for(
        lambda: "COMPLETED" in stranger.det("experiment list-checkpoints 2"), "there is a checkpoint", 60
    )
    _end(stranger, report)
    begun = time.monotonic()
    terminal = stranger.make_up()
    terminal.wait_for_banner()
    report("make up, the second time (s)", round(time.monotonic() - begun, 1))
    stranger.det("experiment wait 2")
    log = stranger.det("trial logs 17")
    assert "run 2" in log
    _end(stranger, report)


def _end(stranger: Stranger, report: Report) -> None:
    terminal = stranger.terminal
    assert terminal is not None
    report("Ctrl-C to the end (s)", round(terminal.ctrl_c(), 1))
    assert "Detlab has ended." in terminal.text
    assert "Traceback" not in terminal.text
    assert not stranger.processes()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", stranger.port))
