"""Trials that work with a checkpoint are found by it, with what they report; our own SDK and Core API say and ask it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from determined._info import cluster_info_from
from determined.common.api import Session
from determined.core import ExperimentalCoreContext
from determined.experimental._metrics import TrialMetrics
from determined.experimental._model import ModelVersion
from harness.core_stub_master import StubMaster, trial_environment
from master.api.rig import BOB, Rig, Things


def source(trial_id: int, uuid: str, kind: str = "INFERENCE", **more: Any) -> dict[str, Any]:
    info = {
        "trialId": trial_id,
        "checkpointUuid": uuid,
        "trialSourceInfoType": f"TRIAL_SOURCE_INFO_TYPE_{kind}",
    }
    return {"trialSourceInfo": {**info, **more}}


async def register(rig: Rig, things: Things) -> None:
    body = {"modelName": things.model.name, "checkpointUuid": things.checkpoint.uuid}
    assert (await rig.call("POST", f"/api/v1/models/{things.model.id}/versions", body)).status == 200


async def steps(rig: Rig, path: str, by: str = "alice", **query: str) -> list[tuple[int, str]]:
    answer = await rig.call("GET", path, by=by, query=query)
    assert answer.status == 200, answer.body
    return [(report["trialId"], report["group"]) for report in answer.json["metrics"]]


async def test_what_works_with_a_checkpoint_is_found_by_it(rig: Rig) -> None:
    trained, user, tuner = await rig.things(), await rig.things(), await rig.things()
    uuid = trained.checkpoint.uuid
    version: dict[str, Any] = {"modelId": trained.model.id, "modelVersion": 1}
    await register(rig, trained)
    for sent in (source(user.trial.id, uuid), source(user.trial.id, uuid, **version)):
        for _ in range(2):
            answer = await rig.call("POST", "/api/v1/trial-source-info", sent, container=user.token)
            assert answer.json == {"trialId": user.trial.id, "checkpointUuid": uuid}
    assert (
        await rig.call("POST", "/api/v1/trial-source-info", source(tuner.trial.id, uuid, "FINE_TUNING"))
    ).status == 200

    path = f"/api/v1/checkpoints/{uuid}/metrics"
    both = await steps(rig, path)
    assert {trial_id for trial_id, _ in both} == {user.trial.id, tuner.trial.id}
    kind = "TRIAL_SOURCE_INFO_TYPE_FINE_TUNING"
    assert {trial for trial, _ in await steps(rig, path, trialSourceInfoType=kind)} == {tuner.trial.id}
    assert {group for _, group in await steps(rig, path, metricGroup="validation")} == {"validation"}
    of_version = await steps(rig, f"/api/v1/models/{trained.model.id}/versions/1/metrics")
    assert {trial_id for trial_id, _ in of_version} == {user.trial.id}
    assert await steps(rig, f"/api/v1/checkpoints/{user.checkpoint.uuid}/metrics") == []


async def test_our_own_clients_say_it_and_ask_for_it(rig: Rig, tmp_path: Path) -> None:
    trained, user = await rig.things(), await rig.things()
    await register(rig, trained)
    environment = trial_environment(StubMaster(), tmp_path) | {"DET_TRIAL_ID": str(user.trial.id)}

    def say_and_ask() -> tuple[list[TrialMetrics], list[TrialMetrics]]:
        with Session(rig.url, token=rig.tokens["alice"]) as session:
            raw = session.get_json(f"/api/v1/models/{trained.model.id}/versions/1")["modelVersion"]
            version = ModelVersion(session, raw)
            with Session(rig.url, allocation_token=user.token) as of_container:
                experimental = ExperimentalCoreContext(of_container, cluster_info_from(environment))
                experimental.report_task_using_model_version(version)
                of_checkpoint = list(version.checkpoint.get_metrics())
                experimental.report_task_using_checkpoint(version.checkpoint)
            return list(version.iter_metrics("validation")), of_checkpoint

    of_version, of_checkpoint = await asyncio.to_thread(say_and_ask)
    assert {(report.trial_id, report.group) for report in of_version} == {(user.trial.id, "validation")}
    assert {report.trial_id for report in of_checkpoint} == {user.trial.id}
    kept = rig.store.checkpoints.sources(checkpoint_uuid=trained.checkpoint.uuid)
    assert [(one.trial_id, one.model_id, one.model_version) for one in kept] == [
        (user.trial.id, 0, 0),
        (user.trial.id, trained.model.id, 1),
    ]


async def test_what_others_do_with_it_is_not_shown(rig: Rig) -> None:
    trained, other = await rig.things(), await rig.things(BOB)
    uuid = trained.checkpoint.uuid
    sent = source(other.trial.id, uuid)
    assert (await rig.call("POST", "/api/v1/trial-source-info", sent, by="bob")).status == 404
    assert (await rig.call("POST", "/api/v1/trial-source-info", sent, container=other.token)).status == 403
    assert (await rig.call("POST", "/api/v1/trial-source-info", sent, by="alice")).status == 404
    assert (await rig.call("POST", "/api/v1/trial-source-info", sent, by="admin")).status == 200
    path = f"/api/v1/checkpoints/{uuid}/metrics"
    assert await steps(rig, path) == []  # the trial is bob's
    assert {trial for trial, _ in await steps(rig, path, by="admin")} == {other.trial.id}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trialSourceInfoType": None}, "trialSourceInfoType"),
        ({"trialSourceInfoType": "TRIAL_SOURCE_INFO_TYPE_LOOKING"}, "trialSourceInfoType"),
        ({"modelId": 1, "modelVersion": 99}, "is no such version of that model"),
        ({"checkpointUuid": None}, "checkpointUuid is missing"),
        ({"trialId": None}, "trialId is missing"),
    ],
)
async def test_what_is_wrong_is_named(rig: Rig, changes: dict[str, Any], said: str) -> None:
    things = await rig.things()
    body = source(things.trial.id, things.checkpoint.uuid, **changes)
    answer = await rig.call("POST", "/api/v1/trial-source-info", body)
    assert answer.status == 400
    assert said in answer.error
