"""Trials: reading them, killing them, and what their containers report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from detlab_master.api import workloads
from detlab_master.api.base import ApiHandler, Rule
from detlab_master.api.body import Fields
from detlab_master.api.encode import checkpoints as encode_checkpoints
from detlab_master.api.encode import trials as encode
from detlab_master.api.encode import wire
from detlab_master.api.encode.checkpoints import CheckpointView
from detlab_master.api.paging import Paging, ordered
from detlab_master.api.trial_lists import (
    TRIAL_SORTS,
    CheckpointListing,
    TrialListing,
    listed_checkpoints,
    listed_trials,
    trial_view,
)
from detlab_master.core.permissions import Access, Kind
from detlab_master.core.records import Experiment
from detlab_master.core.states import TrialState
from detlab_master.core.unmanaged import REPORTED
from detlab_master.store.base import Workload

_SHOWN_STATES = (
    *("ACTIVE", "PAUSED", "STOPPING_CANCELED", "STOPPING_KILLED", "STOPPING_COMPLETED", "STOPPING_ERROR"),
    *("CANCELED", "COMPLETED", "ERROR", "QUEUED", "PULLING", "STARTING", "RUNNING"),
)
_EXIT_REASONS = ("INVALID_HP", "INIT_INVALID_HP", "USER_REQUESTED_STOP")


class OneTrial(ApiHandler):
    rules: ClassVar = {"GET": Rule(Access.READ, Kind.TRIAL), "PATCH": Rule(Access.OWN, Kind.TRIAL)}

    async def get(self, trial_id: str) -> None:
        trial, experiment = self.found.trial, self.found.experiment
        assert trial is not None
        view = await self.read(trial_view, self.services.store, experiment, trial)
        state = self.services.experiments.shown_trial_state(trial)
        self.reply({"trial": encode.trial(view, state, self.services.now())})

    async def patch(self, trial_id: str) -> None:
        """The script of a detached trial: a heartbeat, perhaps with what has become of it."""
        fields = await self.fields()
        state = fields.enum("state", _SHOWN_STATES, "STATE_")
        if state == "RUNNING":
            state = TrialState.ACTIVE.value
        if state is not None and state not in REPORTED:
            said = ", ".join("STATE_" + name for name in ("RUNNING", *REPORTED[1:]))
            raise fields.refuse("state", f"a script can say of itself: {said}")
        trial, experiment = self.found.trial, self.found.experiment
        assert trial is not None
        assert experiment is not None
        heard = await self.services.unmanaged.heard(
            experiment,
            trial.id,
            None if state is None else TrialState(state),
            fields.optional_integer("trialRunId"),  # our own client's; the official one does not say it
        )
        view = await self.read(trial_view, self.services.store, experiment, heard)
        shown = self.services.experiments.shown_trial_state(heard)
        self.reply({"trial": encode.trial(view, shown, self.services.now())})


class Trials(ApiHandler):
    """Trials of detached experiments, which their scripts add themselves."""

    rules: ClassVar = {
        "POST": Rule(Access.OWN, Kind.EXPERIMENT, in_body=True),
        "PUT": Rule(Access.OWN, Kind.EXPERIMENT, in_body=True),
    }

    async def post(self) -> None:
        await self._add(await self.fields(), None)

    async def put(self) -> None:
        """The trial of an external id: found, or made where there is none."""
        fields = await self.fields()
        name = fields.text("externalTrialId")
        if not name:
            raise fields.refuse("externalTrialId", "it must not be empty")
        await self._add(fields.child("createTrialRequest"), name)

    async def _add(self, fields: Fields, external_id: str | None) -> None:
        number = fields.integer("experimentId")
        found = await self.admit(Kind.EXPERIMENT, number, Access.OWN)
        assert found is not None
        assert found.experiment is not None
        added = await self.services.unmanaged.add_trial(
            found.experiment, fields.object("hparams"), external_id
        )
        view = await self.read(trial_view, self.services.store, found.experiment, added)
        state = self.services.experiments.shown_trial_state(added)
        self.reply({"trial": encode.trial(view, state, self.services.now())})


class StartTrial(ApiHandler):
    """The script of a detached trial starts: it gets the number of its run, and what to go on from."""

    rules: ClassVar = {"POST": Rule(Access.OWN, Kind.TRIAL)}

    async def post(self, trial_id: str) -> None:
        resume = (await self.fields()).flag("resume")
        experiment, trial = self.found.experiment, self.found.trial
        assert experiment is not None
        assert trial is not None
        started, latest = await self.services.unmanaged.start(experiment, trial.id, resume)
        self.reply(
            {
                "trialRunId": started.run_id,
                "latestCheckpoint": latest.uuid if latest else "",
                "stepsCompleted": latest.steps_completed if latest else 0,
            }
        )


class ExperimentTrials(ApiHandler):
    rules: ClassVar = {"GET": Rule(Access.OWN, Kind.EXPERIMENT)}

    async def get(self, experiment_id: str) -> None:
        query, experiment, now = self.query, self.found.experiment, self.services.now()
        assert experiment is not None
        listing = TrialListing.of(query)
        key, paging = TRIAL_SORTS[listing.sort], listing.paging
        views, total = await self.read(listed_trials, self.services.store, experiment, listing)
        page: Sequence[tuple[encode.TrialView, str]] = [
            (view, self.services.experiments.shown_trial_state(view.trial)) for view in views
        ]
        if total is None:
            metric = experiment.config.get("searcher", {}).get("metric", "")
            page = [(view, state) for view, state in page if listing.wants(view.trial.state, state)]
            page = ordered(page, lambda pair: key(pair[0], pair[1], now, metric), paging.descending)
            page, pagination = paging.cut(page)
        else:
            paging.within(total)
            pagination = paging.shown(len(page), total)
        await self.reply_large(_trials, page, pagination, now)


def _trials(page: Sequence[tuple[encode.TrialView, str]], pagination: wire.Object, now: float) -> wire.Object:
    return {"trials": [encode.trial(view, state, now) for view, state in page], "pagination": pagination}


class CheckpointsOf(ApiHandler):
    """The checkpoints of an experiment or of a trial."""

    async def reply_checkpoints(self, experiment: Experiment | None, trial_id: int | None) -> None:
        assert experiment is not None
        listing = CheckpointListing.of(self.query, experiment)
        page, pagination = await self.read(
            listed_checkpoints, self.services.store, experiment, trial_id, listing
        )
        await self.reply_large(_checkpoints, page, pagination)


def _checkpoints(page: Sequence[CheckpointView], pagination: wire.Object) -> wire.Object:
    return {"checkpoints": [encode_checkpoints.checkpoint(view) for view in page], "pagination": pagination}


class ExperimentCheckpoints(CheckpointsOf):
    rules: ClassVar = {"GET": Rule(Access.OWN, Kind.EXPERIMENT)}

    async def get(self, experiment_id: str) -> None:
        await self.reply_checkpoints(self.found.experiment, None)


class TrialCheckpoints(CheckpointsOf):
    rules: ClassVar = {"GET": Rule(Access.READ, Kind.TRIAL)}

    async def get(self, trial_id: str) -> None:
        await self.reply_checkpoints(self.found.experiment, self.path_integer(Kind.TRIAL))


class TrialWorkloads(ApiHandler):
    """Its reports and checkpoints in the order in which they came."""

    rules: ClassVar = {"GET": Rule(Access.READ, Kind.TRIAL)}

    async def get(self, trial_id: str) -> None:
        query = self.query
        paging, asked = Paging.of(query), workloads.Workloads.of(query)
        page, pagination = await self.read(
            workloads.workloads, self.services.store, self.path_integer(Kind.TRIAL), asked, paging
        )
        await self.reply_large(_workloads, page, asked.batch_metrics, pagination)


def _workloads(page: Sequence[Workload], batch_metrics: bool, pagination: wire.Object) -> wire.Object:
    shown = [workloads.encode(row, batch_metrics=batch_metrics) for row in page]
    return {"workloads": shown, "pagination": pagination}


class KillTrial(ApiHandler):
    rules: ClassVar = {"POST": Rule(Access.OWN, Kind.TRIAL)}

    async def post(self, trial_id: str) -> None:
        await self.services.experiments.kill_trial(self.path_integer(Kind.TRIAL))
        self.reply({})


class Progress(ApiHandler):
    rules: ClassVar = {"POST": Rule(Access.REPORT, Kind.TRIAL)}

    async def post(self, trial_id: str) -> None:
        fields = await self.fields()
        progress = fields.number("progress")
        if not math.isfinite(progress):
            raise fields.refuse("progress", "expected a number from 0 to 1")
        await self.services.experiments.report_progress(self.path_integer(Kind.TRIAL), progress)
        self.reply({})


class EarlyExit(ApiHandler):
    rules: ClassVar = {"POST": Rule(Access.REPORT, Kind.TRIAL)}

    async def post(self, trial_id: str) -> None:
        fields = await self.fields()
        reason = fields.enum("reason", _EXIT_REASONS, "EXITED_REASON_")
        if reason is None:
            raise fields.refuse(
                "reason", "expected EXITED_REASON_INVALID_HP or EXITED_REASON_INIT_INVALID_HP"
            )
        if reason != "USER_REQUESTED_STOP":  # clients know it; a trial that the user stopped just exits
            await self.services.experiments.report_early_exit(
                self.path_integer(Kind.TRIAL), f"EXITED_REASON_{reason}"
            )
        self.reply({})


class RunnerMetadata(ApiHandler):
    rules: ClassVar = {"POST": Rule(Access.REPORT, Kind.TRIAL)}

    async def post(self, trial_id: str) -> None:
        state = (await self.fields()).text("state", "")
        await self.services.experiments.report_runner_state(self.path_integer(Kind.TRIAL), state)
        self.reply({})
