"""What a trial class knows of its trial, whatever framework it trains with."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from determined import core
from determined._experiment_config import ExperimentConfig
from determined.core._context import local_context
from determined.errors import TrialError


class TrialContext:
    """The surroundings of a trial class: configuration, hyperparameters, ids, and the other processes.

    `distributed`: how to talk to those.
    """

    def __init__(
        self,
        core_context: core.Context,
        *,
        hparams: dict[str, Any],
        exp_conf: dict[str, Any],
        trial_seed: int,
    ) -> None:
        self._core = core_context
        self._hparams = hparams
        self._exp_conf = exp_conf
        self._trial_seed = trial_seed
        self.distributed = core_context.distributed
        self._stop_requested = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """A context for an experiment config where no trial runs, to try out a trial class.

        A hyperparameter that the search would choose has the first of its values, or the least.
        """
        exp_conf = ExperimentConfig(config)
        hparams = example_hparams(config.get("hyperparameters") or {})
        return cls(local_context(), hparams=hparams, exp_conf=exp_conf, trial_seed=exp_conf.experiment_seed())

    def get_experiment_config(self) -> dict[str, Any]:
        return self._exp_conf

    def get_data_config(self) -> dict[str, Any]:
        """The experiment config's `data`."""
        return self._exp_conf.get("data") or {}

    def get_experiment_id(self) -> int:
        """The experiment's id; 0 where no trial runs."""
        return self._core.info.trial.experiment_id if self._on_cluster else 0  # type: ignore[union-attr]

    def get_trial_id(self) -> int:
        """The trial's id; 0 where no trial runs."""
        return self._core.info.trial.trial_id if self._on_cluster else 0  # type: ignore[union-attr]

    def get_trial_seed(self) -> int:
        return self._trial_seed

    def get_initial_batch(self) -> int:
        """How many batches of this trial were trained on before this process began."""
        return self._core.info.trial._steps_completed if self._on_cluster else 0  # type: ignore[union-attr]

    def get_hparams(self) -> dict[str, Any]:
        """The trial's hyperparameters, nested as in the config."""
        return self._hparams

    def get_hparam(self, name: str) -> Any:
        """One hyperparameter. Raises TrialError, with the nearest name, when there is none such."""
        try:
            return self._hparams[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._hparams, 1)
            hint = (
                f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(self._hparams) or 'none'}"
            )
            raise TrialError(f"there is no hyperparameter {name!r}; {hint}") from None

    def get_tensorboard_path(self) -> Path:
        """A folder to write files for TensorBoard to."""
        return self._core.train.get_tensorboard_path()

    def set_stop_requested(self, stop_requested: bool) -> None:
        """Ask for the training to be saved and ended after the current batch."""
        if not isinstance(stop_requested, bool):
            raise TypeError(f"set_stop_requested() takes True or False, not {stop_requested!r}")
        self._stop_requested = stop_requested

    def get_stop_requested(self) -> bool:
        return self._stop_requested

    @property
    def _on_cluster(self) -> bool:
        return self._core.info is not None and self._core.info.task_type == "TRIAL"


def example_hparams(space: Mapping[str, Any]) -> dict[str, Any]:
    """A choice from a config's `hyperparameters` without a search: the first or least value of each."""
    return {name: _example(value) for name, value in space.items()}


def _example(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    match value.get("type"):
        case "const":
            return value["val"]
        case "categorical":
            return value["vals"][0]
        case "int" | "double":
            return value["minval"]
        case "log":
            return float(value.get("base", 10.0) ** value["minval"])
    return example_hparams(value)
