"""The training loop: train to the next boundary, report, validate, save, and look whether to stop."""

import contextlib
import logging
import time
from dataclasses import dataclass
from typing import Any, Literal

import torch

from determined.errors import TrialError
from determined.pytorch import _random, _saved
from determined.pytorch._batches import TrainingBatches, checked_loader
from determined.pytorch._callback import PyTorchCallback, checked_callbacks, epoch_hook
from determined.pytorch._context import PyTorchTrialContext
from determined.pytorch._reducer import plain, stack, values
from determined.pytorch._throughput import Throughput
from determined.pytorch._trial import PyTorchTrial
from determined.pytorch._units import Batch, Epoch, TrainUnit
from determined.pytorch._validation import Validation

logger = logging.getLogger("determined.pytorch")

PROGRESS_SECONDS = 1.0  # a fast training need not say more often how far it is

CheckpointPolicy = Literal["best", "all", "none"]


@dataclass(frozen=True)
class Plan:
    """How long to train, and what to do when."""

    max_length: TrainUnit
    reporting_period: TrainUnit
    validation_period: TrainUnit | None  # None: at the end only
    checkpoint_period: TrainUnit | None
    checkpoint_policy: CheckpointPolicy  # which validations are followed by a checkpoint
    step_zero_validation: bool
    searcher_metric: str | None  # None: nobody searches
    smaller_is_better: bool
    validation_batches: int | None = None  # None: all of them


class TrainLoop:
    """Runs one trial by a plan, once."""

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext, plan: Plan) -> None:
        self._trial = trial
        self._context = context
        self._core = context._core
        self._plan = plan
        self._callbacks = checked_callbacks(trial.build_callbacks())
        self._epoch_starts = [epoch_hook(c.on_training_epoch_start) for c in self._callbacks.values()]
        self._epoch_ends = [epoch_hook(c.on_training_epoch_end) for c in self._callbacks.values()]
        self._state = _saved.TrialState(trial_id=context.get_trial_id())
        self._is_saved = False  # whether a checkpoint of this very state exists
        self._is_validated = False
        self._throughput = Throughput(trial.get_batch_length)
        self._train_batch = context._forward(trial.train_batch)
        self._metrics: list[dict[str, Any]] = []  # of the batches since the last report
        self._boundary = 0  # batches until something may be due
        self._progress_reported = 0.0  # by time.monotonic()
        self._best: float | None = None  # of this process, where no master knows it

    def run(self, checkpoint_uuid: str | None) -> None:
        """Train, from a checkpoint if one is given, until the end or until asked to stop."""
        try:
            self._run(checkpoint_uuid)
        finally:
            for callback in self._callbacks.values():
                callback.on_trial_shutdown()

    def _run(self, checkpoint_uuid: str | None) -> None:
        checkpoint = self._read(checkpoint_uuid) if checkpoint_uuid else {}
        state = self._state
        for callback in self._callbacks.values():
            callback.on_trial_startup(state.batches_trained, checkpoint_uuid)
        if checkpoint_uuid:
            self._load(checkpoint)
        self._build_loaders()
        batches = self._batches.starting_at(state.batches_trained, checkpoint.get("data_order") or {})
        for model in self._context.models:
            model.train()
        for callback in self._callbacks.values():
            callback.on_training_start()
        if self._plan.step_zero_validation and state.batches_trained == 0:
            self._validate()
        self._core.train.set_status("training")
        if state.batches_trained > 0:
            # Only now: making data loaders and callbacks draw random numbers, too.
            _random.set_states(checkpoint.get("rng_state", {}))
            self._batches.restore_generator()
            self._validation.load_state_dict(checkpoint.get("data_order") or {})
        if self._at_end():
            self._finish()
            return
        self._boundary = self._next_boundary()
        self._throughput.start()
        profiler = self._context._profiler
        with profiler or contextlib.nullcontext():
            for batch_idx, batch in enumerate(batches, start=state.batches_trained):
                self._train(batch, batch_idx)
                if profiler is not None:
                    profiler.step()
                if state.batches_trained < self._boundary and not self._context._stop_requested:
                    continue
                if not self._goes_on():
                    return
                self._boundary = self._next_boundary()

    def _build_loaders(self) -> None:
        trial, context = self._trial, self._context
        loader = checked_loader(trial.build_training_data_loader(), "build_training_data_loader", context)
        self._batches = TrainingBatches(loader)
        self._epoch_length = context._epoch_length = self._batches.epoch_length
        loader = checked_loader(trial.build_validation_data_loader(), "build_validation_data_loader", context)
        limit = self._plan.validation_batches
        self._validation = Validation(trial, context, self._callbacks, loader, limit)

    # Training

    def _train(self, batch: Any, batch_idx: int) -> None:
        context, state = self._context, self._state
        epoch_idx, batch_in_epoch = divmod(batch_idx, self._epoch_length)
        context._batch_idx = batch_idx
        if batch_in_epoch == 0:
            for hook in self._epoch_starts:
                hook(epoch_idx)
        self._throughput.count(batch)
        if context.experimental._auto_to_device:
            batch = context.to_device(batch)
        self._metrics.append(values(self._train_batch(batch, epoch_idx, batch_idx), "train_batch"))
        context._update_amp_scaler()
        state.batches_trained = batch_idx + 1
        self._is_saved = self._is_validated = False
        for schedule in context.lr_schedulers:
            schedule.after_batch(state.batches_trained, context._aggregation_frequency)
        if batch_in_epoch == self._epoch_length - 1:
            state.epochs_trained = epoch_idx + 1
            for schedule in context.lr_schedulers:
                schedule.after_epoch(state.epochs_trained)
            for hook in self._epoch_ends:
                hook(epoch_idx)
            self._batches.epoch_ended(state.batches_trained)

    def _goes_on(self) -> bool:
        """Do what is due at a boundary; False when the training ends with it."""
        plan = self._plan
        if self._at_end():
            self._report_training()
            self._finish()
            return False
        validation_due = self._is_due(plan.validation_period)
        checkpoint_due = self._is_due(plan.checkpoint_period)
        stop = self._context.get_stop_requested()
        if not (validation_due or checkpoint_due or stop or self._is_due(plan.reporting_period)):
            return True
        self._report_training()
        if validation_due:
            self._validate()
        if checkpoint_due:
            self._save()
        self._report_progress()
        if stop or self._context.get_stop_requested():
            logger.info(
                "the training stops after %d batches, as the trial asked", self._state.batches_trained
            )
        elif self._core.preempt.should_preempt():
            logger.info("the trial is preempted after %d batches", self._state.batches_trained)
        else:
            if validation_due or checkpoint_due:
                self._core.train.set_status("training")
            self._throughput.start()
            return True
        self._save()
        return False

    def _finish(self) -> None:
        self._validate()
        self._save()
        self._core.train.report_progress(1.0)

    def _next_boundary(self) -> int:
        """The number of batches after which something may be due next."""
        done = self._state.batches_trained
        boundary = self._max_batches()
        plan = self._plan
        for period in (plan.reporting_period, plan.validation_period, plan.checkpoint_period):
            if period is None:
                continue
            batches = self._epoch_length if isinstance(period, Epoch) else 1
            if isinstance(period.value, int):
                batches *= period.value
            boundary = min(boundary, (done // batches + 1) * batches)
        return boundary

    def _is_due(self, period: TrainUnit | None) -> bool:
        if isinstance(period, Batch):
            return period.should_stop(self._state.batches_trained)
        if isinstance(period, Epoch):
            at_epoch_end = self._state.batches_trained % self._epoch_length == 0
            return at_epoch_end and period.should_stop(self._state.epochs_trained)
        return False

    def _max_batches(self) -> int:
        assert isinstance(self._plan.max_length.value, int)  # the trainer sees to it
        if isinstance(self._plan.max_length, Epoch):
            return self._plan.max_length.value * self._epoch_length
        return self._plan.max_length.value

    def _at_end(self) -> bool:
        return self._state.batches_trained >= self._max_batches()

    def _report_progress(self) -> None:
        now = time.monotonic()
        if now - self._progress_reported >= PROGRESS_SECONDS:
            self._progress_reported = now
            self._core.train.report_progress(self._state.batches_trained / self._max_batches())

    def _report_training(self) -> None:
        """Average and report what was gathered since the last time."""
        self._throughput.stop()
        if not self._metrics:
            return
        columns = stack(self._metrics, "train_batch")
        averages = {name: plain(column.mean(0)) for name, column in columns.items()}
        averages |= self._context._reducers.reduce(self._core.distributed, for_training=True)
        averages = self._with_position(averages)
        self._state.step_id += 1
        self._core.train.report_training_metrics(self._state.batches_trained, averages)
        for callback in self._callbacks.values():
            if type(callback).on_training_workload_end is not PyTorchCallback.on_training_workload_end:
                rows = _rows(self._metrics, columns)
                callback.on_training_workload_end(avg_metrics=averages, batch_metrics=rows)
        self._metrics = []

    # Validation

    def _validate(self) -> None:
        """Validate and report, unless that was done for just this state; save it if the policy says so."""
        if self._is_validated:
            return
        self._core.train.set_status("validating")
        metrics = self._with_position(self._validation())
        metric = self._searcher_metric(metrics)
        # Asked before the report: afterwards the best would be this one itself.
        save = self._is_worth_saving(metric)
        self._core.train.report_validation_metrics(self._state.batches_trained, metrics)
        self._is_validated = True
        self._state.last_val = self._state.batches_trained
        if save and self._state.batches_trained > 0:
            self._save()

    def _searcher_metric(self, metrics: dict[str, Any]) -> float | None:
        name = self._plan.searcher_metric
        if name is None:
            return None
        if not isinstance(metrics.get(name), int | float):
            if self._state.batches_trained > 0:
                self._save()  # the training was right, and should not have to be done again
            raise TrialError(
                f"searcher.metric is {name!r}, but the validation metrics have no such number; "
                f"they are: {', '.join(metrics)}"
            )
        return float(metrics[name])

    def _is_worth_saving(self, metric: float | None) -> bool:
        if self._plan.checkpoint_policy == "none":
            return False
        if self._plan.checkpoint_policy == "all" or metric is None:
            return True
        best = self._core.train.get_experiment_best_validation() if self._context._on_cluster else self._best
        sign = 1 if self._plan.smaller_is_better else -1
        if best is not None and not sign * metric < sign * best:  # NaN is never better
            return False
        self._best = metric
        return True

    # Metrics

    def _with_position(self, metrics: dict[str, Any]) -> dict[str, Any]:
        return metrics | {"batches": self._state.batches_trained, "epochs": self._state.epochs_trained}

    # Checkpoints

    def _save(self) -> None:
        """Save a checkpoint, unless there is one of just this state."""
        if self._is_saved:
            return
        self._core.train.set_status("checkpointing")
        state = self._state
        state.last_ckpt = state.batches_trained
        metadata = _saved.metadata(state.batches_trained)
        rng_state = _random.get_states()
        with self._core.checkpoint.store_path(metadata) as (path, uuid):
            _saved.save(
                path,
                self._context,
                self._callbacks,
                state,
                type(self._trial),
                rng_state=rng_state,
                data_order=self._batches.state_dict(state.batches_trained) | self._validation.state_dict(),
            )
        self._is_saved = True
        for callback in self._callbacks.values():
            callback.on_checkpoint_upload_end(uuid=uuid)
        # What callbacks drew is not in the checkpoint: a training that resumes from it must not differ.
        _random.set_states(rng_state)

    def _read(self, checkpoint_uuid: str) -> dict[str, Any]:
        """The content of a checkpoint; and where the training stands by it, if it is this trial's own."""
        with self._core.checkpoint.restore_path(checkpoint_uuid) as path:
            checkpoint = _saved.read_state_dict(path)
            state = _saved.read_trial_state(path)
        if state is None or state.trial_id != self._state.trial_id:
            logger.info(
                "starting with the weights of checkpoint %s, which is another trial's", checkpoint_uuid
            )
        else:
            logger.info(
                "resuming from checkpoint %s after %d batches", checkpoint_uuid, state.batches_trained
            )
            self._state = state
            self._is_saved = state.last_ckpt == state.batches_trained
            self._is_validated = state.last_val == state.batches_trained
        return checkpoint

    def _load(self, checkpoint: dict[str, Any]) -> None:
        for callback in self._callbacks.values():
            callback.on_checkpoint_load_start(checkpoint)
        _saved.load_models(checkpoint, self._context)
        if self._state.batches_trained > 0:
            _saved.load_training(checkpoint, self._context, self._callbacks)


def _rows(batches: list[dict[str, Any]], columns: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
    """Each batch's metrics in NumPy's types, from the stacked ones; what could not be stacked is as it was."""
    each = {name: iter(column.numpy()) for name, column in columns.items()}
    return [
        {name: next(each[name]) if name in each else value for name, value in batch.items()}
        for batch in batches
    ]
