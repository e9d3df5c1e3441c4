"""A view of the file system of a task's own: performs a mount plan (see drivers/mounts.py) in this process.

A plan is a list of steps, in JSON:

    ["cover", path, [name, ...]]              an empty folder over `path`; the named entries of the old one are put back
    ["bind", source, target, read_only]       `target` (made if missing) shows `source`

Sources are the paths as they were before any step. Root makes a mount namespace; anybody else gets one inside of a
user namespace, in which they keep their own uid and gid and lose all capabilities with the next exec. Part of the shim:
imports little.
"""

from __future__ import annotations

import ctypes
import os
import stat
from typing import Any

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20, 0x1000, 0x4000, 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)


class NamespaceRefused(OSError):
    """This kernel, or the container that the agent runs in, allows no mount namespace."""


def enter_mount_namespace(plan: list[list[Any]], new_root: str) -> None:
    """Gives this process a mount namespace of its own and performs `plan` in it.

    `new_root`: an empty folder, used where the plan covers `/`. NamespaceRefused, or another OSError naming the path.
    """
    uid, gid = os.geteuid(), os.getegid()
    if _libc.unshare(_CLONE_NEWNS if uid == 0 else _CLONE_NEWNS | _CLONE_NEWUSER) != 0:
        error = ctypes.get_errno()
        raise NamespaceRefused(error, os.strerror(error))
    try:
        if uid != 0:
            _map_to_itself(uid, gid)
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


def refusal() -> str:
    """Why this account gets no mount namespace on this machine; "" where it does. Asks in a process of its own."""
    read, write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            enter_mount_namespace([], "/")
        except OSError as e:
            os.write(write, (e.strerror or "refused").encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said


def _map_to_itself(uid: int, gid: int) -> None:
    for name, line in (("uid_map", f"{uid} {uid} 1"), ("setgroups", "deny"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)


def _cover(path: str, keep: list[str], new_root: str) -> None:
    links, kept = {}, {}
    for name in keep:
        entry = os.path.join(path, name)
        try:
            if os.path.islink(entry):
                links[name] = os.readlink(entry)
            else:
                kept[name] = os.open(entry, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # gone since the plan was made: folders such as /run are never still
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
