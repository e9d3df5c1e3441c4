"""What one user has on a real cluster, another neither reads nor changes nor kills: by no route and by no file."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
import requests
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from detlab_master.api import Route, registry
from detlab_master.api.base import Rule
from detlab_master.core.permissions import NEEDS_SUBJECT, Access, Kind
from e2e.conftest import Place, as_root
from e2e.trials import script_config
from support.cluster import PASSWORD, wait_for

pytestmark = as_root  # where tasks have no accounts of their own, the agent takes those of one user only
OWNER, OTHER = "ada", "eve"
MODEL = "adas-model"
PLACE, TEMPLATE = "adas-place", "adas-template"
MARK = "what-only-ada-knows"

# Trains, saves a checkpoint, tells the test who it is, and goes on until it is let go.
TRIAL = f"""
import json, os, pathlib, time
from determined import core
side = pathlib.Path(os.environ["SIDE"])
pathlib.Path("secret").write_text("{MARK}")
with core.init() as context:
    print("{MARK}", flush=True)
    context.train.report_training_metrics(1, {{"{MARK}": 1.0}})
    context.train.report_validation_metrics(1, {{"accuracy": 0.5, "{MARK}": 1.0}})
    context.train.set_status("{MARK}")
    with context.checkpoint.store_path({{"steps_completed": 1, "{MARK}": 1}}) as (path, uuid):
        (path / "weights").write_text("{MARK}")
    name = os.environ["NAME"]
    known = {{"pid": os.getpid(), "workdir": os.getcwd(), "checkpoint": uuid, **os.environ}}
    (side / f"{{name}}.new").touch(0o600)  # it holds tokens
    (side / f"{{name}}.new").write_text(json.dumps(known))
    (side / f"{{name}}.new").rename(side / name)
    while not (side / "let-go").exists():
        time.sleep(0.05)
"""


@dataclass(frozen=True)
class Held:
    """A trial that runs, with all that it knows."""

    experiment_id: int
    environment: Mapping[str, Any]

    @property
    def trial_id(self) -> int:
        return int(self.environment["DET_TRIAL_ID"])

    @property
    def task_id(self) -> str:
        return str(self.environment["DET_TASK_ID"])

    @property
    def allocation_id(self) -> str:
        return str(self.environment["DET_ALLOCATION_ID"])

    @property
    def checkpoint(self) -> str:
        return str(self.environment["checkpoint"])

    @property
    def container_token(self) -> dict[str, str]:
        return {"Grpc-Metadata-x-allocation-token": f"Bearer {self.environment['DET_SESSION_TOKEN']}"}

    @property
    def secrets(self) -> tuple[str, ...]:
        return (MARK, self.task_id, self.checkpoint, str(self.environment["DET_CONTAINER_ID"]))


@dataclass(frozen=True)
class Scene:
    """Ada has two running trials, Eve has one."""

    place: Place
    target: Held
    sibling: Held  # of the same owner
    others: Held  # Eve's
    owner_id: int
    project: dict[str, Any]  # of the owner, in a workspace of hers
    model_id: int  # of the owner, with the target's checkpoint as a version

    def login(self, user: str) -> dict[str, str]:
        """The header of a new session."""
        body = {"username": user, "password": PASSWORD}
        answer = requests.post(f"{self.place.cluster.url}/api/v1/auth/login", json=body, timeout=30)
        return {"Authorization": f"Bearer {answer.json()['token']}"}


@pytest.fixture(scope="module")
def scene(place: Place) -> Iterator[Scene]:
    for user in (OWNER, OTHER):
        place.cluster.add_user(user)
    held = [_hold(place, user, f"{user}-{number}") for user, number in ((OWNER, 1), (OWNER, 2), (OTHER, 1))]
    registered = {"name": MODEL, "description": MARK, "metadata": {MARK: 1}, "labels": [MARK]}
    model = place.cluster.post("/api/v1/models", registered, user=OWNER)["model"]
    version = {"checkpointUuid": held[0].checkpoint, "name": MARK}
    place.cluster.post(f"/api/v1/models/{MODEL}/versions", version, user=OWNER)
    me = place.cluster.get("/api/v1/me", user=OWNER)["user"]
    workspace = place.cluster.post("/api/v1/workspaces", {"name": PLACE}, user=OWNER)["workspace"]
    projects = f"/api/v1/workspaces/{workspace['id']}/projects"
    project = place.cluster.post(projects, {"name": PLACE}, user=OWNER)["project"]
    place.cluster.post(f"/api/v1/templates/{TEMPLATE}", {"config": {"debug": True}}, user=OWNER)
    yield Scene(place, held[0], held[1], held[2], me["id"], project, model["id"])
    (place.side / "let-go").touch()
    for one in held:
        wait_for(lambda one=one: not psutil.pid_exists(one.environment["pid"]), "the trials end")  # type: ignore[misc]


def _hold(place: Place, user: str, name: str) -> Held:
    config = script_config(place.side, description=MARK, labels=[MARK], data={"source": MARK})
    config["hyperparameters"] = {MARK: 1}
    config["environment"]["environment_variables"].append(f"NAME={name}")
    if user != OWNER:
        config = json.loads(json.dumps(config).replace(MARK, "nothing"))
    text = TRIAL if user == OWNER else TRIAL.replace(MARK, "nothing")
    experiment_id = place.cluster.create(config, {"train.py": text}, user=user)
    file = place.side / name
    wait_for(file.exists, f"the trial of {name} runs")
    return Held(experiment_id, json.loads(file.read_text()))


# Routes


@dataclass(frozen=True)
class Call:
    """A request that would read or change what the target's owner has."""

    method: str
    route: Route
    rule: Rule
    path: str
    body: Any = None
    query: Mapping[str, Any] = field(default_factory=dict)

    def send(self, url: str, headers: Mapping[str, str]) -> requests.Response:
        return requests.request(
            self.method, url + self.path, headers=headers, json=self.body, params=self.query, timeout=30
        )

    def names(self, secret: str) -> bool:
        """Whether the request itself says it, so that an answer that repeats it gives nothing away."""
        return secret in self.path or secret in json.dumps([self.body, dict(self.query)])


def calls(scene: Scene) -> list[Call]:
    """Every method of every route, aimed at the target."""
    found = [_call(scene, method, route, rule) for method, route, rule in registry()]
    # The last one ends the session that asks.
    return sorted(found, key=lambda call: call.path.endswith("/logout"))


def _call(scene: Scene, method: str, route: Route, rule: Rule) -> Call:
    target = scene.target
    parameters = {
        "experiment_id": target.experiment_id,
        "trial_id": target.trial_id,
        "task_id": target.task_id,
        "allocation_id": target.allocation_id,
        "checkpoint_uuid": target.checkpoint,
        "user_id": scene.owner_id,
        "username": OWNER,
        "model_name": scene.model_id,  # a name would be looked for among the caller's own first
        "workspace_id": scene.project["workspaceId"],
        "project_id": scene.project["id"],
        "template_name": TEMPLATE,
        "version": 1,
        "resources_id": target.environment["DET_CONTAINER_ID"],
        "external_id": "stolen",
        "label": "stolen" if method == "PUT" else MARK,
    }
    names = re.findall(r"\{(\w+)", route.path)
    assert set(names) <= set(parameters), f"{route.path}: say what stands for {names}, in this test"
    path = route.path.replace(":path", "").format_map(parameters)
    query: dict[str, Any] = {}
    if route.path.startswith("/api/v1/trials/metrics/"):
        query = {"trialIds": target.trial_id}
    elif route.path.endswith("/signals/preemption"):
        query = {"timeout_seconds": 0}
    bodies = _bodies(scene)
    if rule.in_body and not query:
        assert (method, route.path) in bodies, (
            f"{method} {route.path} names its thing in the body: say how, in this test"
        )
    return Call(method, route, rule, path, bodies.get((method, route.path)), query)


def _bodies(scene: Scene) -> dict[tuple[str, str], Any]:
    """Bodies with which a call would do harm, if it were let in."""
    target, api = scene.target, "/api/v1"
    uuid, trial = target.checkpoint, api + "/trials/{trial_id}"
    report = {"trialId": target.trial_id, "trialRunId": 1, "stepsCompleted": 5}
    return {
        ("POST", api + "/users"): {"user": {"username": "mallory", "admin": True}, "password": PASSWORD},
        ("PATCH", api + "/users/{user_id}"): {"displayName": "stolen", "password": "Stolen-1234"},
        ("POST", api + "/experiments"): {
            "config": json.dumps(script_config(scene.place.side)),
            "parentId": target.experiment_id,
        },
        ("PATCH", api + "/experiments/{experiment_id}"): {"name": "stolen"},
        ("POST", api + "/experiments/continue"): {"id": target.experiment_id},
        ("POST", trial + "/metrics"): {
            "group": "validation",
            "metrics": {**report, "metrics": {"avgMetrics": {"accuracy": 99.0}}},
        },
        **{
            ("POST", f"{trial}/{group}_metrics"): {**report, "metrics": {"avgMetrics": {"accuracy": 99.0}}}
            for group in ("training", "validation")
        },
        ("PUT", trial + "/retain_logs"): {"numDays": 0},
        ("PUT", api + "/experiments/{experiment_id}/retain_logs"): {"numDays": 0},
        ("POST", trial + "/progress"): {"progress": 0.99, "isRaw": True},
        ("POST", trial + "/early_exit"): {"reason": "EXITED_REASON_INVALID_HP"},
        ("POST", trial + "/runner/metadata"): {"state": "stolen"},
        ("POST", api + "/runs/start"): {"runId": target.trial_id},
        ("POST", api + "/runs/{trial_id}/metadata"): {"metadata": {"stolen": 1}},
        ("POST", api + "/webhooks/custom"): {
            "experimentId": target.experiment_id,
            "trialId": target.trial_id,
            "data": {"title": "stolen"},
        },
        ("POST", api + "/trial-source-info"): {
            "trialSourceInfo": {
                "trialId": target.trial_id,
                "checkpointUuid": uuid,
                "trialSourceInfoType": "TRIAL_SOURCE_INFO_TYPE_INFERENCE",
            }
        },
        ("POST", api + "/task/logs"): {"logs": [{"taskId": target.task_id, "log": "stolen\n"}]},
        ("POST", "/task-logs"): [{"task_id": target.task_id, "log": "stolen\n"}],
        ("PUT", api + "/experiments/by-external-id/{external_id:path}"): {
            "config": json.dumps(script_config(scene.place.side)),
            "unmanaged": True,
        },
        ("POST", api + "/trials"): {"experimentId": target.experiment_id, "hparams": {"stolen": 1}},
        ("PUT", api + "/trials"): {
            "createTrialRequest": {"experimentId": target.experiment_id},
            "externalTrialId": "stolen",
        },
        ("PATCH", trial): {"state": "STATE_ERROR"},
        ("POST", trial + "/start"): {"resume": True},
        ("POST", api + "/checkpoints"): {
            "uuid": uuid,
            "taskId": target.task_id,
            "allocationId": target.allocation_id,
            "metadata": {"steps_completed": 7},
        },
        ("PATCH", api + "/checkpoints"): {"checkpoints": [{"uuid": uuid, "resources": {"resources": {}}}]},
        ("DELETE", api + "/checkpoints"): {"checkpointUuids": [uuid]},
        ("POST", api + "/checkpoints/rm"): {"checkpointUuids": [uuid], "checkpointGlobs": ["**/*"]},
        ("POST", api + "/checkpoints/{checkpoint_uuid}/metadata"): {
            "checkpoint": {"uuid": uuid, "metadata": {"stolen": 1}}
        },
        ("POST", api + "/experiments/{experiment_id}/move"): {"destinationProjectId": scene.project["id"]},
        ("POST", api + "/workspaces"): {"name": "eves-place"},
        ("PATCH", api + "/workspaces/{workspace_id}"): {"name": "stolen"},
        ("PATCH", api + "/projects/{project_id}"): {"name": "stolen"},
        ("PUT", api + "/projects/{project_id}/notes"): {"notes": [{"name": "stolen", "contents": ""}]},
        ("POST", api + "/templates/{template_name}"): {"config": {"debug": False}},
        ("PATCH", api + "/templates/{template_name}"): {"debug": False},
        ("POST", api + "/models"): {"name": MODEL},
        ("PATCH", api + "/models/{model_name}"): {"description": "stolen"},
        ("POST", api + "/models/{model_name}/versions"): {"checkpointUuid": uuid, "name": "stolen"},
        ("PATCH", api + "/models/{model_name}/versions/{version}"): {"name": "stolen"},
    }


ROLES = (
    "anonymous",
    "another user",
    "another user's task",
    "another user's container",
    "a sibling's container",
)


@pytest.mark.parametrize("role", ROLES)
def test_no_route_gives_anything_away(scene: Scene, role: str) -> None:
    task_token = scene.others.environment["DET_USER_TOKEN"]
    headers = {
        "anonymous": {},
        "another user": scene.login(OTHER),
        "another user's task": {"Authorization": f"Bearer {task_token}"},
        "another user's container": scene.others.container_token,
        "a sibling's container": scene.sibling.container_token,
    }[role]
    with _nothing_happens_to(scene):
        for call in calls(scene):
            what = f"{role}: {call.method} {call.path}"
            if role == "a sibling's container" and _may_read_checkpoints(call):
                continue
            answer = call.send(scene.place.cluster.url, headers)
            assert answer.status_code < 500, what
            if call.rule.access in NEEDS_SUBJECT | {Access.ADMIN, Access.HUB, Access.AGENT}:
                refused = (401,) if role == "anonymous" else (401, 403, 404)
                assert answer.status_code in refused, f"{what}: {answer.status_code} {answer.text[:300]}"
            shown = _readable(answer)
            for secret in scene.target.secrets:
                assert call.names(secret) or secret not in shown, f"{what} shows {secret}: {shown[:300]}"


def _may_read_checkpoints(call: Call) -> bool:
    """A trial may start from any checkpoint of its owner."""
    return call.rule.access is Access.READ and call.rule.kind is Kind.CHECKPOINT


def test_the_owner_is_let_in(scene: Scene) -> None:
    """The same requests find what they look for, so that the test above is about something."""
    headers = scene.login(OWNER)
    seen = set()
    for call in calls(scene):
        if call.method == "GET" and call.rule.access in (Access.READ, Access.OWN):
            answer = call.send(scene.place.cluster.url, headers)
            assert answer.status_code == 200, f"{call.path}: {answer.text[:300]}"
            if MARK in _readable(answer):
                seen.add(call.route.path.rsplit("/", 1)[-1])
    assert seen >= {
        *("{experiment_id}", "{trial_id}", "{checkpoint_uuid}", "logs", "model_def", "context_directory"),
        *("trial_metrics", "validation_metrics", "workloads", "checkpoints", "trials"),
        *("{model_name}", "versions", "{version}"),
    }


def _readable(answer: requests.Response) -> str:
    """The answer's text, with what is packed inside it."""
    texts = [answer.content]
    try:
        packed = answer.json()
    except ValueError:
        packed = None
    if isinstance(packed, dict):
        texts += [
            gzip.decompress(b64decode(value))
            for key, value in packed.items()
            if key.lower().startswith("b64") and value
        ]
    return b"\n".join(texts).decode(errors="replace")


@contextmanager
def _nothing_happens_to(scene: Scene) -> Iterator[None]:
    before = _all_of(scene)
    pid = scene.target.environment["pid"]
    started = psutil.Process(pid).create_time()
    yield
    assert _all_of(scene) == before
    assert psutil.Process(pid).create_time() == started


def _all_of(scene: Scene) -> dict[str, Any]:
    """All that the owner can see of the target, and the files of its checkpoint."""
    cluster, target = scene.place.cluster, scene.target
    paths = [
        f"/api/v1/experiments/{target.experiment_id}",
        f"/api/v1/experiments/{target.experiment_id}/trials",
        f"/api/v1/trials/{target.trial_id}/workloads",
        f"/api/v1/trials/{target.trial_id}/checkpoints",
        f"/api/v1/trials/{target.trial_id}/logs",
        f"/api/v1/trials/metrics/trial_metrics?trialIds={target.trial_id}",
        f"/api/v1/allocations/{target.allocation_id}/signals/preemption?timeout_seconds=0",
        f"/api/v1/users/{scene.owner_id}",
        f"/api/v1/models/{MODEL}",
        f"/api/v1/workspaces/{scene.project['workspaceId']}",
        f"/api/v1/projects/{scene.project['id']}",
        f"/api/v1/templates/{TEMPLATE}",
        f"/api/v1/models/{MODEL}/versions",
    ]
    found: dict[str, Any] = {
        path: _steady(
            [json.loads(line) for line in cluster.request("GET", path, user=OWNER).text.splitlines()]
        )
        for path in paths
    }
    assert scene.login(OWNER), "the password is still the owner's"
    users = cluster.get("/api/v1/users", user="admin")["users"]
    found["users"] = [user["username"] for user in users]
    folder = cluster.master_folder / "checkpoints" / target.checkpoint
    found["files"] = {path.name: path.read_text() for path in folder.iterdir()}
    return found


def _steady(value: Any) -> Any:
    """Without what changes by itself."""
    if isinstance(value, list):
        return [_steady(item) for item in value]
    if isinstance(value, dict):
        passing = {"wallClockTime", "lastAuthAt", "duration"}
        return {key: _steady(item) for key, item in value.items() if key not in passing}
    return value


def test_ones_own_thing_does_not_lead_to_anothers(scene: Scene) -> None:
    """Requests about what is the caller's own, with something of the target inside."""
    target, own, api = scene.target, scene.others, "/api/v1"
    own_task = {"taskId": own.task_id, "allocationId": own.allocation_id, "metadata": {"steps_completed": 1}}
    source = script_config(scene.place.side)
    report = {"trialId": target.trial_id, "trialRunId": 1, "metrics": {"avgMetrics": {"accuracy": 9}}}
    cluster = scene.place.cluster
    cluster.post(api + "/models", {"name": "eves-model"}, user=OTHER)
    with _nothing_happens_to(scene):
        for path, body in [
            (f"/trials/{own.trial_id}/metrics", {"group": "validation", "metrics": report}),
            ("/checkpoints", {**own_task, "uuid": target.checkpoint}),
            ("/checkpoints", {**own_task, "uuid": str(uuid4()), "allocationId": target.allocation_id}),
            ("/checkpoints/rm", {"checkpointUuids": [own.checkpoint, target.checkpoint]}),
            ("/task/logs", {"logs": [{"taskId": t, "log": "stolen"} for t in (own.task_id, target.task_id)]}),
            ("/models/eves-model/versions", {"checkpointUuid": target.checkpoint}),
            *(
                (
                    "/experiments",
                    {"config": json.dumps({**source, "searcher": {**source["searcher"], **warm}})},
                )
                for warm in (
                    {"source_trial_id": target.trial_id},
                    {"source_checkpoint_uuid": target.checkpoint},
                )
            ),
        ]:
            answer = cluster.request("POST", api + path, json=body, user=OTHER)
            assert answer.status_code in (400, 404, 409), f"{path} {body}: {answer.text[:300]}"
            assert MARK not in answer.text


async def test_the_agents_socket_needs_the_agents_token(scene: Scene) -> None:
    cluster = scene.place.cluster
    address = f"ws://127.0.0.1:{cluster.port}/agents?id=intruder"
    wrong: list[Mapping[str, str]] = [
        {},
        scene.login(OTHER),
        scene.login("admin"),
        scene.others.container_token,
        {"Authorization": "Bearer guess"},
        {"Authorization": "Bearer "},
    ]
    for headers in wrong:
        with pytest.raises(HTTPClientError) as refused:
            await websocket_connect(HTTPRequest(address, headers=dict(headers)))
        assert refused.value.code == 401
    token = (cluster.master_folder / "agent-token").read_text().strip()
    connection = await websocket_connect(HTTPRequest(address, headers={"Authorization": f"Bearer {token}"}))
    connection.close()
    while await connection.read_message() is not None:  # None: it is closed, its socket too
        pass


def test_det_does_not_fetch_another_users_checkpoint(scene: Scene, tmp_path: Path) -> None:
    uuid = scene.target.checkpoint
    for mode in ("auto", "direct", "master"):
        shown = scene.place.det("checkpoint", "download", uuid, "--mode", mode, user=OTHER, cwd=tmp_path)
        assert shown.returncode == 1
        assert f"checkpoint '{uuid}' not found" in shown.stderr and MARK not in shown.stdout + shown.stderr
        assert not os.listdir(tmp_path)
    assert scene.place.det("checkpoint", "download", uuid, user=OWNER, cwd=tmp_path).returncode == 0
    assert (tmp_path / "checkpoints" / uuid / "weights").read_text() == MARK


def test_det_shows_nothing_of_another_user(scene: Scene) -> None:
    target = scene.target
    for arguments in (
        ("experiment", "list", "--all"),
        ("experiment", "describe", str(target.experiment_id)),
        ("experiment", "kill", str(target.experiment_id)),
        ("trial", "logs", str(target.trial_id)),
        ("trial", "kill", str(target.trial_id)),
    ):
        with _nothing_happens_to(scene):
            shown = scene.place.det(*arguments, user=OTHER)
        assert MARK not in shown.stdout + shown.stderr
        assert (shown.returncode == 1) == (arguments[1] != "list"), shown.stderr


# Files

THIEF = """
import json, os, pathlib, signal
side = pathlib.Path(os.environ["SIDE"])
wanted = json.loads((side / "wanted").read_text())
found = {}
for path in wanted["paths"]:
    try:
        found[path] = os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(64).decode(errors="replace")
    except OSError as error:
        found[path] = None
for pid in wanted["pids"]:
    try:
        os.kill(pid, signal.SIGTERM)
        found[str(pid)] = "killed"
    except OSError as error:
        found[str(pid)] = None
(side / os.environ["NAME"]).write_text(json.dumps(found))
"""


def _steal(place: Place, user: str, name: str, paths: list[str], pids: list[int], **changes: Any) -> Any:
    """What a task of this user can read (and kill), by path; None: nothing."""
    (place.side / "wanted").write_text(json.dumps({"paths": paths, "pids": pids}))
    config = script_config(place.side)
    config["environment"]["environment_variables"].append(f"NAME={name}")
    config["bind_mounts"] += changes.pop("mounts", [])
    experiment_id = place.cluster.create({**config, **changes}, {"train.py": THIEF}, user=user)
    path = f"/api/v1/experiments/{experiment_id}"
    wait_for(
        lambda: place.cluster.get(path, user=user)["experiment"]["endTime"], f"the task of {name} has ended"
    )
    file = place.side / name
    return json.loads(file.read_text()) if file.exists() else None


def test_a_task_reads_no_file_of_another_user_and_none_of_the_master(scene: Scene) -> None:
    place, target = scene.place, scene.target
    master = place.cluster.master_folder
    workdir = Path(target.environment["workdir"])
    weights = master / "checkpoints" / target.checkpoint / "weights"
    container = workdir.parent.parent
    pid = target.environment["pid"]
    users = [workdir / "secret", weights, Path(f"/proc/{pid}/environ")]
    masters = [
        path
        for path in master.iterdir()
        if path.is_file() and path.name not in ("master.lock", "master.holder")
    ]
    masters += [master / "contexts", *(master / "contexts").iterdir()]
    database = (
        [] if place.cluster.db_url.startswith("postgresql") else ["master.db"]
    )  # one on a server is no file of ours
    assert {"agent-token", *database} <= {path.name for path in masters}
    # (acked.json is a number: how much of the log the master has)
    agents = [path for path in container.iterdir() if path.name not in ("run", "acked.json")]
    assert {"spec.json", "launch.json"} <= {path.name for path in agents}
    folders = [workdir, workdir.parent, weights.parent, container, container.parent]
    paths = [str(path) for path in (*users, *masters, *agents, *folders)]
    found = _steal(place, OTHER, "thief", paths, [pid])
    assert {path: content for path, content in found.items() if content is not None} == {}
    assert psutil.pid_exists(pid)
    # The owner's own tasks read them, so they are where the thief has looked.
    own = _steal(place, OWNER, "owner", [str(weights)], [])
    assert own == {str(weights): MARK}


@pytest.mark.parametrize("what", ["data folder", "contexts", "container", "checkpoint"])
def test_a_bind_mount_opens_no_closed_folder(scene: Scene, what: str) -> None:
    place, target = scene.place, scene.target
    workdir = Path(target.environment["workdir"])
    folder, files = {
        "data folder": (place.cluster.master_folder, ["agent-token", "master.db"]),
        "contexts": (place.cluster.master_folder / "contexts", [""]),
        "container": (workdir, ["", "secret"]),
        "checkpoint": (place.cluster.master_folder / "checkpoints" / target.checkpoint, ["", "weights"]),
    }[what]
    mounts = [{"host_path": str(folder), "container_path": "/loot", "read_only": True}]
    found = _steal(
        place,
        OTHER,
        f"mounter-{what.replace(' ', '-')}",
        [f"/loot/{file}" for file in files],
        [],
        mounts=mounts,
    )
    assert found is None or not any(found.values()), found


# The master reads and removes checkpoints' files as root, from a storage that the user names.

SAVER = """
import json, os, pathlib, uuid
from determined import core
side = pathlib.Path(os.environ["SIDE"])
with core.init() as context:
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, saved):
        (path / "weights").write_text("eve's")
    link = pathlib.Path(os.environ["STORE"]) / saved / "link"
    os.symlink(os.environ["TARGET"], link)
(side / os.environ["NAME"]).write_text(saved)
"""


def test_a_link_in_a_checkpoint_leads_the_master_nowhere(scene: Scene, tmp_path: Path) -> None:
    place = scene.place
    store = place.cluster.master_folder / "checkpoints"
    name, victim = "linker", store / scene.target.checkpoint
    config = script_config(place.side)
    config["environment"]["environment_variables"] += [f"NAME={name}", f"STORE={store}", f"TARGET={victim}"]
    experiment_id = place.cluster.create(config, {"train.py": SAVER}, user=OTHER)
    wait_for((place.side / name).exists, "the checkpoint is there")
    path = f"/api/v1/experiments/{experiment_id}"
    wait_for(lambda: place.cluster.get(path, user=OTHER)["experiment"]["endTime"], "the task has ended")
    uuid = (place.side / name).read_text()
    assert (store / uuid / "link").is_symlink()
    with _nothing_happens_to(scene):
        archive = place.cluster.request("GET", f"/checkpoints/{uuid}", user=OTHER)
        assert archive.status_code == 200 and b"eve's" in archive.content
        assert MARK.encode() not in archive.content
        for globs in (["link/*"], ["link/weights"], ["**/weights"], ["**/*"]):
            body = {"checkpointUuids": [uuid], "checkpointGlobs": globs}
            place.cluster.post("/api/v1/checkpoints/rm", body, user=OTHER)
        wait_for(lambda: not (store / uuid).exists(), "the checkpoint is removed")


@pytest.mark.parametrize("what", ["container", "checkpoint"])
def test_a_storage_that_is_not_ones_own_gives_nothing(scene: Scene, what: str) -> None:
    """Containers and checkpoints are folders with a uuid: is a storage of them a way to them?"""
    place, target = scene.place, scene.target
    container = Path(target.environment["workdir"]).parent.parent
    folder = container if what == "container" else _orphaned_checkpoint(scene)
    config = script_config(
        place.side, checkpoint_storage={"type": "directory", "container_path": str(folder.parent)}
    )
    config["resources"] = {"slots_per_trial": 2}  # one is free: it waits in the queue, and never runs
    experiment_id = place.cluster.create(config, {"train.py": ""}, user=OTHER)
    path = f"/api/v1/experiments/{experiment_id}"
    (trial,) = wait_for(
        lambda: place.cluster.get(f"{path}/trials", user=OTHER)["trials"], "the experiment has a trial"
    )
    report = {
        "uuid": folder.name,
        "taskId": trial["taskId"],
        "allocationId": f"{trial['taskId']}.1",
        "metadata": {"steps_completed": 1},
    }
    place.cluster.post("/api/v1/checkpoints", report, user=OTHER)
    before = sorted(path.name for path in folder.iterdir())
    answer = place.cluster.request("GET", f"/checkpoints/{folder.name}", user=OTHER)
    assert answer.status_code == 404 and "belongs to somebody else" in answer.text
    removal = {"checkpointUuids": [folder.name], "checkpointGlobs": ["**/*"]}
    place.cluster.request("POST", "/api/v1/checkpoints/rm", json=removal, user=OTHER)
    place.cluster.request("DELETE", "/api/v1/checkpoints", json=removal, user=OTHER)
    gone = ("STATE_DELETED", "STATE_PARTIALLY_DELETED")
    wait_for(
        lambda: (
            place.cluster.get(f"/api/v1/checkpoints/{folder.name}", user=OTHER)["checkpoint"]["state"] in gone
        ),
        "the record says so",
    )
    assert sorted(path.name for path in folder.iterdir()) == before
    place.cluster.post(f"{path}/kill", user=OTHER)


def _orphaned_checkpoint(scene: Scene) -> Path:
    """A checkpoint of the owner that the master knows nothing about, such as one whose experiment was deleted."""
    known = scene.place.cluster.master_folder / "checkpoints" / scene.target.checkpoint
    orphan = known.with_name("0a1b2c3d-0000-4000-8000-0123456789ab")
    shutil.copytree(known, orphan)
    shutil.copystat(known, orphan)
    os.chown(orphan, known.stat().st_uid, known.stat().st_gid)
    return orphan
