import os
import tarfile
from pathlib import Path

import pytest

from determined.errors import ContextError
from determined.exec.extract import extract_context
from harness.core_stub_master import tar_gz


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = target
    info.size = size
    return info


def link(name: str, target: str) -> tarfile.TarInfo:
    return member(name, tarfile.SYMTYPE, target)


ATTACKS: dict[str, tuple[tarfile.TarInfo, ...]] = {
    "a path that climbs": (member("../evil", size=1),),
    "a path that climbs later": (member("a/../../evil", size=1),),
    "an absolute path": (member("/tmp/evil", size=1),),
    "a link that climbs": (link("l", "../outside"),),
    "a link that climbs from a folder": (link("a/l", "../../outside"),),
    "an absolute link": (link("l", "/etc"),),
    "a link that climbs behind another link": (link("s", "."), link("l", "s/..")),
    "the same in the other order": (link("l", "s/.."), link("s", ".")),
    "a file through a link": (link("s", "."), member("s/evil", size=1)),
    "a link through a link": (link("s", "a"), link("s/l", "../../outside")),
    "a hard link that climbs": (member("h", tarfile.LNKTYPE, "../outside"),),
    "an absolute hard link": (member("h", tarfile.LNKTYPE, "/etc/passwd"),),
    "a hard link to a link": (link("s", "a"), member("h", tarfile.LNKTYPE, "s")),
    "a device": (member("null", tarfile.CHRTYPE),),
    "a pipe": (member("pipe", tarfile.FIFOTYPE),),
}


@pytest.mark.parametrize("members", ATTACKS.values(), ids=ATTACKS.keys())
def test_nothing_leaves_the_folder_and_nothing_is_written(
    tmp_path: Path, members: tuple[tarfile.TarInfo, ...]
) -> None:
    folder = tmp_path / "deep" / "folder"
    with pytest.raises(ContextError) as error:
        extract_context(tar_gz({"a/good.py": "x"}, members), [folder])
    assert repr(members[-1].name) in str(error.value) or repr(members[0].name) in str(error.value)
    assert [p for p in tmp_path.rglob("*") if p.is_file() or p.is_symlink()] == []


def test_files_folders_and_inner_links_come_out_twice(tmp_path: Path) -> None:
    archive = tar_gz(
        {"./a/one.py": "1", "two.py": "2"},
        (member("empty", tarfile.DIRTYPE), link("a/to_two", "../two.py"), link("to_a", "a")),
    )
    extract_context(archive, [tmp_path / "x", tmp_path / "y"])
    for folder in (tmp_path / "x", tmp_path / "y"):
        assert sorted(os.listdir(folder)) == ["a", "empty", "to_a", "two.py"]
        assert (folder / "a" / "to_two").read_text() == "2"
        assert (folder / "to_a" / "one.py").read_text() == "1"


@pytest.mark.parametrize("archive", [b"no archive", tar_gz({"a": "b" * 5000})[:60]], ids=["text", "half"])
def test_a_broken_archive_is_named(tmp_path: Path, archive: bytes) -> None:
    with pytest.raises(ContextError, match="cannot be unpacked"):
        extract_context(archive, [tmp_path])
