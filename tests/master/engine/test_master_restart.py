"""A master that starts again goes on with what the last one had promised: the real wiring, a real database, an agent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from detlab_agent import protocol
from detlab_agent.protocol import ContainerState as State
from detlab_master.app import running
from detlab_master.config import MasterConfig
from detlab_master.core import trial as trial_rules
from detlab_master.core.records import User
from detlab_master.engine import logs
from detlab_master.store.writes import SaveUser
from master.api.rig import ALICE, CONFIG, Rig
from master.api.test_api_experiments import Agent, agent, hello
from support.cluster import free_port


@asynccontextmanager
async def master(folder: Path) -> AsyncIterator[Rig]:
    config = MasterConfig(data_dir=folder, port=free_port())
    async with running(config) as services:
        token = (folder / "agent-token").read_text().strip()
        rig = Rig(services, services.store, f"http://127.0.0.1:{config.port}", config.port, folder, token, "")
        await rig.keep(SaveUser(User(ALICE + 10, "alice", None, admin=False, active=True)))
        rig.tokens["alice"] = await rig.token(ALICE + 10)
        yield rig


def report(spec: protocol.ContainerSpec, state: State) -> protocol.ContainerReport:
    return protocol.ContainerReport(spec.container_id, spec.allocation_id, state)


async def started(rig: Rig, connected: Agent) -> tuple[int, protocol.ContainerSpec]:
    assert isinstance(await connected.receive(), protocol.Welcome)
    answer = await rig.call("POST", "/api/v1/experiments", {"config": CONFIG})
    assert answer.status == 200, answer.body
    start = await connected.receive()
    assert isinstance(start, protocol.StartContainer)
    await connected.moved(start.spec, State.RUNNING)
    return int(answer.json["experiment"]["id"]), start.spec


async def completed(rig: Rig, number: int) -> int:
    """How often its trial was restarted, once that is COMPLETED."""
    async with asyncio.timeout(10):
        while True:
            (trial,) = (await rig.call("GET", f"/api/v1/experiments/{number}/trials")).json["trials"]
            if trial["state"] == "STATE_COMPLETED":
                return int(trial["restarts"])
            await asyncio.sleep(0.01)


async def test_who_does_not_exit_after_an_early_exit_is_killed_by_the_next_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with master(tmp_path) as rig, agent(rig) as connected:
        number, spec = await started(rig, connected)
        path = f"/api/v1/trials/{spec.environment['DET_TRIAL_ID']}/early_exit"
        token = spec.environment["DET_SESSION_TOKEN"]
        answer = await rig.call("POST", path, {"reason": trial_rules.INVALID_HP}, container=token)
        assert answer.status == 200  # it is acknowledged; then that master ends
    monkeypatch.setattr(trial_rules, "EXIT_GRACE_SECONDS", 0.2)
    returns = hello(containers=(report(spec, State.RUNNING),))
    async with master(tmp_path) as rig, agent(rig, returns) as connected:
        assert isinstance(await connected.receive(), protocol.Welcome)
        killed = await connected.receive()
        assert isinstance(killed, protocol.KillContainer) and killed.container_id == spec.container_id
        await connected.moved(spec, State.TERMINATED, 137)
        assert await connected.receive() == protocol.AckState(spec.container_id)
        assert await completed(rig, number) == 0


async def test_an_agent_hears_how_far_its_lines_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with master(tmp_path) as rig, agent(rig) as connected:
        _, spec = await started(rig, connected)
        at = "2026-01-01T00:00:00.000000Z"
        lines = tuple(protocol.LogLine(n, at, protocol.Stdtype.STDOUT, f"{n}\n") for n in (1, 2, 5))
        batch = protocol.LogBatch(spec.container_id, spec.allocation_id, spec.task_id, lines)
        await connected.send(batch)
        assert await connected.receive() == protocol.AckLogs(spec.container_id, 5)
    returns = hello(containers=(report(spec, State.RUNNING),))
    async with master(tmp_path) as rig:
        async with agent(rig, returns) as connected:
            welcome = await connected.receive()
            assert isinstance(welcome, protocol.Welcome) and welcome.stored == {spec.container_id: 5}
        with monkeypatch.context() as hanging:  # it is let in all the same
            hanging.setattr(logs, "_STORED_SECONDS", 0.1)
            hanging.setattr(type(rig.store), "commit", lambda store, writes: Future())
            async with agent(rig, returns) as connected:
                welcome = await connected.receive()
                assert isinstance(welcome, protocol.Welcome) and welcome.stored == {}
