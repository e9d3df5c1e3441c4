"""Real processes that talk to each other as the ranks of one training."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.cluster import free_port, wait_for

_HEAD = """
import os, signal, sys, time
from pathlib import Path
from determined import core
from determined.errors import DistributedError
out = Path(sys.argv[1])
"""


@dataclass
class Ranks:
    """The processes of one script. `distributed` is not made for it: the script does it, in its own way."""

    folder: Path
    temporary: Path  # their own, and what is left in it
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def codes(self) -> list[int]:
        """The exit codes, once all have ended."""
        return [process.wait(60) for process in self.processes]

    def sockets(self) -> list[Path]:
        return [path for path in self.temporary.rglob("*") if path.is_socket()]

    def said(self, rank: int) -> str:
        return (self.folder / f"log-{rank}").read_text()

    def wait_for(self, *names: str) -> None:
        """Until files of these names are in the folder."""

        def ready() -> bool:
            ended = [rank for rank, process in enumerate(self.processes) if process.poll()]
            assert not ended, [self.said(rank) for rank in ended]
            return all((self.folder / name).exists() for name in names)

        wait_for(ready, f"the ranks to make {names}")

    def results(self) -> list[str]:
        """What the ranks have written to `out`."""
        assert self.codes() == [0] * len(self.processes), [self.said(i) for i in range(len(self.processes))]
        return [(self.folder / f"out-{rank}").read_text() for rank in range(len(self.processes))]


@contextmanager
def ranks(
    folder: Path, script: str, size: int, machines: int = 1, extra: dict[str, str] | None = None
) -> Iterator[Ranks]:
    """Run a script in `size` processes, with the variables that torchrun would set. It has `core`, `DistributedError`, and `out`, a path of its own."""
    here = size // machines
    port = free_port()
    # The path of a Unix socket has 107 bytes: in a folder with a longer one, those of all machines would be the same.
    started = Ranks(folder, Path(tempfile.mkdtemp(dir="/tmp")))
    try:
        for rank in range(size):
            environment = os.environ | {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(rank % here),
                "LOCAL_WORLD_SIZE": str(here),
                "GROUP_RANK": str(rank // here),
                "GROUP_WORLD_SIZE": str(machines),
                "MASTER_ADDR": "127.0.0.1",
                "INTER_TRAIN_PROCESS_COMM_PORT_1": str(port),
                "MASTER_PORT": str(port),
                "TMPDIR": str(started.temporary),
                "DET_DISTRIBUTED_KEY": "secret",
                **(extra or {}),
            }
            # Machines that are none: each has a temporary folder of its own.
            if machines > 1:
                environment["TMPDIR"] = str(started.temporary / str(rank // here))
                os.makedirs(environment["TMPDIR"], exist_ok=True)
            with open(folder / f"log-{rank}", "wb") as log:
                command = [sys.executable, "-c", _HEAD + script, str(folder / f"out-{rank}")]
                started.processes.append(
                    subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
                )
        yield started
    finally:
        for process in started.processes:
            process.kill()
            process.wait()
        shutil.rmtree(started.temporary)
