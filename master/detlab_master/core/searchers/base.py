"""What every search method shares: its events and actions, and the bookkeeping of its trials.

A searcher is told what happened (`Started`, `Validated`, `Exited`, `Reopened`) and answers with what to do (`Create`,
`Stop`, `Shutdown`). A trial's request id is the ordinal of its creation. A searcher draws randomness only
from the generator that it was made with, so the same seed and the same events give the same actions: that is
how one is restored.

A method proper (one algorithm, one file beside this one) implements `Method`. `Search` runs one and keeps
what all of them need: ids, hyperparameters, which trials are open, and the end of the search.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, get_args

from detlab_master.core.hyperparameters import Generator, Nested, sample

ExitReason: TypeAlias = Literal["completed", "errored", "canceled", "invalid_hp"]


# Invalid points in a row, nothing reported in between, after which a search that draws new ones gives up.
MAX_INVALID_IN_A_ROW = 100


class SearcherError(Exception):
    """The search cannot go on; the message is for the person who runs it. Nothing was changed."""


# Actions


@dataclass(frozen=True)
class Create:
    request_id: int  # 0, 1, 2... in order of creation
    hparams: dict[str, Any]
    seed: int  # 31 bits


@dataclass(frozen=True)
class Stop:
    """Stop a trial early: what it would still do cannot help the search."""

    request_id: int


@dataclass(frozen=True)
class Shutdown:
    """All requested trials are closed. Neither flag: the search succeeded."""

    failure: bool = False  # every trial failed
    cancel: bool = False  # every trial was canceled


Action: TypeAlias = Create | Stop | Shutdown


# Events


@dataclass(frozen=True)
class Started:
    def to_json(self) -> dict[str, Any]:
        return {"type": "started"}


@dataclass(frozen=True)
class Validated:
    request_id: int
    metrics: dict[str, Any] = field(hash=False)  # averages over the validation set, by name

    def to_json(self) -> dict[str, Any]:
        """Numbers that JSON cannot hold are written as the strings NaN, Infinity and -Infinity."""
        metrics = {name: _json_number(value) for name, value in self.metrics.items()}
        return {"type": "validated", "request_id": self.request_id, "metrics": metrics}


@dataclass(frozen=True)
class Exited:
    request_id: int
    reason: ExitReason

    def to_json(self) -> dict[str, Any]:
        return {"type": "exited", "request_id": self.request_id, "reason": self.reason}


@dataclass(frozen=True)
class Reopened:
    """A trial that had exited runs again: the experiment is continued."""

    request_id: int
    reason: ExitReason  # for which it had exited

    def to_json(self) -> dict[str, Any]:
        return {"type": "reopened", "request_id": self.request_id, "reason": self.reason}


Event: TypeAlias = Started | Validated | Exited | Reopened


def event_to_json(event: Event) -> dict[str, Any]:
    return event.to_json()


def event_from_json(raw: Mapping[str, Any]) -> Event:
    """The event that `event_to_json` wrote. ValueError if it is not one."""
    match raw:
        case {"type": "started"}:
            return Started()
        case {"type": "validated", "request_id": int(request_id), "metrics": dict(metrics)}:
            return Validated(request_id, metrics)
        case {"type": "exited", "request_id": int(request_id), "reason": reason} if reason in get_args(
            ExitReason
        ):
            return Exited(request_id, reason)
        case {"type": "reopened", "request_id": int(request_id), "reason": reason} if reason in get_args(
            ExitReason
        ):
            return Reopened(request_id, reason)
    raise ValueError(f"not a searcher event: {dict(raw)!r}")


_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _json_number(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def metric_value(metrics: Mapping[str, Any], name: str, role: str) -> float:
    """A number out of a validation report.

    Raises SearcherError where it is missing or no number; `role` is the configuration key that names the
    metric.
    """
    if name not in metrics:
        reported = ", ".join(sorted(map(repr, metrics))) or "nothing"
        raise SearcherError(
            f"a validation report lacks the metric {name!r} that {role} names; it has {reported}. "
            f"Report {name!r} with every validation, or change {role}."
        )
    value = metrics[name]
    if isinstance(value, str) and value in _NON_FINITE:
        return _NON_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SearcherError(
            f"the metric {name!r} that {role} names must be a number, but a validation report has {value!r}."
        )
    return float(value)


# Searchers


class Searcher(Protocol):
    """A search in progress. `step` raises SearcherError (and changes nothing) where the search cannot go on,
    and ValueError for an event about a trial that was never created or that has exited already."""

    def step(self, event: Event) -> list[Action]: ...

    def progress(self, open_progress: float) -> float:
        """How far the search is, 0 to 1, given the sum of its open trials' progress, each 0 to 1."""
        ...


class Trials:
    """The trials of a search, and the actions of the step in hand. Methods create and stop through it."""

    def __init__(self, space: Nested, rng: Generator) -> None:
        self._space = space
        self._rng = rng
        self._open: set[int] = set()
        self._stopped: set[int] = set()  # open still, but told to stop
        self._exits: dict[ExitReason, int] = dict.fromkeys(get_args(ExitReason), 0)
        self._actions: list[Action] = []
        self.created = 0

    @property
    def closed(self) -> int:
        return self.created - len(self._open)

    @property
    def all_closed(self) -> bool:
        return not self._open

    def create(self, hparams: dict[str, Any] | None = None) -> int:
        """A new trial, with a random point of the space unless hparams are given."""
        request_id = self.created
        self.created += 1
        self._open.add(request_id)
        if hparams is None:
            hparams = sample(self._space, self._rng)
        self._actions.append(Create(request_id, hparams, self._rng.getrandbits(31)))
        return request_id

    def stop(self, request_id: int) -> None:
        self._stopped.add(request_id)
        self._actions.append(Stop(request_id))

    def stopped(self, request_id: int) -> bool:
        """Whether the search told this trial to stop."""
        return request_id in self._stopped

    def running(self, request_id: int) -> bool:
        """Whether its reports still count."""
        self._check(request_id)
        return request_id in self._open and request_id not in self._stopped

    def close(self, request_id: int, reason: ExitReason) -> None:
        self._check(request_id)
        if request_id not in self._open:
            raise ValueError(f"trial {request_id} of this search has exited already")
        self._open.discard(request_id)
        self._exits[reason] += 1

    def reopen(self, request_id: int, reason: ExitReason) -> None:
        self._check(request_id)
        if request_id in self._open:
            raise ValueError(f"trial {request_id} of this search has not exited")
        self._open.add(request_id)
        self._stopped.discard(request_id)
        self._exits[reason] -= 1

    def take_actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def shutdown(self) -> Shutdown:
        failed = self._exits["errored"] + self._exits["invalid_hp"]
        return Shutdown(
            failure=failed == self.created,
            cancel=self.created > 0 and self._exits["canceled"] == self.created,
        )

    def mean_progress(self, open_progress: float) -> float:
        """Mean over the trials known so far; a closed one counts as 1."""
        return (self.closed + open_progress) / self.created if self.created else 0.0

    def _check(self, request_id: int) -> None:
        if not 0 <= request_id < self.created:
            raise ValueError(f"this search has no trial {request_id}; it has created {self.created}")


class Method(Protocol):
    """An algorithm. Each call may create and stop trials. `validated` is not called for trials told to stop,
    and must raise before it changes anything. `exited` is called when the trial is closed already."""

    replaces_invalid: ClassVar[bool]  # whether a trial with invalid hyperparameters is drawn anew

    def start(self, trials: Trials) -> None: ...
    def validated(self, trials: Trials, request_id: int, metrics: Mapping[str, Any]) -> None: ...
    def exited(self, trials: Trials, request_id: int, reason: ExitReason) -> None: ...
    def progress(self, trials: Trials, open_progress: float) -> float: ...


class Search:
    """Runs a method. The search is over when every trial that the method asked for is closed.

    A method that replaces trials with invalid hyperparameters would never end where all of the space is invalid.
    So it fails after `MAX_INVALID_IN_A_ROW` of them, if no trial reported a validation or ended otherwise in between.
    """

    def __init__(self, method: Method, space: Nested, rng: Generator) -> None:
        self._method = method
        self._trials = Trials(space, rng)
        self._invalid_in_a_row = 0

    def step(self, event: Event) -> list[Action]:
        trials = self._trials
        match event:
            case Started():
                if trials.created:
                    raise ValueError("the search has started already")
                self._method.start(trials)
            case Validated(request_id, metrics):
                # A report that was under way when its trial was told to stop no longer counts.
                if trials.running(request_id):
                    self._method.validated(trials, request_id, metrics)
                    self._invalid_in_a_row = 0
            case Exited(request_id, reason):
                self._refuse_endless_search(reason)
                trials.close(request_id, reason)
                self._invalid_in_a_row = self._invalid_in_a_row + 1 if reason == "invalid_hp" else 0
                self._method.exited(trials, request_id, reason)
            case Reopened(request_id, reason):
                trials.reopen(request_id, reason)
        actions = trials.take_actions()
        if trials.all_closed and not isinstance(event, Validated):
            actions.append(trials.shutdown())
        return actions

    def progress(self, open_progress: float) -> float:
        return min(1.0, max(0.0, self._method.progress(self._trials, open_progress)))

    def _refuse_endless_search(self, reason: ExitReason) -> None:
        in_a_row = self._invalid_in_a_row + 1
        if reason == "invalid_hp" and self._method.replaces_invalid and in_a_row >= MAX_INVALID_IN_A_ROW:
            raise SearcherError(
                f"{in_a_row} trials in a row raised InvalidHP, and none has reported a validation in between: "
                "the search would go on for ever. See in the trials' logs why, and narrow the hyperparameters "
                "or raise InvalidHP for fewer of them."
            )
