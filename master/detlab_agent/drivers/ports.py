"""Ports on which the processes of one task find each other.

Tasks of one machine share its network, so each allocation gets ports of its own. Which ones follows from its id: agents
that run parts of the same allocation come to the same ports without talking to each other.
"""

from __future__ import annotations

import errno
import hashlib
import socket
from collections.abc import Callable, Collection

# As the training processes know them. The first is of sshd, the last of torch.distributed's rendezvous.
VARIABLES = (
    "DTRAIN_SSH_PORT",
    "INTER_TRAIN_PROCESS_COMM_PORT_1",
    "INTER_TRAIN_PROCESS_COMM_PORT_2",
    "C10D_PORT",
)
FIRST, BLOCKS = 12350, 4000  # up to 28349: below what kernels give to clients


def is_free(port: int) -> bool:
    """Whether a task could listen there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as e:
            return e.errno != errno.EADDRINUSE
        return True


def choose_ports(
    allocation_id: str, taken: Collection[int], free: Callable[[int], bool] = is_free
) -> tuple[int, dict[str, str]]:
    """The first port, which stands for all of the allocation's, and the variables that name them.

    Args:
        taken: first ports of other allocations, which need not listen yet.

    Raises:
        OSError: not one of 4,000 blocks is free.
    """
    start = int.from_bytes(hashlib.sha256(allocation_id.encode()).digest()[:8]) % BLOCKS
    for i in range(BLOCKS):
        first = FIRST + (start + i) % BLOCKS * len(VARIABLES)
        ports = range(first, first + len(VARIABLES))
        if first not in taken and all(free(port) for port in ports):
            return first, {name: str(port) for name, port in zip(VARIABLES, ports, strict=True)}
    raise OSError(errno.EADDRINUSE, "no ports are free for the task's processes to find each other")
