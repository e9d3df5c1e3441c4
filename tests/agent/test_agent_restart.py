"""Agent, master and connection may go at any time: no task notices, no line is lost or told twice."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import psutil
import pytest

from agent.fake_master import AgentProcess, FakeMaster, eventually, make_spec
from detlab_agent.protocol import ContainerState, Failure, FailureKind, to_json

COUNT = "import time\nfor i in range({n}): print(i); time.sleep({pause})"


def _numbers(text: str) -> list[int]:
    return [int(line) for line in text.split()]


async def test_a_killed_agent_takes_its_tasks_up_again(master: FakeMaster, running: AgentProcess) -> None:
    going = master.start("python", "-c", COUNT.format(n=40, pause=0.05))
    await master.said(going, "5\n")
    pid = json.loads((running.folder(going) / "shim.json").read_text())["pid"]
    await running.kill()
    running.start("--slots", "2")
    await master.until(lambda: len(master.hellos) == 2)
    (report,) = (r for r in master.hellos[1].containers if r.container_id == going)
    assert report.state is ContainerState.RUNNING
    seen = await master.ended(going)
    assert _numbers(seen.text) == list(range(40))
    assert seen.end is not None and seen.end.exit_code == 0
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def test_what_ended_without_an_agent_is_told_by_the_next(
    master: FakeMaster, running: AgentProcess
) -> None:
    master.batches_before_silence = 1  # what is sent after the first batch is not acknowledged
    container = master.start("sh", "-c", "echo first; sleep 1; seq 5000; exit 7")
    await master.said(container, "first")
    await eventually(lambda: (running.folder(container) / "acked.json").exists())
    await running.kill()
    await eventually(lambda: (running.folder(container) / "exit.json").exists())
    master.batches_before_silence = None
    running.start("--slots", "2")
    seen = await master.ended(container)
    assert seen.text == "first\n" + "".join(f"{i}\n" for i in range(1, 5001))
    assert seen.lines_before_end == 5001
    assert seen.end is not None and seen.end.exit_code == 7


async def test_a_lost_connection_repeats_what_was_not_acknowledged(
    master: FakeMaster, running: AgentProcess
) -> None:
    master.batches_before_silence = 0
    container = master.start("sh", "-c", "seq 100; exit 5")
    await master.said(container, "100\n")
    assert master.containers[container].end is None  # not before the lines are acknowledged
    master.batches_before_silence = None
    assert master.handler is not None
    master.handler.close()
    seen = await master.ended(container)
    assert seen.end is not None and seen.end.exit_code == 5
    assert _numbers(seen.text) == list(range(1, 101))


async def test_an_end_that_was_not_acknowledged_is_told_again(
    master: FakeMaster, running: AgentProcess
) -> None:
    master.forgets = False
    container = master.start("sh", "-c", "exit 4")
    await master.ended(container)
    await running.kill()
    master.forgets = True
    running.start("--slots", "2")
    await eventually(lambda: not running.folder(container).exists())
    assert len(master.hellos) == 2 and master.hellos[1].containers[0].container_id == container


async def test_containers_that_the_master_does_not_want_are_killed(
    master: FakeMaster, running: AgentProcess
) -> None:
    container = master.start("sleep", "600")
    await eventually(lambda: ContainerState.RUNNING in master.containers[container].states)
    await running.kill()
    master.wanted.clear()
    running.start("--slots", "2")
    await eventually(lambda: not running.folder(container).exists())
    assert master.containers[container].end is None


async def test_a_kill_that_the_agent_did_not_live_to_finish_is_finished(
    master: FakeMaster, running: AgentProcess
) -> None:
    container = master.start("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    await master.said(container, "ready")
    master.kill(container, grace_seconds=1.0)
    await eventually(lambda: (running.folder(container) / "kill.json").exists())
    await running.kill()
    running.start("--slots", "2")
    seen = await master.ended(container)
    assert seen.end is not None and seen.end.failure is not None
    assert seen.end.failure.kind is FailureKind.CONTAINER_ABORTED


async def test_a_shim_that_was_killed_meanwhile_is_missing(master: FakeMaster, running: AgentProcess) -> None:
    container = master.start("sh", "-c", "echo $$; sleep 600")
    task = int(await master.said(container, "\n"))
    await running.kill()
    psutil.Process(json.loads((running.folder(container) / "shim.json").read_text())["pid"]).kill()
    running.start("--slots", "2")
    seen = await master.ended(container)
    assert seen.end is not None and seen.end.failure is not None
    assert seen.end.failure.kind is FailureKind.CONTAINER_MISSING
    await eventually(
        lambda: not psutil.pid_exists(task) or psutil.Process(task).status() == psutil.STATUS_ZOMBIE
    )


async def test_a_task_that_was_never_started_is_the_agents_failure(
    master: FakeMaster, agent: AgentProcess
) -> None:
    """An agent that was killed between writing the spec and starting the shim."""
    spec = make_spec("true")
    folder = agent.folder(spec.container_id)
    (folder / "logs").mkdir(parents=True)
    (folder / "spec.json").write_text(json.dumps(to_json(spec)))
    half_made = agent.folder("half-made")
    half_made.mkdir()
    master.expect(spec)
    agent.start("--slots", "1")
    seen = await master.ended(spec.container_id)
    assert seen.end is not None and seen.end.failure == Failure(
        FailureKind.AGENT_FAILED, "the agent was stopped before it could start the task"
    )
    assert not half_made.exists()


async def test_tasks_live_on_when_the_agent_is_told_to_end(master: FakeMaster, running: AgentProcess) -> None:
    container = master.start("sh", "-c", "echo $$; sleep 600")
    task = psutil.Process(int(await master.said(container, "\n")))
    running.signal(signal.SIGTERM)
    assert await running.wait() == 0
    assert task.is_running() and task.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("connected", [True, False])
async def test_stop_tasks_on_exit(master: FakeMaster, agent: AgentProcess, connected: bool) -> None:
    agent.start("--slots", "1", "--stop-tasks-on-exit")
    await master.until(lambda: master.hellos)
    container = master.start("sh", "-c", "echo $$; sleep 600")
    task = psutil.Process(int(await master.said(container, "\n")))
    if not connected:
        master.batches_before_silence = 0
        master.forgets = False
        assert master.handler is not None
        master.handler.close()
        master.refuses = True
        await eventually(lambda: "cannot be reached" in agent.said or "answers 503" in agent.said)
    agent.signal(signal.SIGINT)
    assert await agent.wait() == 0
    assert not task.is_running()
    if not connected:
        assert master.containers[container].end is None
        master.batches_before_silence, master.forgets, master.refuses = None, True, False
        agent.start("--slots", "1")
    seen = await master.ended(container)
    assert seen.end is not None and seen.end.failure is not None
    assert seen.end.failure.kind is FailureKind.AGENT_FAILED


async def test_a_master_that_is_not_there_yet_is_waited_for(agent: AgentProcess, master: FakeMaster) -> None:
    master.refuses = True
    agent.start("--slots", "1")
    await eventually(lambda: "answers 503" in agent.said)
    master.refuses = False
    await master.until(lambda: master.hellos)


async def test_output_is_bounded_while_nobody_listens(master: FakeMaster, running: AgentProcess) -> None:
    master.batches_before_silence = 0
    script = "line = 'x' * 9000\nfor i in range(6000): print(i, line)\nprint('done')"
    container = master.start("python", "-c", script)
    folder = running.folder(container)
    await eventually(lambda: (folder / "exit.json").exists(), timeout=60)
    assert sum(path.stat().st_size for path in (folder / "logs").iterdir()) <= 8 * 4 * 1024 * 1024
    master.batches_before_silence = None
    assert master.handler is not None
    master.handler.close()
    seen = await master.ended(container, timeout=60)
    assert seen.lines[-1].log == "done\n"
    # One gap, or two: the oldest lines that wait already may have been read when the next ones are given up.
    gaps = [line for line in seen.lines if "lines were lost here" in line.log]
    assert gaps and all(gap.level == "LOG_LEVEL_WARNING" for gap in gaps)
    assert sum(int(gap.log.split()[0]) for gap in gaps) == 6001 - (len(seen.lines) - len(gaps))
    lost = gaps[-1]
    assert 1000 < lost.offset < 6000
    # Line i has the offset i + 1: from the last gap on, all are there.
    after = [
        int(line.log.split()[0]) for line in seen.lines if line.offset > lost.offset and " x" in line.log
    ]
    assert after == list(range(lost.offset, 6000))


async def test_a_finished_task_leaves_no_file(master: FakeMaster, running: AgentProcess) -> None:
    container = master.start("python", "-c", "import tempfile; print(tempfile.gettempdir())")
    seen = await master.ended(container)
    await eventually(lambda: not running.folder(container).exists())
    assert not Path(seen.text.strip()).exists()
