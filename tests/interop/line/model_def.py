"""A line through points: what a user's code for the official package looks like.

As a trial class it is `model_def:Line`; `main` is the script of a Trainer.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import determined as det
from determined import pytorch


def points(count: int) -> TensorDataset:
    """(x, 2 x), both float32 [count, 1]."""
    x = torch.linspace(0, 1, count).unsqueeze(1)
    return TensorDataset(x, 2 * x)


class Slow(pytorch.PyTorchCallback):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        print("EPOCH", epoch_idx, flush=True)
        time.sleep(self.seconds)


class Line(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(nn.Linear(1, 1))
        sgd = torch.optim.SGD(self.model.parameters(), lr=context.get_hparam("learning_rate"))
        self.optimizer = context.wrap_optimizer(sgd)

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(points(640), batch_size=self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(points(64), batch_size=16)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        x, y = batch
        loss = nn.functional.mse_loss(self.model(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"slow": Slow(self.context.get_hparam("epoch_seconds"))}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, float]:
        x, y = batch
        return {"validation_loss": nn.functional.mse_loss(self.model(x), y).item()}


def main() -> None:
    logging.basicConfig(level=logging.INFO, format=det.LOG_FORMAT)
    info = det.get_cluster_info()
    assert info is not None
    with pytorch.init(hparams=info.trial.hparams) as context:
        trainer = pytorch.Trainer(Line(context), context)
        trainer.fit(
            max_length=pytorch.Batch(info.trial.hparams["batches"]),
            checkpoint_period=pytorch.Batch(40),
            validation_period=pytorch.Batch(20),
            reporting_period=pytorch.Batch(10),
            latest_checkpoint=info.latest_checkpoint,
        )
