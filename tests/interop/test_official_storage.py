"""Checkpoints in a bucket, between the official package and ours: each reads and deletes what the other has saved."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path

import pytest

from determined.common import storage
from determined.errors import CheckpointNotFound
from interop.official import ENVIRONMENT, need_official_client
from support.s3 import S3Server

SAVE = """
import json, sys
from determined import core

with core.init(checkpoint_storage=json.loads(sys.argv[1])) as context:
    print("SAVED", context.checkpoint.upload(sys.argv[2], {"steps_completed": 1}))
    context.checkpoint.download(sys.argv[3], sys.argv[4])
    context.checkpoint.delete(sys.argv[3])
"""


def test_each_reads_what_the_other_has_saved(s3: S3Server, tmp_path: Path) -> None:
    need_official_client()
    prefix = uuid.uuid4().hex
    config = s3.config(f"/{prefix}/deep/")  # both leave out slashes at the ends
    source = tmp_path / "source"
    (source / "code" / "empty").mkdir(parents=True)
    (source / "weights").write_bytes(bytes(20 << 20))
    ours = storage.from_config(config)
    ours.upload(source, "ours")
    command = [str(ENVIRONMENT / "bin" / "python"), "-c", SAVE, json.dumps(config), str(source), "ours"]
    done = subprocess.run(
        [*command, str(tmp_path / "to")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "to" / "weights").read_bytes() == bytes(20 << 20)
    assert (tmp_path / "to" / "code" / "empty").is_dir()
    with pytest.raises(CheckpointNotFound):
        ours.resources("ours")

    saved = done.stdout.split("SAVED ")[1].split()[0]
    sizes = {"code/": 0, "code/empty/": 0, "metadata.json": 26, "weights": 20 << 20}
    assert ours.resources(saved) == sizes
    ours.download(saved, tmp_path / "back")
    assert json.loads((tmp_path / "back" / "metadata.json").read_text()) == {"steps_completed": 1}
    ours.delete(saved)
    assert s3.names(prefix) == []
