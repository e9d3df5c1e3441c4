import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from determined.common import storage
from determined.common.storage import DirectoryStorage
from determined.errors import CheckpointNotFound, StorageError
from support.disks import small_disk


def test_a_killed_writer_leaves_no_checkpoint_and_its_next_run_cleans_up(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from determined.common.storage import DirectoryStorage\n"
        "with DirectoryStorage(Path(sys.argv[1]), owner='task').store_path('one') as path:\n"
        "    (path / 'f').write_text('abc'); os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    store = DirectoryStorage(tmp_path, owner="task")
    with pytest.raises(CheckpointNotFound), store.restore_path("one"):
        pass
    assert os.listdir(tmp_path) == [".incomplete-task-one"]
    store.remove_incomplete()
    assert os.listdir(tmp_path) == []


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    source, data = tmp_path / "source", tmp_path / "data"
    source.mkdir()
    data.mkdir()
    (data / "f").write_text("abc")
    (source / "linked").symlink_to(data)
    store = DirectoryStorage(tmp_path / "store")
    store.upload(source, "one")
    assert store.resources("one") == {"linked/": 0, "linked/f": 3}
    (source / "circle").symlink_to(source)
    with pytest.raises(StorageError, match="a link to a folder that it lies in"):
        store.upload(source, "two")
    assert sorted(os.listdir(tmp_path / "store")) == ["one"]


@pytest.mark.parametrize(
    ("config", "folder"),
    [
        ({"type": "shared_fs", "host_path": "/a"}, "/a"),
        ({"type": "shared_fs", "host_path": "/a", "storage_path": "b/c"}, "/a/b/c"),
        ({"type": "shared_fs", "host_path": "/a", "storage_path": "/a/b"}, "/a/b"),
        ({"type": "shared_fs", "host_path": "/a", "tensorboard_path": "t"}, "/a/t"),
        ({"type": "directory", "container_path": "/d"}, "/d"),
    ],
)
def test_configs_name_a_folder(config: dict[str, Any], folder: str) -> None:
    store = storage.from_config({"save_trial_best": 1, **config})
    assert isinstance(store, DirectoryStorage)
    assert store.base == Path(folder)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "type is None"),
        ({"type": "gcs", "bucket": "b"}, "'gcs': this version knows shared_fs, directory, s3"),
        ({"type": "s3"}, "needs the name of a bucket"),
        ({"type": "s3", "bucket": "b", "prefix": "a/../b"}, "must not contain '..'"),
        ({"type": "s3", "bucket": "b", "access_key": {"a": 1}, "secret_key": "s"}, "must be texts"),
        ({"type": "s3", "bucket": "b", "access_key": "a"}, "both or neither"),
        ({"type": "s3", "bucket": "b", "endpoint_url": "localhost:9000"}, "expected http://HOST:PORT"),
        ({"type": "s3", "bucket": "b", "endpoint_url": "http://a:b@c"}, "has a password in it"),
        ({"type": "shared_fs"}, "host_path"),
        ({"type": "shared_fs", "host_path": "a"}, "absolute"),
        ({"type": "shared_fs", "host_path": "/a", "storage_path": "../b"}, "outside"),
        ({"type": "shared_fs", "host_path": "/a", "storage_path": "/b"}, "outside"),
        ({"type": "directory"}, "container_path"),
    ],
)
def test_wrong_configs_say_what_is_wrong(config: dict[str, Any], said: str) -> None:
    with pytest.raises(StorageError, match=said):
        storage.from_config(config)


def test_validation_writes_reads_and_deletes(tmp_path: Path) -> None:
    storage.validate(DirectoryStorage(tmp_path / "good"))
    assert os.listdir(tmp_path / "good") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write the checkpoint"):
        storage.validate(DirectoryStorage(tmp_path / "file"))


def test_a_disk_that_fills_up_is_said_and_leaves_no_checkpoint(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "weights").write_bytes(bytes(6 << 20))
    with small_disk(tmp_path / "small", 4):
        base = tmp_path / "small" / "store"
        store = DirectoryStorage(base, owner="task")
        with pytest.raises(StorageError, match="is full; free some space there"):
            store.upload(source, "one")
        with pytest.raises(StorageError, match="is full; free some space there"):
            store.add(source, "one")
        store.discard("one")
        with (
            pytest.raises(StorageError, match="is full; free some space there"),
            store.store_path("one") as path,
            open(path / "weights", "wb") as file,
        ):
            file.write(bytes(6 << 20))
        assert os.listdir(base) == []
        (source / "weights").write_bytes(b"fits")
        store.upload(source, "one")
        assert store.resources("one") == {"weights": 4}
