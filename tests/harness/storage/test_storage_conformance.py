"""What every checkpoint storage does: folders, and buckets of an S3 server."""

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from determined.common import storage
from determined.common.storage import MANIFEST, StorageManager, transfer
from determined.errors import CheckpointNotFound, StorageError
from support.s3 import KEYS, S3Server

BLOCK = 8 << 20
LARGE = 2 * BLOCK + 12_345


@dataclass
class Place:
    """A storage, and what is in it as others see it."""

    config: dict[str, Any]
    read: Callable[[str], bytes]
    write: Callable[[str, bytes], None]
    remove: Callable[[str], None]
    names: Callable[[], list[str]]
    storage: StorageManager = field(init=False)

    def __post_init__(self) -> None:
        self.storage = storage.from_config(self.config)

    def owned(self) -> StorageManager:
        return storage.from_config(self.config, owner="task")


def _ignore(_: object) -> None:
    pass


def in_folder(folder: Path) -> Place:
    return Place(
        {"type": "directory", "container_path": str(folder)},
        read=lambda name: (folder / name).read_bytes(),
        write=lambda name, content: _ignore((folder / name).write_bytes(content)),
        remove=lambda name: (folder / name).unlink(),
        names=lambda: storage.list_files(folder) if folder.exists() else [],
    )


def in_bucket(server: S3Server) -> Place:
    prefix = f"some/{uuid.uuid4().hex}"
    return Place(
        server.config(prefix),
        read=lambda name: server.read(f"{prefix}/{name}"),
        write=lambda name, content: server.write(f"{prefix}/{name}", content),
        remove=lambda name: server.remove(f"{prefix}/{name}"),
        names=lambda: server.names(prefix),
    )


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "directory":
        return in_folder(tmp_path / "deep" / "store")
    return in_bucket(request.getfixturevalue("s3"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "code" / "empty").mkdir(parents=True)
    (folder / "code" / "größe.py").write_text("x = 1")
    (folder / "nothing").write_bytes(b"")
    (folder / "weights").write_bytes(os.urandom(LARGE))
    (folder / "exact").write_bytes(os.urandom(BLOCK))
    return folder


RESOURCES = {"code/": 0, "code/empty/": 0, "code/größe.py": 5, "exact": BLOCK, "nothing": 0, "weights": LARGE}


def tree(folder: Path) -> dict[str, bytes]:
    """All that is below a folder, hidden files too."""
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        found[f"{name}/" if path.is_dir() else name] = b"" if path.is_dir() else path.read_bytes()
    return found


def test_what_was_uploaded_is_downloaded(place: Place, source: Path, tmp_path: Path) -> None:
    place.storage.upload(source, "one")
    assert place.storage.resources("one") == RESOURCES
    place.storage.download("one", tmp_path / "to" / "here")
    assert tree(tmp_path / "to" / "here") == tree(source)
    place.storage.download("one", tmp_path / "some", lambda name: name in ("code/größe.py", "exact"))
    assert sorted(tree(tmp_path / "some")) == ["code/", "code/größe.py", "exact"]
    with place.storage.restore_path("one") as folder:
        read = tree(folder)
        read.pop(MANIFEST, None)
        assert read == tree(source)
    with place.storage.restore_path("one", lambda name: name == "nothing") as folder:
        assert (folder / "nothing").exists()


def test_a_checkpoint_appears_whole(place: Place) -> None:
    with place.storage.store_path("one") as path:
        (path / "sub").mkdir()
        (path / "sub" / "f").write_text("abc")
        with pytest.raises(CheckpointNotFound):
            place.storage.resources("one")
    assert place.storage.resources("one") == {"sub/": 0, "sub/f": 3}
    assert place.read("one/sub/f") == b"abc"
    recorded = json.loads(place.read(f"one/{MANIFEST}"))["files"]
    assert recorded["sub/f"]["crc32"] == ["352441c2"]


def test_an_error_leaves_nothing(place: Place, source: Path) -> None:
    with pytest.raises(ZeroDivisionError), place.storage.store_path("one") as path:
        (path / "f").write_text("abc")
        raise ZeroDivisionError
    assert place.names() == []
    (source / "unreadable").symlink_to("nowhere")
    with pytest.raises(StorageError, match="unreadable"):
        place.storage.upload(source, "two")
    assert place.names() == []


def test_a_killed_writer_leaves_no_checkpoint_and_its_next_run_cleans_up(place: Place, source: Path) -> None:
    code = (
        "import json, os, sys; from pathlib import Path; from determined.common import storage\n"
        "store = storage.from_config(json.loads(sys.argv[1]), owner='task')\n"
        "store.upload(Path(sys.argv[2]), 'whole'); store.add(Path(sys.argv[2]), 'half'); os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", code, json.dumps(place.config), str(source)]
    assert subprocess.run(command, check=False).returncode == -9
    for store in (place.storage, place.owned()):
        assert store.resources("whole") == RESOURCES
        with pytest.raises(CheckpointNotFound), store.restore_path("half"):
            pass
        with pytest.raises(CheckpointNotFound):
            store.resources("half")
    storage.from_config(place.config, owner="other").remove_incomplete()
    assert any("half" in name for name in place.names()), "it is somebody else's"
    place.owned().remove_incomplete()
    assert [name for name in place.names() if not name.startswith("whole/")] == []
    assert place.storage.resources("whole") == RESOURCES
    with pytest.raises(ValueError, match="without an owner"):
        place.storage.remove_incomplete()


def test_a_name_is_used_once_and_deleting_may_be_repeated(place: Place) -> None:
    with place.storage.store_path("one") as path:
        (path / "f").write_text("abc")
    with pytest.raises(StorageError, match="exists already"), place.storage.store_path("one") as path:
        (path / "f").write_text("other")
    assert place.read("one/f") == b"abc"
    place.storage.delete("one")
    place.storage.delete("one")
    with pytest.raises(CheckpointNotFound):
        place.storage.resources("one")
    assert place.names() == []


@pytest.mark.parametrize("name", ["", "..", "../other", ".incomplete-x", "a/b"])
def test_names_that_lead_elsewhere_are_refused(place: Place, name: str) -> None:
    for call in (place.storage.delete, place.storage.resources, place.storage.discard):
        with pytest.raises(StorageError, match="cannot be the name"):
            call(name)


def test_several_writers_make_one_checkpoint(place: Place, source: Path, tmp_path: Path) -> None:
    ranks = [place.owned() for _ in range(2)]
    folders = [tmp_path / f"rank{rank}" for rank in range(2)]
    for rank, folder in enumerate(folders):
        folder.mkdir()
        (folder / f"shard{rank}").write_bytes(os.urandom(1000))
    added = [rank.add(folder, "one") for rank, folder in zip(ranks, folders, strict=True)]
    with pytest.raises(CheckpointNotFound):
        place.storage.resources("one")
    ranks[0].complete("one", {**added[0], **added[1]})
    assert place.storage.resources("one") == {"shard0": 1000, "shard1": 1000}
    ranks[1].add(source, "two")
    ranks[0].discard("two")
    assert [name for name in place.names() if not name.startswith("one/")] == []


def test_what_was_changed_in_the_storage_is_found(place: Place, source: Path, tmp_path: Path) -> None:
    place.storage.upload(source, "one")
    damaged = bytearray(place.read("one/weights"))
    damaged[BLOCK + 1] ^= 1
    place.write("one/weights", bytes(damaged))
    with pytest.raises(StorageError, match=f"'weights' is damaged .* from byte {BLOCK} on"):
        place.storage.download("one", tmp_path / "to")
    assert not (tmp_path / "to" / "weights").exists(), "what is not whole has not its name"
    place.storage.download("one", tmp_path / "to", lambda name: name == "exact")
    place.write("one/weights", b"short")
    with pytest.raises(StorageError, match=r"'weights' is damaged .* 5 bytes there, and had"):
        place.storage.download("one", tmp_path / "to")


def test_without_a_manifest_checkpoints_are_loaded_unchecked(
    place: Place, source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place.storage.upload(source, "one")
    place.remove("one/nothing")
    place.storage.download("one", tmp_path / "less")
    assert not (tmp_path / "less" / "nothing").exists()
    assert "checkpoint one had a file nothing that is not in its storage any more" in caplog.text
    place.write(f"one/{MANIFEST}", b"{}")
    with pytest.raises(StorageError, match="is damaged, so nobody can tell"):
        place.storage.download("one", tmp_path / "to")
    place.write(f"one/{MANIFEST}", b'{"version": 2, "files": {}}')
    with pytest.raises(StorageError, match="version 2, and this program knows version 1"):
        place.storage.download("one", tmp_path / "to")
    place.remove(f"one/{MANIFEST}")
    place.write("one/weights", b"short")
    place.storage.download("one", tmp_path / "to")
    assert (tmp_path / "to" / "weights").read_bytes() == b"short"
    assert place.storage.resources("one")["weights"] == 5


def test_a_download_goes_on_where_it_was(
    place: Place, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.storage.upload(source, "one")
    blocks: list[tuple[str, int]] = []
    lock = threading.Lock()
    most = 2  # blocks before it breaks off
    bring = transfer._Arriving._bring

    def counted(self: Any, offset: int, buffer: memoryview, wanted: str | None) -> str:
        with lock:
            if len(blocks) == most:
                raise StorageError("the cable is out")
            blocks.append((self._name, offset))
        return bring(self, offset, buffer, wanted)

    monkeypatch.setattr(transfer._Arriving, "_bring", counted)
    with pytest.raises(StorageError, match="cable"):
        place.storage.download("one", tmp_path / "to")
    most = 1000
    place.storage.download("one", tmp_path / "to")
    assert tree(tmp_path / "to") == tree(source)
    assert len(blocks) == len(set(blocks)) == 5, "no block was fetched twice"
    place.storage.download("one", tmp_path / "to")
    assert len(blocks) == 5, "nothing to do"
    (tmp_path / "to" / "exact").write_bytes(bytes(BLOCK))
    place.storage.download("one", tmp_path / "to")
    assert blocks[5:] == [("exact", 0)]


def test_validation_writes_reads_and_deletes(place: Place) -> None:
    storage.validate(place.storage)
    assert place.names() == []


def test_no_secret_is_shown(place: Place) -> None:
    assert KEYS["secret_key"] not in repr(place.storage)


def test_files_beside_checkpoints(place: Place, tmp_path: Path) -> None:
    file = tmp_path / "events.tfevents.1"
    for content in (b"one", b"one and two", os.urandom(BLOCK + 1)):
        file.write_bytes(content)
        if len(content) > BLOCK:
            file = file.rename(tmp_path / "other")
        place.storage.put_file(file, f"cluster/tensorboard/{file.name}", shared=1)
        assert place.read(f"cluster/tensorboard/{file.name}") == content
    for path in ("", "/etc/x", "../x", "a/../../x", "a//b"):
        with pytest.raises(StorageError, match="cannot be the path of a file"):
            place.storage.put_file(file, path)
