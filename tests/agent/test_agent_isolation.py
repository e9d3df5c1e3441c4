"""Users are kept apart: by uid where the agent is root, by taking one user only where it is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent.fake_master import OWNER_UID, TOKEN, AgentProcess, FakeMaster, make_spec
from detlab_agent.drivers.mounts import MountError, Need, plan_mounts
from detlab_agent.protocol import BindMount, FailureKind, Isolation

as_root = pytest.mark.skipif(
    os.geteuid() != 0,
    reason="only root can give tasks uids of their own: run the tests as root, for example in Docker",
)
OTHER_UID = OWNER_UID + 1


@as_root
async def test_tasks_run_under_their_owners_uid(master: FakeMaster, running: AgentProcess) -> None:
    assert master.hellos[0].isolation is Isolation.UNIX_ACCOUNT
    script = (
        "import os, json, tempfile, multiprocessing.connection as c\n"
        "open('mine', 'w').close(); c.Listener(family='AF_UNIX').close()\n"
        "print(json.dumps([os.getresuid(), os.getresgid(), os.getgroups(), os.path.expanduser('~')]))"
    )
    container = master.start("python", "-c", script)
    uids, gids, groups, home = json.loads((await master.ended(container)).text)
    assert uids == gids == [OWNER_UID] * 3 and groups == []
    assert home == str(running.folder(container) / "run" / "home")


@as_root
@pytest.mark.parametrize("agent_folder", ["closed", "open"], indirect=True)
async def test_a_user_reads_neither_the_agents_files_nor_another_users(
    master: FakeMaster, running: AgentProcess, agent_folder: Path, tmp_path: Path
) -> None:
    hidden = agent_folder == tmp_path  # else it is file modes that must do it
    script = "printf secret > $DET_WORKDIR/secret; echo $DET_WORKDIR $$; sleep 600; exit"
    victim = master.start("sh", "-c", script, environment={"DET_USER_TOKEN": "hunter2"})
    workdir, task = (await master.said(victim, "\n")).split()
    folder = running.folder(victim)
    closed = [
        f"{workdir}/secret",
        str(running.token_file),
        str(folder / "spec.json"),
        *(str(folder / name) for name in ("launch.json", "logs/00000001.jsonl", "shim.json", "lock")),
        f"/proc/{task}/environ",
        f"/proc/{task}/root/etc/hostname",
        "/root/.bashrc",
    ]
    script = f"""
import os, signal
for path in {closed}:
    try:
        open(path).close()
    except OSError as e:
        print(type(e).__name__)
    else:
        print("READ", path)
for folder in ({workdir!r}, {str(folder)!r}, {str(running.data_dir)!r}, {str(running.data_dir / "containers")!r}):
    try:
        print("LISTED", folder, os.listdir(folder))
    except OSError as e:
        print(type(e).__name__)
try:
    os.kill({task}, signal.SIGKILL)
except OSError as e:
    print(type(e).__name__)
"""
    thief = master.start("python", "-c", script, owner="bob", owner_uid=OTHER_UID)
    seen = await master.ended(thief)
    said = set(seen.text.split("\n")) - {""}
    listed = {line for line in said if line.startswith("LISTED")}
    # What a private view of the file system hides is not there at all, or there with the thief's own folder in it.
    assert said - listed <= {"PermissionError", "FileNotFoundError"}, seen.text
    assert hidden or not listed, seen.text
    assert all(line.endswith((str([thief]), "['containers']")) for line in listed), seen.text
    assert len(seen.lines) == len(closed) + 5


@as_root
@pytest.mark.parametrize("uid", [None, 0, 33])
async def test_root_runs_no_task_under_a_system_account(
    master: FakeMaster, running: AgentProcess, uid: int | None
) -> None:
    seen = await master.ended(master.start("true", owner_uid=uid))
    assert seen.end is not None and seen.end.failure is not None
    assert f"the master named {uid} for 'ada': 1000 or more is needed" in seen.end.failure.message


@as_root
@pytest.mark.parametrize("agent_folder", ["closed", "open"], indirect=True)
async def test_bind_mounts(master: FakeMaster, running: AgentProcess, tmp_path: Path) -> None:
    shared, data = tmp_path / "closed" / "shared", tmp_path / "closed" / "data"
    for path in (shared, data):
        path.mkdir(parents=True)
        path.chmod(0o777)
    shared.parent.chmod(0o700)  # closed to the task, but for what is mounted
    (data / "file").write_text("content")
    script = f"""
import os
open("{shared}/made", "w").close()
open("mine", "w").close()
open("/determined_shared_fs/too", "w").close()
print(open("/determined_data/file").read(), open("inputs/file").read())
try:
    open("/determined_data/new", "w")
except OSError as e:
    print(e.strerror)
print(sorted(os.listdir("{shared.parent}")), os.path.isdir("/proc/self"), os.path.exists("/bin/sh"))
"""
    mounts = (
        BindMount(str(shared), str(shared)),
        BindMount(str(shared), "/determined_shared_fs"),
        BindMount(str(data), "/determined_data", read_only=True),
        BindMount(str(data), "inputs"),
    )
    seen = await master.ended(master.start("python", "-c", script, bind_mounts=mounts))
    assert seen.text == "content content\nRead-only file system\n['shared'] True True\n"
    assert sorted(os.listdir(shared)) == ["made", "too"]
    assert not Path("/determined_shared_fs").exists() and not Path("/determined_data").exists()


@as_root
async def test_a_bind_mount_that_is_not_there_is_an_error(master: FakeMaster, running: AgentProcess) -> None:
    seen = await master.ended(master.start("true", bind_mounts=(BindMount("/no/such", "/no/such"),)))
    assert seen.end is not None and seen.end.failure is not None
    assert "bind mount of /no/such: /no/such does not exist on this agent" in seen.end.failure.message


@as_root
async def test_an_agent_that_is_not_root_serves_one_user(master: FakeMaster, agent: AgentProcess) -> None:
    agent.start("--slots", "1", uid=OWNER_UID)
    hello = (await master.until(lambda: master.hellos))[0]
    assert hello.isolation is Isolation.NONE
    first = await master.ended(
        master.start("python", "-c", "import os; print(os.getuid())", owner_uid=OTHER_UID)
    )
    assert first.text == f"{OWNER_UID}\n"  # its own: it has no other
    await agent.kill()
    agent.start("--slots", "1", uid=OWNER_UID)
    await master.until(lambda: len(master.hellos) == 2)
    other = await master.ended(master.start("true", owner="bob"))
    assert other.end is not None and other.end.failure is not None
    assert other.end.failure.kind is FailureKind.USER_MISMATCH
    assert "takes tasks of 'ada' only, not of 'bob'" in other.end.failure.message
    script = "ls -d /elsewhere/bin; id -u; touch /elsewhere/x; touch mine && echo done"
    mounts = (BindMount("/usr", "/elsewhere", read_only=True),)
    mounted = await master.ended(master.start("sh", "-c", script, bind_mounts=mounts))
    if user_namespaces_for(OWNER_UID):
        assert "Read-only file system" in mounted.text
        assert [line for line in mounted.text.splitlines() if "touch" not in line] == [
            "/elsewhere/bin",
            str(OWNER_UID),
            "done",
        ]
    else:
        assert "Mount each folder where it is on this machine" in mounted.text
    await agent.kill()
    agent.start("--slots", "1", uid=OWNER_UID, DETLAB_SHARED_TRUST="1")
    await master.until(lambda: len(master.hellos) == 3)
    trusted = await master.ended(master.start("true", owner="bob"))
    assert trusted.end is not None and trusted.end.exit_code == 0


def user_namespaces_for(uid: int) -> bool:
    """Whether this kernel gives them to an account that is not root."""
    return subprocess.run(["unshare", "-Urm", "true"], user=uid, check=False).returncode == 0


# ---- plans


def test_nothing_is_mounted_where_nothing_is_closed() -> None:
    assert plan_mounts([Need(Path("/usr"), "python")], [BindMount("/usr", "/usr")], OWNER_UID).steps == ()


def test_a_closed_folder_is_covered_once_and_only_what_is_needed_is_put_back(tmp_path: Path) -> None:
    inside = tmp_path / "closed"
    (inside / "a" / "deep").mkdir(parents=True)
    (inside / "b").mkdir()
    inside.chmod(0o700)
    top = next(
        p for p in (*reversed(inside.parents), inside) if not p.stat().st_mode & 1
    )  # pytest's own may be, too
    needs = [
        Need(inside / "a", "x"),
        Need(inside / "a" / "deep", "y"),
        Need(inside / "b", "z", read_only=False),
    ]
    plan = plan_mounts(needs, (), OWNER_UID)
    assert plan.steps == (
        ("cover", str(top), []),
        ("bind", str(inside / "a"), str(inside / "a"), True),
        ("bind", str(inside / "b"), str(inside / "b"), False),
    )
    assert "closed to the task's uid" in plan.reason


def test_a_folder_that_is_closed_itself_says_how_to_open_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(MountError, match=rf"the data: {tmp_path} is closed to .* chmod -R go\+rX {tmp_path}"):
        plan_mounts([Need(tmp_path, "the data")], (), OWNER_UID)


async def test_the_token_is_in_no_command_line(master: FakeMaster, running: AgentProcess) -> None:
    spec = make_spec("sh", "-c", "tr '\\0' ' ' < /proc/$PPID/cmdline; tr '\\0' '\\n' < /proc/self/environ")
    master.start_spec(spec)
    seen = await master.ended(spec.container_id)
    assert TOKEN not in seen.text and "detlab_agent.shim" in seen.text and sys.executable in seen.text
