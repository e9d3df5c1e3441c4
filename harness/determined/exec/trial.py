"""The first program of a trial's task: `python -m determined.exec.trial`.

It makes the task ready (model folder, accelerators, rendezvous) and then becomes the trial's entrypoint, by
way of `startup-hook.sh` where the model folder has one. What fails here is the cluster's doing or the
configuration's: it ends with one line on stderr and code 1.
"""

import base64
import binascii
import json
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import NoReturn

from determined._info import ClusterInfo, get_cluster_info, run_dir
from determined.common import api
from determined.common.api import errors
from determined.errors import ClusterInfoError, DeterminedError, PreparationError
from determined.exec import launch
from determined.exec.accelerators import visible_gpu_uuids
from determined.exec.extract import extract_context

STARTUP_HOOK = "startup-hook.sh"
RENDEZVOUS_SECONDS = 630  # the master gives the peers ten minutes
_RETRIES = 20


def main() -> NoReturn:
    try:
        prepare()
        hook = Path(STARTUP_HOOK)
        if hook.is_file():
            _become_hook()
        launch.become_entrypoint()
    except (DeterminedError, errors.RequestFailed, OSError) as e:
        launch.fail(f"cannot start the trial: {e}")


def prepare() -> None:
    """Download the model folder, report the accelerators, and wait for the trial's other containers."""
    info = get_cluster_info()
    if info is None:
        raise ClusterInfoError("DET_ALLOCATION_ID is not set: this program is started by an agent")
    workdir = os.environ.get("DET_WORKDIR")
    resources_id = os.environ.get("DET_RESOURCES_ID")
    if not workdir or not resources_id:
        raise ClusterInfoError(f"{'DET_RESOURCES_ID' if workdir else 'DET_WORKDIR'} is not set")
    os.makedirs(workdir, exist_ok=True)
    os.chdir(workdir)
    (run_dir() / "info").mkdir(parents=True, exist_ok=True)
    with api.Session(
        info.master_url,
        allocation_token=info.session_token,
        retries=_RETRIES,
        cert=info.master_cert_file,
        cert_name=info.master_cert_name,
    ) as session:
        _download_context(session, info, Path(workdir))
        _report_accelerators(session, info)
        _rendezvous(session, info, resources_id)


def _download_context(session: api.Session, info: ClusterInfo, workdir: Path) -> None:
    encoded = session.get(f"/api/v1/tasks/{info.task_id}/context_directory").json()["b64Tgz"]
    clean_copy = run_dir() / "train" / "model"
    clean_copy.mkdir(parents=True, exist_ok=True)
    if not encoded:
        return
    try:
        archive = base64.b64decode(encoded, validate=True)
    except binascii.Error as e:
        raise PreparationError(f"the master sent a model folder that is not base64: {e}") from e
    # The work folder changes while the trial runs; what goes into its checkpoints is the clean copy.
    extract_context(archive, [clean_copy, workdir])


def _report_accelerators(session: api.Session, info: ClusterInfo) -> None:
    uuids = visible_gpu_uuids()
    (run_dir() / "info" / "resources.json").write_text(json.dumps({"gpu_uuids": uuids}))
    data = {
        "containerId": os.environ.get("DET_CONTAINER_ID", ""),
        "allocationId": info.allocation_id,
        "taskId": info.task_id,
        "nodeName": platform.node(),
        "acceleratorType": "cuda" if uuids else "cpu",
        "acceleratorUuids": uuids,
    }
    body = {"allocationId": info.allocation_id, "acceleratorData": data}
    session.post(f"/api/v1/allocations/{info.allocation_id}/acceleratorData", json=body)


def _rendezvous(session: api.Session, info: ClusterInfo, resources_id: str) -> None:
    path = f"/api/v1/allocations/{info.allocation_id}/resources/{resources_id}/rendezvous"
    rendezvous = session.get(path, timeout=RENDEZVOUS_SECONDS).json()["rendezvousInfo"]
    content = {
        "container_addrs": rendezvous["addresses"],
        "container_rank": rendezvous["rank"],
        "container_slot_counts": rendezvous["slots"],
    }
    (run_dir() / "info" / "rendezvous.json").write_text(json.dumps(content))


def _become_hook() -> NoReturn:
    """Source the hook in a shell, which then goes on with the entrypoint: it may set variables for it."""
    shell = shutil.which("bash") or "/bin/sh"
    script = f'set -e; . "./{STARTUP_HOOK}"; set +e; exec "$@"'
    sys.stdout.flush()
    os.execv(shell, [shell, "-c", script, shell, sys.executable, "-m", "determined.exec.launch"])


if __name__ == "__main__":
    main()
