"""Runs a trial class by the experiment config alone: `python -m determined.exec.harness module:TrialClass`.

This is what an entrypoint of that form stands for. A script that calls `pytorch.Trainer` is the newer way.
"""

import argparse
import logging
import os
import sys
from typing import Any

import determined as det
from determined._import import import_class
from determined._info import ClusterInfo
from determined.common.api.errors import RequestFailed
from determined.errors import ClusterInfoError, DeterminedError, TrialError


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m determined.exec.harness", description=__doc__)
    parser.add_argument("trial", metavar="module:TrialClass")
    trial = parser.parse_args(arguments).trial
    debug = False
    try:
        info = det.get_cluster_info()
        if info is None:
            raise ClusterInfoError(
                "DET_ALLOCATION_ID is not set: the harness runs trials of a cluster. To try a trial class "
                "elsewhere, call pytorch.Trainer(...).fit(test_mode=True) in a script"
            )
        debug = info.trial._debug
        logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, format=det.LOG_FORMAT)
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        run(trial, info)
    except (DeterminedError, RequestFailed) as e:
        # Written for people: where in our code it was raised helps nobody but us.
        if debug:
            raise
        sys.exit(f"ERROR: {e}")


def run(spec: str, info: ClusterInfo) -> None:
    """Train the class that `spec` names as the experiment config says."""
    trial_class = import_class(spec)

    from determined import pytorch  # after the user's module: its import settings of torch come first

    if not issubclass(trial_class, pytorch.PyTorchTrial):
        raise TrialError(
            f"{spec} is not a PyTorchTrial, which is what an entrypoint module:TrialClass can name"
        )
    config = info.trial._config
    frequency = (config.get("optimizations") or {}).get("aggregation_frequency", 1)
    with pytorch.init(aggregation_frequency=frequency) as context:
        trainer = pytorch.Trainer(trial_class(context), context)
        trainer.fit(latest_checkpoint=info.latest_checkpoint, **fit_arguments(config, info.trial.hparams))


def fit_arguments(config: dict[str, Any], hparams: dict[str, Any]) -> dict[str, Any]:
    """What an experiment config says about the training, as arguments of `Trainer.fit`."""
    from determined.pytorch import Batch
    from determined.pytorch._config import configured_max_length, unit_from_config

    max_length = configured_max_length(config, hparams)
    if max_length is None:
        raise TrialError(
            "the experiment config does not say how long to train: set searcher.max_length, "
            "for example to {batches: 1000}"
        )

    def period(key: str) -> Any:
        return unit_from_config(config.get(key) or 0, key, hparams)

    return {
        "max_length": max_length,
        "checkpoint_period": period("min_checkpoint_period"),
        "validation_period": period("min_validation_period"),
        "reporting_period": Batch(config.get("scheduling_unit") or 100),
        "checkpoint_policy": config.get("checkpoint_policy") or "best",
        "step_zero_validation": bool(config.get("perform_initial_validation")),
        "profiling_enabled": bool((config.get("profiling") or {}).get("enabled")),
    }


if __name__ == "__main__":
    main()
