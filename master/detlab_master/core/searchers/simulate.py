"""A search played through against a model of training: what trials it makes, and how long each trains."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from detlab_master.core.hyperparameters import Generator
from detlab_master.core.searchers.base import (
    Action,
    Create,
    Exited,
    Searcher,
    Shutdown,
    Started,
    Stop,
    Validated,
)

MetricModel: TypeAlias = Callable[
    [Mapping[str, Any], int], float
]  # (hyperparameters, units trained) -> metric


@dataclass
class SimulatedTrial:
    request_id: int
    hparams: dict[str, Any]
    length: int = 0  # units trained when it ended
    stopped: bool = False  # by the search


@dataclass(frozen=True)
class Simulation:
    trials: list[SimulatedTrial]  # in order of creation
    shutdown: Shutdown | None  # None: the search was not over when the last trial had ended
    events: int = 0
    most_open: int = 0  # trials at a time

    def lengths(self) -> dict[int, int]:
        """How many trials trained for how many units, the shortest first."""
        return dict(sorted(Counter(trial.length for trial in self.trials).items()))


@dataclass
class _Play:
    searcher: Searcher
    trials: list[SimulatedTrial] = field(default_factory=list)
    open: list[SimulatedTrial] = field(default_factory=list)
    shutdown: Shutdown | None = None
    events: int = 0
    most_open: int = 0

    def step(self, event: Started | Validated | Exited) -> None:
        self.events += 1
        actions: list[Action] = self.searcher.step(event)
        for action in actions:
            match action:
                case Create(request_id, hparams):
                    self.trials.append(SimulatedTrial(request_id, hparams))
                    self.open.append(self.trials[-1])
                case Stop(request_id):
                    self.trials[request_id].stopped = True
                case Shutdown():
                    self.shutdown = action
        self.most_open = max(self.most_open, len(self.open))


def simulate(
    searcher: Searcher,
    *,
    metric: str,
    model: MetricModel,
    length: int,
    time_metric: str = "batches",
    period: int = 1,
    reports: Sequence[int] = (),
    rng: Generator | None = None,
) -> Simulation:
    """Play a fresh searcher through.

    Args:
        searcher: at its beginning.
        metric: name of the searcher's metric.
        model: what it is after so much training.
        length: units after which a trial ends by itself.
        time_metric: name of the metric that counts the units.
        period: units between two validations.
        reports: units at which trials validate, ascending, where that is not every `period`.
        rng: chooses whose turn it is; without one, open trials take turns in order of creation.
    """
    play = _Play(searcher)
    play.step(Started())
    turn = 0
    while play.open:
        turn = rng.randint(0, len(play.open) - 1) if rng else turn % len(play.open)
        trial = play.open[turn]
        at = bisect_right(reports, trial.length)
        trial.length = min(reports[at] if at < len(reports) else trial.length + period, length)
        metrics = {metric: model(trial.hparams, trial.length), time_metric: trial.length}
        play.step(Validated(trial.request_id, metrics))
        if trial.stopped or trial.length >= length:
            play.open.remove(trial)
            play.step(Exited(trial.request_id, "completed"))
        else:
            turn += 1
    return Simulation(play.trials, play.shutdown, play.events, play.most_open)
