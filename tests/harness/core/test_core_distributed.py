import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from determined import core
from determined.core import _star
from determined.core._distributed import _tf_cluster
from determined.core._sockets import TcpAddress, UnixAddress
from determined.core._star import Star
from determined.errors import DistributedError
from harness.core.rank_processes import ranks
from support.cluster import free_port

DEADLINE = 60

EVERYTHING = """
import json
d = core.DistributedContext.from_torch_distributed()
rank = d.rank
found = [
    d.gather(rank), d.gather_local(rank), d.allgather({"rank": rank}), d.allgather_local(rank),
    d.broadcast(f"from {rank}"), d.broadcast_local(rank), d.broadcast("x" * 3_000_000) == "x" * 3_000_000,
    d.allgather(bytes([rank]) * 2_000_000)[-1][:1].hex(),
    [d.get_rank(), d.get_size(), d.get_local_rank(), d.get_num_agents()],
]
d.close()
out.write_text(json.dumps(found))
"""


@pytest.mark.parametrize(("size", "machines"), [(2, 1), (4, 2)])
def test_processes_gather_and_broadcast(tmp_path: Path, size: int, machines: int) -> None:
    with ranks(tmp_path, EVERYTHING, size, machines) as running:
        found = [json.loads(text) for text in running.results()]
        assert not running.sockets()
    here = size // machines
    for rank, (gathered, local, every, every_local, sent, sent_local, same, last, about) in enumerate(found):
        mine = [r for r in range(size) if r // here == rank // here]
        assert gathered == (list(range(size)) if rank == 0 else None)
        assert local == (mine if rank in range(0, size, here) else None)
        assert every == [{"rank": r} for r in range(size)]
        assert every_local == mine
        assert (sent, sent_local, same) == ("from 0", mine[0], True)
        assert last == f"{size - 1:02x}"
        assert about == [rank, size, rank % here, machines]


DIES = """
d = core.DistributedContext.from_torch_distributed()
d.allgather("all are here")
if d.rank == int(os.environ["VICTIM"]):
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        {call}
        time.sleep(0.01)
except DistributedError as e:
    out.write_text(str(e))
"""


@pytest.mark.parametrize(
    ("victim", "call", "machines"),
    [(0, "d.broadcast(1)", 1), (2, "d.gather(1)", 1), (2, "d.allgather(1)", 2), (0, "d.gather(1)", 2)],
)
def test_when_one_dies_the_others_fail_and_say_which(
    tmp_path: Path, victim: int, call: str, machines: int
) -> None:
    with ranks(tmp_path, DIES.replace("{call}", call), 4, machines, extra={"VICTIM": str(victim)}) as running:
        codes = running.codes()
    assert codes == [-9 if rank == victim else 0 for rank in range(4)], running.said(1)
    told = [(tmp_path / f"out-{rank}").read_text() for rank in range(4) if rank != victim]
    assert all(f"rank {victim} is gone" in text for text in told), told


FORKS = """
import multiprocessing
d = core.DistributedContext.from_torch_distributed()
d.allgather("all are here")
if d.rank == 1:
    # As the workers of a data loader do, it lives on when its parent is killed.
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    out.write_text(str(child.pid))
    os.kill(os.getpid(), signal.SIGKILL)
try:
    d.allgather(1)
except DistributedError as e:
    out.write_text(str(e))
"""


def test_a_forked_child_does_not_hide_the_death_of_its_parent(tmp_path: Path) -> None:
    with ranks(tmp_path, FORKS, 2) as running:
        assert running.codes() == [0, -9], running.said(0)
    os.kill(int((tmp_path / "out-1").read_text()), 9)
    assert "rank 1 is gone" in (tmp_path / "out-0").read_text()


# What follows has a thread for each process: the messages are the same.


def together(size: int, work: Callable[[int], Any]) -> list[Any]:
    """What `work(index)` returns or raises, for all indexes at the same time."""
    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(work, index) for index in range(size)]
        return [future.exception(DEADLINE) or future.result() for future in futures]


@contextlib.contextmanager
def group(address: Any, size: int) -> Iterator[Sequence[Star]]:
    stars = together(
        size, lambda i: Star(address, b"key", index=i, size=size, ranks=range(size), timeout=DEADLINE)
    )
    try:
        yield stars
    finally:
        for star in stars:
            star.close()


objects = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
calls = st.sampled_from(["gather", "allgather", "broadcast"])


@settings(max_examples=20, deadline=None)
@given(
    size=st.integers(2, 4),
    plan=st.lists(st.tuples(calls, st.lists(objects, min_size=4, max_size=4)), max_size=8),
)
def test_any_sequence_of_calls_gives_everyone_what_belongs_to_it(
    tmp_path_factory: pytest.TempPathFactory, size: int, plan: list[tuple[str, list[Any]]]
) -> None:
    with group(UnixAddress(tmp_path_factory.mktemp("s") / "g" / "s"), size) as stars:
        found = together(size, lambda i: [getattr(stars[i], name)(stuff[i]) for name, stuff in plan])
    for index in range(size):
        for (name, stuff), result in zip(plan, found[index], strict=True):
            if name == "broadcast":
                assert result == stuff[0]
            else:
                assert result == (stuff[:size] if index == 0 or name == "allgather" else None)


def test_ranks_that_are_out_of_step_are_told_so(tmp_path: Path) -> None:
    with group(UnixAddress(tmp_path / "g" / "s"), 3) as stars:
        found = together(3, lambda i: stars[i].broadcast(1) if i == 0 else stars[i].allgather(1))
        found += together(3, lambda i: stars[i].allgather(1))
    assert any("same calls in the same order" in str(error) for error in found), found
    assert all(isinstance(error, DistributedError) for error in found[3:])


def test_what_cannot_be_pickled_fails_where_it_is(tmp_path: Path) -> None:
    with (
        group(UnixAddress(tmp_path / "g" / "s"), 2) as stars,
        pytest.raises((pickle.PicklingError, AttributeError, TypeError)),
    ):
        stars[1].gather(lambda: None)


def test_strangers_are_not_let_in_and_do_not_disturb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_star, "_HANDSHAKE_SECONDS", 0.5)
    monkeypatch.setattr(_star, "_REFUSALS", 1)
    address = TcpAddress("127.0.0.1", free_port(), bind="127.0.0.1")
    hub: list[Star] = []
    thread = threading.Thread(
        target=lambda: hub.append(Star(address, b"key", index=0, size=2, ranks=[0, 1], timeout=DEADLINE))
    )
    thread.start()
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            silent = address.connect(5)
            break
    talking = address.connect(5)
    talking.sendall(pickle.dumps("run me") * 100)
    with pytest.raises(DistributedError, match="turns rank 1 away"):
        Star(address, b"other key", index=1, size=2, ranks=[0, 1], timeout=DEADLINE)
    worker = Star(address, b"key", index=1, size=2, ranks=[0, 1], timeout=DEADLINE)
    thread.join(DEADLINE)
    assert together(2, lambda i: [hub[0], worker][i].allgather(i)) == [[0, 1], [0, 1]]
    closing: list[socket.socket | Star] = [silent, talking, worker, *hub]
    for connection in closing:
        connection.close()


def test_a_hub_that_does_not_know_the_key_is_not_believed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"n" * 32)
                connection.recv(1000)
                connection.sendall(b"p" * 32)

        thread = threading.Thread(target=pretend)
        thread.start()
        address = TcpAddress("127.0.0.1", listener.getsockname()[1])
        with pytest.raises(DistributedError, match="does not belong to this training"):
            Star(address, b"key", index=1, size=2, ranks=[0, 1], timeout=DEADLINE)
        thread.join(DEADLINE)


def test_different_sizes_are_an_error_for_all(tmp_path: Path) -> None:
    address = UnixAddress(tmp_path / "g" / "s")

    def start(index: int) -> Any:
        star = Star(address, b"key", index=index, size=2 + index, ranks=range(3), timeout=DEADLINE)
        try:
            return star.broadcast(1)
        finally:
            star.close()

    found = together(2, start)
    assert all(isinstance(error, DistributedError) for error in found)
    assert all("the same sizes" in str(error) for error in found), found


def test_who_does_not_come_is_named(tmp_path: Path) -> None:
    address = UnixAddress(tmp_path / "g" / "s")
    with pytest.raises(DistributedError, match=r"in vain .* for ranks \[7, 8\]"):
        Star(address, b"key", index=0, size=3, ranks=[6, 7, 8], timeout=0.2)
    with pytest.raises(DistributedError, match="rank 8 has waited in vain for rank 6"):
        Star(address, b"key", index=2, size=3, ranks=[6, 7, 8], timeout=0.2)


def test_a_socket_that_a_killed_group_left_is_no_obstacle_and_a_living_one_is(tmp_path: Path) -> None:
    address = UnixAddress(tmp_path / "g" / "s")
    with address.listen(), pytest.raises(DistributedError, match="another training"):
        Star(address, b"key", index=0, size=2, ranks=[0, 1], timeout=1)
    assert address.path.exists()
    with group(address, 2) as stars:
        assert together(2, lambda i: stars[i].broadcast("x")) == ["x", "x"]


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    (tmp_path / "g").chmod(0o777)
    with pytest.raises(DistributedError, match="this user alone"):
        UnixAddress(tmp_path / "g" / "s").listen()
    # Nor by those who would believe what listens there: off the cluster the key is no secret.
    with socket.socket(socket.AF_UNIX) as another:
        another.bind(str(tmp_path / "g" / "s"))
        another.listen()
        with pytest.raises(DistributedError, match="this user alone"):
            Star(UnixAddress(tmp_path / "g" / "s"), b"key", index=1, size=2, ranks=[0, 1], timeout=1)


def test_after_close_calls_say_so(tmp_path: Path) -> None:
    with group(UnixAddress(tmp_path / "g" / "s"), 2) as stars:
        stars[1].close()
        with pytest.raises(DistributedError, match="closed"):
            stars[1].broadcast(1)


def test_force_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()

    def context(rank: int) -> core.DistributedContext:
        return core.DistributedContext(
            rank=rank,
            size=2,
            local_rank=rank,
            local_size=2,
            cross_rank=0,
            cross_size=1,
            pull_port=port - 5,
            port_offset=5,
            force_tcp=True,
        )

    contexts = together(2, context)
    assert together(2, lambda i: contexts[i].allgather(i)) == [[0, 1], [0, 1]]
    for one in contexts:
        one.close()


class TestMaking:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"rank": 1}, "rank is 1"),
            ({"local_rank": -1}, "local_rank is -1"),
            ({"cross_rank": 1}, "cross_rank is 1"),
            ({"size": 3, "local_size": 2}, "does not fit"),
            ({"size": 1, "cross_size": 2}, "does not fit"),
        ],
    )
    def test_numbers_that_do_not_fit_are_refused(self, changes: dict[str, int], message: str) -> None:
        fine = {"rank": 0, "size": 1, "local_rank": 0, "local_size": 1, "cross_rank": 0, "cross_size": 1}
        with pytest.raises(ValueError, match=message):
            core.DistributedContext(**fine | changes)  # type: ignore[arg-type]

    def test_machines_need_an_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("DET_CHIEF_IP", raising=False)
        with pytest.raises(ValueError, match="DET_CHIEF_IP"):
            core.DistributedContext(rank=0, size=2, local_rank=0, local_size=1, cross_rank=0, cross_size=2)

    def test_one_process_needs_nobody(self) -> None:
        context = core.DummyDistributedContext()
        assert isinstance(context, core.DistributedContext)
        thing = object()
        assert context.broadcast(thing) is thing
        assert context.allgather(1) == context.gather(1) == context.gather_local(1) == [1]
        context.close()

    def test_without_the_launcher_the_missing_variable_is_named(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("RANK", raising=False)
        with pytest.raises(ValueError, match="RANK is not set: start the script with torchrun"):
            core.DistributedContext.from_torch_distributed()
        monkeypatch.setenv("RANK", "one")
        with pytest.raises(ValueError, match="'one', which is no integer"):
            core.DistributedContext.from_torch_distributed()

    def test_from_horovod(self) -> None:
        class Horovod:
            rank = local_rank = cross_rank = staticmethod(lambda: 0)
            size = local_size = cross_size = staticmethod(lambda: 1)

        assert core.DistributedContext.from_horovod(Horovod).size == 1

    def test_from_deepspeed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_SIZE": 1}.items():
            monkeypatch.setenv(name, str(value))
        assert core.DistributedContext.from_deepspeed().size == 1

    def test_from_tf_config(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("TF_CONFIG", raising=False)
        assert core.DistributedContext.from_tf_config().size == 1
        cluster = {"worker": ["a:1", "b:2"], "chief": ["[::1]:3"]}

        def text(kind: str, index: int) -> str:
            return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})

        assert _tf_cluster(text("chief", 0)) == (["::1", "a", "b"], 0)
        assert _tf_cluster(text("worker", 1)) == (["::1", "a", "b"], 2)
        for wrong in ("{", "{}", "[]", text("ps", 0)):
            with pytest.raises(ValueError, match="TF_CONFIG does not describe"):
                _tf_cluster(wrong)


def test_core_needs_no_torch() -> None:
    code = "import sys, determined, determined.core; print([m for m in ('torch', 'zmq', 'psutil', 'tensorboard', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
