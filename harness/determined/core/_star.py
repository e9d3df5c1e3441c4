"""A group of processes that exchange messages through one of them, the hub.

Every other process holds one connection to the hub. A process that dies closes its connection, so the hub sees it, tells
the others, and every process has an error instead of a wait without end. A machine that vanishes from the network is
noticed by the probes of TCP.

Messages are pickled, and unpickling runs code. Both ends therefore prove first that they know the group's key
(HMAC-SHA-256 over both sides' random numbers); nothing is unpickled before that.
"""

import contextlib
import hashlib
import hmac
import os
import pickle
import selectors
import socket
import struct
import time
import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

from determined.core._sockets import (
    Address,
    Buffer,
    Message,
    UnixAddress,
    has_ended,
    prepared,
    receive_exactly,
    receive_message,
    send_message,
)
from determined.errors import DistributedError

CONNECT_SECONDS = 600.0  # for all processes to start; PyTorch's own rendezvous gives as much
_HANDSHAKE_SECONDS = 10.0  # a stranger that connects and says nothing must not keep the others out
_PAUSE = 0.1
_REFUSALS = 20  # one may be an accident of two that start at the same time
_NONCE = 32
_HELLO = struct.Struct(">QQ")  # the index of a process in the group, and the size of the group
_FAILED = "failed"


class Star:
    """A group of `size` processes; this one is the `index`-th. Index 0 is the hub.

    The processes must call the same methods in the same order. Making it waits for all of them.

    Args:
        ranks: by which the processes are named in errors, by index.

    Raises:
        DistributedError: a process has died, did not come in time, or the processes are out of step; from any
            method. Once it was raised the group is of no more use.
    """

    def __init__(
        self,
        address: Address,
        key: bytes,
        *,
        index: int,
        size: int,
        ranks: Sequence[int],
        timeout: float = CONNECT_SECONDS,
    ) -> None:
        self._address = address
        self._key = key
        self._index = index
        self._size = size
        self._ranks = ranks
        self._peers: dict[int, socket.socket] = {}  # by index: of the hub all, elsewhere the hub
        self._calls = 0
        self._error: str | None = None
        _in_this_process.add(self)
        deadline = time.monotonic() + timeout
        try:
            if index == 0:
                self._accept(deadline)
            else:
                self._connect(deadline)
        except BaseException:
            self.close()
            raise

    def gather(self, stuff: Any) -> list[Any] | None:
        """Everybody's `stuff` by index, at the hub; None elsewhere."""
        self._begin()
        mine = pickle.dumps(stuff)
        if self._index == 0:
            return [pickle.loads(part) for part in self._collect("gather", mine)]
        self._send(0, "gather", [mine])
        return None

    def allgather(self, stuff: Any) -> list[Any]:
        """Everybody's `stuff` by index."""
        self._begin()
        mine = pickle.dumps(stuff)
        if self._index == 0:
            parts = self._collect("allgather", mine)
            self._send_all("allgather", parts)
        else:
            self._send(0, "allgather", [mine])
            parts = self._receive(0, "allgather")
        return [pickle.loads(part) for part in parts]

    def broadcast(self, stuff: Any) -> Any:
        """The hub's `stuff`. The hub gets its own object back, the others get copies."""
        self._begin()
        if self._index == 0:
            self._send_all("broadcast", [pickle.dumps(stuff)])
            return stuff
        [part] = self._receive(0, "broadcast")
        return pickle.loads(part)

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
        self._error = self._error or "the distributed context is closed"

    def forget(self) -> None:
        """In a child that was forked: a connection that it holds open would hide the death of its parent."""
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                os.close(peer.detach())
        self._peers.clear()
        self._error = (
            "this process was forked from one that belongs to a distributed training: it does not itself"
        )

    # Messages

    def _begin(self) -> None:
        if self._error is not None:
            raise DistributedError(self._error)
        self._calls += 1

    def _collect(self, operation: str, mine: Buffer) -> list[Buffer]:
        """The hub: one part of each process."""
        parts: dict[int, Buffer] = {0: mine}
        with selectors.DefaultSelector() as selector:
            for index, peer in self._peers.items():
                selector.register(peer, selectors.EVENT_READ, index)
            while len(parts) < self._size:
                for ready, _ in selector.select():
                    [parts[ready.data]] = self._receive(ready.data, operation)
                    selector.unregister(ready.fileobj)
        return [parts[index] for index in range(self._size)]

    def _send_all(self, operation: str, parts: Sequence[Buffer]) -> None:
        for index in self._peers.copy():
            self._send(index, operation, parts)

    def _send(self, index: int, operation: str, parts: Sequence[Buffer]) -> None:
        try:
            send_message(self._peers[index], operation, self._calls, parts)
        except OSError as e:
            # What the other had to say before it left explains more.
            with contextlib.suppress(OSError, EOFError):
                self._check(index, operation, receive_message(self._peers[index]))
            self._fail(self._gone(index, operation), e)

    def _receive(self, index: int, operation: str) -> list[Buffer]:
        try:
            message = receive_message(self._peers[index])
        except (OSError, EOFError) as e:
            self._fail(self._gone(index, operation), e)
        return self._check(index, operation, message)

    def _check(self, index: int, operation: str, message: Message) -> list[Buffer]:
        theirs, call, parts = message
        if theirs == _FAILED:
            self._fail(bytes(parts[0]).decode())
        if (theirs, call) != (operation, self._calls):
            self._fail(
                f"rank {self._ranks[self._index]} calls {operation}() as call {self._calls}, and rank "
                f"{self._ranks[index]} {theirs}() as call {call}: all ranks must make the same calls in the same order"
            )
        return parts

    def _gone(self, index: int, operation: str) -> str:
        return (
            f"rank {self._ranks[index]} is gone, which rank {self._ranks[self._index]} found in {operation}(): "
            "look at the end of its log for the reason"
        )

    def _fail(self, text: str, cause: BaseException | None = None) -> NoReturn:
        """Tell the others, and give up."""
        self._error = text
        for peer in self._peers.values():
            with contextlib.suppress(OSError):
                peer.settimeout(1.0)
                send_message(peer, _FAILED, self._calls, [text.encode()])
        self.close()
        raise DistributedError(text) from cause

    # Meeting

    def _accept(self, deadline: float) -> None:
        if self._size == 1:
            return
        try:
            listener = self._address.listen()
        except OSError as e:
            raise DistributedError(
                f"rank {self._ranks[0]} cannot listen at {self._address} ({e.strerror}): does another training "
                "use the same ports on this machine? See port_offset of DistributedContext"
            ) from e
        with listener:
            while len(self._peers) < self._size - 1:
                listener.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    missing = [self._ranks[i] for i in range(1, self._size) if i not in self._peers]
                    raise DistributedError(
                        f"rank {self._ranks[0]} has waited in vain at {self._address} for ranks {missing}: "
                        "look at their logs"
                    ) from None
                self._admit(connection)
        if isinstance(self._address, UnixAddress):
            with contextlib.suppress(OSError):
                self._address.path.unlink()

    def _admit(self, connection: socket.socket) -> None:
        """Let a process in that knows the key. Others are sent away."""
        try:
            connection.settimeout(_HANDSHAKE_SECONDS)
            nonce = os.urandom(_NONCE)
            connection.sendall(nonce)
            hello = receive_exactly(connection, _HELLO.size + _NONCE + hashlib.sha256().digest_size)
            about, proof = hello[: _HELLO.size + _NONCE], hello[_HELLO.size + _NONCE :]
            if not hmac.compare_digest(proof, self._proof(b"spoke", nonce, about)):
                raise EOFError
            connection.sendall(self._proof(b"hub", nonce, about))
        except (OSError, EOFError):
            connection.close()
            return
        index, size = _HELLO.unpack(about[: _HELLO.size])
        if size != self._size or not 0 < index < size:
            self._peers[index] = connection
            self._fail(
                f"a process joined as number {index} of {size}, but rank {self._ranks[0]} was told of "
                f"{self._size}: all ranks must be given the same sizes"
            )
        old = self._peers.get(index)
        if old is not None and not has_ended(old):
            connection.close()  # of another training, or one that took another's rank
            return
        self._peers[index] = prepared(connection)

    def _connect(self, deadline: float) -> None:
        refusals = 0
        while True:
            try:
                connection = self._address.connect(_HANDSHAKE_SECONDS)
                try:
                    self._introduce(connection)
                except BaseException:
                    connection.close()
                    raise
                self._peers[0] = prepared(connection)
                return
            except EOFError:
                refusals += 1
            except OSError:
                pass  # it does not listen yet
            if refusals == _REFUSALS:
                raise DistributedError(
                    f"what listens at {self._address} turns rank {self._ranks[self._index]} away: is there another "
                    "process of that rank, another training with the same ports, or another DET_DISTRIBUTED_KEY?"
                )
            if time.monotonic() >= deadline:
                raise DistributedError(
                    f"rank {self._ranks[self._index]} has waited in vain for rank {self._ranks[0]} at "
                    f"{self._address}: look at its log, and whether this address is reached from here"
                )
            time.sleep(_PAUSE)

    def _introduce(self, connection: socket.socket) -> None:
        nonce = receive_exactly(connection, _NONCE)
        about = _HELLO.pack(self._index, self._size) + os.urandom(_NONCE)
        connection.sendall(about + self._proof(b"spoke", nonce, about))
        answer = receive_exactly(connection, hashlib.sha256().digest_size)
        if not hmac.compare_digest(answer, self._proof(b"hub", nonce, about)):
            raise DistributedError(f"what listens at {self._address} does not belong to this training")

    def _proof(self, role: bytes, nonce: Buffer, about: Buffer) -> bytes:
        return hmac.digest(self._key, role + nonce + about, "sha256")


_in_this_process: weakref.WeakSet[Star] = weakref.WeakSet()


def _forget_all() -> None:
    for star in list(_in_this_process):
        star.forget()


os.register_at_fork(after_in_child=_forget_all)
