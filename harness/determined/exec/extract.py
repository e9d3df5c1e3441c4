"""Unpacking a model folder. The archive comes from a user, by way of the master: it is not trusted."""

import io
import posixpath
from pathlib import Path, PurePosixPath

from determined.common.tar import tarfile
from determined.errors import ContextError


def extract_context(archive: bytes, folders: list[Path]) -> None:
    """Unpack a tar.gz into each of the folders, which are made if missing.

    Refused, by name and before anything is written: members that are neither files, folders nor links, and
    members or links that lead out of the folder. Raises ContextError.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
            members = tar.getmembers()
            _check(members)
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
                # The filter looks at the files that are really there; its refusals are the second line.
                tar.extractall(folder, members, filter="data")
    except (tarfile.TarError, EOFError, OSError) as e:
        raise ContextError(f"the model folder cannot be unpacked: {e}") from e


def _check(members: list[tarfile.TarInfo]) -> None:
    links = {_parts(member.name) for member in members if member.issym()}
    for member in members:
        parts = _parts(member.name)
        if member.name.startswith("/") or ".." in parts:
            raise ContextError(
                f"the model folder holds {member.name!r}, which would be written outside of it"
            )
        if any(parts[:i] in links for i in range(1, len(parts))):
            raise ContextError(
                f"the model folder holds {member.name!r}, which would be written through a link"
            )
        if member.issym():
            # Only leading ".." can be judged by name: a link in the middle may stand for any depth.
            target = PurePosixPath(member.linkname)
            climbs = len(target.parts) - len(_without_climbs(target.parts))
            inside = not target.is_absolute() and climbs <= len(parts) - 1
            if not inside or ".." in target.parts[climbs:]:
                raise ContextError(
                    f"the model folder's link {member.name!r} leads out of it, to {member.linkname!r}"
                )
        elif member.islnk():
            target_parts = _parts(member.linkname)
            # A name within the archive; going there by way of another link is not needed by anyone.
            if member.linkname.startswith("/") or ".." in target_parts or target_parts in links:
                raise ContextError(
                    f"the model folder's link {member.name!r} leads out of it, to {member.linkname!r}"
                )
        elif not (member.isreg() or member.isdir()):
            raise ContextError(
                f"the model folder holds {member.name!r}, which is neither a file nor a folder"
            )


def _parts(name: str) -> tuple[str, ...]:
    """The components of a name, without `.` and doubled slashes; `..` is kept."""
    return tuple(part for part in name.split(posixpath.sep) if part not in ("", "."))


def _without_climbs(parts: tuple[str, ...]) -> tuple[str, ...]:
    i = 0
    while i < len(parts) and parts[i] == "..":
        i += 1
    return parts[i:]
