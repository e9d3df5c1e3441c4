"""How the processes of one trial talk to each other."""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar

from determined.core._sockets import Address, TcpAddress, UnixAddress
from determined.core._star import Star

T = TypeVar("T")

logger = logging.getLogger("determined.core")

PUB_PORT = 12360
PULL_PORT = 12376
_LONGEST_SOCKET_PATH = 100  # a Unix socket's has 107 bytes


class DistributedContext:
    """The processes of one trial. Give it to `core.init(distributed=...)`.

    All ranks call its methods, in the same order; a call returns when this rank has what it needs. Objects are
    pickled. When a rank dies, the calls of the others raise DistributedError.

    Args:
        rank, size: of this process among all; rank 0 is the chief.
        local_rank, local_size: among those of this machine.
        cross_rank, cross_size: of this machine among all.
        chief_ip: where the chief is reached; by default `DET_CHIEF_IP`. Processes of one machine need none.
        pub_port: where the chief listens, when it is reached by TCP.
        pull_port: where local rank 0 of each machine listens, when `force_tcp` leaves it no Unix socket.
        port_offset: is added to both, to tell several trainings on the same machines apart.
        force_tcp: use TCP between processes of one machine, too.

    Off the cluster and between machines, set `DET_DISTRIBUTED_KEY` to one secret on all of them: it keeps others on
    the network out. A trial has one of its own.
    """

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        local_rank: int,
        local_size: int,
        cross_rank: int,
        cross_size: int,
        chief_ip: str | None = None,
        pub_port: int = PUB_PORT,
        pull_port: int = PULL_PORT,
        port_offset: int = 0,
        force_tcp: bool = False,
    ) -> None:
        _check(rank=(rank, size), local_rank=(local_rank, local_size), cross_rank=(cross_rank, cross_size))
        if size < max(local_size, cross_size) or (cross_size == 1 and local_size != size):
            raise ValueError(
                f"size {size} does not fit local_size {local_size} and cross_size {cross_size}: "
                "it is the number of the processes of all machines"
            )
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self.local_size = local_size
        self.cross_rank = cross_rank
        self.cross_size = cross_size
        self._all: Star | None = None  # None: this process alone
        self._local: Star | None = None
        pub_port, pull_port = pub_port + port_offset, pull_port + port_offset
        try:
            local_ranks = list(range(size))
            if cross_size > 1:
                address = _chief_address(chief_ip, pub_port)
                self._all = Star(
                    address, _key(between_machines=True), index=rank, size=size, ranks=range(size)
                )
                local_ranks = self._ranks_here()
            if local_size > 1:
                self._local = Star(
                    _local_address(pub_port, pull_port, force_tcp),
                    _key(between_machines=False),
                    index=local_rank,
                    size=local_size,
                    ranks=local_ranks,
                )
        except BaseException:
            self.close()
            raise
        if cross_size == 1:
            self._all = self._local

    def _ranks_here(self) -> list[int]:
        """The ranks of this machine's processes, by their local ranks."""
        places = self.allgather((self.cross_rank, self.local_rank))
        try:
            return [places.index((self.cross_rank, i)) for i in range(self.local_size)]
        except ValueError:
            raise ValueError(
                f"of the {self.size} ranks, with these cross_rank and local_rank: {places}, {self.local_size} should "
                f"be on machine {self.cross_rank}"
            ) from None

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None) -> Self:
        """The processes that `torchrun` (`torch.distributed.run`) has started."""
        env = _Variables("from_torch_distributed()", "torchrun")
        return cls(
            rank=env.integer("RANK"),
            size=env.integer("WORLD_SIZE"),
            local_rank=env.integer("LOCAL_RANK"),
            local_size=env.integer("LOCAL_WORLD_SIZE"),
            cross_rank=env.integer("GROUP_RANK"),
            cross_size=env.integer("GROUP_WORLD_SIZE", default=env.machines("LOCAL_WORLD_SIZE")),
            chief_ip=chief_ip or os.environ.get("DET_CHIEF_IP") or os.environ.get("MASTER_ADDR"),
            **env.ports(),
        )

    @classmethod
    def from_horovod(cls, hvd: Any, chief_ip: str | None = None) -> Self:
        """The processes of Horovod: `from_horovod(horovod.torch)` after its `init()`."""
        return cls(
            rank=hvd.rank(),
            size=hvd.size(),
            local_rank=hvd.local_rank(),
            local_size=hvd.local_size(),
            cross_rank=hvd.cross_rank(),
            cross_size=hvd.cross_size(),
            chief_ip=chief_ip,
            **_Variables("from_horovod()", "horovodrun").ports(),
        )

    @classmethod
    def from_deepspeed(cls, chief_ip: str | None = None) -> Self:
        """The processes that the `deepspeed` command, or `torchrun`, has started."""
        env = _Variables("from_deepspeed()", "deepspeed")
        rank, local_rank = env.integer("RANK"), env.integer("LOCAL_RANK")
        local_size = env.integer("LOCAL_SIZE", "LOCAL_WORLD_SIZE")
        return cls(
            rank=rank,
            size=env.integer("WORLD_SIZE"),
            local_rank=local_rank,
            local_size=local_size,
            cross_rank=env.integer("CROSS_RANK", "GROUP_RANK", default=rank // max(1, local_size)),
            cross_size=env.integer(
                "CROSS_SIZE", "GROUP_WORLD_SIZE", default=env.machines("LOCAL_SIZE", "LOCAL_WORLD_SIZE")
            ),
            chief_ip=chief_ip or os.environ.get("DET_CHIEF_IP") or os.environ.get("MASTER_ADDR"),
            **env.ports(),
        )

    @classmethod
    def from_tf_config(cls) -> Self:
        """The processes that `TF_CONFIG` describes, one a machine; without it, this process alone."""
        hosts, rank = _tf_cluster(os.environ.get("TF_CONFIG"))
        return cls(
            rank=rank,
            size=len(hosts),
            local_rank=0,
            local_size=1,
            cross_rank=rank,
            cross_size=len(hosts),
            chief_ip=hosts[0],
            **_Variables("from_tf_config()", "the launcher").ports(),
        )

    def get_rank(self) -> int:
        return self.rank

    def get_local_rank(self) -> int:
        return self.local_rank

    def get_size(self) -> int:
        return self.size

    def get_num_agents(self) -> int:
        return self.cross_size

    def gather(self, stuff: T) -> list[T] | None:
        """Every rank's `stuff` in the order of the ranks on the chief, None elsewhere."""
        return [stuff] if self._all is None else self._all.gather(stuff)

    def gather_local(self, stuff: T) -> list[T] | None:
        """As `gather`, among the processes of this machine."""
        return [stuff] if self._local is None else self._local.gather(stuff)

    def allgather(self, stuff: T) -> list[T]:
        """Every rank's `stuff` in the order of the ranks, on each rank."""
        return [stuff] if self._all is None else self._all.allgather(stuff)

    def allgather_local(self, stuff: T) -> list[T]:
        """As `allgather`, among the processes of this machine."""
        return [stuff] if self._local is None else self._local.allgather(stuff)

    def broadcast(self, stuff: T) -> T:
        """The chief's `stuff`, on each rank."""
        return stuff if self._all is None else self._all.broadcast(stuff)

    def broadcast_local(self, stuff: T) -> T:
        """The `stuff` of local rank 0, on each process of this machine."""
        return stuff if self._local is None else self._local.broadcast(stuff)

    def close(self) -> None:
        """Leave. Calls of ranks that still wait for this one fail."""
        for star in (self._all, self._local):
            if star is not None:
                star.close()


class DummyDistributedContext(DistributedContext):
    """A trial of one process: it is the chief, and its messages go to itself."""

    def __init__(self) -> None:
        super().__init__(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)


class _Ports(TypedDict):
    pub_port: int
    pull_port: int


class _Variables:
    """The environment that a launcher has made for its processes."""

    def __init__(self, asked: str, launcher: str) -> None:
        self._asked = asked
        self._launcher = launcher

    def integer(self, *names: str, default: int | None = None) -> int:
        """The first of these that is set."""
        for name in names:
            value = os.environ.get(name)
            if value:
                try:
                    return int(value)
                except ValueError:
                    raise ValueError(f"{self._asked}: {name} is {value!r}, which is no integer") from None
        if default is None:
            raise ValueError(
                f"{self._asked}: {' or '.join(names)} is not set: start the script with {self._launcher}"
            )
        return default

    def machines(self, *local_size: str) -> int:
        """How many there are, where all have as many processes."""
        return -(-self.integer("WORLD_SIZE") // max(1, self.integer(*local_size)))

    def ports(self) -> _Ports:
        """Those that the cluster has set aside for this trial."""
        return {
            "pub_port": self.integer("INTER_TRAIN_PROCESS_COMM_PORT_1", default=PUB_PORT),
            "pull_port": self.integer("INTER_TRAIN_PROCESS_COMM_PORT_2", default=PULL_PORT),
        }


def _check(**given: tuple[int, int]) -> None:
    for name, (rank, size) in given.items():
        if not 0 <= rank < size:
            raise ValueError(f"{name} is {rank}: of {size} processes, it must lie between 0 and {size - 1}")


def _key(*, between_machines: bool) -> bytes:
    secret = os.environ.get("DET_SESSION_TOKEN") or os.environ.get("DET_DISTRIBUTED_KEY")
    if secret is None and between_machines:
        logger.warning(
            "whoever reaches the chief on the network can join this training: set DET_DISTRIBUTED_KEY to one "
            "secret on all machines"
        )
    return hashlib.sha256(b"determined.core.distributed" + (secret or "").encode()).digest()


def _chief_address(chief_ip: str | None, port: int) -> TcpAddress:
    host = chief_ip or os.environ.get("DET_CHIEF_IP")
    if not host:
        raise ValueError("processes on several machines need chief_ip, or DET_CHIEF_IP")
    is_loopback = host in ("localhost", "::1") or host.startswith("127.")
    return TcpAddress(host, port, bind=host if is_loopback else "")


def _local_address(pub_port: int, pull_port: int, force_tcp: bool) -> Address:
    """Where local rank 0 is found by the others of its machine, which share its environment."""
    if force_tcp:
        return TcpAddress("127.0.0.1", pull_port, bind="127.0.0.1")
    about = [os.environ.get(name, "") for name in ("DET_ALLOCATION_ID", "TORCHELASTIC_RUN_ID", "MASTER_PORT")]
    name = hashlib.sha256(json.dumps([*about, pub_port, pull_port]).encode()).hexdigest()[:16]
    inside = f"determined-{os.geteuid()}/{name}"
    path = Path(tempfile.gettempdir(), inside)
    return UnixAddress(path if len(str(path)) <= _LONGEST_SOCKET_PATH else Path("/tmp", inside))


def _tf_cluster(text: str | None) -> tuple[list[str], int]:
    """The hosts in the order of the ranks, and this process' rank."""
    if not text:
        return ["127.0.0.1"], 0
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        kinds = [
            kind
            for kind in ("chief", "master", "worker")
            if isinstance(cluster, Mapping) and cluster.get(kind)
        ]
        hosts = [str(host).rpartition(":")[0].strip("[]") for kind in kinds for host in cluster[kind]]
        before = sum(len(cluster[kind]) for kind in kinds[: kinds.index(task["type"])])
        return hosts, before + int(task["index"])
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"TF_CONFIG does not describe a cluster of workers ({e!r}): {text:.200}") from None
