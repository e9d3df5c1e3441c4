"""PyTorch training under the official package: a `Trainer` script and a trial class, and a search over them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.harness import config, first_trial, needs_namespaces
from interop.official import ENVIRONMENT, Official, need_official_client
from support.cluster import cluster, wait_for

pytestmark = [pytest.mark.full, needs_namespaces]

SCRIPT = "python3 -c 'import model_def; model_def.main()'"
LINE = {path.name: path.read_text() for path in Path(__file__).with_name("line").glob("*.py")}
SEARCHER = {"metric": "validation_loss", "smaller_is_better": True}


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Official]:
    need_official_client()
    if not (ENVIRONMENT / ".torch").exists():
        pytest.skip("the official environment has no PyTorch; type: make .venv-official/.torch")
    environments = {"official": str(ENVIRONMENT)}
    with cluster(tmp_path_factory.mktemp("cluster"), slots=2, environments=environments) as running:
        yield Official(running, tmp_path_factory.mktemp("client"))


def line(entrypoint: str = SCRIPT, **changes: Any) -> dict[str, Any]:
    hyperparameters = {"batches": 60, "learning_rate": 0.1, "global_batch_size": 16, "epoch_seconds": 0.0}
    length = {"max_length": {"batches": 60}}
    return config(
        entrypoint,
        searcher={"name": "single", **SEARCHER, **length},
        hyperparameters=hyperparameters | changes.pop("hyperparameters", {}),
        min_validation_period={"batches": 20},
        **changes,
    )


@pytest.mark.parametrize(("entrypoint", "slots"), [(SCRIPT, 1), ("model_def:Line", 1), ("model_def:Line", 2)])
def test_training(official: Official, entrypoint: str, slots: int, tmp_path: Path) -> None:
    ours = official.cluster
    experiment = ours.create(line(entrypoint, resources={"slots_per_trial": slots}), LINE)
    assert ours.wait_for_end(experiment) == "COMPLETED", ours.logs(first_trial(ours, experiment))
    trial = ours.trials(experiment)[0]
    assert trial["totalBatchesProcessed"] == 60
    assert trial["latestValidation"]["metrics"]["avgMetrics"]["batches"] == 60
    best = trial["bestCheckpoint"]
    assert {"code/model_def.py", "state_dict.pth", "load_data.json"} <= best["resources"].keys()
    for mode in ("direct", "master"):
        folder = tmp_path / mode
        official.det("checkpoint", "download", best["uuid"], "-o", folder, "--mode", mode)
        assert (folder / "code" / "model_def.py").read_text() == LINE["model_def.py"]
    if slots == 1:  # the package does not load what several processes have trained
        script = Path(__file__).with_name("load_script.py")
        loaded = official.python(script, trial["id"], best["uuid"], tmp_path / "sdk")
        assert loaded["steps"] == 60 and loaded["trial_class"] == "Line"
        assert loaded["checkpoints"] >= 1 and abs(loaded["prediction"] - 2.0) < 1.0
    else:
        logs = ours.request("GET", f"/api/v1/trials/{trial['id']}/logs").text
        assert '"rankId":1' in logs.replace(" ", "") or "[rank=1]" in logs


def test_a_trainer_is_paused_and_goes_on_from_its_checkpoint(official: Official) -> None:
    ours = official.cluster
    slow = line(hyperparameters={"batches": 280, "epoch_seconds": 0.7})  # seven epochs
    experiment = ours.create(slow, LINE)
    trial = first_trial(ours, experiment)
    wait_for(lambda: "EPOCH 1" in ours.logs(trial), "the training is in its second epoch")
    official.det("experiment", "pause", experiment)
    wait_for(lambda: "Ended with exit code 0" in ours.logs(trial), "the run has ended")
    official.det("experiment", "activate", experiment)
    assert ours.wait_for_end(experiment) == "COMPLETED", ours.logs(trial)
    epochs = [int(number) for number in re.findall(r"EPOCH (\d+)", ours.logs(trial))]
    assert set(epochs) == set(range(7))
    assert len(epochs) <= 8, "at most the epoch that was interrupted begins again"
    ended = ours.trials(experiment)[0]
    assert (ended["restarts"], ended["totalBatchesProcessed"]) == (0, 280)


def test_adaptive_asha_stops_poor_trials_early(official: Official) -> None:
    ours = official.cluster
    search = {
        "name": "adaptive_asha",
        **SEARCHER,
        "max_trials": 6,
        "time_metric": "batches",
        "max_time": 160,
        "divisor": 2,
        "max_rungs": 3,
        "max_concurrent_trials": 2,
    }
    rates = {"type": "log", "base": 10, "minval": -5, "maxval": -1}
    experiment = ours.create(
        line(hyperparameters={"batches": 160, "learning_rate": rates}) | {"searcher": search}, LINE
    )
    assert ours.wait_for_end(experiment, 240) == "COMPLETED"
    trials = ours.trials(experiment)
    assert len(trials) == 6 and {t["state"] for t in trials} == {"STATE_COMPLETED"}
    lengths = [t["totalBatchesProcessed"] for t in trials]
    assert max(lengths) == 160 and min(lengths) < 160, lengths
