"""The one place where the parts of the Core API meet: `core.init()`."""

import atexit
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import platformdirs

from determined._info import ClusterInfo, get_cluster_info
from determined.common import api, storage
from determined.common.storage import StorageManager
from determined.core._checkpoint import CheckpointContext, DummyCheckpointContext
from determined.core._distributed import DistributedContext, DummyDistributedContext
from determined.core._experimental import ExperimentalCoreContext
from determined.core._preempt import DummyPreemptContext, PreemptContext, PreemptionWatcher, PreemptMode
from determined.core._profiler import DummyProfilerContext, ProfilerContext, TrialProfilerContext
from determined.core._reports import Report, TrialReports
from determined.core._searcher import SearcherContext, Unit, searcher_context
from determined.core._sender import ReportSender
from determined.core._tensorboard import TensorboardFiles, TensorboardMode
from determined.core._train import DummyTrainContext, EarlyExitReason, TrainContext
from determined.errors import InvalidHP

logger = logging.getLogger("determined.core")

# With the session's waits (up to 8 s each) some ten minutes: a master that restarts is not the end of a trial.
MASTER_RETRIES = 80
PROFILER_RETRIES = 3

_ALERT_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}


class Context:
    """What training code and cluster tell each other. Made by `core.init()`, used as a context manager."""

    def __init__(
        self,
        *,
        train: TrainContext,
        checkpoint: CheckpointContext,
        preempt: PreemptContext,
        searcher: SearcherContext,
        distributed: DistributedContext,
        profiler: ProfilerContext,
        info: ClusterInfo | None,
        tensorboard: TensorboardFiles | None = None,
        sender: ReportSender[Report] | None = None,
        session: api.Session | None = None,
    ) -> None:
        self.train = train
        self.checkpoint = checkpoint
        self.preempt = preempt
        self.searcher = searcher
        self.distributed = distributed
        self.profiler = profiler
        self.info = info
        self._tensorboard = tensorboard
        self._sender = sender
        self._session = session
        self.experimental = ExperimentalCoreContext(session, info)

    def start(self) -> None:
        """Start the threads in the background. `with` does it."""
        atexit.register(self._at_exit, os.getpid())
        if self.info is not None:
            # `kill -USR1` shows where a trial hangs.
            faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
        if self._sender is not None:
            self._sender.start()
        if self._tensorboard is not None:
            self._tensorboard.start()
        self.preempt.start()

    def close(self) -> None:
        """Send what is still to be reported, and end the threads. `with` does it.

        Raises the error of a report that the master refused.
        """
        atexit.unregister(self._at_exit)
        with contextlib.ExitStack() as stack:
            if self._session is not None:
                stack.callback(self._session.close)
            stack.callback(self.distributed.close)
            stack.callback(self.profiler.close)
            stack.callback(self.preempt.close)
            if self._tensorboard is not None:
                stack.callback(self._tensorboard.close)
            if self._sender is not None:
                stack.callback(self._sender.close)
            if self.info is not None:
                stack.callback(faulthandler.unregister, signal.SIGUSR1)

    def _at_exit(self, process: int) -> None:
        """A script that never closes its context loses none of its reports by that."""
        if os.getpid() != process:
            return  # forked off by the script: the threads are not here
        try:
            Context.close(self)
        except Exception:
            logger.exception("could not send all reports")

    def alert(self, title: str | None = None, description: str | None = None, level: str = "info") -> None:
        """Make people look: a line in the trial's log at this level, which is debug, info, warn or error.

        Elsewhere it goes to this process's log. Raises ValueError for another level, or when there is no text.
        """
        if level not in _ALERT_LEVELS:
            raise ValueError(
                f"the level of an alert is {level!r}: it must be one of {', '.join(_ALERT_LEVELS)}"
            )
        if not (title or description):
            raise ValueError("an alert needs a title or a description")
        if self._session is None or self.info is None:
            text = ": ".join(part for part in (title, description) if part)
            logger.log(_ALERT_LEVELS[level], "alert: %s", text)
            return
        trial = self.info.trial
        data = {
            "title": title,
            "description": description,
            "level": f"LOG_LEVEL_{logging.getLevelName(_ALERT_LEVELS[level])}",
        }
        body = {"experimentId": trial.experiment_id, "trialId": trial.trial_id, "data": data}
        self._session.post("/api/v1/webhooks/custom", json=body)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, InvalidHP) and self._session is not None:
            logger.warning("the hyperparameters are invalid (%s): this trial ends here", error)
            try:
                self.train.report_early_exit(EarlyExitReason.INVALID_HP)
            finally:
                self.close()
            sys.exit(0)
        try:
            self.close()
        except Exception:
            if error is None:
                raise
            # The error of the training code is the one to show; this one may even be its consequence.
            logger.exception("could not send all reports")


def init(
    *,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | os.PathLike[str] | dict[str, Any] | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
) -> Context:
    """Connect this process to its trial: `with core.init() as core_context:`.

    `checkpoint_storage`: a folder, or a config like the experiment config's, to use instead of the one that
    the experiment config names. `tensorboard_mode`: whether metrics are charted for TensorBoard, and files for
    it copied to the storage, without being asked. Where no trial runs (on one's own machine, in a notebook) the same code
    works: reports go to the log, nothing is preempted, and checkpoints go to `checkpoint_storage` or a
    folder in the user's data directory.
    """
    info = get_cluster_info()
    if info is None or info.task_type != "TRIAL":
        alone = distributed or DummyDistributedContext()
        return local_context(info, alone, checkpoint_storage, preempt_mode, tensorboard_mode)
    return _trial(info, distributed, checkpoint_storage, preempt_mode, tensorboard_mode)


def _trial(
    info: ClusterInfo,
    distributed: DistributedContext | None,
    checkpoint_storage: str | os.PathLike[str] | dict[str, Any] | None,
    preempt_mode: PreemptMode,
    tensorboard_mode: TensorboardMode,
) -> Context:
    slots = sum(info.container_slot_counts)
    if slots > 1 and distributed is None:
        raise ValueError(
            f"this trial has {slots} slots, but this process does not say how it shares them with others: start one"
            " process for each (torchrun --standalone --nproc_per_node), and give core.init() a distributed such as"
            " core.DistributedContext.from_torch_distributed(); or set resources.slots_per_trial to 1"
        )
    distributed = distributed or DummyDistributedContext()
    return trial_context(
        info,
        lambda retries: _session(info, retries),
        distributed,
        storage_config(checkpoint_storage) or info.trial._config["checkpoint_storage"],
        tensorboard_mode,
        lambda session: _preempt(info, session, distributed, preempt_mode),
        tensorboard_storage=info.trial._config["checkpoint_storage"],
    )


def trial_context(
    info: ClusterInfo,
    connect: Callable[[int], api.Session],
    distributed: DistributedContext,
    checkpoint_storage: dict[str, Any],
    tensorboard_mode: TensorboardMode,
    preempt: Callable[[api.Session], PreemptContext],
    make: Callable[..., Context] = Context,
    *,
    tensorboard_storage: dict[str, Any] | None = None,
) -> Context:
    """A context that reports to the master as the trial of `info`.

    `connect` makes a session with so many retries, `preempt` the part that asks whether to stop, `make` the context
    of its parts. `tensorboard_storage`: where files for TensorBoard go, by default where checkpoints go; the master
    looks for them where the experiment config says.
    """
    trial = info.trial
    manager = storage.from_config(checkpoint_storage, owner=info.task_id)
    if distributed.rank == 0:  # the others may come while the chief is saving
        manager.remove_incomplete()

    session = connect(MASTER_RETRIES)
    start = {"runId": trial.trial_id, "checkpointStorage": checkpoint_storage}
    storage_id = session.post("/api/v1/runs/start", json=start).json().get("storageId")

    reports = TrialReports(session, trial_id=trial.trial_id, run_id=trial._trial_run_id)
    sender = ReportSender(reports.deliver)
    tensorboard = TensorboardFiles(
        Path(tempfile.gettempdir(), f"tensorboard-{info.allocation_id}-{distributed.rank}"),
        storage.from_config(tensorboard_storage, owner=info.task_id) if tensorboard_storage else manager,
        f"{info.cluster_id}/tensorboard/experiment/{trial.experiment_id}/trial/{trial.trial_id}",
        rank=distributed.rank,
        mode=tensorboard_mode,
    )
    train = TrainContext(
        session, sender, tensorboard, trial_id=trial.trial_id, experiment_id=trial.experiment_id
    )
    return make(
        train=train,
        checkpoint=CheckpointContext(
            session,
            sender,
            manager,
            distributed,
            task_id=info.task_id,
            allocation_id=info.allocation_id,
            storage_id=storage_id,
        ),
        preempt=preempt(session),
        searcher=searcher_context(trial._config, train, distributed),
        distributed=distributed,
        profiler=TrialProfilerContext(
            connect(PROFILER_RETRIES),
            distributed,
            trial_id=trial.trial_id,
            run_id=trial._trial_run_id,
            agent_id=info.agent_id,
            gpu_uuids=info.gpu_uuids,
            folders=_folders(manager),
        ),
        info=info,
        tensorboard=tensorboard,
        sender=sender,
        session=session,
    )


def local_context(
    info: ClusterInfo | None = None,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | os.PathLike[str] | dict[str, Any] | None = None,
    preempt_mode: PreemptMode = PreemptMode.WorkersAskChief,
    tensorboard_mode: TensorboardMode = TensorboardMode.AUTO,
) -> Context:
    """A context that talks to no master. The arguments are those of `init`."""
    distributed = distributed or DummyDistributedContext()
    manager: StorageManager
    chosen = storage_config(checkpoint_storage)
    if chosen is not None:
        manager = storage.from_config(chosen)
    else:
        manager = storage.DirectoryStorage(Path(platformdirs.user_data_dir("determined"), "checkpoints"))
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{distributed.rank}"
    folder = Path(platformdirs.user_data_dir("determined"), "tensorboard", name)
    tensorboard = TensorboardFiles(folder, None, "", rank=distributed.rank, mode=tensorboard_mode)
    train = DummyTrainContext(tensorboard)
    return Context(
        train=train,
        checkpoint=DummyCheckpointContext(manager, distributed),
        preempt=DummyPreemptContext(distributed, preempt_mode),
        searcher=SearcherContext(train, distributed, 1, Unit.EPOCHS),
        distributed=distributed,
        profiler=DummyProfilerContext(distributed, folders=_folders(manager)),
        info=info,
        tensorboard=tensorboard,
    )


def _preempt(
    info: ClusterInfo, session: api.Session, distributed: DistributedContext, mode: PreemptMode
) -> PreemptContext:
    # A session of its own: closing it ends the watcher's waits, and nobody else's.
    watcher = PreemptionWatcher(_session(info), info.allocation_id)
    return PreemptContext(session, info.allocation_id, distributed, mode, watcher)


def _folders(manager: StorageManager) -> list[str]:
    """Folders whose disks a trial may fill up."""
    return ["/", str(manager.base)] if isinstance(manager, storage.DirectoryStorage) else ["/"]


def _session(info: ClusterInfo, retries: int = MASTER_RETRIES) -> api.Session:
    return api.Session(
        info.master_url,
        allocation_token=info.session_token,
        retries=retries,
        cert=info.master_cert_file,
        cert_name=info.master_cert_name,
    )


def storage_config(place: str | os.PathLike[str] | dict[str, Any] | None) -> dict[str, Any] | None:
    """The `checkpoint_storage` config of what was chosen in code; None where nothing was."""
    if place is None or isinstance(place, dict):
        return place
    return storage.from_string(place)
