"""Verbs of experiments: continued, edited at once by several, repeated, and refused with a reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import yaml

from master.api.rig import CONFIG, Answer, Rig

RANDOM = CONFIG.replace("{name: single,", "{name: random, max_trials: 4, max_concurrent_trials: 2,")


async def create(rig: Rig, config: str = CONFIG, **fields: Any) -> int:
    answer = await rig.call("POST", "/api/v1/experiments", {"config": config, **fields})
    assert answer.status == 200, answer.body
    return int(answer.json["experiment"]["id"])


async def verb(rig: Rig, number: int, verb: str) -> Answer:
    return await rig.call("POST", f"/api/v1/experiments/{number}/{verb}")


async def shown(rig: Rig, number: int) -> dict[str, Any]:
    answer = await rig.call("GET", f"/api/v1/experiments/{number}")
    found: dict[str, Any] = answer.json["experiment"]
    return found


async def trials(rig: Rig, number: int) -> list[dict[str, Any]]:
    answer = await rig.call("GET", f"/api/v1/experiments/{number}/trials")
    found: list[dict[str, Any]] = answer.json["trials"]
    return found


async def go_on(rig: Rig, number: int, override: str = "") -> Answer:
    return await rig.call("POST", "/api/v1/experiments/continue", {"id": number, "overrideConfig": override})


async def ended(rig: Rig, config: str = CONFIG) -> int:
    number = await create(rig, config)
    assert (await verb(rig, number, "kill")).status == 200
    assert (await shown(rig, number))["state"] == "STATE_CANCELED"
    return number


async def test_continued_it_is_the_same_experiment_with_the_same_trial(rig: Rig) -> None:
    number = await ended(rig)
    (before,) = await trials(rig, number)
    for _ in range(2):  # and again
        answer = await go_on(rig, number)
        assert answer.status == 200, answer.body
        assert (answer.json["experiment"]["id"], answer.json["warnings"]) == (
            number,
            ["LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"],
        )
        now = await shown(rig, number)
        assert (now["state"], now["endTime"]) == ("STATE_QUEUED", None)
        (after,) = await trials(rig, number)
        assert (after["id"], after["state"], after["endTime"]) == (before["id"], "STATE_QUEUED", None)
        assert (await go_on(rig, number)).status == 400
        await verb(rig, number, "kill")
    assert (await shown(rig, number))["endTime"] is not None


async def test_continued_with_another_configuration(rig: Rig) -> None:
    number = await ended(rig)
    answer = await go_on(rig, number, "{hyperparameters: {lr: 0.5}, max_restarts: 1, name: longer}")
    assert answer.status == 200, answer.body
    experiment = answer.json["experiment"]
    assert (experiment["config"]["max_restarts"], experiment["name"]) == (1, "longer")
    assert yaml.safe_load(experiment["originalConfig"])["hyperparameters"] == {"lr": 0.5}
    assert experiment["config"]["entrypoint"] == "python3 train.py"
    (trial,) = await trials(rig, number)
    assert trial["hparams"] == {"lr": 0.5}


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("{searcher: {name: random, max_trials: 3}}", "searcher.name cannot be changed"),
        ("{checkpoint_storage: {host_path: /elsewhere}}", "checkpoint_storage cannot be changed"),
        ("{workspace: other, project: other}", "workspace cannot be changed"),
        ("{max_restarts: many}", "max_restarts"),
        ("[1, 2]", "must be an object"),
        ("{nonsense: 1}", "nonsense"),
    ],
)
async def test_what_cannot_be_overridden(rig: Rig, override: str, error: str) -> None:
    number = await ended(rig)
    before = await shown(rig, number)
    answer = await go_on(rig, number, override)
    assert (answer.status, error in answer.error) == (400, True), answer.body
    assert await shown(rig, number) == before


async def test_a_search_is_continued_as_it_is(rig: Rig) -> None:
    number = await ended(rig, RANDOM)
    refused = await go_on(rig, number, "{max_restarts: 1}")
    assert (refused.status, "only be continued as it is" in refused.error) == (400, True)
    for nothing in ("{}\n", "null\n...\n", " "):
        assert (await go_on(rig, number, nothing)).status == 200, nothing
        assert [t["state"] for t in await trials(rig, number)] == ["STATE_QUEUED"] * 2
        await verb(rig, number, "kill")


async def test_which_experiments_are_not_continued(rig: Rig) -> None:
    asha = CONFIG.replace(
        "{name: single,", "{name: adaptive_asha, max_trials: 4, max_time: 16, time_metric: batches,"
    )
    number = await ended(rig, asha)
    answer = await go_on(rig, number)
    assert (answer.status, "Fork it instead" in answer.error) == (400, True)
    number = await create(rig)
    answer = await go_on(rig, number)
    assert (answer.status, "only one that has ended" in answer.error) == (400, True)
    await verb(rig, number, "kill")
    await verb(rig, number, "archive")
    answer = await go_on(rig, number)
    assert (answer.status, "is archived" in answer.error) == (400, True)
    assert (await go_on(rig, 4711)).status == 404


async def test_changes_at_the_same_moment_all_take_effect(rig: Rig) -> None:
    """Two that read the record, change it and write it back would lose one of the changes."""
    running, over = await create(rig), await ended(rig)
    for number in (running, over):
        path = f"/api/v1/experiments/{number}"
        answers = await asyncio.gather(
            *(rig.call("PUT", f"{path}/labels/l{i}") for i in range(8)),
            rig.call("PATCH", path, {"notes": "seen"}),
            rig.call("PATCH", path, {"name": "better"}),
        )
        assert {a.status for a in answers} == {200}
        now = await shown(rig, number)
        assert (now["labels"], now["notes"], now["name"]) == ([f"l{i}" for i in range(8)], "seen", "better")


async def test_an_edit_while_it_ends_is_kept(rig: Rig) -> None:
    for round_ in range(5):
        number = await create(rig)
        path = f"/api/v1/experiments/{number}"
        answers = await asyncio.gather(
            rig.call("POST", f"{path}/kill"),
            *(rig.call("PUT", f"{path}/labels/l{i}") for i in range(round_ + 1)),
        )
        assert {a.status for a in answers} == {200}
        now = await shown(rig, number)
        assert (now["state"], len(now["labels"])) == ("STATE_CANCELED", round_ + 1)


@pytest.mark.parametrize("name", ["cancel", "kill", "archive", "unarchive"])
async def test_a_repeated_verb_succeeds_on_what_has_ended(rig: Rig, name: str) -> None:
    number = await ended(rig)
    before = await shown(rig, number)
    for _ in range(2):
        assert (await verb(rig, number, name)).status == 200
    assert (await shown(rig, number))["archived"] == (name == "archive")
    assert (await shown(rig, number))["endTime"] == before["endTime"]


@pytest.mark.parametrize("name", ["pause", "activate"])
async def test_what_has_ended_can_neither_be_paused_nor_activated(rig: Rig, name: str) -> None:
    answer = await verb(rig, await ended(rig), name)
    assert (answer.status, "has ended (CANCELED)" in answer.error) == (400, True)


async def test_an_experiment_that_ended_with_another_master_is_continued(rig: Rig) -> None:
    """Nothing of it is in memory."""
    things = await rig.things()
    answer = await go_on(rig, things.experiment.id)
    assert answer.status == 200, answer.body
    (trial,) = await trials(rig, things.experiment.id)
    assert (trial["id"], trial["state"]) == (things.trial.id, "STATE_QUEUED")


async def test_how_many_jobs_are_ahead(rig: Rig) -> None:
    first, second, paused = await create(rig, RANDOM), await create(rig), await create(rig, activate=False)

    async def ahead(number: int) -> Any:
        return (await rig.call("GET", f"/api/v1/experiments/{number}")).json["jobSummary"]["jobsAhead"]

    assert [await ahead(number) for number in (first, second, paused)] == [0, 1, -1]
    await rig.call("PATCH", f"/api/v1/experiments/{second}", {"resources": {"priority": 1}})
    assert [await ahead(number) for number in (first, second)] == [1, 0]


async def test_settings_of_resources_are_kept_and_checked(rig: Rig) -> None:
    number = await create(rig)
    path = f"/api/v1/experiments/{number}"
    wanted = {"maxSlots": 3, "priority": 7, "weight": 2.5}
    answer = await rig.call("PATCH", path, {"resources": wanted})
    kept = answer.json["experiment"]["config"]["resources"]
    assert (kept["max_slots"], kept["priority"], kept["weight"]) == (3, 7, 2.5)
    for wrong in ({"priority": 0}, {"priority": 100}, {"weight": -1}, {"maxSlots": -1}):
        answer = await rig.call("PATCH", path, {"resources": wrong})
        assert (answer.status, "it must be" in answer.error) == (400, True), wrong
    assert (await shown(rig, number))["config"]["resources"] == kept


async def test_labels_of_all_that_one_sees(rig: Rig) -> None:
    for labels in ("[b, a]", "[b]"):
        await create(rig, f"{CONFIG}labels: {labels}\n")
    answer = await rig.call("GET", "/api/v1/experiment/labels")
    assert answer.json == {"labels": ["b", "a"]}
    assert (await rig.call("GET", "/api/v1/experiment/labels", by="bob")).json == {"labels": []}
    elsewhere = await rig.call("GET", "/api/v1/experiment/labels", query={"projectId": 99})
    assert elsewhere.json == {"labels": []}


async def test_lists_show_the_best_trial_when_asked(rig: Rig) -> None:
    things = await rig.things()
    for asked, best in ((None, None), ("false", None), ("true", things.trial.id)):
        query = {} if asked is None else {"showTrialData": asked}
        (found,) = (await rig.call("GET", "/api/v1/experiments", query=query)).json["experiments"]
        assert found["bestTrialId"] == best
    assert (await shown(rig, things.experiment.id))["bestTrialId"] == things.trial.id


@pytest.mark.parametrize("bound", ["gt", "gte", "lt", "lte"])
async def test_ids_beyond_all_ids(rig: Rig, bound: str) -> None:
    number = await create(rig)
    for far in (2**63 - 1, -(2**63)):
        answer = await rig.call("GET", "/api/v1/experiments", query={f"experimentIdFilter.{bound}": far})
        found = [e["id"] for e in answer.json["experiments"]]
        assert found == ([number] if (far > 0) == bound.startswith("l") else [])
