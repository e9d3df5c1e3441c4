"""What a PyTorchTrial gets from outside: hyperparameters, device, position, and the wrapping of its parts."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import torch
import torch.amp
import torch.profiler
from torch.optim.lr_scheduler import LRScheduler as TorchLRScheduler

from determined import core
from determined._trial_context import TrialContext
from determined.errors import TrialError
from determined.pytorch._data import to_device
from determined.pytorch._experimental import PyTorchExperimentalContext
from determined.pytorch._lr_scheduler import LRScheduler
from determined.pytorch._reducer import FunctionReducer, MetricReducer, RegisteredReducers

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger("determined.pytorch")

Model = TypeVar("Model", bound=torch.nn.Module)
Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)
Schedule = TypeVar("Schedule", bound=TorchLRScheduler)
AnyReducer = TypeVar("AnyReducer", bound=MetricReducer)

P = ParamSpec("P")
T = TypeVar("T")

_REMOVED = {
    "Model": "call context.wrap_model(model)",
    "Optimizer": "call context.wrap_optimizer(optimizer)",
    "LRScheduler": "call context.wrap_lr_scheduler(scheduler, step_mode)",
    "env": "use get_hparams(), get_experiment_config() and get_trial_seed()",
    "hvd_config": "use context.distributed",
}

ClipGrads = Callable[[list[torch.nn.Parameter]], object]


class PyTorchTrialContext(TrialContext):
    """The surroundings of a PyTorchTrial; made by `pytorch.init()`.

    `device`: where models and batches go. `models`, `optimizers`: what was wrapped, in order.
    """

    def __init__(
        self,
        core_context: core.Context,
        *,
        hparams: dict[str, Any],
        exp_conf: dict[str, Any],
        trial_seed: int,
        aggregation_frequency: int = 1,
    ) -> None:
        if aggregation_frequency < 1:
            raise ValueError(f"aggregation_frequency is {aggregation_frequency}: it must be at least 1")
        super().__init__(core_context, hparams=hparams, exp_conf=exp_conf, trial_seed=trial_seed)
        self._aggregation_frequency = aggregation_frequency
        optimizations = exp_conf.get("optimizations") or {}
        self._average_aggregated_gradients = optimizations.get("average_aggregated_gradients", True)
        self.device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        self.experimental = PyTorchExperimentalContext(self)
        self.models: list[torch.nn.Module] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.lr_schedulers: list[LRScheduler] = []
        self._averages_gradients: dict[int, bool] = {}  # by the id of an optimizer
        self._scalers: list[torch.amp.GradScaler] = []
        self._amp_scaler: torch.amp.GradScaler | None = None  # of `experimental.use_amp`, one of `_scalers`
        self._warned_of_scaler = False
        self._amp_stepped = False  # whether an optimizer was stepped by it since its last update
        self._holds_step = False  # whether the last step_optimizer() left the gradients to add up
        self._reducers = RegisteredReducers()
        self._tensorboard_writer: SummaryWriter | None = None
        self._profiler: torch.profiler.profile | None = None
        self._batch_idx: int | None = None
        self._epoch_length: int | None = None

    # Wrapping

    def wrap_model(self, model: Model) -> Model:
        """Put a model on the device and into the checkpoints."""
        if not isinstance(model, torch.nn.Module):
            raise TrialError(f"wrap_model() takes a torch.nn.Module, not a {type(model).__name__}")
        if any(model is known for known in self.models):
            raise TrialError("wrap_model() was called twice with one model")
        self.models.append(model.to(self.device))
        return model

    def wrap_optimizer(
        self,
        optimizer: Optimizer,
        backward_passes_per_step: int = 1,
        fp16_compression: bool | None = None,
        average_aggregated_gradients: bool | None = None,
    ) -> Optimizer:
        """Put an optimizer into the checkpoints; step it by `step_optimizer`.

        `backward_passes_per_step`: how often `backward` is called per step. Gradients of one process add up
        by themselves; the number matters to the exchange of gradients between processes.
        `average_aggregated_gradients`: whether gradients that were gathered over `aggregation_frequency`
        batches are divided by it; by default as the config's `optimizations` say, else yes.
        """
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TrialError(
                f"wrap_optimizer() takes a torch.optim.Optimizer, not a {type(optimizer).__name__}"
            )
        if any(optimizer is known for known in self.optimizers):
            raise TrialError("wrap_optimizer() was called twice with one optimizer")
        if backward_passes_per_step < 1:
            raise ValueError(f"backward_passes_per_step is {backward_passes_per_step}: it must be at least 1")
        if fp16_compression:
            logger.warning("fp16_compression has no effect: one process exchanges no gradients")
        average = average_aggregated_gradients
        self._averages_gradients[id(optimizer)] = (
            self._average_aggregated_gradients if average is None else average
        )
        self.optimizers.append(optimizer)
        return optimizer

    def wrap_lr_scheduler(
        self, lr_scheduler: Schedule, step_mode: LRScheduler.StepMode, frequency: int = 1
    ) -> Schedule:
        """Put a learning rate schedule into the checkpoints, and have it stepped as `step_mode` says."""
        if not any(lr_scheduler.optimizer is known for known in self.optimizers):
            raise TrialError("wrap_lr_scheduler() takes a schedule of an optimizer that was wrapped before")
        if any(lr_scheduler is known._scheduler for known in self.lr_schedulers):
            raise TrialError("wrap_lr_scheduler() was called twice with one schedule")
        self.lr_schedulers.append(LRScheduler(lr_scheduler, step_mode, frequency))
        return lr_scheduler

    def wrap_scaler(self, scaler: torch.amp.GradScaler) -> torch.amp.GradScaler:
        """Put a gradient scaler into the checkpoints; give it to `step_optimizer`, and call its `update`.

        While gradients add up over `aggregation_frequency` batches, its `update` does nothing.
        """
        if self._amp_scaler is not None:
            raise TrialError("experimental.use_amp() brings its own scaler: leave wrap_scaler() out")
        if any(scaler is known for known in self._scalers):
            raise TrialError("wrap_scaler() was called twice with one scaler")
        self._scalers.append(scaler)
        update = scaler.update

        def update_after_step(new_scale: float | torch.Tensor | None = None) -> None:
            # torch refuses an update without a step.
            if new_scale is not None or not self._holds_step:
                update(new_scale)

        setattr(scaler, "update", update_after_step)  # noqa: B010 - a method is not assigned to elsewhere
        return scaler

    def _use_amp(self) -> None:
        if self._scalers:
            raise TrialError("use_amp() brings its own scaler: call it once, and leave wrap_scaler() out")
        # Half precision loses small gradients; bfloat16, the default of CPUs, has the range of float32.
        needed = torch.get_autocast_dtype(self.device.type) is torch.float16
        self._amp_scaler = torch.amp.GradScaler(self.device.type, enabled=needed)
        self._scalers.append(self._amp_scaler)

    def _forward(self, method: Callable[P, T]) -> Callable[P, T]:
        """A method of the trial that computes as `use_amp` says."""
        if self._amp_scaler is None:
            return method
        wrapped: Callable[P, T] = torch.autocast(self.device.type)(method)
        return wrapped

    def _update_amp_scaler(self) -> None:
        """After a batch: once for all optimizers together, as torch wants it."""
        if self._amp_scaler is not None and self._amp_stepped:
            self._amp_scaler.update()
            self._amp_stepped = False

    def autocast_forward_pass(self, to_wrap: Model) -> Model:
        """Have the model compute with automatic mixed precision wherever it is called, and return it.

        Not needed with `experimental.use_amp()`, nor where the trial uses `torch.autocast` itself.
        """
        if not isinstance(to_wrap, torch.nn.Module):
            raise TrialError(
                f"autocast_forward_pass() takes a torch.nn.Module, not a {type(to_wrap).__name__}"
            )
        autocast = torch.autocast(self.device.type)
        setattr(to_wrap, "forward", autocast(to_wrap.forward))  # noqa: B010 - of this one model
        return to_wrap

    def configure_apex_amp(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise TrialError: NVIDIA gave up Apex's mixed precision for that of torch."""
        raise TrialError(
            "configure_apex_amp() is gone: Apex's mixed precision is no longer maintained. Call "
            "context.experimental.use_amp() in its place, or use torch.autocast and context.wrap_scaler()"
        )

    def wrap_reducer(
        self,
        reducer: MetricReducer | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> Any:
        """Register a metric that is no average of the batches' metrics, and return its MetricReducer.

        For a function, the reducer that is returned has `update(value)`; the function gets a list of all
        values. Without a `name` the reducer must return a dict of metrics.
        """
        if not for_training and not for_validation:
            raise ValueError("wrap_reducer(): for_training and for_validation cannot both be False")
        wrapped = reducer if isinstance(reducer, MetricReducer) else FunctionReducer(reducer)
        self._reducers.add(wrapped, name, for_training, for_validation)
        return wrapped

    # Stepping

    def backward(
        self,
        loss: torch.Tensor,
        gradient: torch.Tensor | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """Compute the gradients of `loss`, adding to those that are there."""
        if self._amp_scaler is not None:
            loss = self._amp_scaler.scale(loss)
        loss.backward(gradient=gradient, retain_graph=retain_graph, create_graph=create_graph)  # type: ignore[no-untyped-call]

    def step_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        clip_grads: ClipGrads | None = None,
        auto_zero_grads: bool = True,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        """Step a wrapped optimizer, and clear its gradients.

        With an aggregation frequency of n, only every n-th batch steps; the others leave their gradients
        to add up. `clip_grads` is called with the list of parameters just before the step. Gradients of a
        `scaler` are unscaled before that.
        """
        if id(optimizer) not in self._averages_gradients:
            raise TrialError("step_optimizer() takes an optimizer that was wrapped by wrap_optimizer()")
        if scaler is None:
            scaler = self._amp_scaler
        elif not any(scaler is known for known in self._scalers) and not self._warned_of_scaler:
            self._warned_of_scaler = True
            logger.warning(
                "step_optimizer() got a scaler that wrap_scaler() does not know: its scale is in no checkpoint, "
                "and a resumed training may differ"
            )
        frequency = self._aggregation_frequency
        if frequency > 1:
            self._holds_step = (self.current_train_batch() + 1) % frequency != 0
            if self._holds_step:
                return
        if scaler is not None and scaler is self._amp_scaler:
            self._amp_stepped = True
        if frequency > 1 and self._averages_gradients[id(optimizer)]:
            for parameter in optimizer_parameters(optimizer):
                if parameter.grad is not None:
                    parameter.grad.div_(frequency)
        if clip_grads is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            clip_grads(optimizer_parameters(optimizer))
        if scaler is not None:
            scaler.step(optimizer)
            # A first step that the scaler left out: torch would warn of a schedule that is ahead.
            optimizer._opt_called = True  # type: ignore[attr-defined]
        else:
            optimizer.step()
        if auto_zero_grads:
            optimizer.zero_grad()

    # TensorBoard and profiling

    def get_tensorboard_path(self) -> Path:
        """The folder for files that TensorBoard shows. In a trial they get to the checkpoint storage by themselves."""
        return self._core.train.get_tensorboard_path()

    def get_tensorboard_writer(self) -> "SummaryWriter":
        """A `torch.utils.tensorboard.SummaryWriter` for what a trial wants to show beside its metrics.

        It is the same one at each call, and is closed after the training.
        """
        if self._tensorboard_writer is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as e:
                raise TrialError(
                    f"get_tensorboard_writer() needs TensorBoard: pip install tensorboard ({e})"
                ) from None
            path = str(self.get_tensorboard_path())
            self._tensorboard_writer = SummaryWriter(path, flush_secs=10)
        return self._tensorboard_writer

    def set_enable_tensorboard_logging(self, enable_tensorboard_logging: bool) -> None:
        """Say whether metrics are charted for TensorBoard, and files for it copied to the checkpoint storage."""
        if not isinstance(enable_tensorboard_logging, bool):
            raise TypeError(
                f"set_enable_tensorboard_logging() takes True or False, not {enable_tensorboard_logging!r}"
            )
        mode = core.TensorboardMode.AUTO if enable_tensorboard_logging else core.TensorboardMode.MANUAL
        self._core.train._tensorboard.set_mode(mode)

    def get_enable_tensorboard_logging(self) -> bool:
        return self._core.train._tensorboard.mode is core.TensorboardMode.AUTO

    def set_profiler(self, *args: Any, **kwargs: Any) -> None:
        """Profile the training by `torch.profiler.profile`, which gets these arguments.

        The trainer calls its `step` after each batch. `on_trace_ready` is set: traces go to TensorBoard's folder.
        """
        kwargs["on_trace_ready"] = torch.profiler.tensorboard_trace_handler(str(self.get_tensorboard_path()))
        self._profiler = torch.profiler.profile(*args, **kwargs)

    def _close(self) -> None:
        """After the training: write what is not written yet."""
        if self._tensorboard_writer is not None:
            self._tensorboard_writer.close()

    # Data and configuration

    def to_device(self, data: Any) -> Any:
        """`data` with all tensors in it on the trial's device."""
        return to_device(data, self.device)

    def get_global_batch_size(self) -> int:
        """The hyperparameter `global_batch_size`: items per batch over all slots together."""
        size = self.get_hparam("global_batch_size")
        if not isinstance(size, int) or size < 1:
            raise TrialError(
                f"the hyperparameter global_batch_size is {size!r}: it must be an integer of at least 1"
            )
        return size

    def get_per_slot_batch_size(self) -> int:
        """This slot's part of the global batch size."""
        per_slot, rest = divmod(self.get_global_batch_size(), self.distributed.size)
        if per_slot < 1 or rest:
            raise TrialError(
                f"the hyperparameter global_batch_size ({self.get_global_batch_size()}) is not a multiple "
                f"of the {self.distributed.size} slots"
            )
        return per_slot

    def __getattr__(self, name: str) -> Any:
        """Only called for what is not there: what older releases had is named with what to use in its place."""
        raise AttributeError(
            f"context.{name} is of an older release: {_REMOVED[name]}"
            if name in _REMOVED
            else f"{type(self).__name__!r} object has no attribute {name!r}"
        )

    # Position

    def current_train_batch(self) -> int:
        """The index of the batch that is being trained on, from 0 over the whole training."""
        if self._batch_idx is None:
            raise TrialError("current_train_batch() has no answer before the training begins")
        return self._batch_idx

    def current_train_epoch(self) -> int:
        """The index of the epoch that is being trained on, from 0."""
        return self.current_train_batch() // self._epoch()

    def is_epoch_start(self) -> bool:
        """Whether the current batch is the first of its epoch."""
        return self.current_train_batch() % self._epoch() == 0

    def is_epoch_end(self) -> bool:
        """Whether the current batch is the last of its epoch."""
        return self.current_train_batch() % self._epoch() == self._epoch() - 1

    def _epoch(self) -> int:
        if self._epoch_length is None:
            raise TrialError("the length of an epoch is not known before the training begins")
        return self._epoch_length


def optimizer_parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    """All parameters that an optimizer changes."""
    groups: Iterable[dict[str, Any]] = optimizer.param_groups
    return [parameter for group in groups for parameter in group["params"]]
