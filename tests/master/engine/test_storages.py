"""What the master does with files of checkpoints: in folders, and in buckets of an S3 server."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from determined.common import storage as harness
from determined.common.storage import MANIFEST, StorageManager
from detlab_master.core.errors import Invalid, NotFound
from detlab_master.engine.launch import FIRST_TASK_UID
from detlab_master.engine.storage import Storage, StorageUnreachable, StorageUnsupported
from detlab_master.engine.storage_local import LocalStorage
from detlab_master.engine.storage_s3 import BucketStorage
from support.s3 import BUCKET, KEYS, S3Server, breaking_proxy

UUID = "0b0f3a52-3f52-4d0c-8f0e-6a3a0e6f4c11"
OTHER = "1b0f3a52-3f52-4d0c-8f0e-6a3a0e6f4c11"


@dataclass
class Place:
    master: Storage
    tasks: StorageManager
    writer: Callable[[str], StorageManager]  # of a task
    names: Callable[[], list[str]]


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        folder = tmp_path / "store"
        folder.mkdir()
        uid = os.geteuid() or FIRST_TASK_UID

        def names() -> list[str]:
            return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())

        def writer(owner: str) -> StorageManager:
            return harness.DirectoryStorage(folder, owner=owner)

        return Place(LocalStorage(folder, uid), harness.DirectoryStorage(folder), writer, names)
    server: S3Server = request.getfixturevalue("s3")
    prefix = uuid.uuid4().hex
    config = server.config(prefix)

    def keys() -> list[str]:
        return [name for name in server.names(prefix) if not name.endswith("/")]

    return Place(
        BucketStorage(config, None),
        harness.from_config(config),
        lambda owner: harness.from_config(config, owner=owner),
        keys,
    )


def write(place: Place, name: str, files: dict[str, bytes]) -> None:
    with place.tasks.store_path(name) as path:
        for file, content in files.items():
            (path / file).parent.mkdir(parents=True, exist_ok=True)
            (path / file).write_bytes(content)
    if isinstance(place.tasks, harness.DirectoryStorage) and os.geteuid() == 0:
        os.chown(place.tasks.base / name, FIRST_TASK_UID, -1)


FILES = {"weights": b"w" * 1000, "code/a.py": b"a", "code/sub/b.py": b"bb", "metadata.json": b"{}"}
SIZES = {"weights": 1000, "code/": 0, "code/a.py": 1, "code/sub/": 0, "code/sub/b.py": 2, "metadata.json": 2}


def test_files_are_read_in_order(place: Place) -> None:
    write(place, UUID, FILES)
    found = {one.path: one.content.read() if one.content else None for one in place.master.read(UUID)}
    assert found.pop(MANIFEST)
    assert {path: content for path, content in found.items() if content is not None} == FILES
    assert [path for path, content in found.items() if content is None] == ["code", "code/sub"]
    ages = [one.changed for one in place.master.read(UUID)]
    assert max(ages) - min(ages) < 3600
    with pytest.raises(NotFound, match="not in its storage any more"):
        place.master.read(OTHER)
    for call in (place.master.read, lambda name: place.master.remove(name, ())):
        with pytest.raises(Invalid, match="is no checkpoint uuid"):
            call("../" + UUID)


def test_what_matches_is_removed(place: Place) -> None:
    write(place, UUID, FILES)
    write(place, OTHER, FILES)
    remove = place.master.remove
    assert remove(UUID, ()) == SIZES
    assert remove(UUID, ["nothing", "*.txt"]) == SIZES
    left = {path: size for path, size in SIZES.items() if path not in ("code/sub/", "code/sub/b.py")}
    assert remove(UUID, ["code/sub"]) == left
    left = {"weights": 1000, "code/": 0}
    assert remove(UUID, ["*.json", "**/*.py"]) == left, "the manifest is not the user's to remove"
    assert f"{UUID}/{MANIFEST}" in place.names()
    assert {path for path in place.tasks.resources(UUID) if not path.endswith("/")} == {"weights"}
    assert remove(UUID, ["w*"]) == {}
    assert [name for name in place.names() if not name.startswith(OTHER)] == []
    assert remove(UUID, ["**/*"]) == {} and remove(UUID, ()) == {}
    assert remove(OTHER, ()) == SIZES
    assert remove(OTHER, ["**/*"]) == {}
    assert place.names() == []
    for glob in ("", "/etc", "../x"):
        with pytest.raises(Invalid, match="cannot be taken"):
            remove(OTHER, [glob])


def test_a_tree_is_removed(place: Place, tmp_path: Path) -> None:
    (tmp_path / "events").write_text("x")
    for number in (1, 12):
        place.tasks.put_file(tmp_path / "events", f"c/tensorboard/experiment/{number}/trial/1/events")
        if isinstance(place.tasks, harness.DirectoryStorage) and os.geteuid() == 0:
            os.chown(place.tasks.base / "c" / "tensorboard" / "experiment" / str(number), FIRST_TASK_UID, -1)
    place.master.remove_tree(("c", "tensorboard", "experiment", "1"))
    place.master.remove_tree(("c", "tensorboard", "experiment", "1"))
    assert place.names() == ["c/tensorboard/experiment/12/trial/1/events"]


def test_what_ended_tasks_left_half_written_is_removed(place: Place, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "weights").write_bytes(b"x")
    for owner, name in (("7.a-b", UUID), ("7.a-b", OTHER), ("7.a", OTHER)):
        place.writer(owner).add(tmp_path / "source", name)
    write(place, "2b0f3a52-3f52-4d0c-8f0e-6a3a0e6f4c11", {"weights": b"w"})
    if isinstance(place.tasks, harness.DirectoryStorage) and os.geteuid() == 0:
        for folder in place.tasks.base.glob(".incomplete-*"):
            os.chown(folder, FIRST_TASK_UID, -1)
    place.master.remove_incomplete({"7", "7.a-b", "8"})
    left = [name for name in place.names() if not name.startswith("2b0f3a52")]
    assert left and not any("7.a-b" in name or UUID in name for name in left), "the other task may be at work"
    place.master.remove_incomplete({"7.a"})
    assert all(name.startswith("2b0f3a52") for name in place.names())


def test_half_a_checkpoint_is_no_checkpoint(s3: S3Server, tmp_path: Path) -> None:
    config = s3.config(uuid.uuid4().hex)
    (tmp_path / "weights").write_bytes(b"x")
    harness.from_config(config).add(tmp_path, UUID)
    master = BucketStorage(config, None)
    with pytest.raises(NotFound):
        master.read(UUID)
    assert master.remove(UUID, ["**/*"]) == {} and s3.names(config["prefix"]) == []


def test_a_connection_that_breaks_is_taken_up_where_it_was(s3: S3Server) -> None:
    prefix = uuid.uuid4().hex
    weights = os.urandom(3 << 20)
    s3.write(f"{prefix}/{UUID}/weights", weights)
    with breaking_proxy(s3.url) as proxy:
        master = BucketStorage(s3.config(prefix, proxy.url), None)
        master.remove(UUID, ())
        before = proxy.passed[1]
        proxy.cut()
        proxy.room = [1 << 20] * 3
        (found,) = master.read(UUID)
        files = master.read(UUID)
        content = next(files).content
        assert content is not None and content.read() == weights
        assert found.size == len(weights) and proxy.passed[1] - before < 2 * len(weights)
        assert not proxy.room, "connections broke"


def test_the_masters_own_credentials_are_for_its_own_storage(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["secret_key"])
    own = {"type": "s3", "bucket": BUCKET, "prefix": "own", "endpoint_url": s3.url}
    assert BucketStorage({**own, "save_trial_best": 3}, own).remove(UUID, ()) == {}
    for changes in ({"prefix": "theirs"}, {"bucket": "theirs"}, {"endpoint_url": "http://elsewhere"}):
        with pytest.raises(StorageUnsupported, match="no keys for s3://"):
            BucketStorage({**own, **changes}, own)
    with pytest.raises(StorageUnsupported, match="no keys for s3://"):
        BucketStorage(own, None)
    assert BucketStorage({**own, **KEYS}, None).remove(UUID, ()) == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bucket": "no-such-bucket"}, "there is no such bucket"),
        ({"endpoint_url": "http://127.0.0.1:9"}, "reached"),
    ],
)
def test_what_is_wrong_is_said_without_secrets(s3: S3Server, changes: dict[str, str], said: str) -> None:
    with pytest.raises(StorageUnreachable, match=said) as caught:
        BucketStorage({**s3.config("x"), **changes}, None).remove(UUID, ())
    assert not any(secret in str(caught.value) for secret in KEYS.values())
    with pytest.raises(StorageUnsupported, match="both or neither"):
        BucketStorage({"type": "s3", "bucket": "b", "access_key": "a"}, None)
