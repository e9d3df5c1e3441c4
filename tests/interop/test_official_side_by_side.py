"""One trial, seed and data under the official package and under ours: the same data, metrics, hooks and weights."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from determined import pytorch
from interop.harness import first_trial, needs_namespaces
from interop.official import ENVIRONMENT, Official, need_official_client
from support.cluster import Cluster, cluster

pytestmark = [pytest.mark.full, needs_namespaces]

SCRIPT = "python3 -c 'import model_def; model_def.main()'"
CODE = {"model_def.py": (Path(__file__).with_name("side_by_side") / "model_def.py").read_text()}
PLAIN = {
    "items": 22,
    "global_batch_size": 4,
    "drop_last": False,
    "order": "shuffled",
    "aggregation": 1,
    "report": 4,
    "step_mode": "STEP_EVERY_EPOCH",
}
CASES: dict[str, dict[str, Any]] = {
    "shuffled": {},
    "in order, the last items dropped": {"order": "in order", "drop_last": True, "report": 2},
    "shuffled, gathered gradients": {
        "drop_last": True,
        "aggregation": 2,
        "items": 26,
        "step_mode": "STEP_EVERY_OPTIMIZER_STEP",
    },
    "by a generator": {"order": "generator", "step_mode": "STEP_EVERY_BATCH", "report": 1},
    "weighted, two workers": {"order": "weighted"},
    "a sampler with a seed": {"order": "reproducible"},
    "a batch sampler with a seed": {"order": "batches", "report": 2},
}


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Official]:
    need_official_client()
    if not (ENVIRONMENT / ".torch").exists():
        pytest.skip("the official environment has no PyTorch; type: make .venv-official/.torch")
    environments = {"official": str(ENVIRONMENT)}
    with cluster(tmp_path_factory.mktemp("cluster"), slots=2, environments=environments) as running:
        yield Official(running, tmp_path_factory.mktemp("client"))


class Run:
    """What a trial did and left."""

    def __init__(self, ours: Cluster, experiment: int) -> None:
        assert ours.wait_for_end(experiment) == "COMPLETED", ours.logs(first_trial(ours, experiment))
        self.trial = first_trial(ours, experiment)
        self.told = re.findall(r"TOLD (.*)", ours.logs(self.trial))
        self.training = self._metrics(ours, "training")
        self.validation = self._metrics(ours, "validation")
        found = ours.get(f"/api/v1/trials/{self.trial}/checkpoints")["checkpoints"]
        self.checkpoints = sorted(found, key=lambda c: c["metadata"]["steps_completed"])

    def _metrics(self, ours: Cluster, group: str) -> list[tuple[int, dict[str, Any]]]:
        path = f"/api/v1/trials/metrics/trial_metrics?trialIds={self.trial}&group={group}"
        answer = ours.request("GET", path).text.splitlines()
        # Only the official package also sends each batch's metrics; what those are, the hooks tell.
        name = "avg_metrics" if group == "training" else "validation_metrics"
        reports = [report for line in answer for report in json.loads(line)["result"]["metrics"]]
        return [(report["totalBatches"], report["metrics"][name]) for report in reports]


def run_both(ours: Cluster, seed: int, **config: Any) -> tuple[Run, Run]:
    """Side by side: the official package, and ours."""
    common = {
        "searcher": {"name": "single", "metric": "validation_loss", "max_length": {"epochs": 3}},
        "reproducibility": {"experiment_seed": seed},
        "max_restarts": 0,
        "checkpoint_storage": {"save_trial_latest": 20},  # nothing is removed
        **config,
    }
    images: tuple[dict[str, Any], ...] = ({"environment": {"image": "official"}}, {})
    ids = [ours.create(common | image, CODE) for image in images]
    theirs, own = (Run(ours, experiment) for experiment in ids)
    return theirs, own


def assert_same(theirs: Run, own: Run) -> None:
    assert own.told == theirs.told
    for reported, expected in ((own.training, theirs.training), (own.validation, theirs.validation)):
        assert [steps for steps, _ in reported] == [steps for steps, _ in expected]
        for (_, metrics), (_, by_official) in zip(reported, expected, strict=True):
            # They average in 32 bits, and we in 64.
            assert metrics == pytest.approx(by_official, rel=1e-6)
    assert [c["metadata"] for c in own.checkpoints] == [c["metadata"] for c in theirs.checkpoints]
    assert [sorted(c["resources"]) for c in own.checkpoints] == [
        sorted(c["resources"]) for c in theirs.checkpoints
    ]


@pytest.mark.parametrize(("case", "seed"), [*((case, 11) for case in CASES), ("shuffled", 2**31 - 5)])
def test_a_trainer(official: Official, case: str, seed: int) -> None:
    ours = official.cluster
    theirs, own = run_both(ours, seed, entrypoint=SCRIPT, hyperparameters=PLAIN | CASES[case])
    assert any(line.startswith("weights") for line in theirs.told)
    assert_same(theirs, own)


def test_a_trial_class(official: Official) -> None:
    theirs, own = run_both(
        official.cluster,
        12,
        entrypoint="model_def:Told",
        hyperparameters=PLAIN,
        min_validation_period={"batches": 5},
        min_checkpoint_period={"epochs": 2},
        scheduling_unit=3,
        checkpoint_policy="none",
    )
    assert_same(theirs, own)


def test_each_loads_what_the_other_has_saved(official: Official, tmp_path: Path) -> None:
    theirs, own = run_both(official.cluster, 13, entrypoint=SCRIPT, hyperparameters=PLAIN)
    weights = []
    for name, run in (("theirs", theirs), ("own", own)):
        folder = tmp_path / name
        official.det("checkpoint", "download", run.checkpoints[-1]["uuid"], "-o", folder)
        trial: Any = pytorch.load_trial_from_checkpoint_path(folder)
        script = Path(__file__).with_name("weights_script.py")
        loaded = official.python(script, folder)
        weights += [torch.cat([v.flatten() for v in trial.model.state_dict().values()]).tolist(), loaded]
    assert weights[0] == weights[1] == weights[2] == weights[3]
