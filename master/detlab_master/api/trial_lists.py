"""What is read and shown of trials and checkpoints, alone and in lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from detlab_master.api.body import Query
from detlab_master.api.encode.checkpoints import CheckpointView
from detlab_master.api.encode.trials import TrialView
from detlab_master.api.encode.wire import Object
from detlab_master.api.paging import Paging, ordered
from detlab_master.core.metrics import TRAINING, VALIDATION, as_number
from detlab_master.core.records import Allocation, Checkpoint, Experiment, Trial
from detlab_master.core.states import CheckpointState, TrialState
from detlab_master.store.base import Page, Store

TRIAL_STATES = (  # in the order of their numbers
    "ACTIVE",
    "PAUSED",
    "STOPPING_CANCELED",
    "STOPPING_KILLED",
    "STOPPING_COMPLETED",
    "STOPPING_ERROR",
    "CANCELED",
    "COMPLETED",
    "ERROR",
    "QUEUED",
    "PULLING",
    "STARTING",
    "RUNNING",
)
CHECKPOINT_STATES = tuple(CheckpointState)  # in the order of their numbers


# Trials


_BY_STORE = {  # sorts, to the store's
    "ID": "id",
    "START_TIME": "start_time",
    "END_TIME": "end_time",
    "BEST_VALIDATION_METRIC": "searcher_metric",
    "BATCHES_PROCESSED": "total_batches",
    "RESTARTS": "restarts",
}
_REFINED = frozenset(TRIAL_STATES[9:])  # states that an ACTIVE one is shown in
_CHUNK = 1000  # trials of which the store is asked at once


def trial_view(store: Store, experiment: Experiment, trial: Trial) -> TrialView:
    """A trial with its checkpoints and allocations."""
    return trial_views(store, experiment, [trial])[0]


def trial_views(store: Store, experiment: Experiment, trials: Sequence[Trial]) -> list[TrialView]:
    """Trials of an experiment with their checkpoints and allocations, in the same order."""
    checkpoints: dict[int, list[Checkpoint]] = {}
    allocations: dict[str, list[Allocation]] = {}
    for start in range(0, len(trials), _CHUNK):
        chunk = trials[start : start + _CHUNK]
        for checkpoint in store.checkpoints.find(trial_ids=[trial.id for trial in chunk]):
            checkpoints.setdefault(checkpoint.trial_id, []).append(checkpoint)
        for allocation in store.trials.allocations_of([trial.task_id for trial in chunk]):
            allocations.setdefault(allocation.task_id, []).append(allocation)
    max_restarts = int(experiment.config.get("max_restarts", 0))
    return [
        TrialView(trial, checkpoints.get(trial.id, ()), allocations.get(trial.task_id, ()), max_restarts)
        for trial in trials
    ]


@dataclass(frozen=True)
class TrialListing:
    """What a query for an experiment's trials asks for."""

    states: frozenset[str]  # empty: not filtered by them
    sort: str
    paging: Paging

    @classmethod
    def of(cls, query: Query) -> TrialListing:
        states = frozenset(query.enums("states", TRIAL_STATES, "STATE_"))
        return cls(states, query.enum("sortBy", list(TRIAL_SORTS), "SORT_BY_") or "ID", Paging.of(query))

    @property
    def by_store(self) -> bool:
        """True when the store alone can filter and sort: a page costs a page."""
        return self.sort in _BY_STORE and not self.states & _REFINED

    def wants(self, stored: str, shown: str) -> bool:
        return not self.states or not self.states.isdisjoint((stored, shown))


def listed_trials(
    store: Store, experiment: Experiment, listing: TrialListing
) -> tuple[list[TrialView], int | None]:
    """The page of trials and how many match in all; or, with None, all that match in the store's eyes.

    In that case the caller filters by shown states, which the store does not know, and sorts.
    """
    stored = {"ACTIVE" if state in _REFINED else state for state in listing.states}
    states = [TrialState(state) for state in sorted(stored)] or None
    if not listing.by_store:
        trials, _ = store.trials.find(experiment.id, states, Page())
        return trial_views(store, experiment, trials), None
    paging = listing.paging
    page = Page(paging.offset, paging.limit, _BY_STORE[listing.sort], paging.descending)
    trials, total = store.trials.find(experiment.id, states, page)
    return trial_views(store, experiment, trials), total


def _latest_metric(view: TrialView, metric: str) -> float | None:
    latest = view.trial.latest_validation
    return as_number(latest["metrics"].get(metric)) if latest else None


TrialKey = Callable[[TrialView, str, float, str], Any]  # view, shown state, now, searcher metric
TRIAL_SORTS: dict[str, TrialKey] = {
    "ID": lambda view, state, now, metric: view.trial.id,
    "START_TIME": lambda view, state, now, metric: view.trial.start_time,
    "END_TIME": lambda view, state, now, metric: view.trial.end_time,
    "STATE": lambda view, state, now, metric: state,
    "BEST_VALIDATION_METRIC": lambda view, state, now, metric: view.trial.searcher_metric,
    "LATEST_VALIDATION_METRIC": lambda view, state, now, metric: _latest_metric(view, metric),
    "BATCHES_PROCESSED": lambda view, state, now, metric: view.trial.total_batches,
    "DURATION": lambda view, state, now, metric: view.wall_clock(now),
    "RESTARTS": lambda view, state, now, metric: view.trial.restarts,
    "CHECKPOINT_SIZE": lambda view, state, now, metric: view.checkpoint_bytes,
    "LOG_RETENTION_DAYS": lambda view, state, now, metric: view.trial.log_retention_days,
}


# Checkpoints


def checkpoint_view(
    store: Store, experiment: Experiment, checkpoint: Checkpoint, trial: Trial | None
) -> CheckpointView:
    """A checkpoint with the reports of its step."""
    training = store.metrics.report(checkpoint.trial_id, TRAINING, checkpoint.steps_completed)
    validation = store.metrics.report(checkpoint.trial_id, VALIDATION, checkpoint.steps_completed)
    return CheckpointView(
        checkpoint,
        experiment,
        trial,
        training.metrics if training else None,
        validation.metrics if validation else None,
    )


_SEARCHER_METRIC = "SEARCHER_METRIC"
_CHECKPOINT_SORTS: dict[str, Callable[[Checkpoint], Any]] = {
    "UUID": lambda checkpoint: checkpoint.uuid,
    "TRIAL_ID": lambda checkpoint: checkpoint.trial_id,
    "BATCH_NUMBER": lambda checkpoint: checkpoint.steps_completed,
    "END_TIME": lambda checkpoint: checkpoint.reported_at,
    "STATE": lambda checkpoint: str(checkpoint.state),
}


@dataclass(frozen=True)
class CheckpointListing:
    """What a query for the checkpoints of an experiment or a trial asks for."""

    states: Sequence[CheckpointState]  # empty: not filtered by them
    sort: str  # an attribute, or ""
    metric: str  # the validation metric that is sorted by, or ""
    paging: Paging

    @classmethod
    def of(cls, query: Query, experiment: Experiment) -> CheckpointListing:
        """By the searcher metric and without a direction the best one comes first."""
        sort = query.enum("sortByAttr", [*_CHECKPOINT_SORTS, _SEARCHER_METRIC], "SORT_BY_") or ""
        metric = query.text("sortByMetric", "")
        if sort and metric:
            raise query.refuse("sortByMetric", f"give it or sortByAttr (SORT_BY_{sort}), not both")
        states = [CheckpointState(state) for state in query.enums("states", CHECKPOINT_STATES, "STATE_")]
        paging = Paging.of(query)
        if sort == _SEARCHER_METRIC:
            searcher = experiment.config.get("searcher", {})
            sort, metric = "", searcher.get("metric", "")
            if not query.text("orderBy", ""):
                paging = replace(paging, descending=not searcher.get("smaller_is_better", True))
        return cls(states, sort, metric, paging)


def listed_checkpoints(
    store: Store, experiment: Experiment, trial_id: int | None, listing: CheckpointListing
) -> tuple[list[CheckpointView], Object]:
    """The page of the checkpoints of an experiment, or of one trial of it, and its v1Pagination.

    Raises:
        Invalid: the offset lies behind the end.
    """
    states = listing.states or None
    if trial_id is None:
        found = store.checkpoints.find(experiment_id=experiment.id, states=states)
    else:
        found = store.checkpoints.find(trial_id=trial_id, states=states)
    down = listing.paging.descending
    if listing.metric:
        values = _validation_values(store, found, listing.metric)
        found = ordered(found, lambda checkpoint: values[checkpoint.uuid], down)
    elif listing.sort:
        found = ordered(found, _CHECKPOINT_SORTS[listing.sort], down)
    elif down:  # without a word on it, they stay in the store's order: by trial, then step
        found.reverse()
    page, pagination = listing.paging.cut(found)
    trials = {number: store.trials.get(number) for number in {checkpoint.trial_id for checkpoint in page}}
    views = [
        checkpoint_view(store, experiment, checkpoint, trials[checkpoint.trial_id]) for checkpoint in page
    ]
    return views, pagination


def _validation_values(store: Store, found: Sequence[Checkpoint], metric: str) -> dict[str, float | None]:
    """The metric of the validation at each checkpoint's step, by the checkpoint's uuid."""
    trial_ids = sorted({checkpoint.trial_id for checkpoint in found})
    known: dict[tuple[int, int], float | None] = {}
    for start in range(0, len(trial_ids), _CHUNK):
        for report in store.metrics.reports(trial_ids[start : start + _CHUNK], VALIDATION):
            known[report.trial_id, report.steps_completed] = as_number(report.metrics.get(metric))
    return {one.uuid: known.get((one.trial_id, one.steps_completed)) for one in found}
