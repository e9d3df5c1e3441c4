"""Where processes meet, and how a message gets from one to the other."""

import contextlib
import os
import pickle
import socket
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from determined.errors import DistributedError

_LENGTH = struct.Struct(">Q")
# A machine that does not answer for a minute is gone: 30 s and six probes, or what was sent to it and not received (ms).
_PATIENCE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 6, "TCP_USER_TIMEOUT": 60_000}


@dataclass(frozen=True)
class TcpAddress:
    """Where a hub listens. `bind`: on which of its addresses; empty for all."""

    host: str
    port: int
    bind: str = ""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        return socket.create_server((self.bind, self.port), family=family, backlog=512)

    def connect(self, timeout: float) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout)


@dataclass(frozen=True)
class UnixAddress:
    """A socket in a folder that is its user's own."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def listen(self) -> socket.socket:
        with contextlib.suppress(FileExistsError):
            self.path.parent.mkdir(mode=0o700, parents=True)
        self._check_folder()
        listener = socket.socket(socket.AF_UNIX)
        try:
            try:
                listener.bind(str(self.path))
            except OSError:
                if self._is_alive():
                    raise
                self.path.unlink()  # left by a group that was killed
                listener.bind(str(self.path))
            listener.listen(512)
        except BaseException:
            listener.close()
            raise
        return listener

    def connect(self, timeout: float) -> socket.socket:
        self._check_folder()  # what listens in another user's would send us pickles
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout)
        try:
            connection.connect(str(self.path))
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_alive(self) -> bool:
        try:
            self.connect(1.0).close()
        except ConnectionRefusedError:
            return False
        return True

    def _check_folder(self) -> None:
        """Raises FileNotFoundError where there is none yet."""
        status = os.lstat(self.path.parent)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise DistributedError(
                f"{self.path.parent} is not a folder of this user alone: remove it, or set TMPDIR"
            )


Address = TcpAddress | UnixAddress
Buffer = bytes | bytearray
# An operation, how many there were before, and parts that are pickled.
Message = tuple[str, int, list[Buffer]]


def prepared(connection: socket.socket) -> socket.socket:
    """The connection, for messages that may take any time, from a peer that may vanish."""
    connection.settimeout(None)
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _PATIENCE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


def has_ended(connection: socket.socket) -> bool:
    """Whether the peer has closed it, and left nothing to be read."""
    connection.setblocking(False)
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.setblocking(True)


def send_message(connection: socket.socket, operation: str, call: int, parts: Sequence[Buffer]) -> None:
    head = pickle.dumps((operation, call, [len(part) for part in parts]))
    small = b"".join([_LENGTH.pack(len(head)), head, *(parts if _are_small(parts) else ())])
    connection.sendall(small)
    if not _are_small(parts):
        for part in parts:  # not put together first: they may be large
            connection.sendall(part)


def _are_small(parts: Sequence[Buffer]) -> bool:
    return sum(len(part) for part in parts) <= 1 << 16


def receive_message(connection: socket.socket) -> Message:
    """Raises EOFError when the connection ends before."""
    [length] = _LENGTH.unpack(receive_exactly(connection, _LENGTH.size))
    operation, call, sizes = pickle.loads(receive_exactly(connection, length))
    return operation, call, [receive_exactly(connection, size) for size in sizes]


def receive_exactly(connection: socket.socket, size: int) -> bytearray:
    """Raises EOFError when the connection ends before."""
    content = bytearray(size)
    view = memoryview(content)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise EOFError
        view = view[count:]
    return content
