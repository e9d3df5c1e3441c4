"""How a script becomes a trial of a detached experiment, and says how it fares."""

import logging
import socket
import threading
from enum import Enum
from typing import Any
from urllib.parse import quote

from determined._info import ClusterInfo, RendezvousInfo, ResourcesInfo, TrialInfo
from determined.common import api
from determined.common.api import errors
from determined.common.api.session import json_object
from determined.experimental.core_v2 import _config

logger = logging.getLogger("determined.core")
HEARTBEAT_SECONDS = 60.0
END_RETRIES = 3


class End(Enum):
    """How a script ended."""

    COMPLETED = "STATE_COMPLETED"
    ERROR = "STATE_ERROR"
    CANCELED = "STATE_CANCELED"  # by its user: Ctrl-C


def register(session: api.Session, config: _config.Config) -> ClusterInfo:
    """Make or find the experiment and the trial of this script, and start a new run of the trial.

    Raises `determined.common.api.errors.APIException` where the master refuses.
    """
    config = _config.named(config)
    submitted = _config.experiment_config(config)
    hparams = dict(config.hparams or {})
    path = f"/api/v1/experiments/by-external-id/{quote(str(config.external_experiment_id), safe='')}"
    body = {"config": _config.as_text(submitted), "unmanaged": True}
    experiment = json_object(session.put(path, json=body))["experiment"]
    asked = {
        "createTrialRequest": {"experimentId": experiment["id"], "hparams": hparams, "unmanaged": True},
        "externalTrialId": config.external_trial_id,
    }
    trial = json_object(session.put("/api/v1/trials", json=asked))["trial"]
    cluster = session.get_json("/api/v1/master")
    number = int(trial["id"])
    start = {"trialId": number, "resume": True}
    run = json_object(session.post(f"/api/v1/trials/{number}/start", json=start))
    report_state(session, number, int(run["trialRunId"]), "STATE_RUNNING")
    return _info(session, str(cluster["clusterId"]), trial, run, submitted, hparams)


def _info(
    session: api.Session,
    cluster_id: str,
    trial: dict[str, Any],
    run: dict[str, Any],
    submitted: dict[str, Any],
    hparams: dict[str, Any],
) -> ClusterInfo:
    """What the script knows about its trial. There is no agent, and no allocation: the machine and the run stand for them."""
    return ClusterInfo(
        master_url=session.master,
        cluster_id=cluster_id,
        agent_id=socket.gethostname(),
        slot_ids=[],
        task_id=trial["taskId"],
        allocation_id=f"{trial['taskId']}.{run['trialRunId']}",
        session_token=session.token or "",
        task_type="TRIAL",
        master_cert_name=None,
        master_cert_file=None,
        latest_checkpoint=run["latestCheckpoint"] or None,
        user_data=submitted["data"] or {},
        _resources=ResourcesInfo(gpu_uuids=[]),
        _rendezvous=RendezvousInfo(["127.0.0.1"], 0, [0]),
        _trial=TrialInfo(
            trial_id=int(trial["id"]),
            experiment_id=int(trial["experimentId"]),
            trial_seed=0,
            hparams=hparams,
            _config=submitted,
            _steps_completed=int(run["stepsCompleted"]),
            _trial_run_id=int(run["trialRunId"]),
            _debug=False,
            _inter_node_network_interface=None,
        ),
    )


def report_state(session: api.Session, trial_id: int, run_id: int, state: str | None) -> None:
    """A sign of life, perhaps with what has become of the trial. One of a run that was replaced is refused."""
    body = {"trialId": trial_id, "trialRunId": run_id, **({} if state is None else {"state": state})}
    session.patch(f"/api/v1/trials/{trial_id}", json=body)


class Heartbeat:
    """Tells the master every minute that the script is there: one that falls silent for minutes counts as failed."""

    def __init__(self, session: api.Session, trial_id: int, run_id: int, every: float | None = None) -> None:
        self._session = session
        self._trial_id = trial_id
        self._run_id = run_id
        self._every = HEARTBEAT_SECONDS if every is None else every
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="determined-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=1.0)  # it may wait for a master that is away, and nobody for it

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            try:
                report_state(self._session, self._trial_id, self._run_id, None)
            except errors.APIException as error:
                if error.status_code in (400, 401, 403, 404):
                    logger.warning("the master takes no heartbeats of this script any more: %s", error)
                    return
                logger.debug("a heartbeat was refused: %s", error)
            except errors.MasterUnreachable as error:
                logger.debug("a heartbeat did not arrive: %s", error)
