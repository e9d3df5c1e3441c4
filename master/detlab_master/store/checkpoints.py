"""Reads of checkpoints, and the numbers of the storages that they lie in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from detlab_master.core.states import CheckpointState, TrialState
from detlab_master.store import records
from detlab_master.store.reading import Reader
from detlab_master.store.rows import CHECKPOINTS, TRIAL_SOURCES, TRIALS
from detlab_master.store.tables import checkpoint_storages

_c = CHECKPOINTS.c
_BY_ID = CHECKPOINTS.where_equal(_c.uuid)
_LATEST = (
    CHECKPOINTS.where_equal(_c.trial_id)
    .where(_c.state == CheckpointState.COMPLETED)
    .order_by(_c.steps_completed.desc(), _c.reported_at.desc(), _c.uuid.desc())
    .limit(1)
)
_UNFINISHED = [state for state in TrialState if not state.terminal]
_STORAGE = sa.select(checkpoint_storages.c.id).where(checkpoint_storages.c.digest == sa.bindparam("key"))


def storage_digest(config: records.Json, owner_id: int) -> str:
    """The same for equal configurations of one user, in whatever order their keys came."""
    return hashlib.sha256(json.dumps([owner_id, config], sort_keys=True, default=dict).encode()).hexdigest()


class SqlCheckpoints:
    def __init__(self, reader: Reader, add_storage: Callable[[str, records.Json], None]) -> None:
        """``add_storage`` makes the row of a digest and its configuration where it is missing, and commits it."""
        self._reader = reader
        self._add_storage = add_storage

    def get(self, uuid: str) -> records.Checkpoint | None:
        return self._reader.one(CHECKPOINTS, _BY_ID, key=uuid)

    def find(
        self,
        *,
        experiment_id: int | None = None,
        trial_id: int | None = None,
        trial_ids: Sequence[int] | None = None,
        states: Sequence[CheckpointState] | None = None,
    ) -> list[records.Checkpoint]:
        statement = CHECKPOINTS.select()
        if experiment_id is not None:
            statement = statement.where(_c.experiment_id == experiment_id)
        if trial_id is not None:
            statement = statement.where(_c.trial_id == trial_id)
        if trial_ids is not None:
            statement = statement.where(_c.trial_id.in_(trial_ids))
        if states is not None:
            statement = statement.where(_c.state.in_(states))
        return self._reader.all(
            CHECKPOINTS, statement.order_by(_c.trial_id, _c.steps_completed, _c.reported_at, _c.uuid)
        )

    def latest(self, trial_id: int) -> records.Checkpoint | None:
        return self._reader.one(CHECKPOINTS, _LATEST, key=trial_id)

    def storage(self, storage_id: int, owner_id: int) -> records.Json | None:
        s = checkpoint_storages.c
        rows = self._reader.rows(sa.select(s.config, s.digest).where(s.id == storage_id))
        # The digest says whose it is.
        return rows[0][0] if rows and rows[0][1] == storage_digest(rows[0][0], owner_id) else None

    def sources(
        self, *, checkpoint_uuid: str | None = None, model_version: tuple[int, int] | None = None
    ) -> list[records.TrialSource]:
        s = TRIAL_SOURCES.c
        statement = TRIAL_SOURCES.select()
        if checkpoint_uuid is not None:
            statement = statement.where(s.checkpoint_uuid == checkpoint_uuid)
        if model_version is not None:
            statement = statement.where(s.model_id == model_version[0], s.model_version == model_version[1])
        order = (s.trial_id, s.checkpoint_uuid, s.model_id, s.model_version)
        return self._reader.all(TRIAL_SOURCES, statement.order_by(*order))

    def warm_starts(self, experiment_id: int) -> set[str]:
        t = TRIALS.c
        used = sa.select(_c.uuid).where(
            _c.experiment_id == experiment_id, t.warm_start_checkpoint == _c.uuid, t.id != _c.trial_id
        )
        return {row[0] for row in self._reader.rows(used)}

    def starting_from(
        self, *, checkpoint_uuids: Sequence[str] | None = None, experiment_id: int | None = None
    ) -> list[records.Trial]:
        t = TRIALS.c
        statement = TRIALS.select().where(t.state.in_(_UNFINISHED))
        if checkpoint_uuids is not None:
            statement = statement.where(t.warm_start_checkpoint.in_(checkpoint_uuids))
        if experiment_id is not None:
            its = sa.select(_c.uuid).where(_c.experiment_id == experiment_id)
            statement = statement.where(t.warm_start_checkpoint.in_(its))
        return self._reader.all(TRIALS, statement.order_by(t.id))

    def storage_id(self, config: records.Json, owner_id: int) -> int:
        digest = storage_digest(config, owner_id)
        rows = self._reader.rows(_STORAGE, {"key": digest})
        if not rows:
            self._add_storage(digest, config)
            rows = self._reader.rows(_STORAGE, {"key": digest})
        number: int = rows[0][0]
        return number
