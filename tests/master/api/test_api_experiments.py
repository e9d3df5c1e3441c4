"""Experiments, trials and checkpoints over the real engine, with an agent on the WebSocket."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import random
import tarfile
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import requests
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from detlab_agent import protocol
from detlab_agent.protocol import ContainerState as State
from detlab_master.api import context
from detlab_master.core import trial as trial_rules
from detlab_master.core.records import MetricReport
from detlab_master.core.states import CheckpointState, ExperimentState, TrialState
from detlab_master.store.writes import InsertReport, SaveCheckpoint, SaveExperiment, SaveTrial
from master.api.rig import ALICE, BOB, CONFIG, T0, Answer, Rig

DEVICES = (protocol.Device(0, protocol.DeviceType.CPU, "cpu", "cpu-0"),)


def file(path: str, content: bytes) -> dict[str, Any]:
    encoded = base64.b64encode(content).decode()
    return {"path": path, "type": 48, "content": encoded, "mtime": "0", "mode": 0o644, "uid": 0, "gid": 0}


async def create(rig: Rig, *, by: str = "alice", config: str = CONFIG, **fields: Any) -> Answer:
    body = {"config": config, "modelDefinition": [file("train.py", b"print(1)")], "activate": True, **fields}
    return await rig.call("POST", "/api/v1/experiments", body, by=by)


@dataclass
class Agent:
    socket: WebSocketClientConnection
    closed: bool = False

    async def send(self, message: protocol.Message) -> None:
        await self.socket.write_message(protocol.encode(message))

    async def receive(self) -> protocol.Message | None:
        """The next message; None when the master has closed the connection."""
        frame = await asyncio.wait_for(self.socket.read_message(), 10)
        self.closed = frame is None
        return None if frame is None else protocol.decode(frame)

    async def close(self) -> None:
        self.socket.close()
        while not self.closed:
            await self.receive()

    async def moved(self, spec: protocol.ContainerSpec, state: State, exit_code: int | None = None) -> None:
        changed = protocol.ContainerStateChanged(
            spec.container_id, spec.allocation_id, state, exit_code, None, "2026-01-01T00:00:00Z"
        )
        await self.send(changed)


def hello(**changes: Any) -> protocol.Hello:
    first = protocol.Hello(
        "a1", "default", "0.1", "boot", DEVICES, protocol.Isolation.UNIX_ACCOUNT, (), ("127.0.0.1",)
    )
    return replace(first, **changes)


@asynccontextmanager
async def agent(rig: Rig, greeting: protocol.Message | None = None) -> AsyncIterator[Agent]:
    request = HTTPRequest(
        rig.url.replace("http", "ws") + "/agents?id=a1",
        headers={"Authorization": f"Bearer {rig.agent_token}"},
    )
    connected = Agent(await websocket_connect(request))
    try:
        await connected.send(greeting or hello())
        yield connected
    finally:
        await connected.close()


async def test_submitting_an_experiment(rig: Rig) -> None:
    answer = await create(rig, activate=False)
    assert answer.status == 200, answer.body
    experiment = answer.json["experiment"]
    assert (experiment["state"], experiment["username"], experiment["name"]) == (
        "STATE_PAUSED",
        "alice",
        "digits",
    )
    assert experiment["originalConfig"] == CONFIG
    assert answer.json["config"]["searcher"]["metric"] == "accuracy"
    assert experiment["modelDefinitionSize"] > 0
    answer = await rig.call("GET", f"/api/v1/experiments/{experiment['id']}")
    assert answer.json["experiment"]["numTrials"] == 1
    assert answer.json["jobSummary"] == {"state": "STATE_QUEUED", "jobsAhead": -1}  # it is paused
    model = await rig.call("GET", f"/api/v1/experiments/{experiment['id']}/model_def")
    packed = base64.b64decode(model.json["b64Tgz"])
    assert rig.services.contexts.path(hashlib.sha256(packed).hexdigest()).read_bytes() == packed
    forked = await rig.call("POST", "/api/v1/experiments", {"config": CONFIG, "parentId": experiment["id"]})
    assert forked.json["experiment"]["forkedFrom"] == experiment["id"]
    assert forked.json["experiment"]["modelDefinitionSize"] == experiment["modelDefinitionSize"]


async def test_a_fork_lies_in_the_project_of_its_parent(rig: Rig) -> None:
    created = await rig.call("POST", "/api/v1/workspaces/1/projects", {"name": "letters"})
    project = created.json["project"]["id"]
    parent = (await create(rig, projectId=project)).json["experiment"]
    fork = {"config": CONFIG, "parentId": parent["id"]}
    forked = (await rig.call("POST", "/api/v1/experiments", fork)).json["experiment"]
    assert (forked["forkedFrom"], forked["projectId"]) == (parent["id"], project)
    elsewhere = (await rig.call("POST", "/api/v1/experiments", {**fork, "projectId": 1})).json["experiment"]
    assert elsewhere["projectId"] == 1


async def test_validating_keeps_nothing(rig: Rig) -> None:
    answer = await create(rig, validateOnly=True)
    assert answer.status == 200
    assert answer.json["experiment"]["id"] == 0
    assert list(rig.services.contexts.folder.iterdir()) == []
    assert (await rig.call("GET", "/api/v1/experiments")).json["experiments"] == []


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"config": "searcher: 5"}, "invalid experiment configuration"),
        ({"modelDefinition": [file("../x", b"")]}, "leaves the context"),
        ({"modelDefinition": [file("x", b"") | {"type": 50}]}, "is a symbolic link"),
        ({"parentId": "x"}, "parentId is 'x': expected an integer"),
    ],
)
async def test_refused_submissions_leave_nothing(rig: Rig, fields: dict[str, Any], error: str) -> None:
    answer = await create(rig, **fields)
    assert answer.status == 400
    assert error in answer.error
    assert not list(rig.services.contexts.folder.glob(".incoming*"))


async def test_a_context_that_is_too_large(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = await create(rig, modelDefinition=[file(f"{n}.bin", bytes(48 << 20)) for n in range(2)])
    assert answer.status == 400
    assert "the context has 96.0 MiB of files: the limit is 95 MiB" in answer.error
    assert list(rig.services.contexts.folder.iterdir()) == []


async def test_other_requests_stay_quick_during_a_large_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """94 MiB that do not compress are accepted, and no other request waits until they are decoded."""

    def in_this_process(data: bytes, folder: Path) -> context.Unpacked:
        raise AssertionError("a large request is unpacked where it holds the interpreter")

    monkeypatch.setattr(context, "unpack", in_this_process)
    content = os.urandom(1 << 20) * 94
    body = {"config": CONFIG, "modelDefinition": [file("data.bin", content)], "activate": False}
    encoded = json.dumps(body).encode()
    del body
    headers = {"Authorization": f"Bearer {rig.tokens['alice']}"}
    # Sent from a thread, so that only the master's work is in the way of the other requests.
    uploading = asyncio.create_task(
        asyncio.to_thread(
            requests.post, f"{rig.url}/api/v1/experiments", data=encoded, headers=headers, timeout=120
        )
    )
    slowest, asked = 0.0, 0
    loop = asyncio.get_running_loop()
    while not uploading.done():
        began = loop.time()
        assert (await rig.call("GET", "/api/v1/me")).status == 200
        slowest, asked = max(slowest, loop.time() - began), asked + 1
        await asyncio.sleep(0.01)
    answer = await uploading
    assert answer.status_code == 200, answer.text[:500]
    assert asked > 20
    assert slowest < 1.0, (
        f"a request waited {slowest:.2f} s"
    )  # generous: decoding takes several times as long
    (kept,) = rig.services.contexts.folder.iterdir()
    with tarfile.open(kept) as tar:
        inside = tar.extractfile("data.bin")
        assert inside is not None
        assert hashlib.sha256(inside.read()).digest() == hashlib.sha256(content).digest()


async def test_verbs(rig: Rig) -> None:
    number = (await create(rig)).json["experiment"]["id"]

    async def state_after(verb: str) -> str:
        answer = await rig.call("POST", f"/api/v1/experiments/{number}/{verb}")
        assert answer.json == {}, verb
        shown = await rig.call("GET", f"/api/v1/experiments/{number}")
        return str(shown.json["experiment"]["state"]).removeprefix("STATE_")

    refused = await rig.call("POST", f"/api/v1/experiments/{number}/archive")
    assert (refused.status, "only one that has ended" in refused.error) == (400, True)
    assert await state_after("pause") == "PAUSED"
    assert await state_after("activate") == "QUEUED"
    assert await state_after("kill") == "CANCELED"
    assert await state_after("kill") == "CANCELED"
    await state_after("archive")
    archived = await rig.call("GET", "/api/v1/experiments", query={"archived": "true"})
    assert [e["id"] for e in archived.json["experiments"]] == [number]
    await state_after("unarchive")
    assert (await rig.call("DELETE", f"/api/v1/experiments/{number}")).json == {}
    for _ in range(500):
        if (await rig.call("GET", f"/api/v1/experiments/{number}")).status == 404:
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("the experiment is not deleted")


async def test_editing(rig: Rig) -> None:
    things = await rig.things()
    path = f"/api/v1/experiments/{things.experiment.id}"
    body = {
        "id": things.experiment.id,
        "name": "better",
        "description": None,
        "labels": ["b", "a", "b"],
        "resources": {"maxSlots": 3, "priority": 10},
        "checkpoint_storage": {"save_experiment_best": 2, "saveTrialBest": "0"},
    }
    edited = (await rig.call("PATCH", path, body)).json["experiment"]
    assert (edited["name"], edited["description"], edited["labels"]) == ("better", "a search", ["a", "b"])
    assert (edited["config"]["resources"]["max_slots"], edited["config"]["resources"]["priority"]) == (3, 10)
    storage = edited["config"]["checkpoint_storage"]
    assert (storage["save_experiment_best"], storage["save_trial_best"], storage["save_trial_latest"]) == (
        2,
        0,
        1,
    )
    edited = (await rig.call("PATCH", path, {"resources": {"maxSlots": None}})).json["experiment"]
    assert (edited["config"]["resources"]["max_slots"], edited["labels"]) == (None, ["a", "b"])
    assert (await rig.call("PATCH", path, {"resources": {"priority": 100}})).status == 400


async def ids(rig: Rig, **query: Any) -> list[int]:
    answer = await rig.call("GET", "/api/v1/experiments", by="admin", query=query)
    assert answer.status == 200, answer.body
    return [experiment["id"] % 100 for experiment in answer.json["experiments"]]


async def test_listing(rig: Rig) -> None:
    for n in range(5):
        things = await rig.things(ALICE if n % 2 else BOB)
        record = things.experiment
        pool = {**record.config, "resources": {"resource_pool": f"pool{-n}"}}
        await rig.keep(
            SaveExperiment(
                replace(record, config=pool, archived=n == 4, start_time=T0 - n, name=f"name {n}")
            ),
            SaveTrial(replace(things.trial, searcher_metric=[0.3, 0.1, None, 0.2, float("nan")][n])),
        )
    assert await ids(rig) == [1, 2, 3, 4, 5]
    assert await ids(rig, limit=2) == [1, 2]
    assert await ids(rig, limit=2, offset=-2, orderBy="ORDER_BY_DESC") == [2, 1]
    assert await ids(rig, limit=-2) == []
    assert await ids(rig, offset=99) == []
    assert await ids(rig, sortBy="SORT_BY_START_TIME") == [5, 4, 3, 2, 1]
    assert await ids(rig, sortBy="SORT_BY_RESOURCE_POOL") == [2, 3, 4, 5, 1]
    by_metric = await ids(rig, sortBy="SORT_BY_SEARCHER_METRIC_VAL", orderBy="ORDER_BY_DESC")
    assert by_metric[:3] == [1, 4, 2]
    assert await ids(rig, archived="false") == [1, 2, 3, 4]
    assert await ids(rig, name="NAME 3") == [4]
    assert await ids(rig, users=["alice", "nobody"]) == [2, 4]
    assert await ids(rig, userIds=BOB, archived="true") == [5]
    assert await ids(rig, states=["STATE_ACTIVE", "STATE_RUNNING"]) == []
    assert await ids(rig, states="STATE_COMPLETED", labels=["mnist", "small"]) == [1, 2, 3, 4, 5]
    assert await ids(rig, labels="large") == []
    assert await ids(rig, **{"experimentIdFilter.gt": 1001, "experimentIdFilter.lte": 1004}) == [2, 3, 4]
    assert await ids(rig, **{"experimentIdFilter.gte": 1004, "experimentIdFilter.notIn": [1005]}) == [4]
    assert await ids(rig, **{"experimentIdFilter.incl": [1001, 1003]}) == [1, 3]
    page = (await rig.call("GET", "/api/v1/experiments", by="admin", query={"limit": 2, "offset": 3})).json
    assert page["pagination"] == {"offset": 3, "limit": 2, "startIndex": 3, "endIndex": 5, "total": 5}


async def test_listing_by_shown_states(rig: Rig) -> None:
    waiting = (await create(rig)).json["experiment"]["id"]
    paused = (await create(rig, activate=False)).json["experiment"]["id"]

    async def listed(*states: str) -> list[int]:
        query = {"states": [f"STATE_{state}" for state in states]}
        return [
            e["id"] for e in (await rig.call("GET", "/api/v1/experiments", query=query)).json["experiments"]
        ]

    assert await listed("ACTIVE") == [waiting]
    assert await listed("QUEUED") == [waiting]
    assert await listed("RUNNING") == []
    assert await listed("RUNNING", "PAUSED") == [paused]
    assert await listed("QUEUED", "PAUSED") == [waiting, paused]


async def test_trials_and_checkpoints(rig: Rig) -> None:
    things = await rig.things()
    trial = (await rig.call("GET", f"/api/v1/trials/{things.trial.id}")).json["trial"]
    assert trial["bestCheckpoint"]["uuid"] == things.checkpoint.uuid
    assert trial["wallClockTime"] == 59
    listed = await rig.call(
        "GET", f"/api/v1/experiments/{things.experiment.id}/trials", query={"sortBy": "SORT_BY_DURATION"}
    )
    assert listed.json["trials"] == [trial]
    for state, count in (("COMPLETED", 1), ("RUNNING", 0)):
        path = f"/api/v1/experiments/{things.experiment.id}/trials"
        assert len((await rig.call("GET", path, query={"states": f"STATE_{state}"})).json["trials"]) == count
    one = (await rig.call("GET", f"/api/v1/checkpoints/{things.checkpoint.uuid}")).json["checkpoint"]
    assert one["training"]["validationMetrics"]["avgMetrics"] == {"accuracy": 0.75, "loss": 2}
    assert one["training"]["searcherMetric"] == 0.75
    for path in (f"experiments/{things.experiment.id}", f"trials/{things.trial.id}"):
        listed = await rig.call(
            "GET", f"/api/v1/{path}/checkpoints", query={"sortByAttr": "SORT_BY_SEARCHER_METRIC"}
        )
        assert listed.json["checkpoints"] == [one]
    best = f"/api/v1/experiments/{things.experiment.id}/searcher/best_searcher_validation_metric"
    assert (await rig.call("GET", best, container=things.token)).json == {"metric": 0.75}
    await rig.keep(SaveTrial(replace(things.trial, searcher_metric=None)))
    assert (await rig.call("GET", best, container=things.token)).status == 404


ATTRIBUTES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "ID": lambda trial: trial["id"],
    "START_TIME": lambda trial: trial["startTime"],
    "END_TIME": lambda trial: trial["endTime"],
    "STATE": lambda trial: trial["state"].removeprefix("STATE_"),
    "BEST_VALIDATION_METRIC": lambda trial: trial["searcherMetricValue"],
    "BATCHES_PROCESSED": lambda trial: trial["totalBatchesProcessed"],
    "DURATION": lambda trial: trial["wallClockTime"],
    "RESTARTS": lambda trial: trial["restarts"],
    "CHECKPOINT_SIZE": lambda trial: int(trial["totalCheckpointSize"]),
}


async def test_pages_of_trials_are_parts_of_the_whole_sorted_list(rig: Rig) -> None:
    """Whether the store sorts and cuts, or the API."""
    things = await rig.things(state=ExperimentState.ACTIVE)
    pick = random.Random(3)
    states = [TrialState.ACTIVE, TrialState.COMPLETED, TrialState.ERROR, TrialState.PAUSED]
    await rig.keep(
        *(
            SaveTrial(
                replace(
                    things.trial,
                    id=things.trial.id + 1 + number,
                    task_id=f"task {number}",
                    state=pick.choice(states),
                    start_time=T0 + pick.randint(0, 2),
                    end_time=pick.choice([None, T0 + 5, T0 + 7]),
                    searcher_metric=pick.choice([None, 0.5, 0.25]),
                    total_batches=pick.randint(0, 2),
                    restarts=pick.randint(0, 1),
                )
            )
            for number in range(9)
        )
    )
    path = f"/api/v1/experiments/{things.experiment.id}/trials"
    everything = (await rig.call("GET", path)).json["trials"]
    assert len(everything) == 10
    for sort, value in ATTRIBUTES.items():
        for order in ("ASC", "DESC"):
            for wanted in ([], ["COMPLETED"], ["ERROR", "QUEUED"], ["ACTIVE", "PAUSED"]):
                stored = {"ACTIVE" if state == "QUEUED" else state for state in wanted}
                found = [
                    trial
                    for trial in everything
                    if not wanted
                    or {trial["state"].removeprefix("STATE_").replace("QUEUED", "ACTIVE")} & stored
                ]
                known = [trial for trial in found if value(trial) is not None]
                known.sort(key=value, reverse=order == "DESC")
                found = known + [trial for trial in found if value(trial) is None]
                query = {"sortBy": f"SORT_BY_{sort}", "orderBy": f"ORDER_BY_{order}", "limit": 4, "offset": 2}
                states_query = {"states": [f"STATE_{state}" for state in wanted]}
                answer = await rig.call("GET", path, query={**query, **states_query})
                if len(found) < 2:
                    assert answer.status == 400
                    continue
                assert answer.json["trials"] == found[2:6], (sort, order, wanted)
                page = answer.json["pagination"]
                shown = (page["startIndex"], page["endIndex"], page["total"])
                assert shown == (2, min(6, len(found)), len(found))


async def test_pages_of_checkpoints_are_parts_of_the_whole_sorted_list(rig: Rig) -> None:
    things = await rig.things()
    pick = random.Random(4)
    trial, steps = things.trial, range(300, 1100, 100)
    await rig.keep(
        *(
            SaveCheckpoint(
                replace(
                    things.checkpoint,
                    uuid=str(uuid.uuid4()),
                    steps_completed=step,
                    reported_at=T0 + pick.randint(0, 3),
                    state=pick.choice([CheckpointState.COMPLETED, CheckpointState.DELETED]),
                )
            )
            for step in steps
        ),
        *(
            InsertReport(
                MetricReport(
                    trial.id,
                    trial.run_id,
                    "validation",
                    step,
                    T0,
                    {"accuracy": pick.choice([0.5, 0.7, "NaN"])},
                )
            )
            for step in steps[::2]
        ),
    )
    path = f"/api/v1/experiments/{things.experiment.id}/checkpoints"
    everything = (await rig.call("GET", path)).json["checkpoints"]
    assert [one["metadata"]["steps_completed"] for one in everything] == [200] * 9

    def accuracy(one: dict[str, Any]) -> float | None:
        value = one["training"]["validationMetrics"]["avgMetrics"].get("accuracy")
        return value if isinstance(value, float) else None

    keys: dict[str, Callable[[dict[str, Any]], Any]] = {
        "sortByAttr=SORT_BY_UUID": lambda one: one["uuid"],
        "sortByAttr=SORT_BY_STATE": lambda one: one["state"],
        "sortByAttr=SORT_BY_END_TIME": lambda one: one["reportTime"],
        "sortByAttr=SORT_BY_SEARCHER_METRIC": accuracy,
        "sortByMetric=accuracy": accuracy,
    }
    for sort, key in keys.items():
        for order in ("ASC", "DESC"):
            for state in ("COMPLETED", "DELETED"):
                found = [one for one in everything if one["state"] == f"STATE_{state}"]
                known = [one for one in found if key(one) is not None]
                known.sort(key=key, reverse=order == "DESC")
                found = known + [one for one in found if key(one) is None]
                query = f"{sort}&orderBy=ORDER_BY_{order}&states=STATE_{state}&limit=2&offset=1"
                answer = (await rig.call("GET", f"{path}?{query}")).json
                assert answer["checkpoints"] == found[1:3], query
                assert answer["pagination"]["total"] == len(found)


async def test_workloads(rig: Rig) -> None:
    things = await rig.things()

    async def rows(**query: Any) -> list[tuple[str, int]]:
        answer = await rig.call("GET", f"/api/v1/trials/{things.trial.id}/workloads", query=query)
        assert answer.status == 200, answer.body
        return [
            (name, row[name]["totalBatches"])
            for row in answer.json["workloads"]
            for name in row
            if row[name] is not None
        ]

    everything = [("training", 100), ("training", 200), ("validation", 200), ("checkpoint", 200)]
    assert await rows() == everything
    assert await rows(orderBy="ORDER_BY_DESC") == everything[::-1]
    assert await rows(limit=1, offset=1) == everything[1:2]
    assert await rows(filter="FILTER_OPTION_VALIDATION") == everything[2:3]
    assert await rows(filter="FILTER_OPTION_CHECKPOINT") == everything[3:]
    assert await rows(filter="FILTER_OPTION_CHECKPOINT_OR_VALIDATION") == everything[2:]
    assert await rows(metricType="METRIC_TYPE_TRAINING", limit=2) == everything[:2]
    assert await rows(sortKey="loss", group="training") == [everything[3], everything[1], everything[0]]


async def test_removing_files(rig: Rig) -> None:
    things = await rig.things()
    uuids = {"checkpointUuids": [things.checkpoint.uuid]}
    refused = await rig.call("POST", "/api/v1/checkpoints/rm", {**uuids, "checkpointGlobs": ["../x"]})
    assert refused.status == 400
    removed = await rig.call("POST", "/api/v1/checkpoints/rm", {**uuids, "checkpointGlobs": ["code/**"]})
    assert removed.json == {}
    shown = (await rig.call("GET", f"/api/v1/checkpoints/{things.checkpoint.uuid}")).json["checkpoint"]
    assert (shown["state"], shown["resources"]) == ("STATE_PARTIALLY_DELETED", {"weights": "1000"})
    assert (await rig.call("DELETE", "/api/v1/checkpoints", uuids)).json == {}
    shown = (await rig.call("GET", f"/api/v1/checkpoints/{things.checkpoint.uuid}")).json["checkpoint"]
    assert (shown["state"], shown["resources"]) == ("STATE_DELETED", {})


async def start_trial(rig: Rig, connected: Agent) -> tuple[int, protocol.ContainerSpec]:
    """Submit an experiment, and start its trial on the agent."""
    assert isinstance(await connected.receive(), protocol.Welcome)
    number = (await create(rig)).json["experiment"]["id"]
    start = await connected.receive()
    assert isinstance(start, protocol.StartContainer)
    await connected.moved(start.spec, State.RUNNING)
    return number, start.spec


async def test_a_trial_from_start_to_end(rig: Rig) -> None:
    """An agent runs a trial; its container calls what a harness calls, with its own token."""
    async with agent(rig) as connected:
        number, spec = await start_trial(rig, connected)
        environment = spec.environment
        token, trial_id = environment["DET_SESSION_TOKEN"], int(environment["DET_TRIAL_ID"])
        allocation, trial = f"/api/v1/allocations/{spec.allocation_id}", f"/api/v1/trials/{trial_id}"

        async def container(method: str, path: str, body: Any = None, **query: Any) -> Any:
            answer = await rig.call(method, path, body, container=token, query=query)
            assert answer.status == 200, f"{method} {path}: {answer.body!r}"
            return answer.json

        context = await container("GET", f"/api/v1/tasks/{spec.task_id}/context_directory")
        assert context["b64Tgz"]
        data = {"acceleratorData": {"acceleratorType": "cpu"}}
        assert await container("POST", f"{allocation}/acceleratorData", data) == {}
        met = await container("GET", f"{allocation}/resources/{spec.container_id}/rendezvous")
        assert met == {"rendezvousInfo": {"addresses": ["127.0.0.1"], "rank": 0, "slots": [1]}}
        storage = {"type": "shared_fs", "host_path": "/x"}
        run = await container("POST", "/api/v1/runs/start", {"runId": trial_id, "checkpointStorage": storage})
        assert run["storageId"] >= 1
        assert await container("POST", "/api/v1/runs/start", {"runId": trial_id}) == {}
        assert await container("GET", f"{allocation}/signals/preemption", timeout_seconds="0") == {
            "preempt": False
        }
        for state in ("training", "validating"):
            await container("POST", f"{trial}/runner/metadata", {"state": state})
        await container("POST", f"{trial}/progress", {"progress": 0.5, "is_raw": True})
        report = {"trialId": trial_id, "trialRunId": 1, "stepsCompleted": 10, "reportTime": None}
        metrics = {"avgMetrics": {"accuracy": 0.5, "loss": "NaN"}, "batchMetrics": None}
        await container(
            "POST", f"{trial}/metrics", {"group": "validation", "metrics": {**report, "metrics": metrics}}
        )
        stale = {"group": "training", "metrics": {**report, "trialRunId": 7, "metrics": metrics}}
        assert (await rig.call("POST", f"{trial}/metrics", stale, container=token)).status == 400
        wrong = {"group": "training", "metrics": {**report, "trialId": 99, "metrics": metrics}}
        assert (await rig.call("POST", f"{trial}/metrics", wrong, container=token)).status == 400
        checkpoint = {
            "uuid": str(uuid.uuid4()),
            "taskId": spec.task_id,
            "allocationId": spec.allocation_id,
            "state": "STATE_COMPLETED",
            "resources": {"weights": "10", "code/": "0"},
            "metadata": {"steps_completed": 10},
            "training": {},
            "reportTime": "2026-01-01T00:00:00+00:00",
            "storageId": run["storageId"],
        }
        await container("POST", "/api/v1/checkpoints", checkpoint)
        await container("POST", "/api/v1/checkpoints", checkpoint)
        bad: tuple[dict[str, Any], ...] = (
            {"uuid": "../../etc"},
            {"metadata": {}},
            {"state": "STATE_ACTIVE"},
            {"resources": {"../x": 1}},
        )
        for change in bad:
            refused = await rig.call("POST", "/api/v1/checkpoints", {**checkpoint, **change}, container=token)
            assert refused.status == 400, change
        shown = (await rig.call("GET", trial)).json["trial"]
        assert (shown["state"], shown["runnerState"]) == ("STATE_RUNNING", "validating")
        assert shown["latestValidation"]["totalBatches"] == 10
        assert shown["bestCheckpoint"]["uuid"] == checkpoint["uuid"]
        experiment = (await rig.call("GET", f"/api/v1/experiments/{number}")).json
        assert experiment["experiment"]["state"] == "STATE_RUNNING"
        assert experiment["experiment"]["bestTrialId"] == trial_id
        assert experiment["jobSummary"]["state"] == "STATE_SCHEDULED"

        agents = (await rig.call("GET", "/api/v1/agents", by="admin")).json["agents"]
        assert [a["id"] for a in agents] == ["a1"]
        assert list(agents[0]["containers"]) == [spec.container_id]
        assert (await rig.call("GET", "/api/v1/agents", by="bob")).json["agents"][0]["containers"] == {}
        pools = (await rig.call("GET", "/api/v1/resource-pools")).json["resourcePools"]
        assert (pools[0]["name"], pools[0]["slotsAvailable"], pools[0]["slotsUsed"]) == ("default", 1, 1)

        waiting = asyncio.create_task(
            container("GET", f"{allocation}/signals/preemption", timeout_seconds="30")
        )
        await rig.call("POST", f"/api/v1/experiments/{number}/pause")
        assert await asyncio.wait_for(waiting, 10) == {"preempt": True}
        await container("POST", f"{allocation}/signals/ack_preemption")
        line = protocol.LogLine(1, "2026-01-01T00:00:00.000000Z", protocol.Stdtype.STDOUT, "bye\n")
        await connected.send(protocol.LogBatch(spec.container_id, spec.allocation_id, spec.task_id, (line,)))
        assert await connected.receive() == protocol.AckLogs(spec.container_id, 1)
        await connected.moved(spec, State.TERMINATED, 0)
        assert await connected.receive() == protocol.AckState(spec.container_id)
        assert (
            await rig.call("GET", trial, container=token)
        ).status == 401  # the token ended with its allocation
        kept = await rig.call("GET", f"{trial}/logs", query={"stdtypes": "stdout"})
        assert [item["result"]["log"] for item in kept.lines] == ["bye\n"]


async def test_early_exit(rig: Rig) -> None:
    async with agent(rig) as connected:
        _, spec = await start_trial(rig, connected)
        path = f"/api/v1/trials/{spec.environment['DET_TRIAL_ID']}/early_exit"
        token = spec.environment["DET_SESSION_TOKEN"]
        for reason, status in (("EXITED_REASON_BORED", 400), (None, 400), ("EXITED_REASON_INVALID_HP", 200)):
            assert (await rig.call("POST", path, {"reason": reason}, container=token)).status == status


async def test_who_does_not_exit_after_an_early_exit_is_killed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_rules, "EXIT_GRACE_SECONDS", 0.1)
    async with agent(rig) as connected:
        number, spec = await start_trial(rig, connected)
        path = f"/api/v1/trials/{spec.environment['DET_TRIAL_ID']}/early_exit"
        reason = {"reason": "EXITED_REASON_INVALID_HP"}
        for _ in range(2):
            answer = await rig.call("POST", path, reason, container=spec.environment["DET_SESSION_TOKEN"])
            assert answer.status == 200
        killed = await connected.receive()
        assert isinstance(killed, protocol.KillContainer)
        assert killed.container_id == spec.container_id
        await connected.moved(spec, State.TERMINATED, 137)
        assert await connected.receive() == protocol.AckState(spec.container_id)
        trials = (await rig.call("GET", f"/api/v1/experiments/{number}/trials")).json["trials"]
        assert [(t["state"], t["restarts"]) for t in trials] == [("STATE_COMPLETED", 0)]


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic x"])
async def test_an_agent_without_the_token(rig: Rig, header: str | None) -> None:
    headers = {"Authorization": header} if header else {}
    with pytest.raises(HTTPClientError) as refused:
        await websocket_connect(HTTPRequest(rig.url.replace("http", "ws") + "/agents?id=a1", headers=headers))
    assert refused.value.code == 401


@pytest.mark.parametrize(
    ("greeting", "reason", "permanent"),
    [
        (hello(resource_pool="nowhere"), "there is no resource pool 'nowhere'", True),
        (hello(protocol=99), "the agent speaks protocol 99", True),
        (hello(agent_id="a2"), "the hello is of agent 'a2', the address says 'a1'", True),
        (protocol.AckState("c"), "the first message is AckState: expected Hello", True),
    ],
)
async def test_refused_agents(rig: Rig, greeting: protocol.Message, reason: str, permanent: bool) -> None:
    async with agent(rig, greeting) as connected:
        refused = await connected.receive()
        assert isinstance(refused, protocol.Refused)
        assert reason in refused.reason
        assert refused.permanent is permanent
        assert await connected.receive() is None


async def test_an_agent_that_talks_nonsense(rig: Rig) -> None:
    async with agent(rig) as connected:
        assert isinstance(await connected.receive(), protocol.Welcome)
        await connected.socket.write_message("{}")
        refused = await connected.receive()
        assert isinstance(refused, protocol.Refused)
        assert await connected.receive() is None
    for _ in range(500):
        if not any(summary.connected for summary in rig.services.agents.agents()):
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("the engine does not know that the agent has gone")


async def test_deleting_what_runs_is_refused(rig: Rig) -> None:
    things = await rig.things(state=ExperimentState.PAUSED)
    answer = await rig.call("DELETE", f"/api/v1/experiments/{things.experiment.id}")
    assert (answer.status, "only one that has ended can be deleted" in answer.error) == (400, True)
