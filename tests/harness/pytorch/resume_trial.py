"""A trial of all parts that can make a resumed training differ, put together as a `Setup` says."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils.data

from determined import pytorch
from determined.pytorch import TrainUnit

ITEMS, BATCH, FEATURES = 22, 4, 5
EPOCH = 6  # batches: 22 items in batches of 4, rounded up

Schedule = torch.optim.lr_scheduler
StepMode = pytorch.LRScheduler.StepMode


@dataclass(frozen=True)
class Setup:
    order: str  # see `NoisyTrial._loader`
    workers: int
    batches: int
    aggregation: int
    precision: str  # float32, amp (bfloat16 or float16), own (a scaler of the trial's own)
    dtype: str
    optimizer: str
    schedule: tuple[str, str, int] | None  # class, step mode, frequency
    clip: bool
    passes: int  # of backward per step
    keep_gradients: bool  # the trial clears them itself, every second batch
    reporting: TrainUnit
    validation: TrainUnit | None
    checkpoint: TrainUnit | None
    policy: str
    step_zero: bool


class Noisy(torch.utils.data.Dataset[Any]):
    """Items that are augmented at random, by each of the three generators."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(ITEMS, FEATURES, generator=generator)

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> Any:
        noise = random.random() + float(np.random.rand())
        return index, self.x[index] + 0.1 * torch.randn(FEATURES) + noise, self.x[index].sum()


def collate(items: list[Any]) -> Any:
    mixed: Any = torch.utils.data.default_collate(items)
    mixed[1] = mixed[1] * (1 + 0.01 * torch.rand(1))
    return mixed


class ShuffledBatches(torch.utils.data.Sampler[list[int]]):
    """Batches of neighbours in random order, as for sentences of similar lengths."""

    def __iter__(self) -> Iterator[list[int]]:
        batches = [list(range(i, min(i + BATCH, ITEMS))) for i in range(0, ITEMS, BATCH)]
        random.shuffle(batches)
        yield from batches

    def __len__(self) -> int:
        return EPOCH


class Watcher(pytorch.PyTorchCallback):
    """Keeps the metrics of validations, and draws random numbers where callbacks can."""

    def __init__(self, trial: "NoisyTrial") -> None:
        self.trial = trial
        self.validations: dict[int, Any] = {}

    def on_training_start(self) -> None:
        torch.rand(1)

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        torch.rand(1)

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        random.random()
        self.validations[len(self.trial.done)] = metrics["validation_loss"]
        if isinstance(self.trial.schedule, Schedule.ReduceLROnPlateau):
            self.trial.schedule.step(metrics["validation_loss"])

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        torch.rand(1)

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        np.random.rand()
        self.trial.checkpoints.append(uuid)

    def state_dict(self) -> dict[str, Any]:
        return {"done": list(self.trial.done), "validations": dict(self.validations)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.trial.done, self.validations = state_dict["done"], state_dict["validations"]


class NoisyTrial(pytorch.PyTorchTrial):
    def __init__(
        self, context: pytorch.PyTorchTrialContext, setup: Setup, crash_at: int | None = None
    ) -> None:
        self.context, self.setup, self.crash_at = context, setup, crash_at
        self.done: list[list[int]] = []  # the items of each batch
        self.checkpoints: list[str] = []
        self.watcher = Watcher(self)
        self.scaler = context.wrap_scaler(self._scaler()) if setup.precision == "own" else None
        self.model = context.wrap_model(
            torch.nn.Sequential(
                torch.nn.Linear(FEATURES, 8),
                torch.nn.BatchNorm1d(8),
                torch.nn.Dropout(0.3),
                torch.nn.Linear(8, 1),
            )
        )
        if setup.precision == "amp":
            context.experimental.use_amp()
            context._amp_scaler = context._scalers[0] = self._scaler()
        kind: Any = getattr(torch.optim, setup.optimizer)
        options = {"momentum": 0.9} if setup.optimizer == "SGD" else {}
        self.optimizer = context.wrap_optimizer(
            kind(self.model.parameters(), lr=0.01, **options), backward_passes_per_step=setup.passes
        )
        self.schedule: Any = self._schedule() if setup.schedule else None

    def _scaler(self) -> torch.amp.GradScaler:
        # The first steps overflow and are left out; later the scale grows until one overflows again.
        return torch.amp.GradScaler(
            "cpu", init_scale=2.0**14, growth_interval=2, enabled=self.setup.dtype == "float16"
        )

    def _schedule(self) -> Any:
        assert self.setup.schedule is not None
        name, mode, frequency = self.setup.schedule
        made: Any
        match name:
            case "StepLR":
                made = Schedule.StepLR(self.optimizer, 2, 0.8)
            case "OneCycleLR":
                made = Schedule.OneCycleLR(self.optimizer, 0.05, total_steps=100)
            case "CosineAnnealingWarmRestarts":
                made = Schedule.CosineAnnealingWarmRestarts(self.optimizer, 3)
            case "SequentialLR":
                parts: list[Any] = [
                    Schedule.LinearLR(self.optimizer),
                    Schedule.ExponentialLR(self.optimizer, 0.9),
                ]
                made = Schedule.SequentialLR(self.optimizer, parts, [2])
            case _:
                made = Schedule.ReduceLROnPlateau(self.optimizer, patience=0)
        return self.context.wrap_lr_scheduler(made, getattr(StepMode, mode), frequency)

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"watcher": self.watcher}

    def build_training_data_loader(self) -> Any:
        return self._loader(self.setup.order)

    def build_validation_data_loader(self) -> Any:
        order = self.setup.order
        return self._loader("shuffle" if order == "plain" else order)

    def _loader(self, order: str) -> Any:
        data = Noisy()
        options: Any = {"num_workers": self.setup.workers, "collate_fn": collate}
        match order:
            case "plain":
                return pytorch.DataLoader(data, BATCH, **options)
            case "shuffle":
                return pytorch.DataLoader(data, BATCH, shuffle=True, **options)
            case "generator":
                own = torch.Generator().manual_seed(8)
                return pytorch.DataLoader(data, BATCH, shuffle=True, generator=own, **options)
            case "weighted":
                sampler = torch.utils.data.WeightedRandomSampler([1.0 + i for i in range(ITEMS)], ITEMS)
                return pytorch.DataLoader(data, BATCH, sampler=sampler, **options)
            case "batches":
                return pytorch.DataLoader(data, batch_sampler=ShuffledBatches(), **options)
        self.context.experimental.disable_dataset_reproducibility_checks()
        return torch.utils.data.DataLoader(data, BATCH, shuffle=True, **options)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        if batch_idx == self.crash_at:
            raise Crash
        index, x, y = batch
        if self.setup.keep_gradients and batch_idx % 2 == 0:
            self.optimizer.zero_grad()
        for _ in range(self.setup.passes):
            loss = self._loss(x + 0.01 * random.random(), y)
            self.context.backward(self.scaler.scale(loss) if self.scaler else loss)
        self.context.step_optimizer(
            self.optimizer,
            clip_grads=(lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 0.5))
            if self.setup.clip
            else None,
            auto_zero_grads=not self.setup.keep_gradients,
            scaler=self.scaler,
        )
        if self.scaler:
            self.scaler.update()
        if (
            self.setup.schedule
            and self.setup.schedule[:2] == ("StepLR", "MANUAL_STEP")
            and batch_idx % 3 == 2
        ):
            self.schedule.step()
        self.done.append(index.tolist())
        return {"loss": loss}

    def _loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", getattr(torch, self.setup.dtype), enabled=self.setup.precision == "own"):
            out = self.model(x)
        loss: torch.Tensor = ((out.float().squeeze(1) - y) ** 2).mean()
        return loss

    def evaluate_batch(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        return {"validation_loss": self._loss(batch[1], batch[2])}

    def everything(self) -> dict[str, Any]:
        """All that a training leaves, in a form that can be compared."""
        return {
            "model": _plain(self.model.state_dict()),
            "optimizer": _plain(self.optimizer.state_dict()),
            "schedule": _plain(self.schedule.state_dict()) if self.schedule else None,
            "scaler": [_plain(scaler.state_dict()) for scaler in self.context._scalers],
            "gradients": [_plain(p.grad) for p in self.model.parameters()],
            "items": self.done,
            "validations": self.watcher.validations,
            "random": (torch.rand(2).tolist(), random.random(), float(np.random.rand())),
        }


class Crash(Exception):
    pass


def _plain(state: Any) -> Any:
    """Tensors as bytes: a difference in one bit counts, and NaN is equal to itself."""
    match state:
        case torch.Tensor():
            return state.dtype, state.shape, state.numpy().tobytes()
        case dict():
            return {key: _plain(value) for key, value in state.items()}
        case list() | tuple():
            return [_plain(value) for value in state]
        case float():
            return repr(state)
        case int() | str() | bool() | None:
            return state
    return type(state).__name__
