"""What a task's own view of the file system must look like: plans for namespace.py.

Three needs lead to a plan:

- A task runs under its owner's uid, but what it needs (the Python installation, the project, its own folder) may lie
  under a folder that is closed to this uid, such as /root. The topmost closed folder is covered by an empty one, in the
  task's view only, and what the task needs is put back into it. Nothing else of the closed folder can be seen.
- A bind mount whose path in the task differs from its path on the host. Where no such folder exists on the host, its
  nearest existing parent is covered and gets all its entries back, so that the new one can be made beside them.
- What a bind mount hides, but the task needs: its project may lie in a /tmp that it gets a private one in place of. It
  is put back where it was.

Where none arises the plan is empty, and the task keeps the host's view.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from detlab_agent.protocol import BindMount

MAX_ENTRIES = 200  # of a folder that is covered and put back entry by entry: each is a mount


class MountError(Exception):
    """A path that cannot be given to the task, and what to do about it."""


@dataclass(frozen=True)
class Need:
    """A path that the task must reach where it is."""

    path: Path
    why: str  # for messages: "the Python installation"
    read_only: bool = True  # as far as a mount can tell; file modes hold anyway


@dataclass(frozen=True)
class Plan:
    steps: tuple[tuple[str, str, list[str]] | tuple[str, str, str, bool], ...]  # see namespace.py
    reason: str  # why a mount namespace is needed, and how to do without: for where the kernel refuses


def plan_mounts(needs: Iterable[Need], bind_mounts: Iterable[BindMount], uid: int | None) -> Plan:
    """The steps after which `uid` (with a group of the same number) reaches all `needs` and sees all `bind_mounts`.

    Without `uid` the task runs under the account of this process.

    MountError where a path does not exist or its own mode keeps `uid` out.
    """
    planner = _Planner(uid)
    for need in needs:
        planner.reach(need)
    for mount in bind_mounts:
        planner.mount(mount)
    return planner.plan()


class _Planner:
    def __init__(self, uid: int | None) -> None:
        self._uid = uid
        self._needs: list[tuple[Path, bool]] = []  # read_only
        self._covers: dict[Path, list[str]] = {}  # path -> entries to put back
        self._binds: dict[Path, tuple[Path, bool]] = {}  # target -> source, read_only
        self._reasons: list[str] = []

    def reach(self, need: Need) -> None:
        if not need.path.exists():
            raise MountError(f"{need.why}: {need.path} does not exist on this agent")
        if not self._may_enter(need.path):
            raise MountError(
                f"{need.why}: {need.path} is closed to {self._who}; open it with: chmod -R go+rX {need.path}"
            )
        for path in dict.fromkeys((need.path, need.path.resolve())):
            self._needs.append((path, need.read_only))
            closed = self._closed_ancestor(path)
            if closed is None:
                continue
            self._covers.setdefault(closed, [])
            self._bind(need.path, path, need.read_only)
            self._reasons.append(f"{path} ({need.why}) lies in {closed}, which is closed to {self._who}")

    def mount(self, mount: BindMount) -> None:
        source, target = Path(mount.host_path), Path(os.path.normpath(mount.container_path))
        why = f"bind mount of {source}"
        if source == target:
            self.reach(Need(source, why, mount.read_only))
            if mount.read_only and target not in self._binds:
                self._bind(source, target, True)
                self._reasons.append(f"{source} is to be read-only")
            return
        if not source.exists():
            raise MountError(f"{why}: it does not exist on this agent")
        if not self._may_enter(source):
            raise MountError(f"{why}: it is closed to {self._who}; open it with: chmod go+rx {source}")
        parent = next(parent for parent in (target, *target.parents) if parent.exists())
        if parent != target and not self._may_be_made_in(parent):
            self._cover_keeping_entries(parent, why)
        self._bind(source, target, mount.read_only)
        self._reasons.append(f"{source} is to appear at {target}")

    def plan(self) -> Plan:
        for path, read_only in self._needs:
            if self._is_hidden(path):
                self._bind(path, path, read_only)
        covers = [path for path in self._covers if not self._is_below_a_closed_cover(path)]
        steps: list[tuple[str, str, list[str]] | tuple[str, str, str, bool]] = []
        for path in sorted(covers, key=_depth):
            steps.append(("cover", str(path), self._covers[path]))
        for target in sorted(self._binds, key=_depth):
            source, read_only = self._binds[target]
            if not self._is_seen_already(target):
                steps.append(("bind", str(source), str(target), read_only))
        reason = "; ".join(dict.fromkeys(self._reasons))
        if self._uid is None:
            way_out = "Mount each folder where it is on this machine, writable, or run the agent as root"
        else:
            way_out = "Move these paths to where every user can reach them, or open the closed folders with chmod o+x"
        return Plan(
            tuple(steps),
            f"the task needs a mount namespace, which this machine refuses: {reason}. {way_out}",
        )

    def _bind(self, source: Path, target: Path, read_only: bool) -> None:
        if target in self._binds:
            read_only = read_only and self._binds[target][1]
        self._binds[target] = (source, read_only)

    def _cover_keeping_entries(self, parent: Path, why: str) -> None:
        entries = sorted(os.listdir(parent))
        if len(entries) > MAX_ENTRIES:
            raise MountError(
                f"{why}: {parent} has too many entries to add one for the task alone; mkdir it there"
            )
        self._covers.setdefault(parent, entries)

    def _closed_ancestor(self, path: Path) -> Path | None:
        """The topmost folder above `path` that the uid may not pass through."""
        if self._uid is None:
            return None  # it has just been found there by the account in question
        for ancestor in reversed(path.parents):
            if not may_pass(os.stat(ancestor), self._uid):
                return ancestor
        return None

    @property
    def _who(self) -> str:
        return f"the task's uid {os.geteuid() if self._uid is None else self._uid}"

    def _may_enter(self, path: Path) -> bool:
        if self._uid is None:
            return os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK)
        return may_enter(os.stat(path), self._uid)

    def _is_hidden(self, path: Path) -> bool:
        """Whether a bind further up shows something else in its place."""
        nearest = next((above for above in (path, *path.parents) if above in self._binds), None)
        return nearest is not None and self._binds[nearest][0] / path.relative_to(nearest) != path

    def _may_be_made_in(self, parent: Path) -> bool:
        """Whether a new entry there is the task's own affair: in its folder, or where an empty folder lies over it."""
        mine = any(need in (parent, *parent.parents) for need, read_only in self._needs if not read_only)
        return mine or parent in self._covers or self._is_below_a_closed_cover(parent)

    def _is_below_a_closed_cover(self, path: Path) -> bool:
        return any(other in path.parents and not keep for other, keep in self._covers.items())

    def _is_seen_already(self, target: Path) -> bool:
        """Whether a bind further up shows the same thing in the same way."""
        source, read_only = self._binds[target]
        for above in target.parents:
            if above in self._binds:
                source_above, read_only_above = self._binds[above]
                return source == source_above / target.relative_to(above) and read_only == read_only_above
        return False


def may_pass(info: os.stat_result, uid: int) -> bool:
    """Whether `uid`, whose only group has the same number, may go through this folder to a name that it knows."""
    return bool(_mode(info, uid) & stat.S_IXOTH)


def may_enter(info: os.stat_result, uid: int) -> bool:
    """Whether `uid` may read this file, or list and pass this folder."""
    wanted = stat.S_IROTH | stat.S_IXOTH if stat.S_ISDIR(info.st_mode) else stat.S_IROTH
    return _mode(info, uid) & wanted == wanted


def _mode(info: os.stat_result, uid: int) -> int:
    if info.st_uid == uid:
        return info.st_mode >> 6
    return info.st_mode >> 3 if info.st_gid == uid else info.st_mode


def _depth(path: Path) -> tuple[int, str]:
    return len(path.parts), str(path)
