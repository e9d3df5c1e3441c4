"""The benchmarks that drive the master's parts by themselves go on running: a small round of each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("search_events.py", ["--trials", "4", "8", "--methods", "random", "grid"]),
        ("checkpoint_rate.py", ["--mebibytes", "4"]),
        pytest.param("profiler_cost.py", ["--seconds", "1"], marks=pytest.mark.full),
        pytest.param(
            "master_scale.py", ["--ended", "2", "--running", "1", "--search", "20"], marks=pytest.mark.full
        ),
    ],
)
def test_a_small_round(name: str, options: list[str]) -> None:
    command = [sys.executable, str(REPO / "benchmarks" / name), "--rounds", "1", "--keep-nothing", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().splitlines()[-1].startswith("| "), "the last line is one of a table"
