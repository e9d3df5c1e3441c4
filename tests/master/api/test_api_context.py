"""Submitted contexts: what is accepted, what is refused, and that the archive depends on nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from detlab_master.api import context


def file(path: str, content: bytes = b"x", **changes: Any) -> dict[str, Any]:
    entry = {
        "path": path,
        "type": 48,
        "content": base64.b64encode(content).decode(),
        "mtime": "1700000000",
        "mode": 0o100644,
    }
    return {**entry, "uid": 0, "gid": 0, **changes}


def folder(path: str, **changes: Any) -> dict[str, Any]:
    return {"path": path, "type": 53, "content": "", "mtime": 1700000000, "mode": 0o40755, **changes}


def unpack(tmp_path: Path, *files: dict[str, Any], **fields: Any) -> context.Unpacked:
    return context.unpack(json.dumps({"config": "c", "modelDefinition": files, **fields}).encode(), tmp_path)


def test_files_and_folders(tmp_path: Path) -> None:
    unpacked = unpack(
        tmp_path,
        file("b.py", b"b", mode=0o106777, uid=5),
        folder("a/"),
        file("a/x.py", b"xyz"),
        activate=True,
    )
    assert unpacked.fields == {"config": "c", "activate": True}
    archive = tmp_path / unpacked.archive
    assert unpacked.sha256 == hashlib.sha256(archive.read_bytes()).hexdigest()
    assert unpacked.size == archive.stat().st_size
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        assert [(m.name, m.mode, m.mtime, m.uid, m.gid, m.isdir()) for m in members] == [
            ("a", 0o755, 1700000000, 0, 0, True),
            ("a/x.py", 0o644, 1700000000, 0, 0, False),
            ("b.py", 0o777, 1700000000, 0, 0, False),
        ]
        content = tar.extractfile("a/x.py")
        assert content is not None
        assert content.read() == b"xyz"


def test_the_same_context_gives_the_same_archive(tmp_path: Path) -> None:
    one = unpack(tmp_path, file("a"), file("b"), file("ordner/größe.py"))
    other = unpack(tmp_path, file("ordner/größe.py"), file("b"), file("./a"), config="another")
    assert one.sha256 == other.sha256
    assert one.archive != other.archive


def test_no_model_definition(tmp_path: Path) -> None:
    assert unpack(tmp_path) == context.Unpacked({"config": "c"})
    assert context.unpack(b"", tmp_path) == context.Unpacked({})
    assert context.unpack(b'{"model_definition": null}', tmp_path).archive == ""
    assert list(tmp_path.iterdir()) == []


BAD: list[tuple[list[dict[str, Any]], str]] = [
    ([file("/etc/passwd")], "'/etc/passwd' leaves the context"),
    ([file("a/../../b")], "'a/../../b' leaves the context"),
    ([file("..")], "'..' leaves the context"),
    ([file("")], "'' is no path"),
    ([file(".")], "'.' is no path"),
    ([file("a\0b")], "is no path"),
    ([file("a\ud800")], "not valid Unicode"),
    ([{**file("a"), "path": 5}], "the path 5 in the context is not a string"),
    ([file("link", type=50)], "'link' in the context is a symbolic link"),
    ([file("link", type=49)], "'link' in the context is a hard link"),
    ([file("dev", type="51")], "'dev' in the context is a device"),
    ([file("what", type=None)], "'what' in the context is of type 0"),
    ([{**file("a"), "content": "%%%"}], "the content of 'a' in the context is not base64"),
    ([{**file("a"), "content": 7}], "the content of 'a' in the context is not base64"),
    ([file("a", mtime="yesterday")], "mtime of 'a' in the context is 'yesterday'"),
    ([file("a", mode=-1)], "mode of 'a' in the context is -1"),
    ([file("a"), file("./a")], "'a' is in the context twice"),
    ([file("a"), file("a/b")], "'a' in the context is a file, and yet 'a/b' is inside it"),
]


@pytest.mark.parametrize(("files", "message"), BAD)
def test_bad_entries(tmp_path: Path, files: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(context.BadContext) as refused:
        unpack(tmp_path, *files)
    assert message in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"\xff", b'{"modelDefinition": 5}', b'{"modelDefinition": [5]}']
)
def test_bad_requests(tmp_path: Path, body: bytes) -> None:
    with pytest.raises(context.BadContext):
        context.unpack(body, tmp_path)


def test_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "LIMIT", 1 << 20)
    unpack(tmp_path, file("a", bytes(600_000)), file("b", bytes((1 << 20) - 600_000)))
    for files in ([file("a", bytes(600_000)), file("b", bytes(600_000))], [file("a", bytes((1 << 20) + 1))]):
        with pytest.raises(
            context.BadContext, match=r"the context has 1\.\d MiB of files: the limit is 1 MiB"
        ):
            unpack(tmp_path, *files)
    with pytest.raises(context.BadContext, match="the configuration has 5"):
        unpack(tmp_path, config="x" * (5 << 20))


def test_as_a_program(tmp_path: Path) -> None:
    """It needs nothing but its own file, and refuses in words."""

    def run(*files: dict[str, Any]) -> Any:
        body = json.dumps({"config": "c", "modelDefinition": files}).encode()
        command = [sys.executable, "-I", context.__file__, str(tmp_path)]
        return json.loads(subprocess.run(command, input=body, capture_output=True, check=True).stdout)

    outcome = run(file("a.py"))
    assert outcome["fields"] == {"config": "c"}
    assert (tmp_path / outcome["archive"]).stat().st_size == outcome["size"]
    assert "leaves the context" in run(file("../a"))["refused"]
