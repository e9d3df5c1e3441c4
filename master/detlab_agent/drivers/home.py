"""Homes: folders of users that outlive their tasks."""

from __future__ import annotations

import os
from pathlib import Path

from detlab_agent.drivers.base import StartError


def lasting_home(path: str, uid: int | None) -> Path:
    """The folder, made for its owner if it is missing.

    Args:
        uid: of the account that the task runs under; None where accounts are not kept apart.

    Raises:
        StartError: it is no absolute path, or belongs to somebody else.
    """
    home = Path(path)
    if not home.is_absolute() or ".." in home.parts:
        raise StartError(f"the home folder {path!r} must be an absolute path without '..'")
    home.parent.mkdir(parents=True, exist_ok=True)
    try:
        home.mkdir(mode=0o700)
    except FileExistsError:
        owner = home.lstat().st_uid
        if home.is_symlink() or not home.is_dir():
            raise StartError(f"the home folder {home} is there, and is no folder") from None
        if uid is not None and owner not in (0, uid):
            raise StartError(f"the home folder {home} belongs to the account {owner}, not to {uid}") from None
    if uid is not None:
        os.chown(home, uid, uid)
    return home
