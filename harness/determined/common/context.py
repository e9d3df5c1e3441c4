"""Bundling a model folder: what a person wrote becomes the files that every task of it starts with.

Left out are what `.detignore` names (the syntax of .gitignore; one at the root of the folder, and one at the
root of each include) and a few things that nobody means to send. Links to files inside the folder are sent
as those files; what leaves the folder is refused by name, because a task on another machine would not find it.
"""

import base64
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pathspec

MAX_BYTES = 95 * (1 << 20)  # of file contents, before base64

_ALWAYS_IGNORED = (
    ".git/",
    ".hg/",
    ".svn/",
    ".venv/",
    ".detignore",
    ".DS_Store",
    ".ipynb_checkpoints/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    "__pycache__/",
    "*.py[co]",
    "*.egg-info/",
    "*.swp",
)
_LARGEST_NAMED = 5


class ContextError(Exception):
    """A folder that cannot be sent. The text names the file and says what to do."""


@dataclass(frozen=True)
class _Entry:
    path: str  # POSIX, relative to the root of the context
    source: Path
    status: os.stat_result

    @property
    def is_dir(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)


def bundle(model: Path | str | None, includes: Iterable[Path | str] = ()) -> list[dict[str, Any]]:
    """The `v1File` objects of a model folder (or of one file) and of the includes, folders before their content.

    An include keeps its base name: `-i ../lib` becomes `lib/...`. Raises ContextError; the size is checked
    before anything is read.
    """
    entries: dict[str, _Entry] = {}
    for source, prefix in _roots(model, includes):
        for entry in _entries(source, prefix):
            if entry.path in entries and not (entry.is_dir and entries[entry.path].is_dir):
                raise ContextError(
                    f"{entry.source} and {entries[entry.path].source} would both become {entry.path!r}: rename one"
                )
            entries.setdefault(entry.path, entry)
    _check_size(entries.values())
    return [_file(entry) for entry in entries.values()]


def _roots(model: Path | str | None, includes: Iterable[Path | str]) -> Iterator[tuple[Path, str]]:
    if model is not None:
        yield Path(model), ""
    for include in includes:
        path = Path(include)
        yield path, Path(os.path.abspath(path)).name


def _entries(source: Path, prefix: str) -> Iterator[_Entry]:
    try:
        status = source.stat()
        root = source.resolve()
    except OSError as e:
        raise ContextError(f"cannot read {str(source)!r}: {e.strerror}") from e
    if stat.S_ISREG(status.st_mode):
        yield _Entry(prefix or source.name, source, status)
        return
    if not stat.S_ISDIR(status.st_mode):
        raise ContextError(f"{str(source)!r} is neither a file nor a folder")
    if prefix:
        yield _Entry(prefix, source, status)
    yield from _walk(source, prefix, root, _ignored(source), "", (root,))


def _walk(
    folder: Path,
    prefix: str,
    root: Path,
    ignored: pathspec.GitIgnoreSpec,
    inside: str,
    parents: tuple[Path, ...],
) -> Iterator[_Entry]:
    try:
        names = sorted(os.listdir(folder))
    except OSError as e:
        raise ContextError(f"cannot read the folder {str(folder)!r}: {e.strerror}") from e
    for name in names:
        source, relative = folder / name, f"{inside}{name}"
        path = f"{prefix}/{relative}" if prefix else relative
        _check_name(path)
        try:
            link = source.is_symlink()
            # An ignored broken link is no reason to stop, so the rules are asked before it is followed.
            if ignored.match_file(relative) or (source.is_dir() and ignored.match_file(f"{relative}/")):
                continue
            target = source.resolve(strict=True)
            status = source.stat()
        except (OSError, RuntimeError) as e:  # RuntimeError: a chain of links that never ends
            reason = e.strerror if isinstance(e, OSError) else str(e)
            raise ContextError(
                f"cannot read {relative!r} in the model folder ({reason}): remove it or name it in .detignore"
            ) from e
        if link and not target.is_relative_to(root):
            raise ContextError(
                f"the link {relative!r} leads out of the model folder, to {target}: "
                "copy the file into the folder, add it with --include, or name it in .detignore"
            )
        if stat.S_ISDIR(status.st_mode):
            if target in parents:
                raise ContextError(
                    f"the link {relative!r} leads back to a folder that contains it: remove it"
                )
            yield _Entry(path, source, status)
            yield from _walk(source, prefix, root, ignored, f"{relative}/", (*parents, target))
        elif stat.S_ISREG(status.st_mode):
            yield _Entry(path, source, status)
        else:
            raise ContextError(
                f"{relative!r} in the model folder is neither a file nor a folder: name it in .detignore"
            )


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ContextError(
            f"the file name {os.fsencode(path)!r} in the model folder is not UTF-8: rename it"
        ) from None


def _ignored(root: Path) -> pathspec.GitIgnoreSpec:
    rules = root / ".detignore"
    try:
        lines = rules.read_text().splitlines() if rules.exists() else []
    except (OSError, UnicodeDecodeError) as e:
        raise ContextError(f"cannot read {rules}: {e}") from e
    return pathspec.GitIgnoreSpec.from_lines([*_ALWAYS_IGNORED, *lines])


def _check_size(entries: Iterable[_Entry]) -> None:
    files = sorted((e for e in entries if not e.is_dir), key=lambda e: -e.status.st_size)
    total = sum(e.status.st_size for e in files)
    if total <= MAX_BYTES:
        return
    largest = "\n".join(f"  {_mib(e.status.st_size):>10}  {e.path}" for e in files[:_LARGEST_NAMED])
    raise ContextError(
        f"the model folder holds {_mib(total)} in {len(files)} files; at most {_mib(MAX_BYTES)} can be sent. "
        f"The largest files:\n{largest}\nName what the training does not need in .detignore."
    )


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def _file(entry: _Entry) -> dict[str, Any]:
    content = b""
    if not entry.is_dir:
        try:
            content = entry.source.read_bytes()
        except OSError as e:
            raise ContextError(f"cannot read {entry.path!r} in the model folder: {e.strerror}") from e
        if len(content) > max(entry.status.st_size, MAX_BYTES):
            raise ContextError(f"{entry.path!r} grew to {_mib(len(content))} while it was read")
    return {
        "path": entry.path,
        "type": ord("5") if entry.is_dir else ord("0"),  # the type flags of tar
        "content": base64.b64encode(content).decode("ascii"),
        "mtime": str(int(entry.status.st_mtime)),
        "mode": entry.status.st_mode,
        "uid": 0,
        "gid": 0,
    }
