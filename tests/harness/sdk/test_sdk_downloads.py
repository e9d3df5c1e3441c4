"""Checkpoints in a bucket, fetched by the SDK: straight from there, and through the master itself."""

from __future__ import annotations

import asyncio
import os
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from determined.common import storage
from determined.common.storage.bucket import Bucket
from determined.errors import StorageError
from determined.experimental import Determined, DownloadMode, _checkpoint
from determined.experimental._checkpoint import CheckpointNotAvailable
from detlab_master.store.writes import SaveCheckpoint, SaveExperiment
from harness.real_master import rig
from master.api.rig import Rig, Things
from support.s3 import S3Server

__all__ = ["rig"]

MODES = (DownloadMode.DIRECT, DownloadMode.MASTER, DownloadMode.AUTO)
WEIGHTS = (16 << 20) + 5


@pytest.fixture
async def things(rig: Rig, s3: S3Server, tmp_path: Path) -> Things:
    """Of alice, with the files in a bucket."""
    made = await rig.things()
    config = {**made.experiment.config, "checkpoint_storage": s3.config(uuid.uuid4().hex)}
    source = tmp_path / "source"
    (source / "code").mkdir(parents=True)
    (source / "code" / "train.py").write_text("x = 1")
    (source / "weights").write_bytes(os.urandom(WEIGHTS))
    (source / "metadata.json").write_text("{}")
    manager = storage.from_config(config["checkpoint_storage"])
    await asyncio.to_thread(manager.upload, source, made.checkpoint.uuid)
    sizes = manager.resources(made.checkpoint.uuid)
    experiment = replace(made.experiment, config=config)
    checkpoint = replace(made.checkpoint, resources=sizes)
    await rig.keep(SaveExperiment(experiment), SaveCheckpoint(checkpoint))
    return replace(made, experiment=experiment, checkpoint=checkpoint)


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


async def fetch(things: Things, target: Path, mode: DownloadMode) -> dict[str, bytes]:
    def work() -> dict[str, bytes]:
        return tree(Path(Determined().get_checkpoint(things.checkpoint.uuid).download(target, mode)))

    return await asyncio.to_thread(work)


async def test_every_mode_fetches_the_same(
    things: Things, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mode in MODES:
        assert await fetch(things, tmp_path / "out" / mode.name, mode) == tree(tmp_path / "source")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(mode.name for mode in MODES)

    def no_access(*arguments: Any) -> None:
        raise StorageError("boto3 is not installed here")

    monkeypatch.setattr(_checkpoint, "from_config", no_access)
    assert await fetch(things, tmp_path / "auto", DownloadMode.AUTO) == tree(tmp_path / "source")
    with pytest.raises(CheckpointNotAvailable, match="boto3 is not installed here"):
        await fetch(things, tmp_path / "direct", DownloadMode.DIRECT)


async def test_damage_is_found_on_every_way(things: Things, s3: S3Server, tmp_path: Path) -> None:
    prefix = things.experiment.config["checkpoint_storage"]["prefix"]
    s3.write(f"{prefix}/{things.checkpoint.uuid}/weights", bytes(WEIGHTS))
    for mode in MODES:
        with pytest.raises(CheckpointNotAvailable, match="'weights' is damaged"):
            await fetch(things, tmp_path / "out" / mode.name, mode)
        assert not (tmp_path / "out" / mode.name).exists()


async def test_a_download_that_broke_off_goes_on(
    things: Things, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_into, blocks = Bucket.read_into, 0

    def counted(self: Bucket, *arguments: Any) -> None:
        nonlocal blocks
        if blocks == 2:
            raise StorageError("the cable is out")
        blocks += 1
        read_into(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "read_into", counted)
        with pytest.raises(CheckpointNotAvailable, match="cable"):
            await fetch(things, tmp_path / "out", DownloadMode.DIRECT)
        assert not (tmp_path / "out").exists()
        assert list(tmp_path.glob(".*.partial")), "what arrived is kept"
        blocks = -1000
        assert await fetch(things, tmp_path / "out", DownloadMode.DIRECT) == tree(tmp_path / "source")
    assert blocks == -1000 + 5 - 2, "what had arrived was not fetched again"
    assert not list(tmp_path.glob(".*.partial"))
