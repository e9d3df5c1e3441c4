"""A view of the file system of a task's own: performs a mount plan (see drivers/mounts.py) in this process.

A plan is a list of steps, in JSON:

    ["cover", path, [name, ...]]              an empty folder over `path`; the named entries of the old one are put back
    ["bind", source, target, read_only]       `target` (made if missing) shows `source`

Sources are the paths as they were before any step. Needs CAP_SYS_ADMIN. Part of the shim: imports little.
"""

from __future__ import annotations

import ctypes
import os
import stat
from typing import Any

_CLONE_NEWNS = 0x00020000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20, 0x1000, 0x4000, 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)


class NamespaceRefused(OSError):
    """This kernel, or the container that the agent runs in, allows no mount namespace."""


def enter_mount_namespace(plan: list[list[Any]], new_root: str) -> None:
    """Gives this process a mount namespace of its own and performs `plan` in it.

    `new_root`: an empty folder, used where the plan covers `/`. NamespaceRefused, or another OSError naming the path.
    """
    if _libc.unshare(_CLONE_NEWNS) != 0:
        error = ctypes.get_errno()
        raise NamespaceRefused(error, os.strerror(error))
    try:
        _mount("none", "/", None, _MS_REC | _MS_PRIVATE)  # nothing of what follows is seen outside
    except OSError as e:
        raise NamespaceRefused(e.errno, e.strerror) from None
    # Sources are opened first: later steps hide them.
    sources = {step[1]: os.open(step[1], os.O_PATH | os.O_CLOEXEC) for step in plan if step[0] == "bind"}
    for step in plan:
        if step[0] == "cover":
            _cover(step[1], step[2], new_root)
        else:
            _bind(sources[step[1]], step[2], step[3])


def _cover(path: str, keep: list[str], new_root: str) -> None:
    entries = {name: os.path.join(path, name) for name in keep}
    links = {name: os.readlink(entry) for name, entry in entries.items() if os.path.islink(entry)}
    kept = {
        name: os.open(entry, os.O_PATH | os.O_CLOEXEC) for name, entry in entries.items() if name not in links
    }
    cover = new_root if path == "/" else path
    _mount("tmpfs", cover, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755,size=1m")
    for name, target in links.items():
        os.symlink(target, os.path.join(cover, name))
    for name, fd in kept.items():
        _bind(fd, os.path.join(cover, name), read_only=False)
    if path == "/":
        os.chroot(cover)
        os.chdir("/")


def _bind(fd: int, target: str, read_only: bool) -> None:
    if not os.path.exists(target):
        is_dir = stat.S_ISDIR(os.fstat(fd).st_mode)
        os.makedirs(target if is_dir else os.path.dirname(target), mode=0o755, exist_ok=True)
        if not is_dir:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    _mount(f"/proc/self/fd/{fd}", target, None, _MS_BIND | _MS_REC)
    if read_only:
        # What the file system under it was mounted with must be said again.
        flags = os.statvfs(target).f_flag & (_MS_NOSUID | _MS_NODEV | os.ST_NOEXEC)
        _mount("none", target, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | flags)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    arguments = [os.fsencode(text) if text is not None else None for text in (source, target, kind)]
    if _libc.mount(*arguments, ctypes.c_ulong(flags), data.encode() if data else None) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"mount: {os.strerror(error)}", target)
