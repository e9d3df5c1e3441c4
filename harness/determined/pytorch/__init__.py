"""Training PyTorch models as trials: `PyTorchTrial`, run by `Trainer` within `init()`."""

from typing import Any

from determined.pytorch import samplers
from determined.pytorch._callback import PyTorchCallback
from determined.pytorch._context import PyTorchTrialContext
from determined.pytorch._data import DataLoader, TorchData, data_length, to_device
from determined.pytorch._experimental import PyTorchExperimentalContext
from determined.pytorch._load import CheckpointLoadContext, load_trial_from_checkpoint_path
from determined.pytorch._lr_scheduler import LRScheduler
from determined.pytorch._reducer import MetricReducer, Reducer
from determined.pytorch._trainer import Trainer, init
from determined.pytorch._trial import PyTorchTrial
from determined.pytorch._units import Batch, Epoch, Record, TrainUnit
from determined.pytorch.samplers import adapt_batch_sampler

__all__ = [
    "Batch",
    "CheckpointLoadContext",
    "DataLoader",
    "Epoch",
    "LRScheduler",
    "MetricReducer",
    "PyTorchCallback",
    "PyTorchExperimentalContext",
    "PyTorchTrial",
    "PyTorchTrialContext",
    "Record",
    "Reducer",
    "TorchData",
    "TrainUnit",
    "Trainer",
    "adapt_batch_sampler",
    "data_length",
    "init",
    "load_trial_from_checkpoint_path",
    "samplers",
    "to_device",
]


def __getattr__(name: str) -> Any:
    if name == "load":
        raise AttributeError(
            "determined.pytorch.load() is of an older release: download the checkpoint, and call "
            "determined.pytorch.load_trial_from_checkpoint_path(path)"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
