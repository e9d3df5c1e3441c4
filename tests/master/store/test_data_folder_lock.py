from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from detlab_master.store.lock import DataFolderInUse, hold

HOLD = """
import sys
from pathlib import Path
from detlab_master.store.lock import DataFolderInUse, hold
try:
    with hold(Path(sys.argv[1]), "port 8080"):
        print("held", flush=True)
        sys.stdin.read()
except DataFolderInUse as error:
    sys.exit(str(error))
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_the_second_master_is_told_who_holds_the_folder_until_that_one_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    with holder(folder) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with holder(folder) as second:
            _, said = second.communicate(timeout=30)
        assert second.returncode == 1
        assert said.strip() == (
            f"the data folder {folder} is in use by a master (pid {first.pid}, port 8080);"
            " stop that one first, or give this one another folder with --data-dir"
        )
        with pytest.raises(DataFolderInUse, match=f"pid {first.pid}, port 8080"), hold(folder, "port 1"):
            raise AssertionError("two hold it")
        first.kill()  # with -9: the lock goes with its process
        first.wait(timeout=30)
    with hold(folder, "port 8081"):
        assert (folder / "master.holder").read_text() == f"pid {os.getpid()}, port 8081"


def test_the_folder_is_free_again_after_the_block(tmp_path: Path) -> None:
    for _ in range(2):
        with hold(tmp_path, "port 1"):
            pass
    with pytest.raises(KeyError), hold(tmp_path, "port 1"):
        raise KeyError
    with hold(tmp_path, "port 2"):
        assert (tmp_path / "master.holder").exists()
    assert not (tmp_path / "master.holder").exists()
