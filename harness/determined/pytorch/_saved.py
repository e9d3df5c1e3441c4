"""What a trial's checkpoint consists of, in files:

state_dict.pth   models_state_dict, optimizers_state_dict, lr_schedulers_state_dict, scalers_state_dict,
                 gradients (those that wait for a step), callbacks, rng_state, data_order (see TrainingBatches)
trial_state.pkl  where the training stands: a plain dict, see TrialState
load_data.json   how to build the trial again without the trainer
code/            the model folder
"""

import json
import logging
import pickle
import shutil
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import determined
from determined._info import run_dir
from determined.errors import StorageError
from determined.pytorch._callback import PyTorchCallback
from determined.pytorch._context import PyTorchTrialContext, optimizer_parameters

logger = logging.getLogger("determined.pytorch")

STATE_DICT = "state_dict.pth"
TRIAL_STATE = "trial_state.pkl"
LOAD_DATA = "load_data.json"
_SECRETS = ("access_key", "secret_key", "connection_string", "credential")


@dataclass
class TrialState:
    """Where a training stands. Numbers of batches and epochs count from the trial's beginning."""

    trial_id: int  # 0 where no trial runs
    batches_trained: int = 0
    epochs_trained: int = 0
    last_ckpt: int = 0  # batches at the newest checkpoint
    last_val: int = 0  # batches at the newest validation
    step_id: int = 0  # reports of training metrics


def save(
    folder: Path,
    context: PyTorchTrialContext,
    callbacks: Mapping[str, PyTorchCallback],
    state: TrialState,
    trial_class: type,
    *,
    rng_state: Mapping[str, Any],
    data_order: Mapping[str, Any],
) -> None:
    """Write a checkpoint's files into `folder`, and call the callbacks that belong to it."""
    checkpoint: dict[str, Any] = {
        "models_state_dict": [_model_state(model) for model in context.models],
        "optimizers_state_dict": [optimizer.state_dict() for optimizer in context.optimizers],
        "lr_schedulers_state_dict": [schedule.state_dict() for schedule in context.lr_schedulers],
        "scalers_state_dict": [scaler.state_dict() for scaler in context._scalers],
        "gradients": _gradients(context),
        "callbacks": {name: callback.state_dict() for name, callback in callbacks.items()},
        "rng_state": rng_state,
        "data_order": data_order,
    }
    for callback in callbacks.values():
        callback.on_checkpoint_save_start(checkpoint)
    torch.save(checkpoint, folder / STATE_DICT)
    with open(folder / TRIAL_STATE, "wb") as file:
        pickle.dump(asdict(state), file)
    load_data = {
        "trial_type": "PyTorchTrial",
        "experiment_config": _without_secrets(context.get_experiment_config()),
        "hparams": context.get_hparams(),
        "trial_cls_spec": class_spec(trial_class),
        "is_trainer": True,
    }
    (folder / LOAD_DATA).write_text(json.dumps(load_data))
    code = run_dir() / "train" / "model"
    if context._on_cluster and code.is_dir():
        shutil.copytree(code, folder / "code", ignore=shutil.ignore_patterns("__pycache__"))
    for callback in callbacks.values():
        callback.on_checkpoint_end(str(folder))
        callback.on_checkpoint_write_end(str(folder))


def read_state_dict(folder: Path, **torch_load_kwargs: Any) -> dict[str, Any]:
    """The content of state_dict.pth, with all tensors on the CPU unless asked otherwise."""
    # Callbacks may keep any object, so this is a pickle; who loads a checkpoint runs its code anyway.
    arguments = {"map_location": "cpu", "weights_only": False, **torch_load_kwargs}
    try:
        content: dict[str, Any] = torch.load(folder / STATE_DICT, **arguments)
    except FileNotFoundError:
        raise StorageError(
            f"{folder} holds no {STATE_DICT}: it is not the checkpoint of a PyTorchTrial"
        ) from None
    return content


def read_trial_state(folder: Path) -> TrialState | None:
    """The state in a checkpoint, or None when another program wrote it in its own way."""
    try:
        with open(folder / TRIAL_STATE, "rb") as file:
            return TrialState(**_PlainUnpickler(file).load())
    except (FileNotFoundError, pickle.UnpicklingError, TypeError) as e:
        logger.info("the checkpoint does not say where its training stood (%s)", e)
        return None


def load_models(checkpoint: Mapping[str, Any], context: PyTorchTrialContext) -> None:
    """Give the wrapped models the weights of a checkpoint. Raises StorageError when they do not fit."""
    for model, state in zip(context.models, _same_number(checkpoint, "models", context.models), strict=True):
        try:
            _load_model_state(model, state)
        except RuntimeError as e:
            raise StorageError(f"the checkpoint does not fit the trial's models: {e}") from e


def load_training(
    checkpoint: Mapping[str, Any], context: PyTorchTrialContext, callbacks: Mapping[str, PyTorchCallback]
) -> None:
    """Take up everything else that a training needs to go on, but for the random number generators."""
    parts: tuple[tuple[str, list[Any]], ...] = (
        ("optimizers", context.optimizers),
        ("lr_schedulers", context.lr_schedulers),
        ("scalers", context._scalers),
    )
    if "scaler_state_dict" in checkpoint:  # Determined wrote it, which knows one scaler
        checkpoint = {"scalers_state_dict": [checkpoint["scaler_state_dict"]], **checkpoint}
    for kind, objects in parts:
        for part, state in zip(objects, _same_number(checkpoint, kind, objects), strict=True):
            if state or kind != "scalers":  # a scaler that is turned off has no state
                part.load_state_dict(state)
    for optimizer in context.optimizers:
        # It was stepped, in another process: torch would warn of a schedule that is ahead.
        optimizer._opt_called = True  # type: ignore[attr-defined]
    if checkpoint.get("gradients") is not None:
        for optimizer, gradients in zip(context.optimizers, checkpoint["gradients"], strict=True):
            for parameter, gradient in zip(optimizer_parameters(optimizer), gradients, strict=True):
                parameter.grad = None if gradient is None else gradient.to(parameter.device)
    saved = checkpoint.get("callbacks", {})
    for name, callback in callbacks.items():
        if name in saved:
            callback.load_state_dict(saved[name])
        else:
            logger.warning("the checkpoint has no state of the callback %r: it starts anew", name)


def _gradients(context: PyTorchTrialContext) -> list[list[torch.Tensor | None]] | None:
    """The gradients that the next step adds to, by optimizer and parameter; None where all are cleared."""
    gradients = [[p.grad for p in optimizer_parameters(optimizer)] for optimizer in context.optimizers]
    return gradients if any(g is not None for of_one in gradients for g in of_one) else None


def _plain_name(name: str) -> str:
    """The name of a parameter or module as it is without torch.compile, which puts modules into others."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _model_state(model: torch.nn.Module) -> dict[str, Any]:
    """A model's state under plain names, so that a checkpoint fits the model with and without torch.compile."""
    return _renamed(model.state_dict(), _plain_name)


def _load_model_state(model: torch.nn.Module, state: dict[str, Any]) -> None:
    names = {_plain_name(name): name for name in [*dict(model.named_modules()), *model.state_dict()]}
    model.load_state_dict(_renamed(state, lambda name: names.get(_plain_name(name), name)))


def _renamed(state: dict[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    renamed = OrderedDict((rename(name), value) for name, value in state.items())
    if hasattr(state, "_metadata"):  # the modules' versions, which torch hides in an attribute
        renamed._metadata = OrderedDict((rename(name), value) for name, value in state._metadata.items())  # type: ignore[attr-defined]
    return renamed


def _same_number(checkpoint: Mapping[str, Any], kind: str, objects: list[Any]) -> list[Any]:
    states: list[Any] = checkpoint.get(f"{kind}_state_dict", [])
    if len(states) != len(objects):
        raise StorageError(f"the checkpoint holds {len(states)} {kind}, but the trial wraps {len(objects)}")
    return states


def class_spec(trial_class: type) -> str:
    """`module:Class`. The module of a script is the one that an import of its file would make."""
    module = trial_class.__module__
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        file = getattr(main, "__file__", None)
        if spec is not None:
            module = spec.name.removesuffix(".__main__")
        elif file is not None:
            module = Path(file).stem
    return f"{module}:{trial_class.__qualname__}"


def _without_secrets(config: Mapping[str, Any]) -> dict[str, Any]:
    """The experiment's configuration without the keys to its storage and its image: checkpoints are handed on."""
    storage, environment = config.get("checkpoint_storage"), config.get("environment")
    kept = dict(config)
    if isinstance(storage, Mapping):
        kept["checkpoint_storage"] = {k: value for k, value in storage.items() if k not in _SECRETS}
    if isinstance(environment, Mapping):
        kept["environment"] = {k: value for k, value in environment.items() if k != "registry_auth"}
    return kept


def metadata(steps_completed: int) -> dict[str, Any]:
    """What is told about a checkpoint."""
    return {
        "steps_completed": steps_completed,
        "determined_version": determined.__version__,
        "framework": f"torch-{torch.__version__}",
        "format": "pickle",
    }


class _PlainUnpickler(pickle.Unpickler):
    """Reads plain data only: the state is ours, and needs no classes."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it is an object of {module}.{name}")
