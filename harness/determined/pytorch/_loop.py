"""The training loop: train to the next boundary, report, validate, save, and look whether to stop."""

import inspect
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.utils.data

from determined.errors import TrialError
from determined.pytorch import _saved
from determined.pytorch._context import PyTorchTrialContext
from determined.pytorch._data import DataLoader
from determined.pytorch._reducer import MetricReducer, plain, reduce, snapshot, stack
from determined.pytorch._trial import AnyDataLoader, PyTorchTrial, defines
from determined.pytorch._units import Batch, Epoch, TrainUnit

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
        self._callbacks = trial.build_callbacks()
        self._state = _saved.TrialState(trial_id=context.get_trial_id())
        self._is_saved = False  # whether a checkpoint of this very state exists
        self._is_validated = False
        self._training_loader = self._checked(
            trial.build_training_data_loader(), "build_training_data_loader"
        )
        loader = self._checked(trial.build_validation_data_loader(), "build_validation_data_loader")
        self._validation_loader = loader.get_data_loader() if isinstance(loader, DataLoader) else loader
        self._evaluate_batch = _with_batch_idx(trial.evaluate_batch)
        self._epoch_length = self._length_of_epoch()
        context._epoch_length = self._epoch_length
        self._metrics: list[dict[str, Any]] = []  # of the batches since the last report
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
        rng_state = self._load(checkpoint_uuid) if checkpoint_uuid else None
        state = self._state
        batches = self._training_batches(skip=state.batches_trained)
        for callback in self._callbacks.values():
            callback.on_trial_startup(state.batches_trained, checkpoint_uuid)
        for model in self._context.models:
            model.train()
        if self._plan.step_zero_validation and state.batches_trained == 0:
            self._validate()
        for callback in self._callbacks.values():
            callback.on_training_start()
        self._core.train.set_status("training")
        if rng_state is not None:
            # Only now: making data loaders and callbacks draw random numbers, too.
            _saved.set_rng_state(rng_state)
        if self._at_end():
            self._finish()
            return
        for batch_idx, batch in enumerate(batches, start=state.batches_trained):
            self._train(batch, batch_idx)
            if not self._goes_on():
                return

    # Training

    def _train(self, batch: Any, batch_idx: int) -> None:
        context, state = self._context, self._state
        epoch_idx, batch_in_epoch = divmod(batch_idx, self._epoch_length)
        context._batch_idx = batch_idx
        if batch_in_epoch == 0:
            for callback in self._callbacks.values():
                callback.on_training_epoch_start(epoch_idx)
        if context.experimental._auto_to_device:
            batch = context.to_device(batch)
        self._metrics.append(snapshot(self._trial.train_batch(batch, epoch_idx, batch_idx), "train_batch"))
        state.batches_trained = batch_idx + 1
        self._is_saved = self._is_validated = False
        for schedule in context.lr_schedulers:
            schedule.after_batch(state.batches_trained, context._aggregation_frequency)
        if batch_in_epoch == self._epoch_length - 1:
            state.epochs_trained = epoch_idx + 1
            for schedule in context.lr_schedulers:
                schedule.after_epoch(state.epochs_trained)
            for callback in self._callbacks.values():
                callback.on_training_epoch_end(epoch_idx)

    def _goes_on(self) -> bool:
        """Do what is due after a batch; False when the training ends with it."""
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
            return True
        self._save()
        return False

    def _finish(self) -> None:
        self._validate()
        self._save()
        self._core.train.report_progress(1.0)

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
        if not self._metrics:
            return
        columns = stack(self._metrics, "train_batch")
        averages = {name: plain(values.mean(0)) for name, values in columns.items()}
        averages |= self._reduced(for_training=True)
        for callback in self._callbacks.values():
            callback.on_training_workload_end(averages, _rows(self._metrics, columns))
        self._metrics = []
        self._state.step_id += 1
        self._core.train.report_training_metrics(self._state.batches_trained, self._with_position(averages))

    # Validation

    def _validate(self) -> None:
        """Validate and report, unless that was done for just this state; save it if the policy says so."""
        if self._is_validated:
            return
        self._core.train.set_status("validating")
        metrics = self._with_position(self._validation_metrics())
        metric = self._searcher_metric(metrics)
        # Asked before the report: afterwards the best would be this one itself.
        save = self._is_worth_saving(metric)
        self._core.train.report_validation_metrics(self._state.batches_trained, metrics)
        for callback in self._callbacks.values():
            callback.on_validation_end(metrics)
        self._is_validated = True
        self._state.last_val = self._state.batches_trained
        if save and self._state.batches_trained > 0:
            self._save()

    def _validation_metrics(self) -> dict[str, Any]:
        models = self._context.models
        for callback in self._callbacks.values():
            callback.on_validation_start()
        training = [model.training for model in models]
        for model in models:
            model.eval()
        self._reset_reducers(for_training=False)
        try:
            with torch.no_grad():
                if defines(self._trial, "evaluate_full_dataset"):
                    outcome = self._trial.evaluate_full_dataset(self._validation_loader)
                    metrics = reduce(
                        [snapshot(outcome, "evaluate_full_dataset")], {}, "evaluate_full_dataset"
                    )
                else:
                    metrics = self._evaluated()
        finally:
            for model, was_training in zip(models, training, strict=True):
                model.train(was_training)
        return metrics | self._reduced(for_training=False)

    def _evaluated(self) -> dict[str, Any]:
        for callback in self._callbacks.values():
            callback.on_validation_epoch_start()
        outputs = []
        batches = itertools.islice(self._validation_loader, self._plan.validation_batches)
        for batch_idx, batch in enumerate(batches):
            if self._context.experimental._auto_to_device:
                batch = self._context.to_device(batch)
            outputs.append(snapshot(self._evaluate_batch(batch, batch_idx), "evaluate_batch"))
        for callback in self._callbacks.values():
            callback.on_validation_epoch_end(outputs)
        if not outputs:
            raise TrialError("build_validation_data_loader() returned a loader without a single batch")
        return reduce(outputs, self._trial.evaluation_reducer(), "evaluate_batch")

    def _searcher_metric(self, metrics: dict[str, Any]) -> float | None:
        name = self._plan.searcher_metric
        if name is None:
            return None
        if not isinstance(metrics.get(name), int | float):
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

    def _reducers(self, for_training: bool) -> Iterator[tuple[MetricReducer, str | None]]:
        for reducer, name, in_training, in_validation in self._context._reducers:
            if in_training if for_training else in_validation:
                yield reducer, name

    def _reset_reducers(self, for_training: bool) -> None:
        for reducer, _ in self._reducers(for_training):
            reducer.reset()

    def _reduced(self, for_training: bool) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        for reducer, name in self._reducers(for_training):
            value = reducer.cross_slot_reduce(self._core.distributed.allgather(reducer.per_slot_reduce()))
            reducer.reset()
            if name is not None:
                metrics[name] = value
            elif isinstance(value, dict):
                metrics |= value
            else:
                raise TrialError(
                    f"{type(reducer).__name__} was wrapped without a name, so it must return a dict of "
                    f"metrics, but it returned a {type(value).__name__}"
                )
        return metrics

    # Checkpoints

    def _save(self) -> None:
        """Save a checkpoint, unless there is one of just this state."""
        if self._is_saved:
            return
        self._core.train.set_status("checkpointing")
        state = self._state
        state.last_ckpt = state.batches_trained
        metadata = _saved.metadata(state.batches_trained)
        with self._core.checkpoint.store_path(metadata) as (path, uuid):
            _saved.save(path, self._context, self._callbacks, state, type(self._trial))
        self._is_saved = True
        for callback in self._callbacks.values():
            callback.on_checkpoint_upload_end(uuid)

    def _load(self, checkpoint_uuid: str) -> dict[str, Any] | None:
        """Take up a checkpoint; the random number generators' states, if it is this trial's own."""
        with self._core.checkpoint.restore_path(checkpoint_uuid) as path:
            checkpoint = _saved.read_state_dict(path)
            state = _saved.read_trial_state(path)
        for callback in self._callbacks.values():
            callback.on_checkpoint_load_start(checkpoint)
        _saved.load_models(checkpoint, self._context)
        if state is None or state.trial_id != self._state.trial_id:
            logger.info(
                "starting with the weights of checkpoint %s, which is another trial's", checkpoint_uuid
            )
            return None
        _saved.load_training(checkpoint, self._context, self._callbacks)
        self._state = state
        self._is_saved = state.last_ckpt == state.batches_trained
        self._is_validated = state.last_val == state.batches_trained
        logger.info("resuming from checkpoint %s after %d batches", checkpoint_uuid, state.batches_trained)
        rng_state: dict[str, Any] = checkpoint.get("rng_state", {})
        return rng_state

    # Data

    def _checked(self, loader: AnyDataLoader, method: str) -> AnyDataLoader:
        if isinstance(loader, DataLoader):
            return loader
        if not isinstance(loader, torch.utils.data.DataLoader):
            raise TrialError(f"{method}() must return a DataLoader, but returned a {type(loader).__name__}")
        if self._context.experimental._reproducible_data:
            raise TrialError(
                f"{method}() returned a torch DataLoader: return a determined.pytorch.DataLoader, which takes the "
                "same arguments, or call context.experimental.disable_dataset_reproducibility_checks()"
            )
        return loader

    def _length_of_epoch(self) -> int:
        try:
            length = len(self._training_loader)
        except TypeError as e:
            raise TrialError(
                f"the training data loader has no length, so epochs cannot be told apart ({e}): "
                "define __len__ on the dataset"
            ) from e
        if length < 1:
            raise TrialError("build_training_data_loader() returned a loader without a single batch")
        return length

    def _training_batches(self, skip: int) -> Iterator[Any]:
        """All batches from position `skip` on, without end."""
        loader = self._training_loader
        if isinstance(loader, DataLoader):
            return iter(loader.get_data_loader(repeat=True, skip=skip, seed=self._context.get_trial_seed()))
        epochs = itertools.chain.from_iterable(itertools.repeat(loader))
        into_epoch = skip % self._epoch_length
        if into_epoch == 0:
            return epochs
        # At once, before the state of the random number generators is restored: passing over may draw from them.
        rest = iter(loader)
        for _ in range(into_epoch):
            next(rest)
        return itertools.chain(rest, epochs)


def _with_batch_idx(method: Callable[..., Any]) -> Callable[[Any, int], Any]:
    """`evaluate_batch`, whose older form takes the batch alone."""
    parameters = inspect.signature(method).parameters.values()
    if len(parameters) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return method
    return lambda batch, batch_idx: method(batch)


def _rows(batches: list[dict[str, Any]], columns: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
    """Each batch's metrics as plain numbers, from the stacked ones."""
    values = {name: iter(column) for name, column in columns.items()}
    return [{name: plain(next(values[name])) for name in batch} for batch in batches]
