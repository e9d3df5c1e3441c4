"""Retention of logs, the fields of logs, the master's own log, and older clients' reports."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from detlab_master.core.records import LogLine
from detlab_master.core.states import ExperimentState, TrialState
from detlab_master.engine.clock import now
from detlab_master.store.writes import AppendLogs, SaveTask, SaveTrial
from master.api.rig import Rig, Things


def line(things: Things, text: str = "hello\n", **changes: object) -> LogLine:
    made = LogLine(things.task.id, things.allocation.id, 0.0, text, container_id="c" * 10, agent_id="a")
    return replace(made, **changes)  # type: ignore[arg-type]


async def test_a_trial_keeps_its_log_as_long_as_it_says(rig: Rig) -> None:
    things = await rig.things()
    path = f"/api/v1/trials/{things.trial.id}"
    await rig.keep(SaveTrial(replace(things.trial, end_time=now())))
    remaining = path + "/remaining_log_retention_days"
    assert (await rig.call("GET", remaining)).json == {"remainingDays": -1}
    assert (await rig.call("PUT", path + "/retain_logs", {"numDays": 5})).json == {}
    assert (await rig.call("GET", path)).json["trial"]["logRetentionDays"] == 5
    assert (await rig.call("GET", remaining)).json == {"remainingDays": 5}


@pytest.mark.parametrize("days", [-2, 32768, "x"])
@pytest.mark.parametrize("of", ["trials", "experiments"])
async def test_a_wrong_number_of_days(rig: Rig, of: str, days: object) -> None:
    things = await rig.things()
    number = things.trial.id if of == "trials" else things.experiment.id
    answer = await rig.call("PUT", f"/api/v1/{of}/{number}/retain_logs", {"numDays": days})
    assert answer.status == 400
    assert "numDays" in answer.error


async def test_an_experiment_sets_it_for_all_its_trials_and_the_cleanup_is_the_admins(rig: Rig) -> None:
    things, other = await rig.things(), await rig.things()
    for one in (things, other):
        await rig.keep(SaveTask(replace(one.task, end_time=now())), AppendLogs((line(one), line(one))))
    answer = await rig.call("PUT", f"/api/v1/experiments/{things.experiment.id}/retain_logs", {"numDays": 0})
    assert answer.json == {}
    shown = await rig.call("GET", f"/api/v1/experiments/{things.experiment.id}")
    assert shown.json["config"]["retention_policy"] == {"log_retention_days": 0}
    assert (await rig.call("POST", "/api/v1/cleanup_logs")).status == 403
    assert (await rig.call("POST", "/api/v1/cleanup_logs", by="admin")).json == {"removedCount": "2"}
    assert (await rig.call("GET", f"/api/v1/trials/{things.trial.id}/logs")).lines == []
    assert len((await rig.call("GET", f"/api/v1/trials/{other.trial.id}/logs")).lines) == 2


async def test_a_running_experiment_hears_of_it_too(rig: Rig) -> None:
    config = """
name: digits
entrypoint: python3 train.py
searcher: {name: single, metric: accuracy}
hyperparameters: {}
retention_policy: {log_retention_days: 9}
"""
    created = (await rig.call("POST", "/api/v1/experiments", {"config": config, "activate": True})).json
    number = created["experiment"]["id"]
    assert created["experiment"]["state"] != f"STATE_{ExperimentState.ERROR}"
    path = f"/api/v1/experiments/{number}"
    (trial,) = (await rig.call("GET", path + "/trials")).json["trials"]
    assert trial["logRetentionDays"] == 9
    assert trial["state"] != f"STATE_{TrialState.ERROR}"
    assert (await rig.call("PUT", path + "/retain_logs", {"numDays": 3})).status == 200
    (trial,) = (await rig.call("GET", path + "/trials")).json["trials"]
    assert trial["logRetentionDays"] == 3
    own = f"/api/v1/trials/{trial['id']}"
    assert (await rig.call("PUT", own + "/retain_logs", {"numDays": -1})).status == 200
    assert (await rig.call("GET", own)).json["trial"]["logRetentionDays"] == -1
    assert (await rig.call("GET", own + "/remaining_log_retention_days")).json == {"remainingDays": -1}


async def test_the_fields_of_a_log(rig: Rig) -> None:
    things = await rig.things()
    await rig.keep(AppendLogs((line(things, rank_id=2), line(things, source="master", agent_id=""))))
    (of_trial,) = (await rig.call("GET", f"/api/v1/trials/{things.trial.id}/logs/fields")).lines
    (of_task,) = (await rig.call("GET", f"/api/v1/tasks/{things.task.id}/logs/fields?follow=true")).lines
    assert of_trial == of_task
    found = of_task["result"]
    assert found["agentIds"] == ["a"] and found["rankIds"] == [2] and found["sources"] == ["master", "task"]
    assert found["allocationIds"] == [things.allocation.id]


async def test_a_tasks_log_by_allocation(rig: Rig) -> None:
    things = await rig.things()
    await rig.keep(AppendLogs((line(things, "one\n"), line(things, "two\n", allocation_id="x.2"))))
    answer = await rig.call("GET", f"/api/v1/tasks/{things.task.id}/logs", query={"allocationIds": "x.2"})
    assert [item["result"]["log"] for item in answer.lines] == ["two\n"]


@pytest.mark.parametrize("group", ["training", "validation"])
async def test_the_reports_of_older_clients(rig: Rig, group: str) -> None:
    config = "{name: d, entrypoint: x, searcher: {name: single, metric: accuracy}, hyperparameters: {}}"
    created = (await rig.call("POST", "/api/v1/experiments", {"config": config, "activate": True})).json
    (trial,) = (await rig.call("GET", f"/api/v1/experiments/{created['experiment']['id']}/trials")).json[
        "trials"
    ]
    report = {
        "trialId": trial["id"],
        "trialRunId": 1,
        "stepsCompleted": 4,
        "metrics": {"avgMetrics": {"accuracy": 0.5}},
    }
    sent = await rig.call("POST", f"/api/v1/trials/{trial['id']}/{group}_metrics", report)
    assert sent.status == 200, sent.body
    for name, query in ((f"{group}_metrics", {}), ("trial_metrics", {"group": group})):
        answer = await rig.call(
            "GET", f"/api/v1/trials/metrics/{name}", query={"trialIds": trial["id"], **query}
        )
        (item,) = answer.lines
        (metrics,) = item["result"]["metrics"]
        assert (metrics["totalBatches"], metrics["group"]) == (4, group)


async def test_the_masters_own_log(rig: Rig) -> None:
    own = logging.Logger("part")  # noqa: LOG001 - of no other test
    own.addHandler(rig.services.master_logs)
    for number in range(1200):
        own.info("number %d", number)

    async def texts(**query: object) -> list[str]:
        answer = await rig.call("GET", "/api/v1/master/logs", by="admin", query=query)
        assert answer.status == 200, answer.body
        return [item["result"]["logEntry"]["message"] for item in answer.lines]

    assert await texts() == [f"part: number {n}" for n in range(1200)]
    assert await texts(offset=-2) == ["part: number 1198", "part: number 1199"]
    assert await texts(offset=1198, limit=1) == ["part: number 1198"]
    assert (await rig.call("GET", "/api/v1/master/logs?limit=-1", by="admin")).status == 400
    assert (await rig.call("GET", "/api/v1/master/logs")).status == 403
    following = asyncio.ensure_future(texts(offset=1199, limit=2, follow="true"))
    while not following.done():
        own.error("one more")
        await asyncio.sleep(0.05)
    assert await following == ["part: number 1199", "part: one more"]
