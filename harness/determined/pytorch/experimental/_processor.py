"""What a user's batch inference derives from, and what it gets from outside."""

import abc
import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from determined import core
from determined.pytorch._data import to_device

if TYPE_CHECKING:
    from determined.experimental import Checkpoint, ModelVersion

Model = TypeVar("Model", bound=torch.nn.Module)


class TorchBatchProcessorContext:
    """The surroundings of a TorchBatchProcessor; made by `torch_batch_process`.

    `device`: where models and batches go. `default_output_uuid`: the name in the checkpoint storage under which
    `upload_path` keeps files; that of the first run, also after a resume.
    """

    def __init__(self, core_context: core.Context, default_output_uuid: str) -> None:
        self._core = core_context
        self.default_output_uuid = default_output_uuid
        local_rank = core_context.distributed.local_rank
        self.device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")

    def to_device(self, data: Any) -> Any:
        """`data` with all tensors in it on the device."""
        return to_device(data, self.device)

    def prepare_model_for_inference(self, model: Model) -> Model:
        """Put a model on the device and into evaluation mode, and return it."""
        model.eval()
        return model.to(self.device)

    def get_hparams(self) -> dict[str, Any]:
        """The trial's hyperparameters; empty where no trial runs."""
        info = self._core.info
        return info.trial.hparams if info is not None and info.task_type == "TRIAL" else {}

    def get_distributed_rank(self) -> int:
        return self._core.distributed.rank

    def get_distributed_size(self) -> int:
        return self._core.distributed.size

    def get_tensorboard_path(self) -> Path:
        """The folder for files that TensorBoard shows."""
        return self._core.train.get_tensorboard_path()

    @contextlib.contextmanager
    def upload_path(self) -> Iterator[Path]:
        """An empty folder; what it holds when the context ends is kept in the checkpoint storage.

        It goes to the folder `default_output_uuid` there, which all calls, ranks and runs share: a file in place of
        one of the same name. An exception within the context keeps nothing.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            yield path
            for source in sorted(path.rglob("*")):
                if source.is_file():
                    name = source.relative_to(path).as_posix()
                    self._core.checkpoint._storage.put_file(source, f"{self.default_output_uuid}/{name}")

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, Any]) -> None:
        """Report metrics of any group, such as `inference`; see `core_context.train.report_metrics`."""
        self._core.train.report_metrics(group, steps_completed, metrics)

    def report_task_using_checkpoint(self, checkpoint: "Checkpoint") -> None:
        """Say which checkpoint is worked with, so that its `get_metrics()` finds what is reported here."""
        self._core.experimental.report_task_using_checkpoint(checkpoint)

    def report_task_using_model_version(self, model_version: "ModelVersion") -> None:
        """Say which version of a model is worked with, so that it finds what is reported here."""
        self._core.experimental.report_task_using_model_version(model_version)


class TorchBatchProcessor(abc.ABC):
    """Batch inference, or whatever else is done once with each batch of a dataset.

    Make what is needed in `__init__`; keep results until `on_checkpoint_start`, and store them there: after a
    checkpoint, the batches before it are not processed again.
    """

    @abc.abstractmethod
    def __init__(self, context: TorchBatchProcessorContext) -> None:
        """Load the model. `context` gives the device, and places for results: keep it."""

    @abc.abstractmethod
    def process_batch(self, batch: Any, batch_idx: int) -> None:
        """Process one batch of this process, number `batch_idx` from 0. Called without gradients being tracked."""

    def on_checkpoint_start(self) -> None:  # noqa: B027 - may be left out
        """Before a checkpoint, on each process: store what was worked out since the last one."""

    def on_finish(self) -> None:  # noqa: B027 - may be left out
        """After the last batch and its checkpoint, on each process."""
