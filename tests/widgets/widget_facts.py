"""Facts of made-up experiments, for the tests of this folder."""

from typing import Any

from determined.experimental import ExperimentState, TrialState
from detlab_widgets.facts import Curve, ExperimentFacts, TrialFacts


def trial(id: int, *values: float, **over: Any) -> TrialFacts:
    """A completed trial that reported these values, every 10 batches; the highest counts as the best."""
    steps = tuple(10 * (i + 1) for i in range(len(values)))
    known: dict[str, Any] = {
        "id": id,
        "state": TrialState.COMPLETED,
        "hparams": {"lr": id / 10, "net.width": 8},
        "steps": steps[-1] if steps else 0,
        "best": max(values, default=None),
        "curve": Curve(steps, values),
    }
    return TrialFacts(**(known | over))


def facts(*trials: TrialFacts, **over: Any) -> ExperimentFacts:
    known: dict[str, Any] = {
        "id": 7,
        "name": "digits",
        "state": ExperimentState.RUNNING,
        "progress": 0.25,
        "searcher": "adaptive_asha",
        "metric": "accuracy",
        "smaller_is_better": False,
        "searched": ("lr",),
        "trials": trials,
    }
    return ExperimentFacts(**(known | over))
