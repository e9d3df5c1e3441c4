"""Real agent, real tasks: output, exit codes, environment, ending."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from agent.fake_master import TOKEN, AgentProcess, FakeMaster, eventually, make_spec
from detlab_agent.protocol import ContainerState, DeviceType, FailureKind, Refused, StartContainer


async def test_output_comes_in_order_and_before_the_end(master: FakeMaster, running: AgentProcess) -> None:
    script = "for i in range(3000): print(i)\nimport sys; print('INFO: bye', file=sys.stderr); sys.exit(3)"
    container = master.start("python", "-c", script)
    seen = await master.ended(container)
    assert seen.states == [ContainerState.STARTING, ContainerState.RUNNING, ContainerState.TERMINATED]
    assert seen.end is not None and seen.end.exit_code == 3
    assert seen.end.failure is not None and seen.end.failure.kind is FailureKind.CONTAINER_FAILED
    assert seen.lines_before_end == 3001
    assert [line.log for line in seen.lines if line.stdtype == "stdout"] == [f"{i}\n" for i in range(3000)]
    (bye,) = [line for line in seen.lines if line.stdtype == "stderr"]
    assert (bye.level, bye.log) == ("LOG_LEVEL_INFO", "bye\n")
    # The master has taken note: nothing is kept.
    await eventually(lambda: not running.folder(container).exists())


async def test_slots_and_environment(master: FakeMaster, agent: AgentProcess) -> None:
    agent.start("--slots", "2", DET_AGENT_TOKEN=TOKEN, LC_TEST="passed on", SOME_SECRET="hunter2")
    hello = (await master.until(lambda: master.hellos))[0]
    assert [(slot.id, slot.type) for slot in hello.slots] == [(0, DeviceType.CPU), (1, DeviceType.CPU)]
    assert hello.addresses[0] == "127.0.0.1"
    script = "import os, json, sys; print(json.dumps([dict(os.environ), os.getcwd(), sys.executable, sys.stdin.read()]))"
    container = master.start(
        "python", "-c", script, slot_ids=(1,), environment={"DET_MASTER": "m", "DET_SLOT_IDS": "x"}
    )
    environ, cwd, executable, stdin = json.loads((await master.ended(container)).text)
    folder = agent.folder(container)
    assert executable == sys.executable and stdin == ""
    assert cwd == environ["DET_WORKDIR"] == str(folder / "run" / "workdir")
    assert environ["DET_RUN_DIR"] == str(folder / "run")
    assert (environ["DET_AGENT_ID"], environ["DET_CONTAINER_ID"]) == ("agent-1", container)
    assert (environ["DET_MASTER"], environ["DET_SLOT_IDS"], environ["USER"]) == ("m", "[1]", "ada")
    assert environ["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert environ["CUDA_VISIBLE_DEVICES"] == ""
    assert environ["LC_TEST"] == "passed on"
    assert TOKEN not in environ.values() and "hunter2" not in environ.values()
    assert len(environ["TMPDIR"]) <= 60  # multiprocessing puts Unix sockets there


async def test_starting_a_container_again_only_repeats_its_state(
    master: FakeMaster, running: AgentProcess
) -> None:
    spec = make_spec("sh", "-c", "echo once; sleep 60")
    master.start_spec(spec)
    seen = master.containers[spec.container_id]
    await master.said(spec.container_id, "once")
    before = len(seen.states)
    master.send(StartContainer(spec))
    await master.until(lambda: len(seen.states) > before)
    assert seen.states[-1] is ContainerState.RUNNING
    master.kill(spec.container_id)
    assert (await master.ended(spec.container_id)).text == "once\n"


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (("no-such-program",), 127, "'no-such-program' was not found on this agent (PATH="),
        (("/etc/passwd",), 126, "'/etc/passwd' cannot be executed: Permission denied"),
        (("sh", "-c", "kill -9 $$"), 137, "exit code 137 (killed by SIGKILL)"),
    ],
)
async def test_exit_codes(
    master: FakeMaster, running: AgentProcess, command: tuple[str, ...], code: int, says: str
) -> None:
    seen = await master.ended(master.start(*command))
    assert seen.end is not None and seen.end.failure is not None
    assert seen.end.exit_code == code
    assert says in seen.end.failure.message
    if code < 128:
        assert says in seen.text  # a person who reads the logs sees it too
        assert seen.lines[-1].level == "LOG_LEVEL_ERROR"


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"container_id": "../x"}, FailureKind.CONTAINER_FAILED, "no container id"),
        ({"slot_ids": (7,)}, FailureKind.CONTAINER_FAILED, "no slot 7"),
        ({"python_environment": "py39"}, FailureKind.ENVIRONMENT_UNUSABLE, "no environment 'py39'"),
    ],
)
async def test_a_container_that_cannot_be_started_says_why(
    master: FakeMaster, running: AgentProcess, changes: dict[str, object], kind: FailureKind, says: str
) -> None:
    seen = await master.ended(master.start("true", **changes))
    assert seen.end is not None and seen.end.failure is not None
    assert seen.end.failure.kind is kind and says in seen.end.failure.message
    assert list((running.data_dir / "containers").iterdir()) == []


# Each level of this tree tells its pid; the last one has left the session, the group and its parent.
TREE = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid())
if len(sys.argv) > 1:
    subprocess.Popen([sys.executable, "-c", sys.argv[1]], start_new_session=True)
time.sleep(600)
"""


async def _start_tree(master: FakeMaster) -> tuple[str, list[psutil.Process]]:
    container = master.start("python", "-c", TREE, TREE)
    seen = master.containers[container]
    await master.until(lambda: seen.text.count("\n") == 2)
    return container, [psutil.Process(int(pid)) for pid in seen.text.split()]


def _gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=5)[1]


async def test_kill_reaches_what_has_left_the_process_group(
    master: FakeMaster, running: AgentProcess
) -> None:
    container, tree = await _start_tree(master)
    master.kill(container, grace_seconds=0.3)  # both ignore SIGTERM
    seen = await master.ended(container)
    assert _gone(tree)
    assert seen.end is not None and seen.end.exit_code == 137
    assert seen.end.failure is not None and seen.end.failure.kind is FailureKind.CONTAINER_ABORTED


async def test_sigterm_gives_a_task_time(master: FakeMaster, running: AgentProcess) -> None:
    script = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    container = master.start("sh", "-c", script)
    await master.said(container, "ready")
    master.kill(container, grace_seconds=60)
    seen = await master.ended(container)
    assert [line.log for line in seen.lines if line.stdtype == "stdout"] == ["ready\n", "saved\n"]
    assert seen.end is not None and seen.end.exit_code == 0 and seen.end.failure is None


async def test_what_a_task_leaves_behind_ends_with_it(master: FakeMaster, running: AgentProcess) -> None:
    script = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {TREE!r}], start_new_session=True)"
    )
    script += "; import time; time.sleep(1)"
    seen = await master.ended(master.start("python", "-c", script))
    assert seen.end is not None and seen.end.exit_code == 0
    assert _gone([psutil.Process(int(pid)) for pid in seen.text.split() if psutil.pid_exists(int(pid))])


async def test_a_killed_shim_takes_its_processes_along(master: FakeMaster, running: AgentProcess) -> None:
    container, tree = await _start_tree(master)
    shim = json.loads((running.folder(container) / "shim.json").read_text())["pid"]
    os.kill(shim, signal.SIGKILL)
    seen = await master.ended(container)
    assert _gone(tree)
    assert seen.end is not None and seen.end.exit_code is None
    assert seen.end.failure is not None and seen.end.failure.kind is FailureKind.CONTAINER_MISSING


async def test_a_wrong_token_is_one_readable_line(master: FakeMaster, agent: AgentProcess) -> None:
    agent.token_file.write_text("wrong")
    agent.start("--slots", "1")
    assert await agent.wait() == 1
    assert "refuses this agent's token" in agent.said and "Traceback" not in agent.said


async def test_a_refused_agent_says_why_and_ends(master: FakeMaster, agent: AgentProcess) -> None:
    master.refusal = Refused("agent-1 is connected already from another machine")
    agent.start("--slots", "1")
    assert await agent.wait() == 1
    assert (
        "does not take this agent: agent-1 is connected already" in agent.said
        and "Traceback" not in agent.said
    )


async def test_an_agent_that_is_put_off_comes_back(master: FakeMaster, agent: AgentProcess) -> None:
    master.refusal = Refused("still starting", permanent=False)
    agent.start("--slots", "1")
    await eventually(lambda: "still starting; trying again" in agent.said)
    master.refusal = None
    await master.until(lambda: master.hellos)
    assert (await master.ended(master.start("true"))).end is not None


async def test_a_second_agent_on_the_folder_says_who_holds_it(running: AgentProcess) -> None:
    second = AgentProcess(running.master_url, running.data_dir.parent)
    second.start()
    assert await second.wait() == 1
    assert "is in use by the agent with pid" in second.said


def test_without_a_token_or_a_master_the_command_says_what_to_give(tmp_path: Path) -> None:
    for flags, says in (
        ([], "which master?"),
        (["--master-url", "http://127.0.0.1:1"], "needs the master's agent token: --token-file"),
    ):
        result = subprocess.run(
            [sys.executable, "-m", "detlab_agent", "--data-dir", str(tmp_path / "d"), *flags],
            capture_output=True,
            check=False,
            text=True,
            env={"PATH": os.environ["PATH"]},
        )
        assert result.returncode == 1 and says in result.stderr and result.stderr.count("\n") == 1
