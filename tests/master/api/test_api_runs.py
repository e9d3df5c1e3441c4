"""What training code says about its run: metadata, and alerts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from master.api.rig import BOB, Rig
from master.api.test_api_experiments import agent, start_trial
from master.api.test_api_odd_reports import Running


@pytest.fixture
async def running(rig: Rig) -> AsyncIterator[Running]:
    async with agent(rig) as connected:
        _, spec = await start_trial(rig, connected)
        yield Running(rig, connected, spec)


async def test_metadata_is_replaced_and_shown_with_the_trial(running: Running) -> None:
    rig, path = running.rig, f"/api/v1/runs/{running.trial_id}/metadata"
    assert (await rig.call("GET", path)).json == {"metadata": {}}
    first = {"dataset": {"rows": 3, "tags": ["a", None]}, "note": "ä"}
    answer = await rig.call(
        "POST", path, {"runId": running.trial_id, "metadata": first}, container=running.token
    )
    assert answer.json == {"metadata": first}
    assert (await rig.call("GET", path, container=running.token)).json == {"metadata": first}
    shown = await rig.call("GET", f"/api/v1/trials/{running.trial_id}")
    assert shown.json["trial"]["metadata"] == first
    assert (await rig.call("POST", path, {"metadata": {"n": 1}})).status == 200
    assert (await rig.call("GET", path)).json == {"metadata": {"n": 1}}
    for wrong in ({}, {"metadata": [1]}, {"metadata": "text"}):
        assert (await rig.call("POST", path, wrong)).status == 400
    assert (await rig.call("GET", path)).json == {"metadata": {"n": 1}}


async def test_metadata_of_a_trial_that_has_ended(rig: Rig) -> None:
    things = await rig.things()
    path = f"/api/v1/runs/{things.trial.id}/metadata"
    assert (await rig.call("POST", path, {"metadata": {"late": True}})).status == 200
    assert (await rig.call("GET", path)).json == {"metadata": {"late": True}}
    assert (await rig.call("GET", path, by="bob")).status == 404


async def test_an_alert_is_a_line_of_the_trials_log(running: Running) -> None:
    rig, trial_id = running.rig, running.trial_id
    trial = rig.store.trials.get(trial_id)
    assert trial is not None
    body = {
        "experimentId": trial.experiment_id,
        "trialId": trial_id,
        "data": {"title": "loss is NaN", "description": "at step 7", "level": "LOG_LEVEL_ERROR"},
    }
    sent = await rig.call("POST", "/api/v1/webhooks/custom", body, container=running.token)
    assert sent.status == 200
    logs = await rig.call("GET", f"/api/v1/trials/{trial_id}/logs", query={"levels": "LOG_LEVEL_ERROR"})
    assert [line["result"]["log"] for line in logs.lines] == ["alert: loss is NaN: at step 7\n"]
    other = await rig.things(BOB)
    for wrong in (
        {**body, "experimentId": other.experiment.id},
        {**body, "data": {}},
        {**body, "data": {"title": "x", "level": "LOG_LEVEL_LOUD"}},
    ):
        answer = await rig.call("POST", "/api/v1/webhooks/custom", wrong)
        assert answer.status == 400, answer.body
