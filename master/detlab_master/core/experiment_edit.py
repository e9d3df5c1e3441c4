"""What a person may change of an experiment at any time, also after its end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from detlab_master.core.errors import Invalid
from detlab_master.core.records import Experiment, Json
from detlab_master.core.scheduling.requests import HIGHEST_PRIORITY, LOWEST_PRIORITY

_RANGES: Mapping[str, tuple[float, float]] = {
    "max_slots": (0, math.inf),
    "priority": (HIGHEST_PRIORITY, LOWEST_PRIORITY),
    "weight": (0, math.inf),
}


@dataclass(frozen=True)
class ExperimentEdit:
    """The changes; what is None or empty stays."""

    name: str | None = None
    description: str | None = None
    notes: str | None = None
    labels: Sequence[str] | None = None  # in place of all that there are
    add_labels: Sequence[str] = ()
    remove_labels: Sequence[str] = ()
    resources: Mapping[str, int | float | None] = field(
        default_factory=dict
    )  # any of max_slots (None: no limit), priority (1..99), weight
    keep_checkpoints: Mapping[str, int] = field(
        default_factory=dict
    )  # any of save_experiment_best, save_trial_best, save_trial_latest

    def applied(self, experiment: Experiment) -> Experiment:
        """The experiment after the changes.

        Raises:
            Invalid: an empty name or label, or a number out of its range.
        """
        if self.name is not None and not self.name.strip():
            raise Invalid("the name of an experiment must not be empty")
        labels = {*(experiment.labels if self.labels is None else self.labels), *self.add_labels}
        labels -= set(self.remove_labels)
        if not all(label.strip() for label in labels):
            raise Invalid("a label of an experiment must not be empty")
        return replace(
            experiment,
            name=experiment.name if self.name is None else self.name,
            description=experiment.description if self.description is None else self.description,
            notes=experiment.notes if self.notes is None else self.notes,
            labels=tuple(sorted(labels)),
            config=self._config(experiment.config),
        )

    def _config(self, config: Json) -> Json:
        for key, value in self.resources.items():
            low, high = _RANGES[key]
            if value is not None and not low <= value <= high:
                span = f"from {low:g} to {high:g}" if high < math.inf else f"{low:g} or more"
                raise Invalid(f"{key} is {value}: it must be {span}")
        for key, number in self.keep_checkpoints.items():
            if number < 0:
                raise Invalid(f"{key} is {number}: it must be 0 or more")
        if not self.resources and not self.keep_checkpoints:
            return config
        return {
            **config,
            "resources": {**config["resources"], **self.resources},
            "checkpoint_storage": {**config["checkpoint_storage"], **self.keep_checkpoints},
        }
