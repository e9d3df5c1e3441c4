"""A training that says all it does: which items it sees, which hooks are called, what its weights are in the end.

Run under either package. Everything that can make two trainings differ is in it: shuffling, dropout, random numbers
of three kinds, momentum, a learning rate schedule. What varies comes from the hyperparameters; as a trial class it is
`model_def:Told`, and `main` is the script of a Trainer.
"""

from __future__ import annotations

import hashlib
import logging
import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, Dataset, SequentialSampler, WeightedRandomSampler

import determined as det
from determined import pytorch
from determined.pytorch import samplers

FEATURES = 5


def say(*words: object) -> None:
    print("TOLD", *words, flush=True)


class Numbers(Dataset[Any]):
    """(index, x, y) of noisy sums."""

    def __init__(self, items: int) -> None:
        draw = torch.Generator().manual_seed(3)
        self.x = torch.randn(items, FEATURES, generator=draw)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return index, self.x[index], self.x[index].sum(0, keepdim=True)


class Hooks(pytorch.PyTorchCallback):
    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        say("on_trial_startup", first_batch_idx, checkpoint_uuid)

    def on_trial_shutdown(self) -> None:
        say("on_trial_shutdown")

    def on_training_start(self) -> None:
        say("on_training_start")

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        say("on_training_epoch_start", epoch_idx)

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        say("on_training_epoch_end", epoch_idx)

    def on_training_workload_end(
        self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        batches = [f"{float(metrics['loss']):.6f}" for metrics in batch_metrics]
        say("on_training_workload_end", sorted(avg_metrics), *batches)

    def on_validation_start(self) -> None:
        say("on_validation_start")

    def on_validation_epoch_start(self) -> None:
        say("on_validation_epoch_start")

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        say("on_validation_epoch_end", len(outputs))

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        say("on_validation_end", sorted(metrics))

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        say("on_checkpoint_save_start")

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        say("on_checkpoint_end")

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        say("on_checkpoint_write_end")

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        say("on_checkpoint_upload_end")


class Told(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        say("seed", context.get_trial_seed(), random.random(), np.random.rand(), torch.rand(1).item())
        self.model = context.wrap_model(
            nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
        )
        sgd = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        self.optimizer = context.wrap_optimizer(sgd)
        mode = pytorch.LRScheduler.StepMode[context.get_hparam("step_mode")]
        context.wrap_lr_scheduler(torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.7), mode)

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        say("build_callbacks")
        return {"hooks": Hooks()}

    def loader(self, order: str) -> pytorch.DataLoader:
        hparams = self.context.get_hparams()
        data = Numbers(hparams["items"])
        size = hparams["global_batch_size"]
        how: dict[str, Any] = {"batch_size": size, "drop_last": hparams["drop_last"]}
        if order == "shuffled":
            how["shuffle"] = True
        elif order == "generator":
            how |= {"shuffle": True, "generator": torch.Generator().manual_seed(4)}
        elif order == "weighted":
            how |= {"sampler": WeightedRandomSampler(range(1, len(data) + 1), len(data)), "num_workers": 2}
        elif order == "reproducible":
            how["sampler"] = samplers.ReproducibleShuffleSampler(SequentialSampler(data), 6)
        elif order == "batches":
            batches = BatchSampler(SequentialSampler(data), size, hparams["drop_last"])
            how = {"batch_sampler": samplers.ReproducibleShuffleBatchSampler(batches, 6)}
        return pytorch.DataLoader(data, **how)

    def build_training_data_loader(self) -> pytorch.DataLoader:
        say("build_training_data_loader")
        return self.loader(self.context.get_hparam("order"))

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        say("build_validation_data_loader")
        return self.loader("in order" if self.context.get_hparam("order") == "in order" else "shuffled")

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        index, x, y = batch
        say("trains", epoch_idx, batch_idx, index.tolist(), self.optimizer.param_groups[0]["lr"])
        noise = random.random() + np.random.rand()
        loss = nn.functional.mse_loss(self.model(x + 0.01 * noise), y)
        self.context.backward(loss)
        self.context.step_optimizer(
            self.optimizer, clip_grads=lambda p: torch.nn.utils.clip_grad_norm_(p, 2.0)
        )
        return {"loss": loss, "position": batch_idx, "noise": noise, "float32": np.float32(epoch_idx)}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        index, x, y = batch
        say("validates", batch_idx, index.tolist(), torch.rand(1).item())
        prediction = self.model(x)
        return {
            "validation_loss": nn.functional.mse_loss(prediction, y),
            "mean": prediction.mean().item(),
            "items": len(x),
        }


def main() -> None:
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    info = det.get_cluster_info()
    assert info is not None
    hparams = info.trial.hparams
    with pytorch.init(hparams=hparams, aggregation_frequency=hparams["aggregation"]) as context:
        trial = Told(context)
        pytorch.Trainer(trial, context).fit(
            max_length=pytorch.Epoch(3),
            reporting_period=pytorch.Batch(hparams["report"]),
            validation_period=pytorch.Batch(5) if hparams["report"] > 2 else pytorch.Epoch(1),
            checkpoint_period=pytorch.Epoch(2),
            step_zero_validation=hparams["report"] > 2,
            latest_checkpoint=info.latest_checkpoint,
        )
        digest = hashlib.sha256()
        for value in trial.model.state_dict().values():
            digest.update(value.numpy().tobytes())
        say("weights", digest.hexdigest())
        say("random", random.random(), np.random.rand(), torch.rand(1).item())
