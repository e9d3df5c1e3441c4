"""What is known of an experiment at one moment, taken from the SDK's objects.

Frozen, so that the thread that reads and the threads that show may share it. Nothing here asks the master.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from determined.experimental import Experiment, ExperimentState, Trial, TrialMetrics, TrialState


@dataclass(frozen=True)
class Curve:
    """One metric of one trial: `values[i]` (finite) was reported after `steps[i]` batches, which ascend."""

    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class TrialFacts:
    id: int
    state: TrialState
    hparams: Mapping[str, Any]  # flat: the names of nested ones are joined by dots
    steps: int  # batches so far
    best: float | None  # the searcher's metric at its best; None before the first validation
    curve: Curve  # the searcher's metric


@dataclass(frozen=True)
class ExperimentFacts:
    id: int
    name: str
    state: ExperimentState
    progress: float  # between 0 and 1
    searcher: str
    metric: str  # the searcher's
    smaller_is_better: bool
    searched: tuple[str, ...]  # flat names of the hyperparameters that the configuration lets vary
    trials: tuple[TrialFacts, ...]  # by id
    unmanaged: bool = False  # detached: nobody steers it from here


def experiment_facts(
    experiment: Experiment, trials: Sequence[Trial], curves: Mapping[int, Curve]
) -> ExperimentFacts:
    """The facts of an experiment; `curves` by trial id, a trial without one has not reported yet."""
    metric = experiment.searcher_metric or ""
    done = experiment.state is ExperimentState.COMPLETED
    return ExperimentFacts(
        id=experiment.id,
        name=experiment.name,
        state=experiment.state,
        unmanaged=experiment.unmanaged,
        progress=1.0 if done else min(max(experiment.progress or 0.0, 0.0), 1.0),
        searcher=str((experiment.config.get("searcher") or {}).get("name") or ""),
        metric=metric,
        smaller_is_better=experiment.smaller_is_better,
        searched=tuple(_searched(experiment.config.get("hyperparameters") or {})),
        trials=tuple(
            TrialFacts(
                id=trial.id,
                state=trial.state,
                hparams=dict(_flat(trial.hparams)),
                steps=trial.steps_completed,
                best=_best(trial, metric),
                curve=curves.get(trial.id, Curve()),
            )
            for trial in sorted(trials, key=lambda trial: trial.id)
        ),
    )


def curve(reports: Iterable[TrialMetrics], metric: str) -> Curve:
    """The curve of a metric in one trial's reports.

    A trial that was restarted repeats some steps: the later run counts. NaN and infinities are left out.
    """
    points: dict[int, tuple[int, float]] = {}
    for report in reports:
        value = number(report.metrics.get(metric))
        known = points.get(report.steps_completed)
        if value is not None and (known is None or report.trial_run_id >= known[0]):
            points[report.steps_completed] = report.trial_run_id, value
    steps = sorted(points)
    return Curve(tuple(steps), tuple(points[step][1] for step in steps))


def number(value: Any) -> float | None:
    """A metric's value when it is a finite number ("NaN" and "Infinity" travel as strings), else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def _best(trial: Trial, metric: str) -> float | None:
    validation = trial.raw.get("bestValidation") or {}
    return number(((validation.get("metrics") or {}).get("avgMetrics") or {}).get(metric))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _searched(space: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    """The names in a configuration's hyperparameters that stand for more than one value."""
    for name, value in space.items():
        if not isinstance(value, Mapping):
            continue
        if "type" not in value:
            yield from _searched(value, f"{prefix}{name}.")
        elif value["type"] != "const":
            yield f"{prefix}{name}"
