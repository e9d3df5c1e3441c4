"""Detached experiments over HTTP: what scripts ask for, and what everything else makes of them."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from detlab_master.core.states import CheckpointState
from master.api.rig import Answer, Rig

# As the official client sends it: with explicit nulls.
CONFIG = """
checkpoint_storage: {container_path: /nowhere/checkpoints, type: directory}
data: null
description: null
labels: null
name: on a laptop
project: null
searcher: {metric: loss, name: single}
workspace: null
"""
BY_NAME = "/api/v1/experiments/by-external-id/"


async def ok(rig: Rig, method: str, path: str, body: Any = None, **how: Any) -> Any:
    answer = await rig.call(method, path, body, **how)
    assert answer.status == 200, answer.body
    return answer.json


async def new(rig: Rig, name: str = "laptop%201/a", trial: str = "fold 1", **how: Any) -> tuple[int, int]:
    """An experiment and its trial, by their external ids."""
    experiment = (await ok(rig, "PUT", BY_NAME + name, {"config": CONFIG, "unmanaged": True}, **how))[
        "experiment"
    ]
    asked = {"experimentId": experiment["id"], "hparams": {"lr": 0.1}, "unmanaged": True}
    put = {"createTrialRequest": asked, "externalTrialId": trial}
    return experiment["id"], (await ok(rig, "PUT", "/api/v1/trials", put, **how))["trial"]["id"]


async def start(rig: Rig, trial: int, resume: bool = True) -> Any:
    return await ok(rig, "POST", f"/api/v1/trials/{trial}/start", {"trialId": trial, "resume": resume})


async def report(rig: Rig, trial: int, run: int, step: int, loss: float = 1.0) -> Answer:
    metrics = {"trialId": trial, "trialRunId": run, "stepsCompleted": step}
    body = {"group": "validation", "metrics": {**metrics, "metrics": {"avgMetrics": {"loss": loss}}}}
    return await rig.call("POST", f"/api/v1/trials/{trial}/metrics", body)


async def checkpoint(rig: Rig, trial: int, step: int, run: int | None = None, status: int = 200) -> str:
    task = (await ok(rig, "GET", f"/api/v1/trials/{trial}"))["trial"]["taskId"]
    name = str(uuid.uuid4())
    body = {
        "uuid": name,
        "taskId": task,
        "allocationId": None if run is None else f"{task}.{run}",
        "resources": {"weights": "3"},
        "metadata": {"steps_completed": step},
        "state": "STATE_COMPLETED",
    }
    assert (await rig.call("POST", "/api/v1/checkpoints", body)).status == status
    return name


async def states(rig: Rig, experiment: int) -> tuple[str, str]:
    shown = (await ok(rig, "GET", f"/api/v1/experiments/{experiment}"))["experiment"]
    trials = (await ok(rig, "GET", f"/api/v1/experiments/{experiment}/trials"))["trials"]
    return shown["state"], trials[0]["state"]


async def test_a_script_by_its_names(rig: Rig) -> None:
    experiment, trial = await new(rig)
    shown = (await ok(rig, "GET", f"/api/v1/experiments/{experiment}"))["experiment"]
    assert (shown["unmanaged"], shown["externalExperimentId"]) == (True, "laptop 1/a")
    assert (shown["state"], shown["resourcePool"], shown["name"]) == ("STATE_PAUSED", "", "on a laptop")
    assert await start(rig, trial) == {"trialRunId": 1, "latestCheckpoint": "", "stepsCompleted": 0}
    assert await states(rig, experiment) == ("STATE_RUNNING", "STATE_RUNNING")
    await ok(rig, "POST", f"/api/v1/trials/{trial}/progress", {"progress": 0.5, "is_raw": True})
    assert (await report(rig, trial, 1, 10)).status == 200
    saved = await checkpoint(rig, trial, 10)
    patched = await ok(rig, "PATCH", f"/api/v1/trials/{trial}", {"state": "STATE_COMPLETED"})
    assert patched["trial"]["state"] == "STATE_COMPLETED"
    assert await states(rig, experiment) == ("STATE_COMPLETED", "STATE_COMPLETED")
    listed = (await ok(rig, "GET", f"/api/v1/experiments/{experiment}/checkpoints"))["checkpoints"]
    assert [one["uuid"] for one in listed] == [saved]
    # Again, under the same names: the same trial goes on, and the old run has nothing to say any more.
    assert await new(rig) == (experiment, trial)
    assert await start(rig, trial) == {"trialRunId": 2, "latestCheckpoint": saved, "stepsCompleted": 10}
    assert await start(rig, trial, resume=False) == {
        "trialRunId": 3,
        "latestCheckpoint": "",
        "stepsCompleted": 0,
    }
    old = await report(rig, trial, 2, 20)
    assert (old.status, "that process was replaced and must end" in old.error) == (400, True)
    for state in ({}, {"state": "STATE_CANCELED"}):  # Ctrl-C in the window in which it hung
        said = await rig.call("PATCH", f"/api/v1/trials/{trial}", {**state, "trialRunId": 2})
        assert (said.status, "that process was replaced and must end" in said.error) == (400, True)
    assert (await report(rig, trial, 3, 5)).status == 200
    await checkpoint(rig, trial, 5, run=2, status=400)
    await checkpoint(rig, trial, 5, run=3)
    assert await states(rig, experiment) == ("STATE_RUNNING", "STATE_RUNNING")


async def test_without_names_each_is_a_new_one(rig: Rig) -> None:
    ids = set()
    for _ in range(2):
        made = await ok(rig, "POST", "/api/v1/experiments", {"config": CONFIG, "unmanaged": True})
        assert "externalExperimentId" not in made["experiment"]
        ids.add(made["experiment"]["id"])
        body = {"experimentId": made["experiment"]["id"], "hparams": {}, "unmanaged": True}
        first, second = [(await ok(rig, "POST", "/api/v1/trials", body))["trial"]["id"] for _ in range(2)]
        assert first != second
    assert len(ids) == 2


async def test_names_are_each_users_own(rig: Rig) -> None:
    alices, _ = await new(rig, "same")
    bobs, _ = await new(rig, "same", by="bob")
    admins, _ = await new(rig, "same", by="admin")
    assert len({alices, bobs, admins}) == 3


async def test_a_checkpoint_of_another_user_is_not_had_by_another_spelling(rig: Rig) -> None:
    _, trial = await new(rig)
    saved = await checkpoint(rig, trial, 1)
    _, bobs = await new(rig, by="bob")
    task = (await ok(rig, "GET", f"/api/v1/trials/{bobs}", by="bob"))["trial"]["taskId"]
    for name in (saved, saved.upper()):
        body = {"uuid": name, "taskId": task, "metadata": {"steps_completed": 1}}
        assert (await rig.call("POST", "/api/v1/checkpoints", body, by="bob")).status == 409


async def test_silence_by_a_clock_of_the_test(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, trial = await new(rig)
    await start(rig, trial)
    clock = 0.0
    service = rig.services.unmanaged
    monkeypatch.setattr(service, "_monotonic", lambda: clock)
    await service.look()
    clock = 299.0
    await service.look()
    assert await states(rig, experiment) == ("STATE_RUNNING", "STATE_RUNNING")
    clock = 301.0
    await service.look()
    assert await states(rig, experiment) == ("STATE_ERROR", "STATE_ERROR")
    shown = (await ok(rig, "GET", f"/api/v1/experiments/{experiment}"))["experiment"]
    assert shown["error"] == f"nothing was heard of trial {trial} for 300 seconds"
    # The laptop is opened again: its next report is taken, and the trial goes on.
    assert (await report(rig, trial, 1, 10)).status == 200
    assert await states(rig, experiment) == ("STATE_RUNNING", "STATE_RUNNING")
    clock = 602.0
    await service.look()
    assert await states(rig, experiment) == ("STATE_RUNNING", "STATE_RUNNING")  # heard of anew at 602
    log = (await rig.call("GET", f"/api/v1/trials/{trial}/logs")).lines
    assert [line["result"]["log"].split(":")[0].rstrip() for line in log] == [
        "Nothing was heard of the script for 300 seconds",
        "The trial is heard of again, and goes on.",
    ]


async def test_what_has_ended_stays_so(rig: Rig) -> None:
    experiment, trial = await new(rig)
    await start(rig, trial)
    path = f"/api/v1/trials/{trial}"
    await ok(rig, "PATCH", path, {"state": "STATE_ERROR"})
    await ok(rig, "PATCH", path, {"state": "STATE_ERROR"})
    await ok(rig, "PATCH", path, {})  # a heartbeat that was overtaken
    refused = await report(rig, trial, 1, 10)
    assert (refused.status, "until its script starts again" in refused.error) == (400, True)
    assert (await rig.call("PATCH", path, {"state": "STATE_COMPLETED"})).status == 400
    assert await states(rig, experiment) == ("STATE_ERROR", "STATE_ERROR")
    assert rig.services.at_work.signs() == {}  # nobody waits in memory for what has ended


@pytest.mark.parametrize("verb", ["activate", "pause", "cancel", "kill", "archive"])
async def test_verbs_of_the_master_are_refused(rig: Rig, verb: str) -> None:
    experiment, trial = await new(rig)
    await start(rig, trial)
    answer = await rig.call("POST", f"/api/v1/experiments/{experiment}/{verb}")
    assert answer.status == 400
    assert "detached" in answer.error
    assert await states(rig, experiment) == ("STATE_RUNNING", "STATE_RUNNING")


@pytest.mark.parametrize(
    ("method", "path", "body", "error"),
    [
        ("POST", "/api/v1/trials/{trial}/kill", None, "detached"),
        ("POST", "/api/v1/experiments/continue", {"id": "{experiment}"}, "run again with the same"),
        ("PATCH", "/api/v1/experiments/{experiment}", {"resources": {"priority": 5}}, "no slots"),
        ("PATCH", "/api/v1/trials/{trial}", {"state": "STATE_PAUSED"}, "a script can say of itself"),
        ("DELETE", "/api/v1/experiments/{experiment}", None, "ends with its script"),
        ("POST", "/task-logs", {"task_id": "x"}, "must be a JSON list"),
        ("POST", "/task-logs", [], "logs is empty"),
    ],
)
async def test_what_is_refused(rig: Rig, method: str, path: str, body: Any, error: str) -> None:
    experiment, trial = await new(rig)
    await start(rig, trial)
    names = {"experiment": str(experiment), "trial": str(trial)}
    text = json.dumps(body).replace("{experiment}", names["experiment"])
    answer = await rig.call(method, path.format(**names), None if body is None else text.encode())
    assert answer.status == 400, answer.body
    assert error in answer.error


async def test_trials_of_the_cluster_are_not_steered_by_scripts(rig: Rig) -> None:
    things = await rig.things()
    for method, path, body in [
        ("POST", f"/api/v1/trials/{things.trial.id}/start", {}),
        ("PATCH", f"/api/v1/trials/{things.trial.id}", {"state": "STATE_ERROR"}),
        ("POST", "/api/v1/trials", {"experimentId": things.experiment.id}),
    ]:
        answer = await rig.call(method, path, body)
        assert (answer.status, "runs on the cluster" in answer.error) == (400, True)
    assert rig.store.trials.get(things.trial.id) == things.trial


async def test_edits_archive_and_delete(rig: Rig) -> None:
    experiment, trial = await new(rig)
    await start(rig, trial)
    path = f"/api/v1/experiments/{experiment}"
    await ok(rig, "PATCH", path, {"name": "renamed", "labels": ["kept"]})
    await checkpoint(rig, trial, 1)
    await ok(rig, "PATCH", f"/api/v1/trials/{trial}", {"state": "STATE_COMPLETED"})
    await new(rig)  # finding it changes nothing of it
    shown = (await ok(rig, "GET", path))["experiment"]
    assert (shown["name"], shown["labels"], shown["state"]) == ("renamed", ["kept"], "STATE_COMPLETED")
    await ok(rig, "POST", path + "/archive")
    again = await rig.call("PUT", BY_NAME + "laptop%201/a", {"config": CONFIG, "unmanaged": True})
    assert (again.status, "is archived" in again.error) == (400, True)
    assert (await rig.call("POST", f"/api/v1/trials/{trial}/start", {})).status == 400
    await ok(rig, "POST", path + "/unarchive")
    await ok(rig, "DELETE", path)
    while (await rig.call("GET", path)).status == 200:
        pass
    new_experiment, _ = await new(rig)  # the name is free again
    assert new_experiment != experiment


async def test_files_on_another_machine_are_never_said_to_be_gone(rig: Rig) -> None:
    """The end of the experiment, a change of its policy and `det checkpoint rm` leave them and their records alone."""
    experiment, trial = await new(rig)
    await start(rig, trial)
    saved = [await checkpoint(rig, trial, step) for step in (1, 2, 3)]
    await ok(rig, "PATCH", f"/api/v1/trials/{trial}", {"state": "STATE_COMPLETED"})
    policy = {"checkpointStorage": {"saveTrialLatest": 1, "saveTrialBest": 0, "saveExperimentBest": 0}}
    await ok(rig, "PATCH", f"/api/v1/experiments/{experiment}", policy)
    removed = await rig.call("DELETE", "/api/v1/checkpoints", {"checkpointUuids": saved[:1]})
    assert (removed.status, "are where the script" in removed.error) == (400, True)
    await rig.services.collector.close()
    for name in saved:
        kept = rig.store.checkpoints.get(name)
        assert kept is not None
        assert kept.state is CheckpointState.COMPLETED
    # What the script itself has removed, it says.
    gone = {"checkpoints": [{"uuid": saved[0], "resources": {"resources": {}}}]}
    await ok(rig, "PATCH", "/api/v1/checkpoints", gone)
    left = rig.store.checkpoints.get(saved[0])
    assert left is not None
    assert left.state is CheckpointState.DELETED
    await ok(rig, "DELETE", "/api/v1/checkpoints", {"checkpointUuids": saved[:1]})  # nothing is left to do


async def test_logs(rig: Rig) -> None:
    _, trial = await new(rig)
    task = (await ok(rig, "GET", f"/api/v1/trials/{trial}"))["trial"]["taskId"]
    line = {"task_id": task, "timestamp": "2026-11-21T15:33:17.651137+00:00", "rank": "0", "log": "hello\n"}
    await ok(rig, "POST", "/task-logs", [line, {**line, "log": "you\n"}])
    shown = (await rig.call("GET", f"/api/v1/trials/{trial}/logs")).lines
    lines = [one["result"] for one in shown]
    assert [(one["log"], one["rankId"]) for one in lines] == [("hello\n", 0), ("you\n", 0)]
    for who, status in (("bob", 404), (None, 401)):
        answer = await rig.call("POST", "/task-logs", [line], by=who)
        assert answer.status == status


async def test_a_master_that_starts_anew_hears_of_all_anew(rig: Rig) -> None:
    experiment, trial = await new(rig)
    await start(rig, trial)
    assert (await report(rig, trial, 1, 10)).status == 200
    inboxes = rig.services.at_work
    await inboxes.close()
    inboxes._closing = False
    inboxes._at_work.clear()
    await inboxes.restore()
    assert set(inboxes.signs()) == {(experiment, trial)}
    assert (await report(rig, trial, 1, 20)).status == 200
    assert (await report(rig, trial, 1, 20)).status == 200  # its answer got lost
    shown = (await ok(rig, "GET", f"/api/v1/trials/{trial}"))["trial"]
    assert shown["totalBatchesProcessed"] == 20
