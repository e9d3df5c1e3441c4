import json
from pathlib import Path

import pytest

import determined as det
from determined._info import cluster_info_from
from determined.errors import ClusterInfoError
from harness.core_stub_master import StubMaster, trial_environment


def test_without_a_task_there_is_no_cluster() -> None:
    assert cluster_info_from({"DET_MASTER": "http://127.0.0.1:8080"}) is None


def test_a_trial_knows_itself(trial: StubMaster, tmp_path: Path) -> None:
    info = det.get_cluster_info()
    assert info is not None
    assert (info.master_url, info.task_type, info.slot_ids) == (trial.url, "TRIAL", [0])
    assert (info.trial.trial_id, info.trial.experiment_id, info.trial.trial_seed) == (2, 1, 77)
    assert info.trial.hparams == {"global_batch_size": 8}
    assert info.latest_checkpoint is None
    assert info.user_data == {"place": "here"}
    assert (info.container_addrs, info.container_rank, info.container_slot_counts) == (["127.0.0.1"], 0, [1])
    assert "allocation-token" not in repr(info)

    written = tmp_path / "run" / "info"
    written.mkdir(parents=True)
    rendezvous = {"container_addrs": ["10.0.0.1"], "container_rank": 0, "container_slot_counts": [2]}
    (written / "rendezvous.json").write_text(json.dumps(rendezvous))
    (written / "resources.json").write_text(json.dumps({"gpu_uuids": ["GPU-1"]}))
    info = det.get_cluster_info()
    assert info is not None
    assert (info.gpu_uuids, info.container_addrs, info.container_slot_counts) == (
        ["GPU-1"],
        ["10.0.0.1"],
        [2],
    )


def test_a_notebook_has_no_trial(tmp_path: Path) -> None:
    environment = trial_environment(StubMaster(), tmp_path) | {
        "DET_TASK_TYPE": "NOTEBOOK",
        "DET_LATEST_CHECKPOINT": "abc",
    }
    info = cluster_info_from(environment)
    assert info is not None
    assert info.latest_checkpoint is None
    with pytest.raises(ClusterInfoError, match="type NOTEBOOK"):
        _ = info.trial


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("DET_SESSION_TOKEN", "", "DET_SESSION_TOKEN is not set"),
        ("DET_TRIAL_ID", "two", "DET_TRIAL_ID is 'two'"),
        ("DET_HPARAMS", "{", "DET_HPARAMS is not JSON"),
        ("DET_HPARAMS", "[]", "DET_HPARAMS must be a JSON object"),
    ],
)
def test_an_incomplete_environment_is_named(tmp_path: Path, name: str, value: str, said: str) -> None:
    environment = trial_environment(StubMaster(), tmp_path) | {name: value}
    with pytest.raises(ClusterInfoError, match=said):
        cluster_info_from(environment)
