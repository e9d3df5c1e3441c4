"""From a trial's checkpoint to a version in the model registry and back to its files, on a real cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from determined.common.api import errors
from determined.experimental import CheckpointState, Determined, DownloadMode
from e2e.conftest import Place
from e2e.trials import script_config
from support.cluster import PASSWORD

TRAIN = """
from determined import core

with core.init() as context:
    for steps in (1, 2):
        context.train.report_validation_metrics(steps, {"accuracy": steps / 4})
        with context.checkpoint.store_path({"steps_completed": steps}) as (path, uuid):
            (path / "weights").write_text(f"weights after {steps}")
"""


def test_a_checkpoint_becomes_a_version(place: Place, tmp_path: Path) -> None:
    config = script_config(place.side)
    config["checkpoint_storage"] = {"save_trial_latest": 2, "save_trial_best": 2}
    experiment_id = place.cluster.create(config, {"train.py": TRAIN})
    assert place.cluster.wait_for_end(experiment_id) == "COMPLETED"

    with Determined(place.cluster.url, "determined", PASSWORD) as det:
        best, other = det.get_experiment(experiment_id).list_checkpoints()
        model = det.create_model("digits", metadata={"pixels": 64})
        version = model.register_version(best.uuid)
        assert (version.model_version, version.checkpoint.uuid) == (1, best.uuid)
        assert version.checkpoint.training.validation_metrics["avgMetrics"] == {"accuracy": 0.5}

        registered = place.det("model", "register-version", "digits", other.uuid)
        assert other.uuid in registered.stdout, registered.stderr
        listed = json.loads(place.det("model", "list-versions", "digits", "--json").stdout)
        assert [one["version"] for one in listed["modelVersions"]] == [2, 1]

        with pytest.raises(errors.APIException, match="is version 1 of the model 'digits'"):
            best.delete()
        with pytest.raises(errors.APIException, match="of the model 'digits'"):
            det.get_experiment(experiment_id).delete()

        place.cluster.kill_master()
        place.cluster.start_master()

        latest, first = det.get_model("digits").get_version(), det.get_model("digits").get_version(1)
        assert latest is not None and first is not None
        assert latest.model_version == 2
        for mode in (DownloadMode.DIRECT, DownloadMode.MASTER):
            folder = Path(first.checkpoint.download(tmp_path / mode.name, mode))
            assert (folder / "weights").read_text() == "weights after 2"

        det.get_model("digits").delete()
        best.delete()
        best.reload()
        assert best.state is CheckpointState.DELETED
