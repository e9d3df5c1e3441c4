"""Building a trial again from its checkpoint, to use its models."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from determined._experiment_config import ExperimentConfig
from determined._import import import_class, import_from_path
from determined._trial_context import example_hparams
from determined.core._context import local_context
from determined.errors import StorageError
from determined.pytorch import _saved
from determined.pytorch._context import PyTorchTrialContext
from determined.pytorch._trial import PyTorchTrial


class CheckpointLoadContext(PyTorchTrialContext):
    """A context for a trial that is loaded to be used, not trained."""

    def __init__(self, hparams: dict[str, Any] | None = None, exp_conf: dict[str, Any] | None = None) -> None:
        # Never started: there is nothing to report and nothing to be preempted by.
        super().__init__(local_context(), hparams=hparams or {}, exp_conf=exp_conf or {}, trial_seed=0)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        return cls(example_hparams(config.get("hyperparameters") or {}), ExperimentConfig(config))


def load_trial_from_checkpoint_path(
    path: str | os.PathLike[str],
    trial_class: type[PyTorchTrial] | None = None,
    trial_kwargs: dict[str, Any] | None = None,
    torch_load_kwargs: dict[str, Any] | None = None,
    **kwargs: Any,
) -> PyTorchTrial:
    """The trial of a checkpoint that was downloaded to `path`, with the weights of its models.

    This runs the code in the checkpoint; load only what you trust. By default the class comes from the
    checkpoint's `code/`; `trial_class` gives another, and `trial_kwargs` further arguments of it (one that
    is named `context` replaces the default). `torch_load_kwargs`, or any other keyword arguments, go to
    `torch.load`; tensors are loaded to the CPU unless `map_location` says otherwise.

    Raises StorageError when `path` is not a PyTorchTrial's checkpoint.
    """
    folder = Path(path)
    load_data = _load_data(folder)
    arguments = dict(trial_kwargs or {})
    context = arguments.pop("context", None)
    if context is None:
        context = CheckpointLoadContext(load_data.get("hparams"), load_data.get("experiment_config"))
    if trial_class is None:
        with import_from_path(_code(folder)):
            trial_class = import_class(load_data["trial_cls_spec"])
            trial: PyTorchTrial = trial_class(context, **arguments)
    else:
        trial = trial_class(context, **arguments)
    checkpoint = _saved.read_state_dict(folder, **(torch_load_kwargs or {}), **kwargs)
    _saved.load_models(checkpoint, context)
    return trial


def _load_data(folder: Path) -> dict[str, Any]:
    try:
        load_data = json.loads((folder / _saved.LOAD_DATA).read_text())
    except FileNotFoundError:
        raise StorageError(
            f"{folder} holds no {_saved.LOAD_DATA}: it is not the checkpoint of a PyTorchTrial"
        ) from None
    if load_data.get("trial_type") != "PyTorchTrial":
        raise StorageError(
            f"{folder} is the checkpoint of a {load_data.get('trial_type')}, not of a PyTorchTrial"
        )
    return dict(load_data)


def _code(folder: Path) -> Path:
    code = folder / "code"
    if not code.is_dir():
        raise StorageError(f"{folder} holds no code/, as it was not saved in a trial: give the trial_class")
    return code
