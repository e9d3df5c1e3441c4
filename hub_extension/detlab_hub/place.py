"""Where an installation on one machine listens, and where it keeps what it keeps."""

from __future__ import annotations

import fcntl
import os
import socket
from dataclasses import dataclass
from pathlib import Path


class CannotStart(Exception):
    """Why this installation cannot start, and what to do; for whoever starts it."""


class AlreadyRuns(CannotStart):
    """It runs here already, and that is no misfortune."""

    def __init__(self, message: str, url: str) -> None:
        super().__init__(message)
        self.url = url  # of the one that runs


@dataclass(frozen=True)
class Place:
    """Ports and paths. The four ports stand side by side, so one number moves them all."""

    ip: str  # where people reach the Hub; the other ports are on the loopback
    port: int
    folder: Path

    @property
    def url(self) -> str:
        shown = "127.0.0.1" if self.ip in ("", "0.0.0.0") else self.ip
        return f"http://{shown}:{self.port}"

    @property
    def hub_port(self) -> int:
        return self.port + 1

    @property
    def proxy_api_port(self) -> int:
        return self.port + 2

    @property
    def master_port(self) -> int:
        return self.port + 3

    @property
    def master_url(self) -> str:
        return f"http://127.0.0.1:{self.master_port}"

    @property
    def hub(self) -> Path:
        return self.folder / "hub"

    @property
    def master(self) -> Path:
        return self.folder / "master"

    @property
    def agent(self) -> Path:
        return self.folder / "agent"

    @property
    def homes(self) -> Path:
        return self.folder / "homes"

    @property
    def passwords(self) -> Path:
        return self.folder / "passwords"

    @property
    def activate(self) -> Path:
        """A file to source in a terminal of this machine, to be the Hub's admin there."""
        return self.folder / "activate"

    @property
    def ending(self) -> Path:
        """There while all tasks are to end with the Hub, not only the Hub itself."""
        return self.hub / "ending"

    def log(self, part: str) -> Path:
        return self.folder / f"{part}.log"


def secret(path: Path, text: str) -> str:
    """The text of a file that only its owner can read; `text` is written where there is no file."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        written = path.with_suffix(".new")  # whole or not at all: a crash must not leave an empty secret
        written.unlink(missing_ok=True)
        with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text + "\n")
        written.rename(path)
        return text


def claim(place: Place) -> None:
    """Take the folder for this process, until it ends.

    Raises:
        AlreadyRuns: somebody else has it.
    """
    descriptor = os.open(place.hub / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 200, 0).decode() or "it is just starting"
        os.close(descriptor)
        raise AlreadyRuns(
            f"Detlab runs already in {place.folder} ({holder}). It goes on running; nothing was changed.\n"
            "A second copy beside it needs a port and a folder of its own: make up PORT=9000 DATA=.detlab-9000",
            holder.partition(",")[0],
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{place.url}, pid {os.getpid()}".encode(), 0)


def check_ports(place: Place, ours: frozenset[int]) -> None:
    """See that the ports can be had.

    Args:
        ours: ports that parts of this installation still listen on, after a Hub that was killed.

    Raises:
        CannotStart: somebody else has one.
    """
    for ip, port, use in (
        (place.ip, place.port, "JupyterHub"),
        ("127.0.0.1", place.hub_port, "the Hub's API"),
        ("127.0.0.1", place.proxy_api_port, "the proxy's API"),
        ("127.0.0.1", place.master_port, "the master"),
    ):
        if port in ours:
            continue
        with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ip, port))
            except OSError as error:
                raise CannotStart(
                    f"Port {port}, wanted for {use}, cannot be had ({error.strerror}).\n"
                    f"Detlab uses four ports from {place.port} on. For others: make up PORT=9000"
                ) from None
