"""A small convolutional network on scikit-learn's handwritten digits: 1,797 images of 8 x 8 pixels, no download.

The trial is ordinary Determined code: what is searched comes from `context.get_hparam`.
"""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from determined.pytorch import DataLoader, PyTorchTrial, PyTorchTrialContext

VALIDATION_IMAGES = 360  # a fifth; the rest is for training


def digits() -> tuple[TensorDataset, TensorDataset]:
    """(training, validation): images as float32 [1, 8, 8] in 0..1, labels as int64."""
    raw = load_digits()
    images = torch.tensor(raw.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.tensor(raw.target, dtype=torch.int64)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, validation = order[VALIDATION_IMAGES:], order[:VALIDATION_IMAGES]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[validation], labels[validation])


def build_model(width: int, dropout: float) -> nn.Module:
    """Images [batch, 1, 8, 8] to logits [batch, 10]."""
    return nn.Sequential(
        nn.Conv2d(1, width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(2 * width * 16, 10),
    )


class DigitsTrial(PyTorchTrial):
    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.train_set, self.validation_set = digits()
        model = build_model(context.get_hparam("width"), context.get_hparam("dropout"))
        self.model = context.wrap_model(model)
        optimizer = torch.optim.Adam(self.model.parameters(), lr=context.get_hparam("learning_rate"))
        self.optimizer = context.wrap_optimizer(optimizer)

    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(self.train_set, batch_size=self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(self.validation_set, batch_size=VALIDATION_IMAGES)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, torch.Tensor]:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, float]:
        images, labels = batch
        logits = self.model(images)
        return {
            "validation_loss": nn.functional.cross_entropy(logits, labels).item(),
            "accuracy": (logits.argmax(dim=1) == labels).float().mean().item(),
        }
