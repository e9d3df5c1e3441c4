"""Files in a shared folder that belong to no checkpoint, such as those for TensorBoard.

Users share the storage, and one must not lead another's files elsewhere. So each folder on the way is opened inside of the
one before it, no link is followed, and what another user has prepared is not used. What fails is an OSError.
"""

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def put(source: Path, base: Path, folders: Sequence[str], name: str, *, shared: int) -> None:
    """Copy a file to `base/folders/name`; the first `shared` of the folders are for all users.

    An event file of TensorBoard is continued where it lies, so that a TensorBoard that follows it goes on.
    """
    base.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as opened:
        folder = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        opened.callback(os.close, folder)
        for depth, part in enumerate(folders, start=1):
            folder = _open_folder(part, folder, shared=depth <= shared)
            opened.callback(os.close, folder)
        new = opened.enter_context(open(source, "rb"))
        old = opened.enter_context(os.fdopen(os.open(name, _FILE, 0o644, dir_fd=folder), "wb"))
        there = os.fstat(old.fileno()).st_size
        if "tfevents" not in name or there > os.fstat(new.fileno()).st_size:
            os.ftruncate(old.fileno(), 0)
            there = 0
        new.seek(there)
        old.seek(there)
        shutil.copyfileobj(new, old)


def _open_folder(name: str, parent: int, *, shared: bool) -> int:
    """A folder inside another, made if it is missing."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
        made = True
    except FileExistsError:
        made = False
    folder = os.open(name, _FOLDER, dir_fd=parent)
    if made and shared:
        # Like /tmp: everybody may add, and nobody touch what is another's.
        os.fchmod(folder, 0o1777)
    # Root's tasks have no accounts of their own, and a file server may say that root's files are somebody else's.
    if not shared and os.geteuid() not in (0, os.fstat(folder).st_uid):
        os.close(folder)
        raise PermissionError(f"the folder {name!r} of that path belongs to another user")
    return folder
