"""On a cluster, a trial that was paused and then killed ends with the weights of one that was not, to the bit."""

from __future__ import annotations

import pytest

from e2e.conftest import Place
from support.cluster import wait_for

MODEL = """
import hashlib, os, pathlib, pickle, random, time
import torch
from determined import pytorch

SIDE, TRIAL, RUN = pathlib.Path(os.environ["SIDE"]), os.environ["DET_TRIAL_ID"], int(os.environ["DET_TRIAL_RUN_ID"])

class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 22
    def __getitem__(self, index):
        return torch.full((4,), index / 22) + 0.1 * torch.randn(4) + random.random()

class Cut(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        layers = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1)
        self.model = context.wrap_model(torch.nn.Sequential(*layers))
        self.optimizer = context.wrap_optimizer(torch.optim.AdamW(self.model.parameters()))
        schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.7)
        context.wrap_lr_scheduler(schedule, pytorch.LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP)

    def build_training_data_loader(self):
        return pytorch.DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=2)

    def build_validation_data_loader(self):
        return pytorch.DataLoader(Noisy(), batch_size=4)

    def train_batch(self, batch, epoch_idx, batch_idx):
        if self.context.get_hparam("cut"):
            self.wait_for_the_cut(batch_idx)
        loss = self.model(batch).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        if batch_idx == 23:
            state = [v.tolist() for v in [*self.model.state_dict().values(), *self.model.parameters()]]
            text = pickle.dumps((state, torch.rand(1).item(), random.random()))
            (SIDE / f"{TRIAL}.weights").write_text(hashlib.sha256(text).hexdigest())
        return loss

    def wait_for_the_cut(self, batch_idx):
        if RUN == 1 and batch_idx == 7:
            (SIDE / "reached").touch()
            while not (SIDE / "paused").exists():
                time.sleep(0.02)
        if RUN == 1 and batch_idx > 7:
            time.sleep(0.1)  # until the next boundary the trial should have heard of it
        if RUN == 2 and batch_idx == 18:
            os.kill(os.getpid(), 9)

    def evaluate_batch(self, batch):
        return {"loss": self.model(batch).square().mean()}
"""


@pytest.mark.full
def test_a_trial_that_was_paused_and_killed_ends_as_one_that_was_not(place: Place) -> None:
    side, cluster = place.side, place.cluster

    def create(cut: bool) -> int:
        config = {
            "name": "resume",
            "entrypoint": "model_def:Cut",
            "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 24}},
            "hyperparameters": {"cut": cut},
            "reproducibility": {"experiment_seed": 5},
            "scheduling_unit": 1,
            "min_checkpoint_period": {"batches": 4},
            "optimizations": {"aggregation_frequency": 3},
            "max_restarts": 1,
            "bind_mounts": [{"host_path": str(side), "container_path": str(side)}],
            "environment": {"environment_variables": [f"SIDE={side}"]},
        }
        return cluster.create(config, {"model_def.py": MODEL})

    whole, cut = create(False), create(True)
    wait_for(lambda: (side / "reached").exists(), "the trial to train", 120)
    cluster.post(f"/api/v1/experiments/{cut}/pause")
    (side / "paused").touch()
    wait_for(lambda: _state(place, cut) == "STATE_PAUSED", "the pause", 120)
    cluster.post(f"/api/v1/experiments/{cut}/activate")
    assert cluster.wait_for_end(whole) == cluster.wait_for_end(cut) == "COMPLETED"
    [of_whole], [of_cut] = cluster.trials(whole), cluster.trials(cut)
    assert (of_whole["restarts"], of_cut["restarts"]) == (0, 1)
    weights = [(side / f"{trial['id']}.weights").read_text() for trial in (of_whole, of_cut)]
    assert weights[0] == weights[1]


def _state(place: Place, experiment_id: int) -> str:
    state: str = place.cluster.experiment(experiment_id)["state"]
    return state
