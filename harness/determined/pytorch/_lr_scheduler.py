"""Learning rate schedules that the trainer steps."""

import enum
from typing import Any

from torch.optim.lr_scheduler import LRScheduler as TorchLRScheduler
from torch.optim.lr_scheduler import ReduceLROnPlateau


class LRScheduler:
    """A torch schedule, and when it is stepped."""

    class StepMode(enum.Enum):
        """When the schedule is stepped, counted in `frequency` of these."""

        STEP_EVERY_EPOCH = 1
        STEP_EVERY_BATCH = 2
        MANUAL_STEP = 3  # the trial calls step()
        STEP_EVERY_OPTIMIZER_STEP = 4  # once per aggregation_frequency batches

    def __init__(self, scheduler: TorchLRScheduler, step_mode: StepMode, frequency: int = 1) -> None:
        if not isinstance(step_mode, LRScheduler.StepMode):
            raise TypeError(f"step_mode must be a LRScheduler.StepMode, not {step_mode!r}")
        if isinstance(scheduler, ReduceLROnPlateau) and step_mode is not LRScheduler.StepMode.MANUAL_STEP:
            raise ValueError(
                "ReduceLROnPlateau needs a metric for each step: take StepMode.MANUAL_STEP, and call its "
                "step(metric), for example in a callback's on_validation_end()"
            )
        if frequency < 1:
            raise ValueError(f"frequency is {frequency}: it must be at least 1")
        self._scheduler = scheduler
        self._step_mode = step_mode
        self._frequency = frequency
        if step_mode is not LRScheduler.StepMode.MANUAL_STEP:
            # The trainer steps both. Where gradients are gathered first, or a scaler leaves the first step out,
            # torch would warn of a wrong order.
            scheduler.optimizer._opt_called = True  # type: ignore[attr-defined]

    def step(self, *args: Any, **kwargs: Any) -> None:
        self._scheduler.step(*args, **kwargs)

    def get_last_lr(self) -> list[Any]:
        return list(self._scheduler.get_last_lr())

    def state_dict(self) -> dict[str, Any]:
        return self._scheduler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._scheduler.load_state_dict(state_dict)

    def after_batch(self, batches: int, aggregation_frequency: int) -> None:
        """Step if it is due after `batches` batches in all."""
        mode = self._step_mode
        every = self._frequency
        if mode is LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP:
            every *= aggregation_frequency
        elif mode is not LRScheduler.StepMode.STEP_EVERY_BATCH:
            return
        if batches % every == 0:
            self._scheduler.step()

    def after_epoch(self, epochs: int) -> None:
        """Step if it is due after `epochs` epochs in all."""
        if self._step_mode is LRScheduler.StepMode.STEP_EVERY_EPOCH and epochs % self._frequency == 0:
            self._scheduler.step()
