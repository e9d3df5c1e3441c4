"""A small trial with everything that can make a resumed training differ: shuffling, dropout, momentum."""

import random
from typing import Any

import numpy as np
import torch
import torch.utils.data

from determined import pytorch

ITEMS, BATCH, FEATURES = 50, 8, 6
EPOCH = 7  # batches: 50 items in batches of 8, rounded up


def seed(value: int = 5) -> None:
    """As a script does off the cluster."""
    torch.manual_seed(value)
    np.random.seed(value)
    random.seed(value)


class Recorder(pytorch.PyTorchCallback):
    """Writes down which hooks are called, and keeps a count in the checkpoints."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.epochs = 0

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        self.calls.append(("startup", first_batch_idx, checkpoint_uuid))

    def on_trial_shutdown(self) -> None:
        self.calls.append(("shutdown",))

    def on_training_start(self) -> None:
        self.calls.append(("training_start",))

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        self.calls.append(("epoch_start", epoch_idx))

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        self.epochs += 1
        self.calls.append(("epoch_end", epoch_idx))

    def on_training_workload_end(
        self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        self.calls.append(("workload_end", avg_metrics, batch_metrics))

    def on_validation_start(self) -> None:
        self.calls.append(("validation_start",))

    def on_validation_epoch_start(self) -> None:
        self.calls.append(("validation_epoch_start",))

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        self.calls.append(("validation_epoch_end", len(outputs)))

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        self.calls.append(("validation_end", metrics))

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        self.calls.append(("load_start", sorted(checkpoint)))

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        self.calls.append(("save_start",))
        checkpoint["extra"] = "mine"

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        self.calls.append(("write_end",))

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        self.calls.append(("checkpoint_end",))

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        self.calls.append(("upload_end", uuid))

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs = state_dict["epochs"]


class SmallTrial(pytorch.PyTorchTrial):
    clip = False

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(
            torch.nn.Sequential(torch.nn.Linear(FEATURES, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
        )
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        )
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.StepLR(self.optimizer, 5, 0.9),
            pytorch.LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP,
        )
        self.recorder = Recorder()
        self.seen: list[tuple[int, int, list[int]]] = []
        self.norms: list[float] = []

    def dataset(self) -> torch.utils.data.TensorDataset:
        x = torch.randn(ITEMS, FEATURES, generator=torch.Generator().manual_seed(3))
        return torch.utils.data.TensorDataset(torch.arange(ITEMS), x, x.sum(1, keepdim=True))

    def build_training_data_loader(self) -> Any:
        return pytorch.DataLoader(self.dataset(), batch_size=BATCH, shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return pytorch.DataLoader(self.dataset(), batch_size=BATCH)

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"recorder": self.recorder}

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        index, x, y = batch
        self.seen.append((epoch_idx, batch_idx, index.tolist()))
        noise = random.random() + float(np.random.rand())
        loss = ((self.model(x + 0.01 * noise) - y) ** 2).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer, clip_grads=self._clip if self.clip else None)
        return {"loss": loss, "batch_idx": batch_idx}

    def _clip(self, parameters: list[torch.nn.Parameter]) -> None:
        self.norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, 0.5)))

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        _, x, y = batch
        assert not self.model.training
        return {"validation_loss": ((self.model(x) - y) ** 2).mean()}
