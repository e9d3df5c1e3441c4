"""What a view shows: pure functions from facts to small frozen specs, which every renderer draws alike."""

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tsdownsample import LTTBDownsampler

from determined.experimental import ExperimentState, TrialState
from detlab_widgets.facts import Curve, ExperimentFacts, TrialFacts

MAX_SERIES = 200  # on one chart; more cannot be told apart, and slow the browser down
MAX_POINTS = 4000  # on one chart, over all series: a saved view stays under 300 KB
MIN_POINTS = 20  # of one series, however many there are
MAX_DETAILS = 12  # hyperparameters that are told of a series
MAX_ROWS = 100  # of a table


class Role(enum.Enum):
    """How a series stands out."""

    ENDED = "ended"  # muted
    RUNNING = "running"
    BEST = "best"  # of all, so far


@dataclass(frozen=True)
class Series:
    """One line: `y[i]` at `x[i]`. `details` is for the reader who points at it."""

    label: str
    role: Role
    x: tuple[int, ...]
    y: tuple[float, ...]
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChartSpec:
    """A line chart. What comes later in `series` is drawn on top."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    note: str = ""  # what the chart leaves out


@dataclass(frozen=True)
class Row:
    id: int
    state: str
    best: bool
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""  # what the table leaves out


@dataclass(frozen=True)
class ExperimentSpec:
    """The whole view of an experiment."""

    title: str
    state: str
    progress: float  # between 0 and 1
    summary: str
    verbs: tuple[str, ...]  # what can be done with it now
    chart: ChartSpec
    table: Table


def experiment(facts: ExperimentFacts) -> ExperimentSpec:
    return ExperimentSpec(
        title=f"Experiment {facts.id}: {facts.name}",
        state=facts.state.name,
        progress=facts.progress,
        summary=summary(facts),
        verbs=() if facts.unmanaged else verbs(facts.state),
        chart=learning_curves(facts),
        table=trial_table(facts),
    )


def learning_curves(facts: ExperimentFacts) -> ChartSpec:
    """The searcher's metric of all trials over their steps."""
    chosen = [t for t in _by_rank(facts) if t.curve.steps]
    left_out = len(chosen) - MAX_SERIES
    best = best_trial(facts)
    order = list(Role)
    shown = sorted(chosen[:MAX_SERIES], key=lambda t: (order.index(_role(t, best)), t.id))
    budget = max(MIN_POINTS, MAX_POINTS // max(1, len(shown)))
    series = []
    for trial in shown:
        kept = downsample(trial.curve, budget)
        details = tuple(f"{name} = {shorten(trial.hparams.get(name))}" for name in _varying(facts))
        series.append(
            Series(
                label=f"trial {trial.id}",
                role=_role(trial, best),
                x=kept.steps,
                y=tuple(round_off(value) for value in kept.values),
                details=(_said(trial), *details[:MAX_DETAILS]),
            )
        )
    return ChartSpec(
        title=f"Experiment {facts.id}, {facts.name}: {facts.metric}",
        x_label="batches",
        y_label=facts.metric,
        series=tuple(series),
        note=f"the best {MAX_SERIES} of {len(chosen)} trials" if left_out > 0 else "",
    )


def trial_table(facts: ExperimentFacts) -> Table:
    """The trials, the best first: id, state, best metric, steps, and the hyperparameters that vary."""
    names, best = _varying(facts), best_trial(facts)
    ranked = _by_rank(facts)
    rows = tuple(
        Row(
            id=trial.id,
            state=trial.state.name,
            best=trial is best,
            cells=(
                str(trial.id),
                _said(trial),
                shorten(trial.best),
                str(trial.steps),
                *(shorten(trial.hparams.get(name)) for name in names),
            ),
        )
        for trial in ranked[:MAX_ROWS]
    )
    more = len(ranked) - len(rows)
    note = f"{more} more trials are not shown" if more > 0 else ""
    return Table(("trial", "state", f"best {facts.metric}", "batches", *names), rows, note)


def summary(facts: ExperimentFacts) -> str:
    """One line: the search, its trials by state, the best so far."""
    count = len(facts.trials)
    states = Counter(_said(trial) for trial in facts.trials)
    by_state = ", ".join(f"{n} {state}" for state, n in states.most_common())
    parts = [
        "detached" if facts.unmanaged else facts.searcher,
        f"{count} trial{'' if count == 1 else 's'}" + (f" ({by_state})" if count else ""),
    ]
    best = best_trial(facts)
    if best is not None:
        parts.append(f"best {facts.metric} {shorten(best.best)} in trial {best.id}")
    return " · ".join(part for part in parts if part)


def verbs(state: ExperimentState) -> tuple[str, ...]:
    """What a person may ask for in this state, of pause, activate and kill."""
    if state.is_terminal or state is ExperimentState.DELETING:
        return ()
    if state is ExperimentState.PAUSED:
        return ("activate", "kill")
    if state is ExperimentState.STOPPING_CANCELED:
        return ("kill",)
    if state.name.startswith("STOPPING_"):
        return ()
    return ("pause", "kill")


def best_trial(facts: ExperimentFacts) -> TrialFacts | None:
    """The trial with the best searcher metric, the older one of equals; None before the first validation."""
    ranked = _by_rank(facts)
    return ranked[0] if ranked and ranked[0].best is not None else None


def downsample(curve: Curve, most: int) -> Curve:
    """At most `most` points (three at least) that keep the look of the curve, its first and last among them.

    Largest triangle three buckets (Steinarsson 2013), of tsdownsample.
    """
    if len(curve.steps) <= most:
        return curve
    downsampler = LTTBDownsampler()  # type: ignore[no-untyped-call]
    chosen = downsampler.downsample(
        np.asarray(curve.steps, dtype=np.int64), np.asarray(curve.values, dtype=np.float64), n_out=most
    )
    return Curve(tuple(curve.steps[i] for i in chosen), tuple(curve.values[i] for i in chosen))


def round_off(value: float) -> float:
    """Six significant digits: what an eye can see of a chart, in half the space."""
    return float(f"{value:.6g}")


def shorten(value: Any) -> str:
    """A value as a table shows it: five significant digits, and nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.5g}"
    text = str(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _by_rank(facts: ExperimentFacts) -> Sequence[TrialFacts]:
    sign = 1.0 if facts.smaller_is_better else -1.0
    return sorted(
        facts.trials, key=lambda t: (t.best is None, sign * t.best if t.best is not None else 0.0, t.id)
    )


def _role(trial: TrialFacts, best: TrialFacts | None) -> Role:
    if trial is best:
        return Role.BEST
    return Role.ENDED if trial.state.is_terminal else Role.RUNNING


def _said(trial: TrialFacts) -> str:
    return "failed" if trial.state is TrialState.ERROR else trial.state.name.lower().replace("_", " ")


def _varying(facts: ExperimentFacts) -> tuple[str, ...]:
    """Hyperparameters that the configuration lets vary, then others that were seen to vary."""
    seen: dict[str, set[str]] = {}
    for trial in facts.trials:
        for name, value in trial.hparams.items():
            seen.setdefault(name, set()).add(repr(value))
    others = [name for name, values in seen.items() if len(values) > 1 and name not in facts.searched]
    return (*facts.searched, *others)
