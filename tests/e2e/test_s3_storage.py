"""Checkpoints in a bucket, on a real cluster: saved, resumed from after a kill, collected, downloaded and deleted."""

from __future__ import annotations

import uuid

from e2e.conftest import Place
from e2e.trials import script_config
from support.cluster import wait_for
from support.s3 import KEYS, S3Server

SCRIPT = """
import os, signal
from pathlib import Path
import determined as det
from determined import core

info = det.get_cluster_info()
with core.init() as context:
    start = 0
    if info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(info.latest_checkpoint) as path:
            start = int((path / "step").read_text())
    print("starts at", start)
    for step in range(start + 1, 5):
        context.train.report_validation_metrics(step, {"accuracy": step / 10})
        with context.checkpoint.store_path({"steps_completed": step}) as (path, _):
            (path / "step").write_text(str(step))
            (path / "weights").write_bytes(os.urandom(1_000_000))
    if start == 0:
        # Dies between the files and the manifest.
        folder = Path("half")
        folder.mkdir()
        (folder / "weights").write_bytes(b"half")
        context.checkpoint._storage.add(folder, "5f0c3f0a-2b5f-4c39-8f2e-5d3f4c0a1b2c")
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_trial_keeps_its_checkpoints_in_a_bucket(place: Place, s3: S3Server) -> None:
    prefix = uuid.uuid4().hex
    config = script_config(
        place.side,
        checkpoint_storage={**s3.config(prefix), "save_trial_best": 1, "save_trial_latest": 1},
        max_restarts=1,
    )
    experiment_id = place.cluster.create(config, {"train.py": SCRIPT})
    assert place.cluster.wait_for_end(experiment_id) == "COMPLETED", place.cluster.said("detlab_agent")
    (trial,) = place.cluster.trials(experiment_id)
    log = place.cluster.logs(trial["id"])
    assert "starts at 4" in log
    assert not any(secret in log for secret in KEYS.values())

    def collected() -> bool:
        states = [one["state"] for one in checkpoints()]
        return states.count("STATE_COMPLETED") == 1 and states.count("STATE_DELETED") == 3

    def checkpoints() -> list[dict[str, str]]:
        found: list[dict[str, str]] = place.cluster.get(f"/api/v1/experiments/{experiment_id}/checkpoints")[
            "checkpoints"
        ]
        return found

    wait_for(collected, "the policy leaves the best, which is the latest")
    (kept,) = (one["uuid"] for one in checkpoints() if one["state"] == "STATE_COMPLETED")
    assert {name.split("/")[0] for name in s3.names(prefix)} == {kept}, "nothing half-written is left either"
    for mode in ("direct", "master"):
        target = place.side / mode
        done = place.det("checkpoint", "download", kept, "--mode", mode, "-o", str(target))
        assert done.returncode == 0, done.stderr
        assert (target / "step").read_text() == "4"
        assert {path.name for path in target.iterdir()} == {"step", "weights", "metadata.json"}
    assert place.det("experiment", "delete", str(experiment_id), "--yes").returncode == 0
    wait_for(lambda: not s3.names(prefix), "no file of it is left")
    masters = place.cluster.said("detlab_master") + place.cluster.said("detlab_agent")
    assert not any(secret in masters for secret in KEYS.values())
