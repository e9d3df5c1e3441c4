"""Reading an experiment again and again, asking only for what may have changed."""

from collections.abc import Hashable, Iterable
from itertools import groupby
from typing import Any

from determined.experimental import Determined, ExperimentState, Trial
from detlab_widgets.facts import Curve, ExperimentFacts, curve, experiment_facts
from detlab_widgets.follow import Reading

INTERVAL = 1.0  # seconds between two looks at an experiment that runs
PAUSED_INTERVAL = 5.0
_TRIALS_PER_REQUEST = 200  # their ids stand in the address


class ExperimentSource:
    """An experiment by its id, for a Follower."""

    def __init__(self, experiment_id: int) -> None:
        self.id = experiment_id
        self._curves: dict[int, Curve] = {}
        self._seen: dict[
            int, Hashable
        ] = {}  # by trial: what its latest validation was when its curve was read

    @property
    def key(self) -> Hashable:
        return "experiment", self.id

    def __str__(self) -> str:
        return f"experiment {self.id}"

    def read(self, client: Determined) -> Reading[ExperimentFacts]:
        # The experiment first: what had ended before the trials are read has nothing more to report after.
        experiment = client.get_experiment(self.id)
        trials = experiment.list_trials()
        self._read_curves(client, trials, experiment.searcher_metric or "")
        facts = experiment_facts(experiment, trials, self._curves)
        if experiment.state.is_terminal:
            return Reading(facts, None)
        return Reading(facts, PAUSED_INTERVAL if experiment.state is ExperimentState.PAUSED else INTERVAL)

    def _read_curves(self, client: Determined, trials: Iterable[Trial], metric: str) -> None:
        news = {trial.id: _latest(trial) for trial in trials if _latest(trial) is not None}
        changed = sorted(id for id, latest in news.items() if self._seen.get(id) != latest)
        for start in range(0, len(changed), _TRIALS_PER_REQUEST):
            ids = changed[start : start + _TRIALS_PER_REQUEST]
            reports = client.iter_trials_metrics(ids, "validation")
            for trial_id, group in groupby(reports, key=lambda report: report.trial_id):
                self._curves[trial_id] = curve(group, metric)
            self._seen |= {id: news[id] for id in ids}


def _latest(trial: Trial) -> tuple[Any, ...] | None:
    validation = trial.raw.get("latestValidation")
    return (validation.get("endTime"), validation.get("totalBatches"), trial.restarts) if validation else None
