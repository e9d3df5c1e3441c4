"""A trial: one training run of one set of hyperparameters."""

import datetime
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from determined.common.api import Session, iterate
from determined.experimental import _logs, _metrics, _wire
from determined.experimental._checkpoint import Checkpoint, checkpoint_order
from determined.experimental._enums import CheckpointSortBy, CheckpointState, LogLevel, OrderBy, TrialState

if TYPE_CHECKING:
    from determined.experimental._experiment import Experiment


class Trial:
    """A trial as of the last `reload`.

    `hparams` are its sampled hyperparameters, `summary_metrics` the master's running summary by group,
    `raw` the whole object as the master sent it.
    """

    def __init__(self, session: Session, raw: dict[str, Any]) -> None:
        self._session = session
        self._load(raw)

    def _load(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.id: int = raw["id"]
        self.experiment_id: int = raw["experimentId"]
        self.hparams: dict[str, Any] = raw["hparams"] or {}
        self.state = TrialState(raw["state"])
        self.summary_metrics: dict[str, Any] | None = raw.get("summaryMetrics")
        self.start_time = _wire.time(raw.get("startTime"))
        self.end_time = _wire.time(raw.get("endTime"))
        self.restarts: int = raw.get("restarts") or 0
        self.steps_completed: int = raw.get("totalBatchesProcessed") or 0

    def __repr__(self) -> str:
        return f"Trial(id={self.id}, experiment_id={self.experiment_id}, state={self.state.name})"

    def reload(self) -> None:
        self._load(self._session.get_json(f"/api/v1/trials/{self.id}")["trial"])

    def get_experiment(self) -> "Experiment":
        from determined.experimental._experiment import get_experiment

        return get_experiment(self._session, self.experiment_id)

    def kill(self) -> None:
        self._session.post(f"/api/v1/trials/{self.id}/kill")

    def iter_logs(
        self,
        follow: bool = False,
        *,
        head: int | None = None,
        tail: int | None = None,
        agent_ids: Sequence[str] | None = None,
        container_ids: Sequence[str] | None = None,
        rank_ids: Sequence[int] | None = None,
        stdtypes: Sequence[str] | None = None,
        min_level: LogLevel | None = None,
        timestamp_before: datetime.datetime | str | None = None,
        timestamp_after: datetime.datetime | str | None = None,
        sources: Sequence[str] | None = None,
        search_text: str | None = None,
    ) -> Iterator[str]:
        """The lines of the log, each ending as it was written; with `follow` until the trial has ended."""
        query = _logs.LogQuery(
            follow=follow,
            head=head,
            tail=tail,
            agent_ids=agent_ids or (),
            container_ids=container_ids or (),
            rank_ids=rank_ids or (),
            stdtypes=stdtypes or (),
            min_level=min_level,
            timestamp_before=timestamp_before,
            timestamp_after=timestamp_after,
            sources=sources or (),
            search_text=search_text,
        )
        return (entry["message"] for entry in _logs.iter_trial_log(self._session, self.id, query))

    def iter_metrics(self, group: str = "") -> Iterator[_metrics.TrialMetrics]:
        """What the trial reported in a group, by steps; every group when it is empty."""
        return _metrics.iter_trials_metrics(self._session, [self.id], group)

    def list_checkpoints(
        self,
        sort_by: CheckpointSortBy | str | None = None,
        order_by: OrderBy | None = None,
        max_results: int | None = None,
    ) -> list[Checkpoint]:
        """Checkpoints of every state, by default the best by the searcher's metric first.

        A string sorts by that validation metric. `sort_by` and `order_by` are given together or not at all.
        """
        params = checkpoint_order(sort_by, order_by)
        found = iterate(
            self._session, f"/api/v1/trials/{self.id}/checkpoints", "checkpoints", params, limit=max_results
        )
        return [Checkpoint(self._session, raw) for raw in found]

    # The names of older releases.

    def logs(self, *args: Any, **kwargs: Any) -> Iterator[str]:
        _deprecated("Trial.logs()", "Trial.iter_logs()")
        return self.iter_logs(*args, **kwargs)

    def stream_metrics(self, group: str) -> Iterator[_metrics.TrialMetrics]:
        _deprecated("Trial.stream_metrics()", "Trial.iter_metrics()")
        return self.iter_metrics(group)

    def stream_training_metrics(self) -> Iterator[_metrics.TrialMetrics]:
        _deprecated("Trial.stream_training_metrics()", 'Trial.iter_metrics("training")')
        return self.iter_metrics("training")

    def stream_validation_metrics(self) -> Iterator[_metrics.TrialMetrics]:
        _deprecated("Trial.stream_validation_metrics()", 'Trial.iter_metrics("validation")')
        return self.iter_metrics("validation")

    def get_checkpoints(
        self, sort_by: CheckpointSortBy | str | None = None, order_by: OrderBy | None = None
    ) -> list[Checkpoint]:
        _deprecated("Trial.get_checkpoints()", "Trial.list_checkpoints()")
        return self.list_checkpoints(sort_by, order_by)

    def top_checkpoint(self, sort_by: str | None = None, smaller_is_better: bool | None = None) -> Checkpoint:
        _deprecated("Trial.top_checkpoint()", "Trial.list_checkpoints(max_results=1)")
        return self.select_checkpoint(best=True, sort_by=sort_by, smaller_is_better=smaller_is_better)

    def select_checkpoint(
        self,
        latest: bool = False,
        best: bool = False,
        uuid: str | None = None,
        sort_by: str | None = None,
        smaller_is_better: bool | None = None,
    ) -> Checkpoint:
        """One of the trial's checkpoints that can be downloaded: the latest, the best, or the one with this uuid.

        Raises ValueError when not exactly one of the three is asked for, or there is no such checkpoint.
        """
        if sum((latest, best, uuid is not None)) != 1:
            raise ValueError("ask for exactly one of the latest checkpoint, the best, and a uuid")
        if (sort_by is None) != (smaller_is_better is None):
            raise ValueError("sort_by and smaller_is_better are given together or not at all")
        if sort_by is not None and not best:
            raise ValueError("a metric to sort by goes with the best checkpoint only")
        if latest:
            found = self.list_checkpoints(CheckpointSortBy.BATCH_NUMBER, OrderBy.DESC)
        elif sort_by is not None:
            found = self.list_checkpoints(sort_by, OrderBy.ASC if smaller_is_better else OrderBy.DESC)
        else:
            found = self.list_checkpoints()
        for checkpoint in _downloadable(found):
            if uuid is None or checkpoint.uuid == uuid:
                return checkpoint
        wanted = f"checkpoint {uuid!r}" if uuid else "checkpoint that can be downloaded"
        raise ValueError(f"trial {self.id} has no {wanted}")


def get_trial(session: Session, trial_id: int) -> Trial:
    """Raises NotFoundException."""
    return Trial(session, session.get_json(f"/api/v1/trials/{trial_id}")["trial"])


def _downloadable(checkpoints: Iterable[Checkpoint]) -> Iterator[Checkpoint]:
    states = (CheckpointState.COMPLETED, CheckpointState.PARTIALLY_DELETED)
    return (checkpoint for checkpoint in checkpoints if checkpoint.state in states)


def _deprecated(old: str, new: str) -> None:
    warnings.warn(f"{old} is deprecated: use {new}", FutureWarning, stacklevel=3)
