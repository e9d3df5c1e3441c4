"""What is particular to buckets: connections that break, other programs' objects, keys, and the library."""

import json
import logging
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from determined import core
from determined.common import storage
from determined.common.storage import MANIFEST
from determined.common.storage.bucket import Bucket
from determined.common.storage.s3 import S3Storage
from determined.errors import CheckpointNotFound, StorageError
from support.disks import fill, small_disk
from support.s3 import BUCKET, KEYS, BreakingProxy, S3Server, breaking_proxy

BLOCK = 8 << 20
WEIGHTS = 3 * BLOCK + 12_345


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[BreakingProxy]:
    with breaking_proxy(s3.url) as running:
        yield running


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "weights").write_bytes(os.urandom(WEIGHTS))
    for number in range(5):
        (folder / f"small{number}").write_bytes(os.urandom(100_000))
    return folder


def opened(server: S3Server, prefix: str, url: str = "", patience: float = 30.0) -> S3Storage:
    return S3Storage(Bucket.from_config(server.config(prefix, url), patience=patience), owner="task")


def same(one: Path, other: Path) -> bool:
    return {p.name: p.read_bytes() for p in one.iterdir()} == {
        p.name: p.read_bytes() for p in other.iterdir()
    }


def unfinished(server: S3Server, prefix: str) -> list[Any]:
    return list(server.client.list_multipart_uploads(Bucket=BUCKET, Prefix=prefix).get("Uploads", ()))


def test_transfers_outlive_connections_that_break(
    s3: S3Server, prefix: str, proxy: BreakingProxy, source: Path, tmp_path: Path
) -> None:
    store = opened(s3, prefix, proxy.url)
    proxy.room = [3 << 20] * 6
    store.upload(source, "one")
    assert not proxy.room, "connections broke"
    assert proxy.passed[0] < WEIGHTS + 4 * BLOCK, "blocks that had arrived were not sent again"
    proxy.room = [3 << 20] * 6
    proxy.cut()
    store.download("one", tmp_path / "to")
    assert not proxy.room and proxy.passed[1] < WEIGHTS + 8 * BLOCK
    assert same(source, tmp_path / "to")


def test_an_upload_is_taken_up_where_it_was(
    s3: S3Server, prefix: str, proxy: BreakingProxy, source: Path, tmp_path: Path
) -> None:
    store = opened(s3, prefix, proxy.url, patience=0)
    sent: list[int] = []
    put_part = Bucket.put_part

    def broken(self: Bucket, upload: Any, number: int, content: bytes) -> str:
        if number == 3:
            proxy.away = True
            proxy.cut()
        answer = put_part(self, upload, number, content)
        sent.append(number)
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bucket, "put_part", broken)
        with pytest.raises(StorageError, match="cannot be reached"):
            store.add(source, "one")
    assert 3 not in sent and [upload["Key"] for upload in unfinished(s3, prefix)] == [f"{prefix}/one/weights"]
    proxy.away = False
    for reader in (store, opened(s3, prefix)):
        with pytest.raises(CheckpointNotFound):
            reader.resources("one")

    before = proxy.passed[0]
    again: list[int] = []

    def counted(self: Bucket, upload: Any, number: int, content: bytes) -> str:
        again.append(number)
        return put_part(self, upload, number, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bucket, "put_part", counted)
        store.complete("one", store.add(source, "one"))
    assert 3 in again and not set(sent) & set(again), "parts that were acknowledged are not sent again"
    assert proxy.passed[0] - before < WEIGHTS + BLOCK
    assert unfinished(s3, prefix) == []
    store.download("one", tmp_path / "to")
    assert same(source, tmp_path / "to")


def test_what_was_sent_already_is_not_sent_again_unless_it_changed(
    s3: S3Server, prefix: str, proxy: BreakingProxy, source: Path, tmp_path: Path
) -> None:
    store = opened(s3, prefix, proxy.url)
    store.add(source, "one")
    before = proxy.passed[0]
    (source / "small1").write_bytes(os.urandom(100_000))
    store.complete("one", store.add(source, "one"))
    assert 100_000 < proxy.passed[0] - before < 200_000
    store.download("one", tmp_path / "to")
    assert same(source, tmp_path / "to")
    store.add(source, "two")
    (source / "weights").write_bytes(os.urandom(WEIGHTS))
    store.complete("two", store.add(source, "two"))
    store.download("two", tmp_path / "two")
    assert same(source, tmp_path / "two")


def test_parts_of_a_dead_writer_are_removed(s3: S3Server, prefix: str, source: Path) -> None:
    store = opened(s3, prefix)
    store.add(source, "one")
    s3.client.create_multipart_upload(Bucket=BUCKET, Key=f"{prefix}/one/more")
    s3.client.create_multipart_upload(Bucket=BUCKET, Key=f"{prefix}/other/weights")
    opened(s3, prefix).remove_incomplete()
    assert s3.names(prefix) == []
    assert [upload["Key"] for upload in unfinished(s3, prefix)] == [f"{prefix}/other/weights"]


def test_a_storage_that_goes_away_is_an_error_and_leaves_nothing_to_see(
    s3: S3Server, prefix: str, proxy: BreakingProxy, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_part = Bucket.put_part

    def broken(self: Bucket, upload: Any, number: int, content: bytes) -> str:
        proxy.away = True
        proxy.cut()
        return put_part(self, upload, number, content)

    monkeypatch.setattr(Bucket, "put_part", broken)
    with pytest.raises(StorageError, match=f"s3://{BUCKET}/{prefix} cannot be reached"):
        opened(s3, prefix, proxy.url, patience=0.5).upload(source, "one")
    with pytest.raises(CheckpointNotFound):
        opened(s3, prefix).resources("one")
    opened(s3, prefix).remove_incomplete()
    assert s3.names(prefix) == [] and unfinished(s3, prefix) == []


def test_a_deletion_that_is_cut_short_leaves_no_checkpoint(
    s3: S3Server, prefix: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(s3, prefix)
    store.upload(source, "one")
    delete, calls = Bucket.delete, 0

    def dies(self: Bucket, names: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise StorageError("killed")
        delete(self, names)

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "delete", dies)
        with pytest.raises(StorageError, match="killed"):
            store.delete("one")
    assert f"{prefix}/one/weights" in [f"{prefix}/{name}" for name in s3.names(prefix)]
    with pytest.raises(CheckpointNotFound):
        store.resources("one")
    store.delete("one")
    assert s3.names(prefix) == []


def test_objects_of_other_programs(s3: S3Server, prefix: str, tmp_path: Path) -> None:
    """As the official package writes them, or a person with another tool."""
    for name, content in {"": b"", "metadata.json": b"{}", "sub/": b"", "sub/weights": b"abc"}.items():
        s3.write(f"{prefix}/one/{name}", content)
    store = opened(s3, prefix)
    assert store.resources("one") == {"metadata.json": 2, "sub/": 0, "sub/weights": 3}
    store.download("one", tmp_path / "to")
    assert (tmp_path / "to" / "sub" / "weights").read_bytes() == b"abc"
    for number, name in enumerate(("../evil", "/evil", "a//b", "a/./b", "a/../../evil")):
        s3.write(f"{prefix}/evil{number}/{name}", b"x")
        with pytest.raises(StorageError, match="cannot be the path of a file"):
            store.download(f"evil{number}", tmp_path / "deep" / "to")
    assert not list(tmp_path.rglob("evil"))


def test_errors_are_for_people_and_hide_the_keys(
    s3: S3Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    config = s3.config(prefix)
    for changes, said in (
        ({"bucket": "no-such-bucket"}, "there is no such bucket; make it first"),
        ({"endpoint_url": "http://127.0.0.1:9"}, "cannot be reached"),
        ({"bucket": "a/b"}, "needs the name of a bucket"),
    ):
        with pytest.raises(StorageError, match=said) as caught:
            storage.from_config({**config, **changes}).resources("one")
        shown = f"{caught.value} {storage.from_config(config)}" + caplog.text
        assert not any(secret in shown for secret in KEYS.values())


def test_what_is_no_such_service_has_no_empty_buckets(prefix: str) -> None:
    class Console(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = b"<html><body>Please log in</body></html>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Console) as console:
        thread = threading.Thread(target=console.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{console.server_port}"
            config = {"type": "s3", "bucket": BUCKET, "prefix": prefix, "endpoint_url": url, **KEYS}
            manager = storage.from_config(config)
            for call in (manager.resources, manager.delete):
                with pytest.raises(StorageError, match=f"at {url} is no service of S3's kind") as caught:
                    call("a-checkpoint")
                assert not isinstance(caught.value, CheckpointNotFound)
        finally:
            console.shutdown()
            thread.join()


def test_without_the_library_the_message_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['boto3'] = None\n"
        "import determined.core; from determined.common import storage\n"
        "try: storage.from_config({'type': 's3', 'bucket': 'b'})\n"
        "except Exception as e: print(type(e).__name__, e)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "StorageError" in done.stdout and "pip install 'detlab[s3]'" in done.stdout
    code = "import sys, determined.core, determined.cli; sys.exit('botocore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_core_init_takes_a_url(
    s3: S3Server, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DET_ALLOCATION_ID", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["secret_key"])
    (tmp_path / "f").write_text("f")
    with core.init(checkpoint_storage=f"s3://{BUCKET}/{prefix}/deep") as context:
        uploaded = context.checkpoint.upload(tmp_path, {"steps_completed": 3})
        with context.checkpoint.store_path({"steps_completed": 4}) as (path, stored):
            (path / "g").write_text("g")
        assert context.checkpoint.get_metadata(uploaded) == {"steps_completed": 3}
        context.checkpoint.download(stored, tmp_path / "to")
        assert sorted(p.name for p in (tmp_path / "to").iterdir()) == ["g", "metadata.json"]
        assert json.loads(s3.read(f"{prefix}/deep/{uploaded}/metadata.json")) == {"steps_completed": 3}
        context.checkpoint.delete(uploaded)
        assert {name.split("/")[1] for name in s3.names(prefix)} == {stored}
    with pytest.raises(StorageError, match="names no bucket"):
        core.init(checkpoint_storage="s3://")
    with pytest.raises(StorageError, match="'gcs': this version knows shared_fs, directory, s3"):
        core.init(checkpoint_storage="gs://bucket")


def test_the_local_disk_is_full(
    s3: S3Server, prefix: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(s3, prefix)
    store.upload(source, "one")
    with small_disk(tmp_path / "small", 8):
        with pytest.raises(StorageError, match="No space left on device"):
            store.download("one", tmp_path / "small" / "to")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "small"))
        filler = fill(tmp_path / "small")
        filler.unlink()
        with pytest.raises(StorageError, match=r"is full, .* set TMPDIR"), store.restore_path("one"):
            pass
        with (
            pytest.raises(StorageError, match=r"is full, .* set TMPDIR"),
            store.store_path("two") as path,
            open(path / "f", "wb") as file,
        ):
            file.write(bytes(9 << 20))
    assert {name.split("/")[0] for name in s3.names(prefix)} == {"one"}
    assert MANIFEST in {name.split("/")[1] for name in s3.names(prefix)}
