"""Which checkpoints of an experiment are kept, and which have done their service.

A checkpoint belongs to the validation of its trial at the same step. It is kept if one of these is true (reference:
experiment-config.md 6.1):

- it is among the ``save_experiment_best`` best of the whole experiment by the searcher's metric;
- it is among the ``save_trial_best`` best of its trial by that metric;
- it is among the ``save_trial_latest`` of its trial with the most steps.

One without a validation that has the metric is kept by the last rule only. Ties go to the earlier validation, and NaN is
worse than every number. What is deleted already counts for nothing: not as a candidate, and not in anybody's rank. What
is protected is never given up, but has its rank: a registered best checkpoint is the best one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from detlab_master.core.metrics import VALIDATION, SearcherMetric
from detlab_master.core.records import Checkpoint, Json, MetricReport, Trial
from detlab_master.core.states import CheckpointState
from detlab_master.core.states import TrialState as S

WITH_FILES = (CheckpointState.COMPLETED, CheckpointState.PARTIALLY_DELETED)


@dataclass(frozen=True)
class Policy:
    """How many checkpoints are kept, each number 0 or more."""

    save_experiment_best: int = 0
    save_trial_best: int = 1
    save_trial_latest: int = 1

    @classmethod
    def of(cls, storage: Json) -> Policy:
        """From a configuration's ``checkpoint_storage``."""
        numbers = {name: storage[name] for name in cls.__dataclass_fields__ if storage.get(name) is not None}
        return cls(**numbers)


def superfluous(
    checkpoints: Iterable[Checkpoint],
    validations: Iterable[MetricReport],
    metric: SearcherMetric,
    policy: Policy,
    protected: Collection[str] = (),
) -> list[Checkpoint]:
    """The checkpoints to delete, by trial and step.

    Args:
        checkpoints: all of one experiment, of any state.
        validations: its reports; those that are archived, or of other groups, are left aside.
        protected: uuids of checkpoints that stay whatever the policy says.
    """
    present = [checkpoint for checkpoint in checkpoints if checkpoint.state in WITH_FILES]
    reports = {
        (report.trial_id, report.steps_completed): report
        for report in validations
        if report.group == VALIDATION and not report.archived
    }
    best_first = _best_first(present, reports, metric)
    latest_first = sorted(present, key=_recency, reverse=True)
    kept = {*protected, *(checkpoint.uuid for checkpoint in best_first[: policy.save_experiment_best])}
    for order, number in ((best_first, policy.save_trial_best), (latest_first, policy.save_trial_latest)):
        for of_trial in _by_trial(order).values():
            kept.update(checkpoint.uuid for checkpoint in of_trial[:number])
    gone = [checkpoint for checkpoint in present if checkpoint.uuid not in kept]
    return sorted(gone, key=lambda c: (c.trial_id, c.steps_completed, c.reported_at, c.uuid))


def needed_to_go_on(trials: Iterable[Trial], checkpoints: Iterable[Checkpoint], *, ended: bool) -> set[str]:
    """The checkpoints from which trials would start again: the latest complete one of each.

    Args:
        ended: whether the experiment has. In one that has not, also a trial that failed or was cancelled may wait for its
            turn to run again: the experiment was continued.
    """
    over = {S.COMPLETED} if not ended else {state for state in S if state.terminal}
    running = {trial.id for trial in trials if trial.state not in over}
    latest: dict[int, Checkpoint] = {}
    for checkpoint in checkpoints:
        if checkpoint.trial_id in running and checkpoint.state is CheckpointState.COMPLETED:
            best_so_far = latest.setdefault(checkpoint.trial_id, checkpoint)
            latest[checkpoint.trial_id] = max(best_so_far, checkpoint, key=_recency)
    return {checkpoint.uuid for checkpoint in latest.values()}


def _best_first(
    checkpoints: Sequence[Checkpoint],
    reports: Mapping[tuple[int, int], MetricReport],
    metric: SearcherMetric,
) -> list[Checkpoint]:
    """Those with a validation that has the metric."""
    ranked: list[tuple[tuple[Any, ...], Checkpoint]] = []
    for checkpoint in checkpoints:
        report = reports.get((checkpoint.trial_id, checkpoint.steps_completed))
        value = metric.value(report.metrics) if report else None
        if report is None or value is None:
            continue
        badness = math.inf if math.isnan(value) else value if metric.smaller_is_better else -value
        # Two checkpoints of one step have the same validation: the later one is the better one then.
        rank = (math.isnan(value), badness, report.id, -checkpoint.reported_at, checkpoint.uuid)
        ranked.append((rank, checkpoint))
    return [checkpoint for _, checkpoint in sorted(ranked, key=lambda pair: pair[0])]


def _recency(checkpoint: Checkpoint) -> tuple[int, float, str]:
    return checkpoint.steps_completed, checkpoint.reported_at, checkpoint.uuid


def _by_trial(checkpoints: Iterable[Checkpoint]) -> dict[int, list[Checkpoint]]:
    trials: dict[int, list[Checkpoint]] = defaultdict(list)
    for checkpoint in checkpoints:
        trials[checkpoint.trial_id].append(checkpoint)
    return trials
