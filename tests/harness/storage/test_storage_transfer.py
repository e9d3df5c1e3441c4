"""The law of transfers: whatever breaks off, the next call brings the rest, and only that."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from determined.common.storage import manifest, transfer
from determined.common.storage.manifest import decode, encode
from determined.errors import StorageError

NAMES = st.sampled_from(["a", "b/c", "b/d", "e f", "ü"])
FILES = st.dictionaries(NAMES, st.binary(max_size=100), min_size=1)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "_SMALLEST_BLOCK", 16)
    monkeypatch.setattr(transfer, "_PIECE", 5)


def write(folder: Path, files: dict[str, bytes]) -> manifest.Files:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return transfer.record(folder, sorted(files))


@settings(max_examples=60, deadline=None)
@given(FILES, st.lists(st.integers(0, 12), max_size=4), st.sets(st.integers(0, 20), max_size=2))
def test_whatever_breaks_off_the_next_call_brings_the_rest(
    files: dict[str, bytes], breaks: list[int], damaged: set[int]
) -> None:
    """`breaks`: after how many blocks each call breaks off; `damaged`: which blocks arrive damaged at first."""
    brought: list[tuple[str, int]] = []
    room = 0
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        source.mkdir()
        target.mkdir()
        recorded = decode(encode(write(source, files)), "here")

        def read(name: str, offset: int, buffer: memoryview) -> None:
            nonlocal room
            if room == 0:
                raise StorageError("it breaks off")
            room -= 1
            transfer.read_block(source / name, offset, buffer)
            if len(brought) in damaged:
                damaged.discard(len(brought))
                buffer[0] ^= 1
            else:
                brought.append((name, offset))

        sizes = {name: len(content) for name, content in files.items()}
        for room_then in [*breaks, 1000]:
            room = room_then
            try:
                arrived = transfer.fetch(sizes, recorded, read, target)
            except StorageError:
                whole = {name: target / name for name in files if (target / name).exists()}
                assert all(path.read_bytes() == files[name] for name, path in whole.items())
                continue
            assert arrived == recorded
            found = {
                p.relative_to(target).as_posix(): p.read_bytes() for p in target.rglob("*") if p.is_file()
            }
            assert found == files
        assert len(brought) == len(set(brought)), "a block that had arrived was fetched again"


@settings(max_examples=60, deadline=None)
@given(FILES, st.data())
def test_any_bit_that_differs_is_found(files: dict[str, bytes], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        recorded = write(Path(folder), files)
        transfer.check(Path(folder), files, recorded)
        name = data.draw(st.sampled_from(sorted(files)))
        content = bytearray(files[name])
        if content:
            at = data.draw(st.integers(0, 8 * len(content) - 1))
            content[at // 8] ^= 1 << at % 8
        else:
            content.append(0)
        Path(folder, name).write_bytes(content)
        with pytest.raises(StorageError, match="is damaged"):
            transfer.check(Path(folder), files, recorded)


def test_a_file_has_no_more_blocks_than_the_protocol_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for size in (0, 1, 8 << 20, 80 << 30, (80 << 30) + 1, 5 << 40):
        block = manifest.block_size_of(size)
        assert 8 << 20 <= block <= 5 << 30 and len(manifest.block_starts(size)) <= 10_000
