"""Checkpoints that several processes save and load together."""

import contextlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from determined import core
from determined.common.storage import DirectoryStorage
from determined.core import DistributedContext
from determined.core._checkpoint import CheckpointContext, DummyCheckpointContext
from determined.core._sharded import check_names, merged_metadata
from determined.errors import CheckpointNotFound, StorageError
from harness.core.rank_processes import ranks
from harness.core_stub_master import StubMaster
from harness.ranks import on_ranks

SIZE = 3


def saving(storage: DirectoryStorage, save: Callable[[CheckpointContext, int], Any]) -> Sequence[Any]:
    def run(rank: DistributedContext) -> Any:
        return save(DummyCheckpointContext(storage, rank), rank.rank)

    return on_ranks(SIZE, run)


def write(folder: Path, names: Iterable[str]) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_each_rank_brings_its_files_and_its_metadata(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path / "storage")

    def save(checkpoint: CheckpointContext, rank: int) -> str:
        with checkpoint.store_path({"steps_completed": 5, f"rank{rank}": {"n": rank}}, shard=True) as (
            path,
            uuid,
        ):
            write(path, [f"model/part-{rank}", "metadata.json"])
        return uuid

    uuids = saving(storage, save)
    assert len(set(uuids)) == 1
    folder = storage.base / uuids[0]
    assert {name for name in storage.resources(uuids[0])} == {
        *("metadata.json", "model/", "model/part-0", "model/part-1", "model/part-2")
    }
    assert json.loads((folder / "metadata.json").read_text()) == {
        "steps_completed": 5,
        **{f"rank{rank}": {"n": rank} for rank in range(SIZE)},
    }
    storage.download(uuids[0], tmp_path / "checked")  # against the manifest


def test_a_rank_may_have_nothing_and_choose_files(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path / "storage")
    sources = [None, write(tmp_path / "a", ["a1", "skip"]), write(tmp_path / "b", ["b1", "skip"])]

    def save(checkpoint: CheckpointContext, rank: int) -> str:
        metadata = {"steps_completed": 1} if rank == 1 else None
        return checkpoint.upload(sources[rank], metadata, shard=True, selector=lambda name: name != "skip")

    uuid, *others = saving(storage, save)
    assert set(others) == {uuid}
    assert set(storage.resources(uuid)) == {"a1", "b1", "metadata.json"}


@pytest.mark.parametrize(
    ("save", "said"),
    [
        pytest.param(lambda c, r, f: c.upload(f[0], shard=True), "both bring 'x0'", id="the same file"),
        pytest.param(
            lambda c, r, f: c.upload(f[r], {"lr": r}, shard=True), "metadata lr is 1 on rank 1", id="metadata"
        ),
        pytest.param(
            lambda c, r, f: c.upload(f[r] / ("none" if r == 1 else ""), shard=True),
            "is not a folder",
            id="no folder",
        ),
        pytest.param(
            lambda c, r, f: c.upload(f[r], {"n": object()} if r == 2 else {}, shard=True),
            "must be JSON",
            id="metadata that is no JSON",
        ),
    ],
)
def test_what_does_not_fit_is_an_error_on_every_rank_and_leaves_nothing(
    tmp_path: Path, save: Callable[..., str], said: str
) -> None:
    storage = DirectoryStorage(tmp_path / "storage")
    folders = [write(tmp_path / f"source{rank}", [f"x{rank}"]) for rank in range(SIZE)]
    outcomes = saving(storage, lambda checkpoint, rank: save(checkpoint, rank, folders))
    assert all(isinstance(outcome, Exception) and said in str(outcome) for outcome in outcomes), outcomes
    assert not list(storage.base.glob("*"))


@pytest.mark.parametrize("moment", ["while writing", "add", "complete"])
def test_a_rank_that_fails_takes_the_checkpoint_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    class Failing(DirectoryStorage):
        def add(self, source: Path, *args: Any) -> Any:
            if moment == "add" and (source / "x1").exists():
                raise StorageError("the disk is full")
            return super().add(source, *args)

        def complete(self, *args: Any) -> None:
            if moment == "complete":
                raise StorageError("the disk is full")
            super().complete(*args)

    storage = Failing(tmp_path / "storage")

    def save(checkpoint: CheckpointContext, rank: int) -> None:
        with checkpoint.store_path(shard=True) as (path, _):
            write(path, [f"x{rank}"])
            if moment == "while writing" and rank == 1:
                raise ZeroDivisionError("the disk is full")

    outcomes = saving(storage, save)
    assert all("the disk is full" in str(outcome) for outcome in outcomes), outcomes
    failed = 0 if moment == "complete" else 1
    assert isinstance(outcomes[failed], ZeroDivisionError if moment == "while writing" else StorageError)
    assert all(f"rank {failed} failed" in str(one) for rank, one in enumerate(outcomes) if rank != failed)
    assert not list(storage.base.glob("*"))


def test_only_the_chief_saves_alone(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path / "storage")
    source = write(tmp_path / "source", ["x"])
    first, *others = saving(storage, lambda checkpoint, rank: checkpoint.upload(source))
    assert set(storage.resources(first)) == {"x", "metadata.json"}
    assert all(isinstance(other, RuntimeError) and "only the chief" in str(other) for other in others)


def test_the_chief_reports_what_all_have_brought(trial: StubMaster, tmp_path: Path) -> None:
    def run(rank: DistributedContext) -> str:
        context = core.init(distributed=rank)  # not started: signals are the main thread's
        with context.checkpoint.store_path({"steps_completed": 7}, shard=True) as (path, uuid):
            write(path, [f"part-{rank.rank}"])
        context.close()
        return uuid

    uuids = on_ranks(SIZE, run)
    [report] = trial.sent("/checkpoints")
    assert {report["uuid"]} == set(uuids)
    assert set(report["resources"]) == {"metadata.json", "part-0", "part-1", "part-2"}
    assert report["metadata"] == {"steps_completed": 7}


def test_steps_are_needed_in_a_trial_also_of_all_ranks_together(trial: StubMaster) -> None:
    def run(rank: DistributedContext) -> None:
        with contextlib.closing(core.init(distributed=rank)) as context:
            context.checkpoint.upload(None, {}, shard=True)

    assert all(isinstance(one, ValueError) and "steps_completed" in str(one) for one in on_ranks(SIZE, run))
    assert trial.sent("/checkpoints") == []


@pytest.mark.parametrize("mode", list(core.DownloadMode))
def test_a_machines_processes_download_once_or_each(tmp_path: Path, mode: core.DownloadMode) -> None:
    downloads: list[Path] = []

    class Counting(DirectoryStorage):
        def download(self, storage_id: str, destination: Path, *args: Any) -> None:
            downloads.append(destination)
            super().download(storage_id, destination, *args)

    storage = Counting(tmp_path / "storage")
    storage.upload(write(tmp_path / "source", ["a", "b"]), "one")

    def load(checkpoint: CheckpointContext, rank: int) -> list[str]:
        into = tmp_path / ("out" if mode is core.DownloadMode.LocalWorkersShareDownload else f"out{rank}")
        checkpoint.download("one", into, mode, selector=lambda name: name == "a")
        with checkpoint.restore_path("one", mode) as path:
            assert (path / "b").read_text() == "b"
        return [file.name for file in into.iterdir()]

    assert saving(storage, load) == [["a"]] * SIZE
    assert len(downloads) == (1 if mode is core.DownloadMode.LocalWorkersShareDownload else SIZE)

    def missing(checkpoint: CheckpointContext, rank: int) -> None:
        with checkpoint.restore_path("none", mode):
            pass

    assert all(isinstance(outcome, CheckpointNotFound) for outcome in saving(storage, missing))


# The laws of putting together

NAMES = st.lists(st.sampled_from(["a", "b", "c/", "c/d", "e/", "e"]), unique=True, max_size=4)


@given(st.lists(NAMES, min_size=1, max_size=4))
def test_names_fit_when_no_file_is_there_twice(shards: list[list[str]]) -> None:
    everything = [name for names in shards for name in names]
    files = [name for name in everything if not name.endswith("/")]
    folders = {name.removesuffix("/") for name in everything if name.endswith("/")}
    fits = len(files) == len(set(files)) and not folders & set(files)
    if fits:
        check_names(shards)
    else:
        with pytest.raises(ValueError, match="both bring"):
            check_names(shards)


METADATA = st.dictionaries(
    st.sampled_from("abc"),
    st.one_of(st.integers(0, 2), st.dictionaries(st.sampled_from("xy"), st.integers(0, 1))),
)


@given(METADATA, METADATA)
def test_metadata_is_merged_or_refused_whatever_the_order(a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    def outcome(*shards: Mapping[str, Any]) -> dict[str, Any] | None:
        try:
            return merged_metadata(shards)
        except ValueError:
            return None

    assert outcome(a, b) == outcome(b, a)
    assert outcome(a, a) == a
    assert outcome(a, {}) == a


# Over real processes: two machines with two each, of which one dies

SAVE_AND_LOAD = """
distributed = core.DistributedContext.from_torch_distributed()
store, rank = str(out.parent / "store"), distributed.rank
with core.init(distributed=distributed, checkpoint_storage=store) as context:
    with context.checkpoint.store_path({"steps_completed": 3, "by": {str(rank): True}}, shard=True) as (path, uuid):
        (path / f"part-{rank}").write_text(str(rank))
    with context.checkpoint.restore_path(uuid) as path:
        found = sorted(p.name for p in path.iterdir() if not p.name.startswith("."))
    assert context.checkpoint.get_metadata(uuid)["by"] == {str(i): True for i in range(4)}
    try:
        context.checkpoint.upload(path, {"steps_completed": 4}, shard=True)
    except ValueError as e:
        assert "both bring 'part-0'" in str(e), e
    distributed.allgather(None)
    out.write_text(" ".join([uuid, *found]))
    try:
        with context.checkpoint.store_path({"steps_completed": 5}, shard=True) as (path, uuid):
            (path / f"part-{rank}").write_text(str(rank))
            if rank == 3:
                os.kill(os.getpid(), signal.SIGKILL)
    except DistributedError as e:
        assert "rank 3 is gone" in str(e), e
"""


def test_over_real_processes_of_two_machines(tmp_path: Path) -> None:
    with ranks(tmp_path, SAVE_AND_LOAD, 4, machines=2) as running:
        assert running.codes() == [0, 0, 0, -9], [running.said(rank) for rank in range(4)]
    told = {(tmp_path / f"out-{rank}").read_text() for rank in range(4)}
    [said] = told
    uuid, *found = said.split()
    assert found == ["metadata.json", "part-0", "part-1", "part-2", "part-3"]
    assert [p.name for p in (tmp_path / "store").iterdir()] == [uuid]
