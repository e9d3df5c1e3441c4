import base64
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from determined.common import context


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "model"
    (root / "data").mkdir(parents=True)
    (root / "train.py").write_text("print()\n")
    (root / "data" / "a.bin").write_bytes(b"\x00\x01")
    return root


def paths(files: list[dict[str, Any]]) -> list[str]:
    return [f["path"] for f in files]


def test_shape_of_the_files(folder: Path) -> None:
    os.utime(folder / "train.py", (1_700_000_000, 1_700_000_000))
    (folder / "train.py").chmod(0o755)
    files = {f["path"]: f for f in context.bundle(folder)}
    assert list(files) == ["data", "data/a.bin", "train.py"]
    assert files["train.py"] == {
        "path": "train.py",
        "type": 48,
        "content": base64.b64encode(b"print()\n").decode(),
        "mtime": "1700000000",
        "mode": 0o100755,
        "uid": 0,
        "gid": 0,
    }
    assert (files["data"]["type"], files["data"]["content"]) == (53, "")


def test_detignore_and_what_nobody_means_to_send(folder: Path) -> None:
    (folder / ".detignore").write_text("# data\ndata/*\n!data/keep.bin\n*.log\n")
    (folder / "data" / "keep.bin").write_text("x")
    (folder / "run.log").write_text("x")
    for name in ("__pycache__", ".git", ".ipynb_checkpoints"):
        (folder / name).mkdir()
        (folder / name / "x").write_text("x")
    (folder / "old.pyc").write_text("x")
    assert paths(context.bundle(folder)) == ["data", "data/keep.bin", "train.py"]


def test_includes_keep_their_base_name(folder: Path, tmp_path: Path) -> None:
    lib = tmp_path / "shared" / "lib"
    lib.mkdir(parents=True)
    (lib / "m.py").write_text("x")
    (lib / ".detignore").write_text("n.py")
    (lib / "n.py").write_text("x")
    (tmp_path / "one.py").write_text("x")
    files = context.bundle(folder, [lib, tmp_path / "one.py"])
    assert paths(files) == ["data", "data/a.bin", "train.py", "lib", "lib/m.py", "one.py"]
    with pytest.raises(context.ContextError, match=r"would both become 'train.py'"):
        context.bundle(folder, [folder / "train.py"])


def test_one_file_and_no_folder(folder: Path) -> None:
    assert paths(context.bundle(folder / "train.py")) == ["train.py"]
    assert context.bundle(None) == []
    with pytest.raises(context.ContextError, match=r"cannot read '.*nowhere': No such file"):
        context.bundle(folder / "nowhere")


def test_a_link_inside_is_sent_as_the_file(folder: Path) -> None:
    (folder / "link.py").symlink_to("train.py")
    (folder / "more").symlink_to("data")
    files = {f["path"]: f for f in context.bundle(folder)}
    assert files["link.py"]["content"] == files["train.py"]["content"]
    assert files["link.py"]["type"] == 48
    assert "more/a.bin" in files


def test_a_link_that_leaves_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (folder / "data" / "out").symlink_to(tmp_path / "secret")
    with pytest.raises(context.ContextError, match=r"the link 'data/out' leads out of the model folder"):
        context.bundle(folder)
    (folder / ".detignore").write_text("data/out\n")
    assert "data/out" not in paths(context.bundle(folder))


def test_a_file_behind_a_folder_link_cannot_leave_either(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (folder / "data" / "up").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(context.ContextError, match="'data/up' leads out"):
        context.bundle(folder)


def test_links_in_a_circle_and_to_nowhere(folder: Path) -> None:
    (folder / "data" / "round").symlink_to("..")
    with pytest.raises(context.ContextError, match="'data/round' leads back to a folder that contains it"):
        context.bundle(folder)
    (folder / "data" / "round").unlink()
    (folder / "gone").symlink_to("nothing")
    with pytest.raises(context.ContextError, match="cannot read 'gone'"):
        context.bundle(folder)


def test_what_is_no_file_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("sock")
        with pytest.raises(context.ContextError, match="'sock' in the model folder is neither"):
            context.bundle(folder)


def test_a_name_that_is_not_utf8_is_refused(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.py")).write_text("x")
    with pytest.raises(context.ContextError, match="is not UTF-8"):
        context.bundle(folder)


def test_too_large_is_told_before_anything_is_read(folder: Path) -> None:
    for name, size in (("big.bin", 60 << 20), ("data/bigger.bin", 70 << 20)):
        with open(folder / name, "wb") as file:
            file.truncate(size)  # a hole: no disk is used
    with pytest.raises(context.ContextError) as raised:
        context.bundle(folder)
    lines = str(raised.value).splitlines()
    assert "holds 130.0 MiB in 4 files; at most 95.0 MiB" in lines[0]
    assert lines[1].split() == ["70.0", "MiB", "data/bigger.bin"]
    assert ".detignore" in lines[-1]


def test_just_below_the_limit_is_sent(folder: Path) -> None:
    with open(folder / "big.bin", "wb") as file:
        file.truncate(context.MAX_BYTES - 8 - 2)  # train.py and a.bin take the rest
    assert paths(context.bundle(folder)) == ["big.bin", "data", "data/a.bin", "train.py"]
    (folder / "one more").write_text("x")
    with pytest.raises(context.ContextError):
        context.bundle(folder)
