"""Detached experiments, for the API: created or found again by their owners' names, and watched for signs of life."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import cast
from weakref import WeakValueDictionary

from detlab_master.core import unmanaged as core
from detlab_master.core.errors import Conflict, Invalid
from detlab_master.core.permissions import Principal
from detlab_master.core.records import Checkpoint, Experiment, Json, Trial
from detlab_master.core.states import ExperimentState as S
from detlab_master.core.states import TrialState
from detlab_master.engine.experiments import ExperimentService
from detlab_master.engine.experiments_at_work import ExperimentsAtWork
from detlab_master.engine.inbox import Closed
from detlab_master.engine.submissions import CreatedExperiment, CreateExperiment
from detlab_master.store.base import ExperimentFilter, Page, Store, StoreUnavailable

logger = logging.getLogger(__name__)
_LOOKS = 10  # at the signs of life within the time that silence may last
_LONGEST_WAIT = 15.0  # seconds from one look to the next


class UnmanagedService:
    """
    Args:
        patience: seconds after which a trial of which nothing is heard is given up.
        monotonic: the clock by which that is measured.
    """

    def __init__(
        self,
        *,
        store: Store,
        at_work: ExperimentsAtWork,
        experiments: ExperimentService,
        patience: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._at_work = at_work
        self._experiments = experiments
        self._patience = patience
        self._monotonic = monotonic
        self._listener: core.Listener[tuple[int, int | None]] = core.Listener(patience)
        self._naming: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()
        self._running: asyncio.Task[None] | None = None

    # What scripts ask for

    async def put_experiment(self, principal: Principal, asked: CreateExperiment) -> CreatedExperiment:
        """The user's experiment of that external id: as it is, or a new one where there is none.

        Raises:
            Invalid: it is archived.
            Conflict: it is being deleted.
        """
        assert asked.external_id is not None
        name = (principal.user_id, asked.external_id)
        async with self._naming.setdefault(name, asyncio.Lock()):
            where = ExperimentFilter(owner_ids=[principal.user_id], external_id=asked.external_id)
            found, _ = await asyncio.to_thread(self._store.experiments.find, where, Page())
            if not found:
                return await self._experiments.create(principal, asked)
            known = await self._at_work.get(found[0].id)
            _check_open(known)
            return CreatedExperiment(known, [], [])

    async def add_trial(self, experiment: Experiment, hparams: Json, external_id: str | None) -> Trial:
        """A new trial, or the one of that external id with these hyperparameters.

        Raises:
            Invalid, Conflict: the experiment takes none.
        """
        _check_unmanaged(experiment, f"experiment {experiment.id}")
        _check_open(experiment)
        added = core.TrialAdded(hparams, external_id)
        (answer,) = await self._at_work.ask_unmanaged(experiment.id, added)
        return cast(Trial, answer)

    async def start(
        self, experiment: Experiment, trial_id: int, resume: bool
    ) -> tuple[Trial, Checkpoint | None]:
        """A script starts as a new run of its trial: the trial, and the checkpoint to go on from.

        Raises:
            Invalid, Conflict: the trial is not of this kind, or its experiment is archived or being deleted.
        """
        _check_unmanaged(experiment, f"trial {trial_id}")
        _check_open(experiment)
        (started,) = await self._at_work.ask_unmanaged(experiment.id, core.TrialStarted(trial_id))
        latest = await asyncio.to_thread(self._store.checkpoints.latest, trial_id) if resume else None
        return cast(Trial, started), latest

    async def heard(
        self, experiment: Experiment, trial_id: int, state: TrialState | None, run_id: int | None
    ) -> Trial:
        """A heartbeat, perhaps with what has become of the trial.

        Args:
            run_id: of the run that speaks; None where its client does not say.

        Raises:
            Invalid: the trial is not of this kind, or another run has taken the place of this one.
            IllegalMove: it has ended, and says something else now.
        """
        _check_unmanaged(experiment, f"trial {trial_id}")
        (heard,) = await self._at_work.ask_unmanaged(experiment.id, core.TrialHeard(trial_id, state, run_id))
        return cast(Trial, heard)

    # Signs of life

    def listen(self) -> None:
        """Begin to look for who has fallen silent; all are heard of anew."""
        self._running = asyncio.create_task(self._listen(), name="heartbeats of detached trials")

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _listen(self) -> None:
        while True:
            try:
                await self.look()
            except (StoreUnavailable, Closed) as error:
                logger.warning("a silent trial could not be given up, the next look will do it: %s", error)
            except Exception:
                logger.exception("detached trials could not be looked through")
            await asyncio.sleep(min(_LONGEST_WAIT, self._patience / _LOOKS))

    async def look(self) -> None:
        """Give up whom nothing was heard of for too long."""
        signs = self._at_work.signs()
        for key in self._listener.silent(signs, self._monotonic()):
            experiment_id, trial_id = key
            found = core.SilenceFound(trial_id, signs[key], self._patience)
            await self._at_work.fallen_silent(experiment_id, found)


def _check_unmanaged(experiment: Experiment, what: str) -> None:
    if not experiment.unmanaged:
        raise Invalid(
            f"{what} runs on the cluster: only of detached experiments scripts say themselves what they do"
        )


def _check_open(experiment: Experiment) -> None:
    if experiment.archived:
        raise Invalid(
            f"experiment {experiment.id} is archived: nothing can be added to it"
            f" (det experiment unarchive {experiment.id}), or choose another external id"
        )
    if experiment.state in (S.DELETING, S.DELETE_FAILED, S.DELETED):
        raise Conflict(
            f"experiment {experiment.id} has this external id and is {experiment.state}: wait until it is gone,"
            " or choose another"
        )
