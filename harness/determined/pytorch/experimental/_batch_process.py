"""`torch_batch_process`: each batch of a dataset once, over all slots, with progress that survives a preemption."""

import itertools
import logging
import uuid
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import BatchSampler, Dataset, SequentialSampler

from determined import core
from determined.pytorch.experimental._processor import TorchBatchProcessor, TorchBatchProcessorContext
from determined.pytorch.samplers import adapt_batch_sampler

logger = logging.getLogger("determined.pytorch")

# They would change which batches there are, and so what a resumed run still has to do.
_REFUSED = ("shuffle", "sampler", "batch_sampler", "drop_last")


def torch_batch_process(
    batch_processor_cls: type[TorchBatchProcessor],
    dataset: Dataset[Any],
    batch_size: int | None = None,
    max_batches: int | None = None,
    checkpoint_interval: int = 5,
    dataloader_kwargs: dict[str, Any] | None = None,
    distributed_context: core.DistributedContext | None = None,
) -> None:
    """Run a TorchBatchProcessor over a dataset, on all slots of the trial together.

    The processes take turns: of N, process n gets every N-th batch from the n-th on. Each saves its results every
    `checkpoint_interval` batches; a trial that is preempted or restarted goes on after the newest checkpoint. Works
    outside of a trial, too, from the beginning.

    Args:
        batch_processor_cls: made once in each process.
        dataset: one with a length and items by index.
        batch_size: items per batch; 1 by default.
        max_batches: how many each process takes at most; None for all.
        checkpoint_interval: batches of a process from one checkpoint to the next.
        dataloader_kwargs: further arguments of `torch.utils.data.DataLoader`; none that changes the order.
        distributed_context: as for `core.init`, which a trial of several slots needs.

    Raises:
        TypeError: the class is no TorchBatchProcessor, or the dataset has no length.
        ValueError: numbers below 1, or arguments of the data loader that change the order.
    """
    options = dict(dataloader_kwargs or {})
    if not (isinstance(batch_processor_cls, type) and issubclass(batch_processor_cls, TorchBatchProcessor)):
        raise TypeError(f"batch_processor_cls is {batch_processor_cls!r}: it must be a TorchBatchProcessor")
    if not hasattr(dataset, "__len__"):
        raise TypeError(
            f"the {type(dataset).__name__} has no length: torch_batch_process() needs items by index"
        )
    if refused := [name for name in _REFUSED if name in options]:
        raise ValueError(
            f"dataloader_kwargs has {', '.join(refused)}: batches are taken in the dataset's order"
        )
    in_options = options.pop("batch_size", None)
    if batch_size is not None and in_options not in (None, batch_size):
        raise ValueError(
            f"batch_size is {batch_size}, and {in_options} in dataloader_kwargs: give one of them"
        )
    size = next((given for given in (batch_size, in_options) if given is not None), 1)
    for name, n in (
        ("batch_size", size),
        ("max_batches", max_batches),
        ("checkpoint_interval", checkpoint_interval),
    ):
        if n is not None and (type(n) is not int or n < 1):
            raise ValueError(f"{name} is {n!r}: it must be an integer of at least 1")
    batches = BatchSampler(SequentialSampler(dataset), size, drop_last=False)
    with core.init(distributed=distributed_context) as core_context:
        _Run(core_context, batch_processor_cls, checkpoint_interval).process(
            dataset, batches, max_batches, options
        )


class _Run:
    """One process of a batch inference, from its start or its newest checkpoint on."""

    def __init__(
        self,
        core_context: core.Context,
        batch_processor_cls: type[TorchBatchProcessor],
        checkpoint_interval: int,
    ) -> None:
        self._core = core_context
        self._interval = checkpoint_interval
        self._done, output = _progress(core_context)
        output = core_context.distributed.broadcast(output or str(uuid.uuid4()))
        self._context = TorchBatchProcessorContext(core_context, output)
        self._processor = batch_processor_cls(self._context)

    def process(
        self, dataset: Dataset[Any], batches: BatchSampler, max_batches: int | None, options: dict[str, Any]
    ) -> None:
        distributed = self._core.distributed
        # The same on each process, so that they come to their checkpoints together: some may have one batch less.
        longest = -(-len(batches) // distributed.size)
        total = longest if max_batches is None else min(longest, max_batches)
        mine = adapt_batch_sampler(batches, False, self._done, distributed.size, distributed.rank)
        loader = iter(torch.utils.data.DataLoader(dataset, batch_sampler=mine, **options))
        self._core.train.set_status("processing")
        while self._done < total:
            until = min(total, self._done + self._interval)
            with torch.no_grad():
                for batch_idx, batch in enumerate(
                    itertools.islice(loader, until - self._done), start=self._done
                ):
                    self._processor.process_batch(batch=batch, batch_idx=batch_idx)
            self._done = until
            self._save()
            if distributed.rank == 0:
                self._core.train.report_progress(self._done / total)
            if self._done < total and self._core.preempt.should_preempt():
                logger.info("the processing is preempted after %d of %d batches", self._done, total)
                return
        self._processor.on_finish()
        logger.info(
            "processed all %d batches; what upload_path() got is in the checkpoint storage, in %s",
            total,
            self._context.default_output_uuid,
        )

    def _save(self) -> None:
        self._processor.on_checkpoint_start()
        # The checkpoint says that everybody's batches are done.
        self._core.distributed.gather(None)
        if self._core.distributed.rank == 0:
            metadata = {
                "steps_completed": self._done,
                "default_output_uuid": self._context.default_output_uuid,
            }
            with self._core.checkpoint.store_path(metadata):
                pass


def _progress(core_context: core.Context) -> tuple[int, str | None]:
    """Batches that each process has done in earlier runs of this trial, and where their results are."""
    info = core_context.info
    if info is None or info.task_type != "TRIAL" or info.latest_checkpoint is None:
        return 0, None
    if info.trial._steps_completed == 0:  # the checkpoint is another trial's
        return 0, None
    metadata = core_context.checkpoint.get_metadata(info.latest_checkpoint)
    logger.info(
        "going on after %d batches, from checkpoint %s", metadata["steps_completed"], info.latest_checkpoint
    )
    return metadata["steps_completed"], metadata.get("default_output_uuid")
