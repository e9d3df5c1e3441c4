"""What a training script calls: `pytorch.init()` and `Trainer.fit()`."""

import contextlib
import logging
import os
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from determined import core
from determined._info import get_cluster_info
from determined.errors import TrialError
from determined.pytorch import _trial
from determined.pytorch._config import configured_max_length, in_batches, warn_of_other_length
from determined.pytorch._context import PyTorchTrialContext
from determined.pytorch._loop import CheckpointPolicy, Plan, TrainLoop
from determined.pytorch._trial import PyTorchTrial
from determined.pytorch._units import Batch, Epoch, Record, TrainUnit

logger = logging.getLogger("determined.pytorch")


@contextlib.contextmanager
def init(
    *,
    hparams: dict[str, Any] | None = None,
    exp_conf: dict[str, Any] | None = None,
    distributed: core.DistributedContext | None = None,
    aggregation_frequency: int = 1,
    enable_tensorboard_logging: bool = True,
) -> Iterator[PyTorchTrialContext]:
    """Connect this process to its trial, and yield what the PyTorchTrial is made with.

    `hparams` and `exp_conf` are by default the trial's; where no trial runs they are empty. Seeds the random
    number generators of Python, NumPy and torch by the trial's seed; where no trial runs, by
    `exp_conf["reproducibility"]["experiment_seed"]` if that is given, else they stay as the script has seeded
    them. `aggregation_frequency`: batches whose gradients are gathered for one step of the optimizers.
    `enable_tensorboard_logging`: whether metrics are charted for TensorBoard, and files for it stored.
    """
    processes = distributed.size if distributed is not None else int(os.environ.get("WORLD_SIZE") or 1)
    if processes > 1:
        raise ValueError(
            f"this script was started in {processes} processes, but this version of PyTorchTrial trains in one: start"
            " one (without torchrun), or exchange the gradients in a script that uses determined.core"
        )
    info = get_cluster_info()
    trial = info.trial if info is not None and info.task_type == "TRIAL" else None
    if hparams is None:
        hparams = trial.hparams if trial else {}
    if exp_conf is None:
        exp_conf = trial._config if trial else {}
    seed = trial.trial_seed if trial else (exp_conf.get("reproducibility") or {}).get("experiment_seed")
    if seed is not None:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
    with core.init(
        distributed=distributed,
        preempt_mode=core.PreemptMode.ChiefOnly,
        tensorboard_mode=core.TensorboardMode.AUTO
        if enable_tensorboard_logging
        else core.TensorboardMode.MANUAL,
    ) as core_context:
        context = PyTorchTrialContext(
            core_context,
            hparams=hparams,
            exp_conf=exp_conf,
            trial_seed=seed or 0,
            aggregation_frequency=aggregation_frequency,
        )
        try:
            yield context
        finally:
            context._close()


class Trainer:
    """Trains a PyTorchTrial: `Trainer(trial, context).fit(...)` within `pytorch.init()`."""

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        _trial.check(trial)
        self._trial = trial
        self._context = context
        self._profiling_enabled = False

    def fit(
        self,
        checkpoint_period: TrainUnit | None = None,
        validation_period: TrainUnit | None = None,
        max_length: TrainUnit | None = None,
        reporting_period: TrainUnit = Batch(100),  # noqa: B008 - immutable, and shows in the signature
        checkpoint_policy: CheckpointPolicy = "best",
        latest_checkpoint: str | None = None,
        step_zero_validation: bool = False,
        test_mode: bool = False,
        profiling_enabled: bool = False,
    ) -> None:
        """Train until `max_length`, or until the trial is preempted or asks to stop.

        checkpoint_period, validation_period: when to save and to validate; None means at the end only.
        max_length: `Batch(n)`, `Epoch(n)` or `Record(n)`; in a trial, `searcher.max_length` or `max_time` by
            default. Records become batches by the hyperparameter `global_batch_size`.
        reporting_period: over how much to average training metrics, and how often to look for preemption.
        checkpoint_policy: save after validations that are the `best` of the experiment so far, after `all`,
            or after `none`. The end of the training is always saved.
        latest_checkpoint: uuid of the checkpoint to go on from, usually
            `det.get_cluster_info().latest_checkpoint`. Another trial's gives only its weights.
        step_zero_validation: validate before the first batch, too.
        test_mode: run one batch of training and one of validation, to try the code; not in a trial.
        profiling_enabled: report what the machine does meanwhile: its GPUs, CPUs, memory, disks and network.

        Returns as well when preempted: a checkpoint is saved then, and the script should end.
        """
        context = self._context
        if not context.models or not context.optimizers:
            old = any(hasattr(type(self._trial), name) for name in ("build_model", "optimizer"))
            missing = "model" if not context.models else "optimizer"
            raise TrialError(
                f"{type(self._trial).__name__} wraps no {missing}: call context.wrap_{missing}() in __init__, "
                "so that it gets into the checkpoints"
                + (" (build_model() and optimizer() are of an older release)" if old else "")
            )
        checkpoint_period = self._unit("checkpoint_period", checkpoint_period)
        validation_period = self._unit("validation_period", validation_period)
        max_length = self._unit("max_length", max_length)
        report_every = self._unit("reporting_period", reporting_period)
        if report_every is None:
            raise TypeError("reporting_period is None: it must be Batch(n), Epoch(n) or Record(n)")
        if checkpoint_policy not in ("best", "all", "none"):
            raise ValueError(f"checkpoint_policy is {checkpoint_policy!r}: it must be best, all or none")
        if test_mode:
            if context._on_cluster:
                raise ValueError("test_mode is for trying code outside of a trial")
            max_length = report_every = Batch(1)
        config = context.get_experiment_config()
        searcher = config.get("searcher") or {}
        plan = Plan(
            max_length=self._max_length(max_length),
            reporting_period=report_every,
            validation_period=validation_period,
            checkpoint_period=checkpoint_period,
            checkpoint_policy=checkpoint_policy,
            step_zero_validation=step_zero_validation,
            searcher_metric=searcher.get("metric"),
            smaller_is_better=searcher.get("smaller_is_better", True),
            validation_batches=1 if test_mode else None,
        )
        profiler = context._core.profiler
        if profiling_enabled or self._profiling_enabled:
            profiler.on()
        try:
            TrainLoop(self._trial, context, plan).run(latest_checkpoint)
        finally:
            profiler.off()

    def configure_profiler(
        self,
        enabled: bool,
        sync_timings: bool = True,
        begin_on_batch: int = 0,
        end_after_batch: int | None = None,
    ) -> None:
        """The older form of `fit(profiling_enabled=...)`. The other arguments have no effect any more."""
        warnings.warn(
            "Trainer.configure_profiler() is deprecated: call fit(profiling_enabled=True). It profiles the whole "
            "training",
            FutureWarning,
            stacklevel=2,
        )
        self._profiling_enabled = enabled

    def _unit(self, name: str, unit: TrainUnit | None) -> TrainUnit | None:
        """A length or period as batches or epochs."""
        if isinstance(unit, Record):
            return in_batches(unit, name, self._context.get_hparams())
        if unit is not None and not isinstance(unit, Batch | Epoch):
            raise TypeError(f"{name} is {unit!r}: it must be Batch(n), Epoch(n) or Record(n)")
        return unit

    def _max_length(self, max_length: TrainUnit | None) -> TrainUnit:
        config, hparams = self._context.get_experiment_config(), self._context.get_hparams()
        if max_length is not None:
            if not isinstance(max_length.value, int):
                raise ValueError(
                    f"max_length is {max_length}: it must be a single number of batches or epochs"
                )
            warn_of_other_length(config, max_length)
            return max_length
        configured = configured_max_length(config, hparams)
        if configured is None:
            raise ValueError(
                "fit() needs a max_length, for example Epoch(10)"
                + (": the experiment config's searcher has none either" if self._context._on_cluster else "")
            )
        logger.warning("fit() was called without max_length: the searcher config gives %s", configured)
        return configured
