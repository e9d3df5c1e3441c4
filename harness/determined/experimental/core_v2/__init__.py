"""Detached mode: a script that the cluster did not start, on a laptop for example, reports to the master.

from determined.experimental import core_v2

core_v2.init(config=core_v2.Config(name="digits", external_experiment_id="digits", external_trial_id="1"))
for step in range(core_v2.info.trial._steps_completed, 100):
    ...
    core_v2.train.report_training_metrics(steps_completed=step + 1, metrics={"loss": loss})
core_v2.close()

The master shows it as an experiment, with metrics, checkpoints and what the script prints. Started again with the same
external ids, it goes on from `core_v2.info.latest_checkpoint`. After `init` the parts of `core.Context` are here:
`train`, `checkpoint`, `preempt` (nobody preempts it), `distributed`, `searcher`, `profiler`, `info`.
"""

import os
from typing import Any

from determined import core
from determined._info import ClusterInfo
from determined.core._distributed import DistributedContext
from determined.core._profiler import ProfilerContext
from determined.experimental import Determined
from determined.experimental.core_v2._config import Config, DefaultConfig, UnmanagedConfig
from determined.experimental.core_v2._context import AtExit, init_context

__all__ = [
    "Config",
    "DefaultConfig",
    "UnmanagedConfig",
    "alert",
    "checkpoint",
    "close",
    "distributed",
    "info",
    "init",
    "init_context",
    "preempt",
    "profiler",
    "searcher",
    "train",
    "url_reverse_webui_exp_view",
]

train: core.TrainContext
checkpoint: core.CheckpointContext
preempt: core.PreemptContext
distributed: DistributedContext
searcher: core.SearcherContext
profiler: ProfilerContext
info: ClusterInfo

_PARTS = ("train", "checkpoint", "preempt", "distributed", "searcher", "profiler", "info", "alert")
_current: core.Context | None = None
_at_exit: AtExit | None = None


def init(
    *,
    config: Config | None = None,
    defaults: Config | None = None,
    unmanaged: Config | None = None,
    client: Determined | None = None,
    distributed: DistributedContext | None = None,
    checkpoint_storage: str | os.PathLike[str] | dict[str, Any] | None = None,
    preempt_mode: core.PreemptMode = core.PreemptMode.WorkersAskChief,
    tensorboard_mode: core.TensorboardMode = core.TensorboardMode.AUTO,
) -> None:
    """Connect this script to its master; until `close()`, or else the end of the script, which ends the trial.

    The trial becomes COMPLETED, ERROR when an exception ended the script, CANCELED after Ctrl-C. The arguments are
    those of `init_context`. Called again, it closes what there was first.
    """
    global _current, _at_exit
    close()
    context = init_context(
        config=config,
        defaults=defaults,
        unmanaged=unmanaged,
        client=client,
        distributed=distributed,
        checkpoint_storage=checkpoint_storage,
        preempt_mode=preempt_mode,
        tensorboard_mode=tensorboard_mode,
    )
    context.start()
    _current, _at_exit = context, AtExit(context)
    _at_exit.install()


def close() -> None:
    """Send what is still to be reported, and end the trial: as COMPLETED, or as ERROR while an exception is under way.

    Raises the error of a report that the master refused.
    """
    global _current, _at_exit
    ending, _current, _at_exit = _at_exit, None, None
    if ending is not None:
        ending.close()


def url_reverse_webui_exp_view() -> str:
    """The address of the experiment's page at the master."""
    known = _initialized("url_reverse_webui_exp_view()").info
    if known is None:
        raise RuntimeError("this script runs without a master: there is no page of it")
    return f"{known.master_url}/det/experiments/{known.trial.experiment_id}"


def _initialized(what: str) -> core.Context:
    if _current is None:
        raise RuntimeError(f"core_v2.{what} is there after core_v2.init(), until core_v2.close()")
    return _current


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return getattr(_initialized(name), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
