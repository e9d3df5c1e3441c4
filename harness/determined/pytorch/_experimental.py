"""What a trial turns on for special cases: `context.experimental`."""

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from determined.pytorch._context import PyTorchTrialContext


class PyTorchExperimentalContext:
    """Switches for special cases. Get it as `context.experimental`."""

    def __init__(self, context: "PyTorchTrialContext") -> None:
        self._context = context
        self._reproducible_data = True
        self._auto_to_device = True

    def use_amp(self) -> None:
        """Train and validate with automatic mixed precision; call it in the trial's `__init__`.

        Runs `train_batch` and `evaluate_batch` under `torch.autocast`, in the device's usual type: float16 on
        GPUs, bfloat16 on CPUs. For float16 the loss is scaled in `context.backward`, gradients are unscaled
        before they are clipped, and steps with infinite ones are left out.
        """
        self._context._use_amp()

    def disable_dataset_reproducibility_checks(self) -> None:
        """Allow data loaders other than `determined.pytorch.DataLoader`; they must have a length.

        The order of their data is then up to the trial. A training that resumes within an epoch passes over
        the batches before, with the random numbers that the epoch began with.
        """
        self._reproducible_data = False

    def disable_auto_to_device(self) -> None:
        """Leave batches where the data loader made them; the trial calls `context.to_device` itself."""
        self._auto_to_device = False

    def wrap_reducer(self, *args: Any, **kwargs: Any) -> Any:
        """The older name of `context.wrap_reducer`."""
        warnings.warn(
            "context.experimental.wrap_reducer() is called context.wrap_reducer() now",
            FutureWarning,
            stacklevel=2,
        )
        return self._context.wrap_reducer(*args, **kwargs)
