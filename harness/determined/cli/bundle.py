"""The support bundle of a trial: its log, the master's log and what the API says, in one archive."""

import datetime
import io
import json
import os
import tarfile
from collections.abc import Iterable, Iterator
from typing import Any

from determined.cli import terminal
from determined.common.api import Session, errors
from determined.experimental._logs import LogQuery, iter_trial_log


def pack(session: Session, trial_id: int, folder: str) -> str:
    """Write `det-bundle-trial-<id>-<time>.tar.gz` into the folder; returns its path.

    Raises NotFoundException where there is no such trial. What only an administrator may see is left out for others.
    """
    trial = session.get_json(f"/api/v1/trials/{trial_id}")
    now = datetime.datetime.now(datetime.UTC)
    name = f"det-bundle-trial-{trial_id}-{now:%Y%m%dT%H%M%SZ}"
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{name}.tar.gz")
    try:
        with tarfile.open(path, "x:gz") as archive:
            for file, text in _files(session, trial_id, trial):
                content = text.encode()
                member = tarfile.TarInfo(f"{name}/{file}")
                member.size, member.mtime = len(content), int(now.timestamp())
                archive.addfile(member, io.BytesIO(content))
    except BaseException:
        if os.path.exists(path):
            os.unlink(path)
        raise
    return path


def _files(session: Session, trial_id: int, trial: dict[str, Any]) -> Iterator[tuple[str, str]]:
    experiment = f"/api/v1/experiments/{trial['trial']['experimentId']}"
    yield "api_trial.json", _json(trial)
    yield "trial_logs.txt", "".join(one["message"] for one in iter_trial_log(session, trial_id, LogQuery()))
    for file, route in (
        ("api_experiment.json", experiment),
        ("api_experiment_trials.json", f"{experiment}/trials"),
        ("api_trial_workloads.json", f"/api/v1/trials/{trial_id}/workloads"),
        ("api_trial_checkpoints.json", f"/api/v1/trials/{trial_id}/checkpoints"),
        ("api_master.json", "/api/v1/master"),
        ("api_agents.json", "/api/v1/agents"),
        ("api_resource_pools.json", "/api/v1/resource-pools"),
    ):
        yield file, _json(session.get_json(route))
    try:
        yield "master_logs.txt", "".join(f"{line}\n" for line in master_lines(session, {}))
    except errors.ForbiddenException as e:
        terminal.note(f"The master's log is left out: {e}")
        yield "master_logs.txt", f"left out: {e}\n"


def master_lines(session: Session, params: dict[str, Any]) -> Iterable[str]:
    """The master's own log, a line for each entry."""
    for item in session.stream("/api/v1/master/logs", params):
        entry = item["logEntry"]
        yield f"{entry['timestamp']} [{entry['level'].removeprefix('LOG_LEVEL_')}]: {entry['message']}"


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"
