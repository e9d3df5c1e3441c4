"""Checkpoints in a bucket, through the API: downloads, removal, retention, and who sees the keys."""

from __future__ import annotations

import asyncio
import io
import logging
import tarfile
import uuid
import zipfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from determined.common import storage as harness
from determined.common.storage import MANIFEST
from detlab_master.core.states import CheckpointState
from detlab_master.store.writes import SaveCheckpoint, SaveExperiment
from master.api.rig import BOB, Rig, Things
from master.api.test_api_retention import RM, kept, more, set_policy, until
from support.s3 import KEYS, S3Server

CHECKPOINTS = "/api/v1/checkpoints"
FILES = {"code/train.py": b"print('hi')\n", "weights": b"w" * 1000}


@pytest.fixture
async def things(rig: Rig, s3: S3Server, tmp_path: Path) -> AsyncIterator[Things]:
    """Of alice, with the files in a bucket."""
    made = await rig.things()
    config = {
        **s3.config(uuid.uuid4().hex),
        "save_experiment_best": 0,
        "save_trial_best": 1,
        "save_trial_latest": 1,
    }
    experiment = replace(made.experiment, config={**made.experiment.config, "checkpoint_storage": config})
    await rig.keep(SaveExperiment(experiment))
    yield replace(made, experiment=experiment)


def save(things: Things, name: str, folder: Path) -> None:
    for path, content in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    harness.from_config(things.experiment.config["checkpoint_storage"]).upload(folder, name)


async def test_downloads_go_through_the_master(rig: Rig, things: Things, tmp_path: Path) -> None:
    path = f"/checkpoints/{things.checkpoint.uuid}"
    missing = await rig.call("GET", path)
    assert (missing.status, "not in its storage any more (s3://" in missing.json["message"]) == (404, True)
    save(things, things.checkpoint.uuid, tmp_path / "made")
    assert (await rig.call("GET", path, by="bob")).status == 404
    for kind in ("application/x-tar", "application/gzip"):
        answer = await rig.call("GET", path, headers={"Accept": kind})
        with tarfile.open(fileobj=io.BytesIO(answer.body)) as tar:
            found = {one.name: tar.extractfile(one) for one in tar}
            assert {name: file.read() for name, file in found.items() if file and name != MANIFEST} == FILES
            assert MANIFEST in found
    answer = await rig.call("GET", path, headers={"Accept": "application/zip"})
    with zipfile.ZipFile(io.BytesIO(answer.body)) as archive:
        assert archive.read("weights") == FILES["weights"]


async def test_files_are_removed_and_nobody_else_sees_the_keys(
    rig: Rig, things: Things, s3: S3Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    storage = things.experiment.config["checkpoint_storage"]
    save(things, things.checkpoint.uuid, tmp_path / "made")
    shown = (await rig.call("GET", f"{CHECKPOINTS}/{things.checkpoint.uuid}")).json["checkpoint"]
    assert shown["training"]["experimentConfig"]["checkpoint_storage"] == storage
    assert (await rig.call("GET", f"{CHECKPOINTS}/{things.checkpoint.uuid}", by="bob")).status == 404
    globs = {"checkpointUuids": [things.checkpoint.uuid], "checkpointGlobs": ["code/**"]}
    assert (await rig.call("POST", RM, globs, by="bob")).status == 404
    assert (await rig.call("POST", RM, globs)).json == {}
    assert kept(rig, things.checkpoint.uuid).resources == {"weights": 1000}
    assert kept(rig, things.checkpoint.uuid).state is CheckpointState.PARTIALLY_DELETED
    assert (await rig.call("DELETE", CHECKPOINTS, {"checkpointUuids": [things.checkpoint.uuid]})).json == {}
    assert kept(rig, things.checkpoint.uuid).state is CheckpointState.DELETED
    assert s3.names(storage["prefix"]) == []

    broken = {**things.experiment.config, "checkpoint_storage": {**storage, "bucket": "no-such-bucket"}}
    await rig.keep(SaveExperiment(replace(things.experiment, config=broken)))
    refused = await rig.call("POST", RM, globs)
    assert (refused.status, "there is no such bucket" in refused.error) == (400, True)
    said = caplog.text + refused.error
    assert not any(secret in said for secret in KEYS.values())


async def test_a_policy_and_a_deletion(rig: Rig, things: Things, s3: S3Server, tmp_path: Path) -> None:
    prefix = things.experiment.config["checkpoint_storage"]["prefix"]
    good, bad = await more(rig, things, 10, 0.9), await more(rig, things, 20, 0.1)
    for one in (good, bad, things.checkpoint):
        save(things, one.uuid, tmp_path / one.uuid)
    board = f"{rig.store.cluster_id()}/tensorboard/experiment/{things.experiment.id}/trial/1/events"
    s3.write(f"{prefix}/{board}", b"x")
    half = harness.from_config(things.experiment.config["checkpoint_storage"], owner=things.task.id)
    half.add(tmp_path / good.uuid, "5f0c3f0a-2b5f-4c39-8f2e-5d3f4c0a1b2c")
    assert (await set_policy(rig, things, saveTrialBest=1)).status == 200
    await until(lambda: kept(rig, bad.uuid).state is CheckpointState.DELETED, "the bad one goes")
    await until(lambda: not any(name.startswith(bad.uuid) for name in s3.names(prefix)), "its files too")
    assert f"{good.uuid}/weights" in s3.names(prefix)
    await rig.call("DELETE", f"/api/v1/experiments/{things.experiment.id}")
    await until(lambda: rig.store.experiments.get(things.experiment.id) is None, "it is gone")
    assert s3.names(prefix) == []


async def test_a_service_that_hangs_holds_up_nobody_else(rig: Rig, things: Things) -> None:
    hanging, over = asyncio.Semaphore(0), asyncio.Event()

    async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hanging.release()
        await over.wait()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as service:
        url = f"http://127.0.0.1:{service.sockets[0].getsockname()[1]}"
        storage = {**things.experiment.config["checkpoint_storage"], "endpoint_url": url}
        away = {**things.experiment.config, "checkpoint_storage": storage}
        await rig.keep(SaveExperiment(replace(things.experiment, config=away)))
        path = f"/checkpoints/{things.checkpoint.uuid}"
        downloads = [asyncio.create_task(rig.call("GET", path)) for _ in range(4)]
        for _ in range(4):  # all threads that there are for this
            await hanging.acquire()
        shown = await asyncio.wait_for(rig.call("GET", f"{CHECKPOINTS}/{things.checkpoint.uuid}"), 30)
        assert shown.status == 200
        service.close()
        over.set()
        for answer in await asyncio.gather(*downloads):
            assert (answer.status, "cannot be reached" in answer.error) == (400, True)


async def test_the_keys_that_a_user_has_given_serve_nobody_else(
    rig: Rig, things: Things, s3: S3Server, tmp_path: Path
) -> None:
    name = str(uuid.uuid4())
    save(things, name, tmp_path / "made")  # by a script that never told the master
    storage = things.experiment.config["checkpoint_storage"]
    start = {"runId": things.trial.id, "checkpointStorage": storage}
    number = (await rig.call("POST", "/api/v1/runs/start", start)).json["storageId"]
    bobs = await rig.things(BOB)
    body = {
        "uuid": name,
        "taskId": bobs.task.id,
        "allocationId": bobs.checkpoint.allocation_id,
        "metadata": {"steps_completed": 1},
        "storageId": number,
    }
    refused = await rig.call("POST", CHECKPOINTS, body, by="bob")
    assert (refused.status, "storageId" in refused.error) == (400, True)
    await rig.keep(SaveCheckpoint(replace(bobs.checkpoint, storage_id=number)))
    answer = await rig.call("GET", f"/checkpoints/{bobs.checkpoint.uuid}", by="bob")
    assert answer.status == 200  # from where his own experiment keeps them
