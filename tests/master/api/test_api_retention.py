"""Retention and deletion through the API: files in a real folder, the store in memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from detlab_master.core.records import Checkpoint
from detlab_master.core.states import CheckpointState, ExperimentState, TrialState
from detlab_master.engine.checkpoint_files import CheckpointFiles
from detlab_master.engine.launch import FIRST_TASK_UID
from detlab_master.engine.storage import StorageUnreachable
from detlab_master.store.writes import InsertReport, SaveCheckpoint, SaveExperiment, SaveTrial
from master.api.rig import BOB, Answer, Rig, Things, checkpoint_record, reports, trial_record

RM, CHECKPOINTS = "/api/v1/checkpoints/rm", "/api/v1/checkpoints"
POLICY = {"saveExperimentBest": 0, "saveTrialBest": 0, "saveTrialLatest": 0}


async def until(condition: Callable[[], object], what: str) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"not within 5 s: {what}")


def files_of(rig: Rig, things: Things) -> Path:
    return rig.folder / "checkpoints" / things.checkpoint.uuid


def kept(rig: Rig, uuid: str) -> Checkpoint:
    found = rig.store.checkpoints.get(uuid)
    assert found is not None
    return found


async def more(rig: Rig, things: Things, step: int, accuracy: object = None, **changes: Any) -> Checkpoint:
    """Another checkpoint of the trial, with its validation."""
    uuid = f"00000000-0000-4000-8000-{things.experiment.id:04d}{step:08d}"
    saved = checkpoint_record(uuid, things.task, things.allocation, steps_completed=step, **changes)
    folder = rig.folder / "checkpoints" / uuid
    folder.mkdir()
    (folder / "weights").write_bytes(b"w" * 1000)
    if os.geteuid() == 0:
        os.chown(folder, FIRST_TASK_UID + things.experiment.owner_id, -1)
    validation = replace(reports(things.trial)[2], steps_completed=step, metrics={"accuracy": accuracy})
    await rig.keep(SaveCheckpoint(replace(saved, resources={"weights": 1000})))
    if accuracy is not None:
        await rig.keep(InsertReport(validation))
    return kept(rig, uuid)


async def change(rig: Rig, things: Things, **changes: Any) -> None:
    now = rig.store.experiments.get(things.experiment.id)
    assert now is not None
    await rig.keep(SaveExperiment(replace(now, **changes)))


async def set_policy(rig: Rig, things: Things, **numbers: int) -> Answer:
    body = {"id": things.experiment.id, "checkpointStorage": POLICY | numbers}
    return await rig.call("PATCH", f"/api/v1/experiments/{things.experiment.id}", body)


# The policy


async def test_a_changed_policy_is_previewed_and_carried_out(rig: Rig) -> None:
    things, others = await rig.things(), await rig.things()
    first = await more(rig, things, 50, 0.9)
    unvalidated = await more(rig, things, 60)
    number = things.experiment.id

    async def preview(**query: int) -> list[Any]:
        answer = (await rig.call("GET", f"/experiments/{number}/preview_gc", query=query)).json
        assert answer["metric_name"] == "accuracy"
        return [(row["StepsCompleted"], row["UUID"]) for row in answer["checkpoints"]]

    assert await preview() == [(60, unvalidated.uuid)]
    best_only = {"save_experiment_best": 1, "save_trial_best": 0, "save_trial_latest": 0}
    superfluous = [(60, unvalidated.uuid), (200, things.checkpoint.uuid)]
    assert await preview(**best_only) == superfluous
    assert (await rig.call("GET", f"/experiments/{number}/preview_gc", by="bob")).status == 404
    refused = await rig.call("GET", f"/experiments/{number}/preview_gc", query={"save_trial_best": -1})
    assert (refused.status, refused.json) == (
        400,
        {"message": "save_trial_best is '-1': it must be 0 or more"},
    )

    assert (await set_policy(rig, things, saveExperimentBest=1)).status == 200
    await until(lambda: rig.store.experiments.collections_due() == [], "the collection is done")
    for _, uuid in superfluous:
        assert (kept(rig, uuid).state, kept(rig, uuid).resources) == (CheckpointState.DELETED, {})
        assert not (rig.folder / "checkpoints" / uuid).exists()
    assert kept(rig, first.uuid) == first
    assert (rig.folder / "checkpoints" / first.uuid / "weights").exists()
    assert kept(rig, others.checkpoint.uuid) == others.checkpoint
    assert files_of(rig, others).exists()
    assert await preview(**best_only) == []


async def test_what_is_registered_or_started_from_or_needed_stays(rig: Rig) -> None:
    things, others = await rig.things(), await rig.things()
    started_from, latest, old = [await more(rig, things, step, 0.1) for step in (10, 300, 20)]
    await rig.call("POST", "/api/v1/models", {"name": "digits"})
    version = {"checkpointUuid": things.checkpoint.uuid}
    assert (await rig.call("POST", "/api/v1/models/digits/versions", version)).status == 200
    await rig.keep(SaveTrial(replace(others.trial, warm_start_checkpoint=started_from.uuid)))
    await rig.keep(SaveTrial(replace(things.trial, state=TrialState.PAUSED)))  # would go on from 300
    assert (await set_policy(rig, things)).status == 200
    await until(lambda: rig.store.experiments.collections_due() == [], "the collection is done")
    stay = {one.uuid: one for one in (started_from, latest, things.checkpoint)}
    assert {uuid: kept(rig, uuid) for uuid in stay} == stay
    assert kept(rig, old.uuid).state is CheckpointState.DELETED


async def test_a_collection_that_was_broken_off_is_taken_up(rig: Rig) -> None:
    things = await rig.things()
    early = await more(rig, things, 50, 0.1)
    half = await more(rig, things, 60, 0.1, state=CheckpointState.PARTIALLY_DELETED)
    gone = await more(rig, things, 70, 0.1, state=CheckpointState.PARTIALLY_DELETED)
    (rig.folder / "checkpoints" / gone.uuid / "weights").unlink()
    (rig.folder / "checkpoints" / gone.uuid).rmdir()  # killed between its files and its record
    await change(rig, things, gc_due=5.0)
    await rig.services.collector.restore()
    await until(lambda: rig.store.experiments.collections_due() == [], "the collection is done")
    for one in (early, half, gone):
        assert kept(rig, one.uuid).state is CheckpointState.DELETED
    assert kept(rig, things.checkpoint.uuid) == things.checkpoint


async def test_a_storage_that_is_away_loses_nothing(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    things = await rig.things()
    early = await more(rig, things, 50, 0.1)
    storage = rig.folder / "checkpoints"
    storage.rename(rig.folder / "unmounted")
    assert (await set_policy(rig, things, saveTrialBest=1)).status == 200
    await until(lambda: "keeps its checkpoints for now" in caplog.text, "the master says so")
    assert kept(rig, early.uuid) == early
    assert rig.store.experiments.collections_due() == [things.experiment.id]
    removal = {"checkpointUuids": [early.uuid]}
    refused = await rig.call("DELETE", CHECKPOINTS, removal)
    assert (refused.status, f"the storage folder {storage} is not there" in refused.error) == (400, True)
    looked = await rig.call("POST", RM, {**removal, "checkpointGlobs": []})
    assert (looked.status, kept(rig, early.uuid)) == (400, early)
    (rig.folder / "unmounted").rename(storage)
    assert (await rig.call("DELETE", CHECKPOINTS, removal)).status == 200


async def test_a_bucket_without_keys_is_left_alone_and_the_master_says_so(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    things = await rig.things()
    config = {**things.experiment.config, "checkpoint_storage": {"type": "s3", "bucket": "shed"}}
    await change(rig, things, config=config)
    refused = await rig.call("DELETE", CHECKPOINTS, {"checkpointUuids": [things.checkpoint.uuid]})
    assert "this master has no keys for s3://shed" in refused.error
    await set_policy(rig, things)
    await until(lambda: "this master has no keys for s3://shed" in caplog.text, "the master says so")
    assert kept(rig, things.checkpoint.uuid) == things.checkpoint
    await rig.call("DELETE", f"/api/v1/experiments/{things.experiment.id}")
    await until(lambda: _state(rig, things) is ExperimentState.DELETE_FAILED, "the deletion fails")

    # Who has removed the files themselves says so, and then it can go.
    patch = {"checkpoints": [{"uuid": things.checkpoint.uuid, "resources": {"resources": {}}}]}
    assert (await rig.call("PATCH", CHECKPOINTS, patch)).json == {}
    await rig.call("DELETE", f"/api/v1/experiments/{things.experiment.id}")
    await until(lambda: _state(rig, things) is None, "it is gone")


def _state(rig: Rig, things: Things) -> ExperimentState | None:
    found = rig.store.experiments.get(things.experiment.id)
    return found.state if found else None


# Files


async def test_globs(rig: Rig) -> None:
    things = await rig.things()
    body = {"checkpointUuids": [things.checkpoint.uuid]}
    for glob in ("", "..", "../x", "a/../b", "/etc/*"):
        refused = await rig.call("POST", RM, {**body, "checkpointGlobs": ["weights", glob]})
        assert refused.status == 400, glob
    assert kept(rig, things.checkpoint.uuid) == things.checkpoint
    assert (await rig.call("POST", RM, {**body, "checkpointGlobs": ["no-such-*"]})).json == {}
    assert kept(rig, things.checkpoint.uuid) == things.checkpoint

    (files_of(rig, things) / "weights").write_bytes(b"shorter")
    (files_of(rig, things) / "metadata.json").write_text("{}")
    assert (await rig.call("POST", RM, {**body, "checkpointGlobs": []})).json == {}
    looked = kept(rig, things.checkpoint.uuid)
    assert looked.state is CheckpointState.COMPLETED
    assert looked.resources == {"weights": 7, "metadata.json": 2, "code/": 0, "code/train.py": 12}

    await rig.call("POST", RM, {**body, "checkpointGlobs": ["**/*.py"]})
    assert kept(rig, things.checkpoint.uuid).state is CheckpointState.PARTIALLY_DELETED
    await rig.call("POST", RM, {**body, "checkpointGlobs": ["weights"]})  # only folders and metadata are left
    assert kept(rig, things.checkpoint.uuid).state is CheckpointState.DELETED
    assert not files_of(rig, things).exists()


async def test_links_lead_nowhere(rig: Rig, tmp_path: Path) -> None:
    things, victim = await rig.things(), await rig.things(BOB)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("mine")
    (files_of(rig, things) / "link").symlink_to(outside)
    (files_of(rig, things) / "code" / "file").symlink_to(outside / "precious")
    body = {"checkpointUuids": [things.checkpoint.uuid], "checkpointGlobs": ["link/**", "link/precious"]}
    assert (await rig.call("POST", RM, body)).status == 200
    assert (await rig.call("DELETE", CHECKPOINTS, body)).status == 200
    assert not files_of(rig, things).exists()
    assert (outside / "precious").read_text() == "mine"

    # A checkpoint whose folder is a link to another's.
    alias = await more(rig, things, 50)
    folder = rig.folder / "checkpoints" / alias.uuid
    (folder / "weights").unlink()
    folder.rmdir()
    folder.symlink_to(files_of(rig, victim))
    assert (await rig.call("DELETE", CHECKPOINTS, {"checkpointUuids": [alias.uuid]})).status == 200
    assert (files_of(rig, victim) / "weights").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can remove what belongs to others")
async def test_what_belongs_to_others_stays_whatever_its_mode(rig: Rig) -> None:
    things = await rig.things()
    for owner in (0, FIRST_TASK_UID + BOB):
        os.chown(files_of(rig, things), owner, -1)
        files_of(rig, things).chmod(0o777)
        assert (
            await rig.call("DELETE", CHECKPOINTS, {"checkpointUuids": [things.checkpoint.uuid]})
        ).status == 200
        assert (files_of(rig, things) / "weights").exists()


async def test_training_code_may_have_chosen_another_storage(rig: Rig) -> None:
    things = await rig.things()
    chosen = {"type": "shared_fs", "host_path": str(rig.folder), "storage_path": "elsewhere"}
    number = rig.store.checkpoints.storage_id(chosen, things.experiment.owner_id)
    (rig.folder / "elsewhere").mkdir()
    moved = rig.folder / "elsewhere" / things.checkpoint.uuid
    files_of(rig, things).rename(moved)
    await rig.keep(SaveCheckpoint(replace(things.checkpoint, storage_id=number)))
    assert (await rig.call("GET", f"/checkpoints/{things.checkpoint.uuid}")).status == 200
    assert (
        await rig.call("DELETE", CHECKPOINTS, {"checkpointUuids": [things.checkpoint.uuid]})
    ).status == 200
    assert not moved.exists()


@pytest.mark.parametrize(
    "chosen", [{"type": "shared_fs"}, {"type": "directory", "container_path": "x"}, {"type": 3}]
)
async def test_a_storage_that_makes_no_sense(rig: Rig, chosen: dict[str, Any]) -> None:
    things = await rig.things()
    number = rig.store.checkpoints.storage_id(chosen, things.experiment.owner_id)
    await rig.keep(SaveCheckpoint(replace(things.checkpoint, storage_id=number)))
    for method, path in (("DELETE", CHECKPOINTS), ("POST", RM)):
        assert (await rig.call(method, path, {"checkpointUuids": [things.checkpoint.uuid]})).status == 400
    assert (await rig.call("GET", f"/checkpoints/{things.checkpoint.uuid}")).status == 400


async def test_a_report_of_removed_files_is_verified(rig: Rig) -> None:
    things = await rig.things()
    uuid = things.checkpoint.uuid

    async def patch(*gone: str, **changed: object) -> Answer:
        left = {
            path: size
            for path, size in {**things.checkpoint.resources, **changed}.items()
            if path not in gone
        }
        body = {"checkpoints": [{"uuid": uuid, "resources": {"resources": left}}]}
        return await rig.call("PATCH", CHECKPOINTS, body, container=things.token)

    refused = await patch("weights")
    assert (refused.status, "still has 'weights' in its storage" in refused.error) == (400, True)
    for wrong, why in (
        ({"weights": 1001}, "has 1000 bytes"),
        ({"new": 1}, "is no file of it"),
        ({"weights": -1}, ""),
    ):
        refused = await patch(**wrong)
        assert (refused.status, why in refused.error) == (400, True)
    assert kept(rig, uuid) == things.checkpoint

    (files_of(rig, things) / "weights").unlink()
    assert (await patch("weights")).json == {}
    assert kept(rig, uuid).state is CheckpointState.PARTIALLY_DELETED
    assert kept(rig, uuid).resources == {"code/": 0, "code/train.py": 12}
    (files_of(rig, things) / "code" / "train.py").unlink()
    (files_of(rig, things) / "code").rmdir()
    files_of(rig, things).rmdir()
    assert (await patch("weights", "code/train.py", "code/")).json == {}
    assert kept(rig, uuid).state is CheckpointState.DELETED


async def test_a_report_about_a_bucket_is_believed_unless_it_is_registered(rig: Rig) -> None:
    things = await rig.things()
    config = {**things.experiment.config, "checkpoint_storage": {"type": "s3", "bucket": "shed"}}
    await change(rig, things, config=config)
    await rig.call("POST", "/api/v1/models", {"name": "digits"})
    version = {"checkpointUuid": things.checkpoint.uuid}
    assert (await rig.call("POST", "/api/v1/models/digits/versions", version)).status == 200
    patch = {
        "checkpoints": [{"uuid": things.checkpoint.uuid, "resources": {"resources": {"weights": "1000"}}}]
    }
    refused = await rig.call("PATCH", CHECKPOINTS, patch, container=things.token)
    assert (refused.status, "is version 1 of the model 'digits'" in refused.error) == (400, True)
    await rig.call("DELETE", "/api/v1/models/digits")
    assert (await rig.call("PATCH", CHECKPOINTS, patch, container=things.token)).json == {}
    assert kept(rig, things.checkpoint.uuid).resources == {"weights": 1000}


async def test_tensorboard_files(rig: Rig) -> None:
    things, others = await rig.things(), await rig.things()
    path = f"/api/v1/experiments/{things.experiment.id}/tensorboard-files"
    assert (await rig.call("DELETE", path)).json == {}  # there are none
    mine, theirs = [_tensorboard(rig, one) for one in (things, others)]
    assert (await rig.call("DELETE", path, by="bob")).status == 404
    assert (await rig.call("DELETE", path)).json == {}
    assert (mine.exists(), theirs.exists()) == (False, True)
    assert kept(rig, things.checkpoint.uuid) == things.checkpoint
    await change(rig, things, state=ExperimentState.PAUSED)
    refused = await rig.call("DELETE", path)
    assert (refused.status, "can be deleted once it has ended" in refused.error) == (400, True)


def _tensorboard(rig: Rig, things: Things) -> Path:
    cluster = rig.store.cluster_id()
    folder = rig.folder / "checkpoints" / cluster / "tensorboard" / "experiment" / str(things.experiment.id)
    (folder / "trial" / "1").mkdir(parents=True)
    (folder / "trial" / "1" / "events").write_text("x")
    if os.geteuid() == 0:
        os.chown(folder, FIRST_TASK_UID + things.experiment.owner_id, -1)
    return folder


async def test_metadata(rig: Rig) -> None:
    things = await rig.things()
    path = f"{CHECKPOINTS}/{things.checkpoint.uuid}/metadata"
    told = {"checkpoint": {"uuid": "x", "metadata": {"steps_completed": 200, "note": "good"}}}
    assert (await rig.call("POST", path, told)).json["checkpoint"]["metadata"] == told["checkpoint"][
        "metadata"
    ]
    assert kept(rig, things.checkpoint.uuid).metadata == {"steps_completed": 200, "note": "good"}
    assert kept(rig, things.checkpoint.uuid).resources == things.checkpoint.resources
    refused = await rig.call("POST", path, {"checkpoint": {"metadata": {"note": "good"}}})
    assert (refused.status, "must stay 200" in refused.error) == (400, True)


# Deletion of experiments


async def test_a_deleted_experiment_leaves_nothing(rig: Rig) -> None:
    sha, other_sha = "ab" * 32, "cd" * 32
    contexts = rig.services.contexts
    for name in (sha, other_sha):
        contexts.path(name).write_bytes(b"tgz")
    things, fork, others = [await rig.things() for _ in range(3)]
    for one, name in ((things, sha), (fork, sha), (others, other_sha)):
        await change(rig, one, context_sha256=name)
    second = trial_record(9000, things.experiment.id)
    await rig.keep(SaveTrial(second))
    await more(rig, things, 50, state=CheckpointState.DELETED)
    board = _tensorboard(rig, things)

    assert (await rig.call("DELETE", f"/api/v1/experiments/{things.experiment.id}")).json == {}
    await until(lambda: _state(rig, things) is None, "it is gone")
    assert (await rig.call("GET", f"/api/v1/experiments/{things.experiment.id}")).status == 404
    assert not files_of(rig, things).exists()
    assert not board.exists()
    assert rig.store.checkpoints.find(experiment_id=things.experiment.id) == []
    assert rig.store.metrics.reports([things.trial.id]) == []
    assert rig.store.trials.get(second.id) is None
    assert contexts.path(sha).exists()  # the fork has it
    assert (_state(rig, fork), kept(rig, fork.checkpoint.uuid)) == (
        ExperimentState.COMPLETED,
        fork.checkpoint,
    )
    assert files_of(rig, fork).exists()

    await rig.call("DELETE", f"/api/v1/experiments/{fork.experiment.id}")
    await until(lambda: not contexts.path(sha).exists(), "the context goes with the last one")
    assert contexts.path(other_sha).exists()


async def test_a_deletion_that_fails_says_why_and_is_tried_again(rig: Rig) -> None:
    things = await rig.things()
    storage = rig.folder / "checkpoints"
    storage.rename(rig.folder / "unmounted")
    path = f"/api/v1/experiments/{things.experiment.id}"
    assert (await rig.call("DELETE", path)).json == {}
    await until(lambda: _state(rig, things) is ExperimentState.DELETE_FAILED, "the deletion fails")
    shown = (await rig.call("GET", path)).json["experiment"]
    assert shown["state"] == "STATE_DELETE_FAILED"
    assert shown["error"].startswith(f"it could not be deleted: the storage folder {storage} is not there")
    assert (await rig.call("PATCH", path, {"notes": "hm"})).status == 200
    (rig.folder / "unmounted").rename(storage)
    assert (await rig.call("DELETE", path)).json == {}
    await until(lambda: _state(rig, things) is None, "it is gone")


async def test_what_was_changed_during_a_deletion_that_fails_stays_changed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    things = await rig.things()
    path = f"/api/v1/experiments/{things.experiment.id}"

    async def fails(self: CheckpointFiles, *arguments: Any) -> dict[str, int]:
        await change(rig, things, notes="meanwhile")
        raise StorageUnreachable("it is away")

    monkeypatch.setattr(CheckpointFiles, "remove", fails)
    assert (await rig.call("DELETE", path)).json == {}
    await until(lambda: _state(rig, things) is ExperimentState.DELETE_FAILED, "the deletion fails")
    assert (await rig.call("GET", path)).json["experiment"]["notes"] == "meanwhile"


async def test_a_deletion_that_was_broken_off_is_taken_up(rig: Rig) -> None:
    things, others = await rig.things(), await rig.things()
    await change(rig, things, state=ExperimentState.DELETING)
    (files_of(rig, things) / "weights").unlink()
    for name in ("12" * 32, "34" * 32):
        rig.services.contexts.path(name).write_bytes(b"tgz")
    await change(rig, others, context_sha256="34" * 32)
    await rig.services.deletion.restore()
    await until(lambda: _state(rig, things) is None, "it is gone")
    assert not files_of(rig, things).exists()
    left = {path.stem for path in rig.services.contexts.folder.glob("*.tgz")}
    assert left == {"34" * 32}  # that of the last experiment of a killed master is swept


async def test_what_is_being_deleted_does_not_come_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    things = await rig.things()
    go_on = asyncio.Event()
    remove = CheckpointFiles.remove

    async def slow(self: CheckpointFiles, *arguments: Any) -> dict[str, int]:
        await asyncio.wait_for(go_on.wait(), 10)
        return await remove(self, *arguments)

    monkeypatch.setattr(CheckpointFiles, "remove", slow)
    path = f"/api/v1/experiments/{things.experiment.id}"
    assert (await rig.call("DELETE", path)).json == (await rig.call("DELETE", path)).json == {}
    for method, where, body in (
        ("PATCH", path, {"notes": "new"}),
        ("POST", f"{path}/archive", None),
        ("PUT", f"{path}/labels/new", None),
    ):
        refused = await rig.call(method, where, body)
        assert (refused.status, "is being deleted" in refused.error) == (400, True), where
    go_on.set()
    await until(lambda: _state(rig, things) is None, "it is gone")


async def test_edits_and_deletions_at_once(rig: Rig) -> None:
    """Whatever the order, nothing of a deleted experiment is there in the end."""
    many = [await rig.things() for _ in range(8)]

    async def edit(things: Things, number: int) -> None:
        await rig.call("PATCH", f"/api/v1/experiments/{things.experiment.id}", {"notes": f"note {number}"})

    async def delete(things: Things) -> None:
        assert (await rig.call("DELETE", f"/api/v1/experiments/{things.experiment.id}")).json == {}

    async def describe(things: Things) -> None:
        told = {"checkpoint": {"metadata": {"steps_completed": 200}}}
        await rig.call("POST", f"{CHECKPOINTS}/{things.checkpoint.uuid}/metadata", told)

    work = [edit(things, number) for things in many for number in range(3)]
    work += [describe(things) for things in many] + [delete(things) for things in many]
    work += [edit(things, 9) for things in many]
    await asyncio.gather(*work)
    await until(lambda: all(_state(rig, things) is None for things in many), "all are gone")
    assert rig.store.checkpoints.find() == []


async def test_a_context_is_not_removed_under_an_experiment_that_is_being_created(rig: Rig) -> None:
    contexts = rig.services.contexts
    sha = "ef" * 32
    contexts.path(sha).write_bytes(b"tgz")
    contexts.doom(sha)
    with contexts.held(sha):
        contexts.remove(sha)
    assert contexts.path(sha).exists()
    contexts.doom(sha)
    with contexts.held(sha):
        pass
    contexts.remove(sha)  # somebody has created one since
    assert contexts.path(sha).exists()
    contexts.doom(sha)
    contexts.remove(sha)
    assert not contexts.path(sha).exists()


async def test_a_hanging_storage_holds_nothing_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to everything else does not wait for the threads of files."""
    from threading import Event

    from detlab_master.engine import storage_local

    release = Event()

    def hang(*arguments: Any) -> dict[str, int]:
        release.wait(10)
        raise StorageUnreachable("it was away")

    monkeypatch.setattr(storage_local.LocalStorage, "remove", hang)
    many = [await rig.things() for _ in range(8)]
    stuck = [
        asyncio.create_task(rig.call("DELETE", CHECKPOINTS, {"checkpointUuids": [one.checkpoint.uuid]}))
        for one in many
    ]
    await until(lambda: rig.services.files._threads._work_queue.qsize() == 4, "the threads are busy")
    for _ in range(10):
        answer = await rig.call("GET", f"/api/v1/experiments/{many[0].experiment.id}", timeout=2.0)
        assert answer.status == 200
    assert not any(task.done() for task in stuck)
    release.set()
    assert {(await task).status for task in stuck} == {400}
