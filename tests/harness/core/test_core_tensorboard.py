import math
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from determined import core
from determined.common.storage import DirectoryStorage
from determined.core import _tensorboard
from determined.core._events import event, record, scalars
from determined.errors import StorageError
from harness.core_stub_master import StubMaster

Point = tuple[int, str, float]


def points(folder: Path) -> list[Point]:
    """What TensorBoard itself reads in the event files of a folder."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    found = []
    for path in sorted(folder.glob("*tfevents*")):
        for read in loader.LegacyEventFileLoader(str(path)).Load():
            found += [(read.step, value.tag, value.simple_value) for value in read.summary.value]
    return found


def stored(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints" / "cluster" / "tensorboard" / "experiment" / "1" / "trial" / "2"


def test_reported_metrics_are_charted_under_the_names_of_determined(
    trial: StubMaster, tmp_path: Path
) -> None:
    with core.init() as context:
        context.train.report_training_metrics(
            1, {"loss": 0.5, "nested": {"a": 1.0}, "list": [1], "text": "x", "nan": math.nan}
        )
        context.train.report_training_metrics(3, {"loss": 9}, batch_metrics=[{"loss": 1}, {"loss": 2}])
        context.train.report_validation_metrics(3, {"loss": 1e300, "val_accuracy": 0.25})
        context.train.report_metrics("inference", 3, {"n": 7})
        context.train.report_metrics("texts", 3, {"text": "x"})
    first, second, *_, nan = sorted(points(stored(tmp_path)), key=lambda point: math.isnan(point[2]))
    assert (first, second) == ((1, "Determined/loss", 0.5), (1, "Determined/nested/a", 1.0))
    assert nan[1] == "Determined/nan"
    assert points(stored(tmp_path))[3:] == [
        (1, "Determined/loss", 1.0),
        (2, "Determined/loss", 2.0),
        (3, "Determined/val_loss", math.inf),
        (3, "Determined/val_accuracy", 0.25),
        (3, "Determined/inference/n", 7.0),
    ]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2**62),
            st.dictionaries(
                st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
                st.floats(width=32, allow_nan=False),
                min_size=1,
            ),
        )
    )
)
def test_tensorboard_reads_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, dict[str, float]]]
) -> None:
    folder = tmp_path_factory.mktemp("events")
    content = b"".join(record(event(1.5, step, values)) for step, values in rows)
    (folder / "events.out.tfevents.1").write_bytes(content)
    assert points(folder) == [(step, tag, value) for step, values in rows for tag, value in values.items()]


def test_scalars_are_the_numbers() -> None:
    found = dict(scalars({"a": 1, "b": {"c": {"d": True}}, "e": "Infinity", "f": None, "g": "1", "h": [1]}))
    assert found == {"a": 1.0, "b/c/d": 1.0, "e": math.inf}


def test_what_training_code_writes_is_copied_and_event_files_are_continued(
    trial: StubMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_tensorboard, "SYNC_SECONDS", 0.02)
    with core.init() as context:
        path = context.train.get_tensorboard_path()
        board, mine = stored(tmp_path) / "sub" / "x.tfevents.y", path / "sub" / "x.tfevents.y"
        mine.parent.mkdir()
        mine.write_text("one ")
        _wait(lambda: board.exists() and board.read_text() == "one ")
        with board.open() as followed:
            assert followed.read() == "one "
            with mine.open("a") as file:
                file.write("two")
            (path / "plain").write_text("before")
            _wait(lambda: board.read_text() == "one two" and (stored(tmp_path) / "plain").exists())
            assert followed.read() == "two"
        (path / "plain").write_text("after")
        (path / "last").write_text("x")
    assert (stored(tmp_path) / "plain").read_text() == "after"
    assert (stored(tmp_path) / "last").exists()


def test_in_manual_mode_nothing_is_copied_but_what_is_asked_for(trial: StubMaster, tmp_path: Path) -> None:
    with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
        path = context.train.get_tensorboard_path()
        (path / "sub").mkdir()
        for name in ("sub/a", "b", "c"):
            (path / name).write_text(name)
        context.train.report_training_metrics(1, {"loss": 1})
        seen: list[Path] = []

        def select(file: Path) -> bool:
            seen.append(file)
            return file.name != "c"

        context.train.upload_tensorboard_files(
            select, lambda file, rank: file.with_name(f"{file.name}.{rank}")
        )
        with pytest.raises(ValueError, match=r"'\.\./out'"):
            context.train.upload_tensorboard_files(mangler=lambda file, rank: Path("..", "out"))
    assert seen == [path / "b", path / "c", path / "sub" / "a"]
    found = {p.relative_to(stored(tmp_path)).as_posix() for p in stored(tmp_path).rglob("*") if p.is_file()}
    assert found == {"b.0", "sub/a.0"}


def test_files_go_where_the_master_looks_for_them_also_when_checkpoints_go_elsewhere(
    trial: StubMaster, tmp_path: Path
) -> None:
    with core.init(checkpoint_storage=tmp_path / "elsewhere") as context:
        context.train.report_training_metrics(1, {"loss": 1})
        with context.checkpoint.store_path({"steps_completed": 1}):
            pass
    assert points(stored(tmp_path)) == [(1, "Determined/loss", 1.0)]
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1


def test_in_auto_mode_an_upload_by_hand_is_refused(trial: StubMaster) -> None:
    with core.init() as context, pytest.raises(RuntimeError, match="MANUAL"):
        context.train.upload_tensorboard_files()


def test_a_storage_that_fails_costs_a_warning_and_is_tried_again(
    trial: StubMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_tensorboard, "SYNC_SECONDS", 0.02)
    real, tries = DirectoryStorage.put_file, 0

    def put_file(self: DirectoryStorage, source: Path, path: str, *, shared: int = 0) -> None:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise StorageError("the storage is away")
        real(self, source, path, shared=shared)

    monkeypatch.setattr(DirectoryStorage, "put_file", put_file)
    with core.init() as context:
        context.train.report_training_metrics(1, {"loss": 1})
        _wait(lambda: stored(tmp_path).exists())
    assert [r.getMessage() for r in caplog.records if "away" in r.getMessage()] == [
        "cannot copy files for TensorBoard: the storage is away; the training goes on"
    ]
    assert points(stored(tmp_path)) == [(1, "Determined/loss", 1.0)]


def test_a_storage_that_hangs_does_not_hold_the_loop_up(
    trial: StubMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_tensorboard, "SYNC_SECONDS", 0.0)
    hanging, go_on = threading.Event(), threading.Event()

    def put_file(self: DirectoryStorage, source: Path, path: str, *, shared: int = 0) -> None:
        hanging.set()
        assert go_on.wait(20)

    monkeypatch.setattr(DirectoryStorage, "put_file", put_file)
    with core.init() as context:
        context.train.report_training_metrics(1, {"loss": 1})
        assert hanging.wait(20)
        for step in range(2, 100):
            context.train.report_training_metrics(step, {"loss": 1})
        go_on.set()
    assert len(trial.sent("/metrics")) == 99


def test_elsewhere_the_files_stay_and_metrics_join_them_once_the_folder_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("DET_ALLOCATION_ID", raising=False)
    with core.init() as context:
        context.train.report_training_metrics(1, {"loss": 1})
    assert not list(tmp_path.rglob("*tfevents*"))
    with core.init() as context:
        path = context.train.get_tensorboard_path()
        context.train.report_training_metrics(2, {"loss": 2})
    assert path.is_relative_to(tmp_path)
    assert points(path) == [(2, "Determined/loss", 2.0)]
    with core.init(tensorboard_mode=core.TensorboardMode.MANUAL) as context:
        context.train.upload_tensorboard_files()


def _wait(condition: Any) -> None:
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen")


class TestPutFile:
    @pytest.mark.parametrize("path", ["", "/a", "a//b", "../a", "a/../../b", "a/.", "a/"])
    def test_paths_that_lead_elsewhere_are_refused(self, tmp_path: Path, path: str) -> None:
        (tmp_path / "f").write_text("x")
        with pytest.raises(StorageError, match="cannot be the path"):
            DirectoryStorage(tmp_path / "store").put_file(tmp_path / "f", path)

    def test_a_shorter_event_file_replaces_a_longer_one(self, tmp_path: Path) -> None:
        source, store = tmp_path / "f", DirectoryStorage(tmp_path / "store")
        for content in ("longer", "x", "xyz"):
            source.write_text(content)
            store.put_file(source, "a/f.tfevents.1")
            assert (tmp_path / "store" / "a" / "f.tfevents.1").read_text() == content

    def test_users_share_the_first_folders_only(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("x")
        DirectoryStorage(tmp_path / "store").put_file(tmp_path / "f", "a/b/c/f", shared=2)
        modes = [(tmp_path / "store" / p).stat().st_mode & 0o7777 for p in ("a", "a/b", "a/b/c")]
        assert modes == [0o1777, 0o1777, 0o700]

    def test_links_are_not_followed(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("x")
        store = tmp_path / "store"
        (store / "a").mkdir(parents=True)
        (store / "out").symlink_to(tmp_path)
        (store / "a" / "f").symlink_to(tmp_path / "stolen")
        for path in ("out/f", "a/f"):
            with pytest.raises(StorageError):
                DirectoryStorage(store).put_file(tmp_path / "f", path)
        assert not (tmp_path / "stolen").exists()

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
    def test_a_folder_that_another_user_prepared_is_not_used(self) -> None:
        # Not pytest's own folder: the other user may not pass through its parents, and other tests need them as they are.
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            folder.chmod(0o711)
            store = folder / "store"
            (store / "shared" / "mine").mkdir(parents=True)
            (store / "shared").chmod(0o1777)
            (store / "shared" / "mine").chmod(0o777)
            (folder / "f").write_text("x")
            (folder / "f").chmod(0o644)
            os.seteuid(70005)
            try:
                with pytest.raises(StorageError, match="belongs to another user"):
                    DirectoryStorage(store).put_file(folder / "f", "shared/mine/f", shared=1)
                DirectoryStorage(store).put_file(folder / "f", "shared/other/f", shared=1)
            finally:
                os.seteuid(0)
            assert (store / "shared" / "other" / "f").read_text() == "x"
