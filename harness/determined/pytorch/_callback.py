"""Hooks into the training of a PyTorchTrial."""

import difflib
import inspect
import logging
from collections.abc import Callable
from typing import Any

from determined.errors import TrialError

logger = logging.getLogger("determined.pytorch")


class PyTorchCallback:
    """Override what you need, and return it from `PyTorchTrial.build_callbacks`.

    State that a callback keeps goes into the checkpoints by `state_dict` and `load_state_dict`. Random numbers
    that are drawn while a checkpoint is saved do not change the training.
    """

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Before a checkpoint is loaded; `first_batch_idx` is 0 unless the training resumes from `checkpoint_uuid`."""

    def on_trial_shutdown(self) -> None:
        """After everything else, also when the training ends by an exception."""

    def on_training_start(self) -> None:
        """Once, when the training is about to begin or to resume."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Before the first batch of an epoch. Not when the training resumes in the middle of it."""

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """After the last batch of an epoch."""

    def on_training_workload_end(
        self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        """After averaged training metrics were reported, with those of each batch since the last time."""

    def on_validation_start(self) -> None:
        """Before a validation."""

    def on_validation_epoch_start(self) -> None:
        """Before the first batch of a validation."""

    def on_validation_epoch_end(self, outputs: list[Any]) -> None:
        """After the last batch of a validation, with what `evaluate_batch` returned for each."""

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """After a validation, with its metrics, before they are reported. They may be changed."""

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        """With the content of a checkpoint's state_dict.pth, before it is used. It may be changed."""

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """With what is about to be saved as state_dict.pth. It may be changed."""

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """The older name of `on_checkpoint_write_end`; called just before it."""

    def on_checkpoint_write_end(self, checkpoint_dir: str) -> None:
        """When all files of a checkpoint are written; more may be added to the folder."""

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """When a checkpoint is stored and reported."""

    def state_dict(self) -> dict[str, Any]:
        """What to keep in the checkpoints."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up what `state_dict` returned when the checkpoint was saved."""


def checked_callbacks(callbacks: Any) -> dict[str, PyTorchCallback]:
    """What `build_callbacks` returned; TrialError if it is something else, a warning for hooks that do not exist."""
    if not isinstance(callbacks, dict) or not all(isinstance(c, PyTorchCallback) for c in callbacks.values()):
        raise TrialError(
            f"build_callbacks() must return a dict of PyTorchCallbacks by name, not {callbacks!r:.80}"
        )
    hooks = [name for name in vars(PyTorchCallback) if name.startswith("on_")]
    for name, callback in callbacks.items():
        for method in dir(callback):
            if method.startswith("on_") and method not in hooks and callable(getattr(callback, method)):
                near = difflib.get_close_matches(method, hooks, 1)
                hint = f": did you mean {near[0]}()?" if near else ""
                logger.warning("the callback %r defines %s(), which is never called%s", name, method, hint)
    return callbacks


def epoch_hook(hook: Callable[..., None]) -> Callable[[int], None]:
    """`on_training_epoch_start` or `_end`, whose older form takes no `epoch_idx`."""
    return hook if inspect.signature(hook).parameters else lambda epoch_idx: hook()
