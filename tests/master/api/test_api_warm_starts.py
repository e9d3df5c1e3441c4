"""Trials that start from a checkpoint of another: it stays as long as they need it, and one that goes starts nobody."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from detlab_agent import protocol
from detlab_master.core.states import CheckpointState, ExperimentState, TrialState
from detlab_master.engine.checkpoint_files import CheckpointFiles
from detlab_master.store.base import Page
from detlab_master.store.writes import SaveCheckpoint
from master.api.rig import CONFIG, Answer, Rig, Things
from master.api.test_api_experiments import agent, create
from master.api.test_api_retention import change, files_of, kept, set_policy, until

RM = "/api/v1/checkpoints"


async def start(rig: Rig, key: str, value: object, **fields: Any) -> Answer:
    return await create(rig, config=CONFIG.replace("name: single", f"name: single, {key}: {value}"), **fields)


async def removed(rig: Rig, things: Things) -> Answer:
    return await rig.call("DELETE", RM, {"checkpointUuids": [things.checkpoint.uuid]})


@asynccontextmanager
async def held_up(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncio.Event]:
    """Removals of files that have begun end with the context; the event says that one has begun."""
    begun, go_on, remove = asyncio.Event(), asyncio.Event(), CheckpointFiles.remove

    async def slow(self: CheckpointFiles, *arguments: Any) -> dict[str, int]:
        if arguments[2:] != ((),):  # not just a look at them
            begun.set()
            await asyncio.wait_for(go_on.wait(), 10)
        return await remove(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFiles, "remove", slow)
        yield begun
        go_on.set()


@pytest.mark.parametrize("state", [CheckpointState.DELETED, CheckpointState.PARTIALLY_DELETED])
async def test_a_checkpoint_without_its_files_starts_nobody(rig: Rig, state: CheckpointState) -> None:
    things = await rig.things()
    await rig.keep(SaveCheckpoint(replace(things.checkpoint, state=state)))
    for fields in ({}, {"validateOnly": True}):
        refused = await start(rig, "source_checkpoint_uuid", things.checkpoint.uuid, **fields)
        expected = (
            f"checkpoint '{things.checkpoint.uuid}' is {state}: only a COMPLETED one can be started from"
        )
        assert (refused.status, refused.error) == (400, expected)
    refused = await start(rig, "source_trial_id", things.trial.id)
    assert (refused.status, "not found" in refused.error) == (404, True)


@pytest.mark.parametrize("how", ["by hand", "by the policy", "with its experiment"])
async def test_a_checkpoint_that_is_being_removed_starts_nobody(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    things = await rig.things()
    removing: Sequence[asyncio.Task[Answer]] = []
    async with held_up(monkeypatch) as begun:
        if how == "by hand":
            removing = [asyncio.create_task(removed(rig, things))]
        elif how == "by the policy":
            assert (await set_policy(rig, things)).status == 200
        else:
            assert (await rig.call("DELETE", f"/api/v1/experiments/{things.experiment.id}")).status == 200
        await begun.wait()
        refused = await start(rig, "source_checkpoint_uuid", things.checkpoint.uuid)
        assert refused.status == 400, refused.body
        assert "only a COMPLETED one can be started from" in refused.error or (
            "is being deleted: it cannot be started from" in refused.error
        )
    for task in removing:
        assert (await task).status == 200
    await until(lambda: not files_of(rig, things).exists(), "its files are gone")


async def test_what_a_trial_starts_from_stays_until_its_end(rig: Rig) -> None:
    things = await rig.things()
    number = (await start(rig, "source_trial_id", things.trial.id)).json["experiment"]["id"]
    (trial,), _ = rig.store.trials.find(number, None, Page())
    assert trial.warm_start_checkpoint == things.checkpoint.uuid
    why = f"trial {trial.id} of experiment {number} starts from checkpoint '{things.checkpoint.uuid}', and has not ended"
    path = f"/api/v1/experiments/{things.experiment.id}"
    for refused in (await removed(rig, things), await rig.call("DELETE", path)):
        assert (refused.status, why in refused.error) == (400, True)
    await change(rig, things, project_id=things.project.id)
    refused = await rig.call("DELETE", f"/api/v1/projects/{things.project.id}")
    assert (refused.status, f"trial {trial.id} of experiment {number}" in refused.error) == (400, True)
    assert kept(rig, things.checkpoint.uuid) == things.checkpoint and files_of(rig, things).exists()

    assert (await rig.call("POST", f"/api/v1/experiments/{number}/kill")).status == 200
    assert (await removed(rig, things)).status == 200
    assert kept(rig, things.checkpoint.uuid).state is CheckpointState.DELETED


async def test_many_start_and_remove_at_once(rig: Rig) -> None:
    """Whoever was accepted starts from a checkpoint that is whole."""
    many = [await rig.things() for _ in range(10)]
    work = [start(rig, "source_checkpoint_uuid", one.checkpoint.uuid) for one in many]
    work += [removed(rig, one) for one in many]
    random.Random(1).shuffle(work)
    answers = await asyncio.gather(*work)
    assert {answer.status for answer in answers} <= {200, 400}
    for one in many:
        waiting = rig.store.checkpoints.starting_from(checkpoint_uuids=[one.checkpoint.uuid])
        state = kept(rig, one.checkpoint.uuid).state
        assert state is (CheckpointState.COMPLETED if waiting else CheckpointState.DELETED)
        assert files_of(rig, one).exists() == bool(waiting)


async def test_a_continued_trial_whose_start_was_deleted_says_so(rig: Rig) -> None:
    things = await rig.things()
    started = await start(rig, "source_checkpoint_uuid", things.checkpoint.uuid)
    number = started.json["experiment"]["id"]
    assert (await rig.call("POST", f"/api/v1/experiments/{number}/kill")).status == 200
    assert (await removed(rig, things)).status == 200
    async with agent(rig) as connected:
        assert isinstance(await connected.receive(), protocol.Welcome)
        answer = await rig.call("POST", "/api/v1/experiments/continue", {"id": number, "overrideConfig": ""})
        assert answer.status == 200, answer.body
        await until(lambda: _state(rig, number) is ExperimentState.ERROR, "it ends")
    (trial,), _ = rig.store.trials.find(number, None, Page())
    assert (trial.state, trial.restarts) == (TrialState.ERROR, 0)
    log = await rig.call("GET", f"/api/v1/trials/{trial.id}/logs")
    assert f"checkpoint '{things.checkpoint.uuid}' is DELETED: only a COMPLETED one" in log.body.decode()


def _state(rig: Rig, number: int) -> ExperimentState:
    found = rig.store.experiments.get(number)
    assert found is not None
    return found.state
