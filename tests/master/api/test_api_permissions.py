"""Every route against every role: the rules of core/permissions.py, seen from outside."""

from __future__ import annotations

import json
from typing import Any

import pytest

from detlab_master.api import ROUTES, Route, registry
from detlab_master.api.base import Rule
from detlab_master.core.permissions import NEEDS_SUBJECT, Access, Kind
from master.api.rig import ALICE, BOB, Rig, Things

HTTP_METHODS = ("GET", "HEAD", "POST", "DELETE", "PATCH", "PUT", "OPTIONS")
ROLES = (
    "nobody",
    "bob",
    "bob's container",
    "other container",
    "own container",
    "hub",
    "own task",
    "alice",
    "admin",
)
EVERYBODY = dict.fromkeys(ROLES, 200)
# What each role meets: 200 stands for "let in", whatever the route says next.
CONTAINERS = {"bob's container": 403, "other container": 403, "own container": 403}
USERS = {**EVERYBODY, **CONTAINERS, "nobody": 401, "hub": 403}  # every user, and nobody else
THEIRS = {**USERS, "bob": 404}  # who is let in to what is alice's
CONTAINERS_TOO = {**THEIRS, "own container": 200}
NONE = {**dict.fromkeys(ROLES, 403), "nobody": 401}
EXPECTED: dict[Access, dict[str, int]] = {
    Access.PUBLIC: EVERYBODY,
    Access.AGENT: dict.fromkeys(ROLES, 401),
    Access.SIGNED_IN: USERS,
    Access.LOOK: {**USERS, "hub": 200},
    Access.HUB: {**NONE, "hub": 200},
    Access.ADMIN: {**NONE, "admin": 200},
    Access.SELF: {**NONE, "alice": 200, "own task": 200, "admin": 200},
    Access.EDIT: {**USERS, "bob": 403},
    Access.OWN: THEIRS,
    Access.READ: CONTAINERS_TOO,
    Access.REPORT: CONTAINERS_TOO,
}


def expected(rule: Rule, role: str) -> int:
    if rule.access is Access.READ and rule.kind is Kind.CHECKPOINT and role == "other container":
        return 200  # it may start from any checkpoint of its owner
    return EXPECTED[rule.access][role]


def named_in_body(method: str, path: str, things: Things) -> tuple[Any, Any]:
    """(body, query) that name the things, for routes whose path does not."""
    uuid, task = things.checkpoint.uuid, things.task.id
    if path.startswith("/api/v1/trials/metrics/"):
        return None, {"trialIds": things.trial.id}
    examples = {
        ("POST", "/api/v1/experiments/continue"): {"id": things.experiment.id},
        ("POST", "/api/v1/runs/start"): {"runId": things.trial.id},
        ("POST", "/api/v1/webhooks/custom"): {
            "experimentId": things.experiment.id,
            "trialId": things.trial.id,
            "data": {"title": "look"},
        },
        ("POST", "/api/v1/trial-source-info"): {
            "trialSourceInfo": {
                "trialId": things.trial.id,
                "checkpointUuid": uuid,
                "trialSourceInfoType": "TRIAL_SOURCE_INFO_TYPE_INFERENCE",
            }
        },
        ("POST", "/api/v1/task/logs"): {"logs": [{"taskId": task, "log": "hello\n"}]},
        ("POST", "/task-logs"): [{"task_id": task, "log": "hello\n", "rank": "0"}],
        ("POST", "/api/v1/trials"): {"experimentId": things.experiment.id, "unmanaged": True},
        ("PUT", "/api/v1/trials"): {
            "createTrialRequest": {"experimentId": things.experiment.id},
            "externalTrialId": "fold 1",
        },
        ("POST", "/api/v1/checkpoints"): {
            "uuid": uuid,
            "taskId": task,
            "allocationId": things.allocation.id,
            "metadata": {"steps_completed": 1},
        },
        ("PATCH", "/api/v1/checkpoints"): {
            "checkpoints": [{"uuid": uuid, "resources": {"resources": {"weights": "1000"}}}]
        },
        ("DELETE", "/api/v1/checkpoints"): {"checkpointUuids": [uuid]},
        ("POST", "/api/v1/checkpoints/rm"): {"checkpointUuids": [uuid], "checkpointGlobs": []},
    }
    assert (method, path) in examples, f"{method} {path} names its thing in the body: say how, in this test"
    return examples[method, path], None


def path_of(route: Route, things: Things) -> str:
    return route.path.replace(":path", "").format(
        experiment_id=things.experiment.id,
        trial_id=things.trial.id,
        task_id=things.task.id,
        allocation_id=things.allocation.id,
        checkpoint_uuid=things.checkpoint.uuid,
        model_name=things.model.name.replace(" ", "%20"),
        workspace_id=things.workspace.id,
        project_id=things.project.id,
        template_name=things.template.name.replace(" ", "%20"),
        version=1,
        user_id=ALICE,
        username="alice",
        resources_id="some-container",
        label="tried",
        external_id="laptop%201/fold",
    )


@pytest.mark.parametrize(
    ("method", "route", "rule"),
    [pytest.param(*entry, id=f"{entry[0]} {entry[1].path}") for entry in registry()],
)
async def test_who_is_let_in(rig: Rig, method: str, route: Route, rule: Rule) -> None:
    for role in ROLES:
        things = await rig.things()
        other, bobs = await rig.things(), await rig.things(BOB)
        who: dict[str, dict[str, Any]] = {
            "nobody": {"by": None},
            "bob's container": {"container": bobs.token},
            "other container": {"container": other.token},
            "own container": {"container": things.token},
            "own task": {"by": things.task_token},
            "hub": {"by": rig.hub_token},
        }
        body, query = named_in_body(method, route.path, things) if rule.in_body else (None, None)
        if route.path.endswith("/signals/preemption"):
            query = {"timeout_seconds": 0}
        path = path_of(route, things)
        answer = await rig.call(method, path, body, query=query, **who.get(role, {"by": role}))
        wanted = expected(rule, role)
        if rule.kind is None and answer.status == 404:
            assert wanted == 200, f"{role}: {answer.body!r}"  # let in, to find that there is no such thing
        elif wanted == 200:
            assert answer.status not in (401, 403), f"{role}: {answer.body!r}"
            assert answer.status != 404 or "' not found" not in answer.error, f"{role}: {answer.body!r}"
            assert answer.status < 500, f"{role}: {answer.body!r}"
        else:
            assert answer.status == wanted, f"{role}: {answer.body!r}"
        if wanted == 404:
            assert answer.error.endswith("' not found"), f"{role} learns that it is there: {answer.error}"


def test_every_method_of_every_route_has_a_rule() -> None:
    for route in ROUTES:
        inherited = {method: getattr(object, method.lower(), None) for method in HTTP_METHODS}
        own = {
            method
            for method in HTTP_METHODS
            for cls in route.handler.__mro__
            if cls.__module__.startswith("detlab_master") and method.lower() in vars(cls)
        }
        assert not any(inherited.values())
        if not issubclass(route.handler, _agent_socket()):
            assert own == set(route.rules), route.path
        for rule in route.rules.values():
            assert (rule.kind is not None) == (rule.access in NEEDS_SUBJECT), route.path


def _agent_socket() -> type:
    from detlab_master.api.agents import AgentSocket

    return AgentSocket


def test_no_path_is_served_twice() -> None:
    paths = [route.path for route in ROUTES]
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize("route", [r for r in ROUTES if any(rule.in_body for rule in r.rules.values())])
async def test_one_foreign_thing_among_own_ones_spoils_the_request(rig: Rig, route: Route) -> None:
    own, foreign = await rig.things(), await rig.things(BOB)
    for method in route.rules:
        mixed = []
        for things in (own, foreign):
            mixed.append(named_in_body(method, route.path, things))
        (body, query), (foreign_body, _) = mixed
        if query is not None:
            query = {"trialIds": [own.trial.id, foreign.trial.id]}
        else:
            if isinstance(body, list):
                body = body + foreign_body
            else:
                lists = [key for key, value in body.items() if isinstance(value, list) and value]
                if not lists:
                    continue
                body = {**body, lists[0]: body[lists[0]] + foreign_body[lists[0]]}
        answer = await rig.call(method, route.path, body, query=query)
        assert answer.status in (400, 404), f"{method}: {answer.body!r}"
    assert rig.store.checkpoints.get(own.checkpoint.uuid) == own.checkpoint


async def test_lists_show_only_ones_own(rig: Rig) -> None:
    alices, bobs = await rig.things(), await rig.things(BOB)

    async def seen(by: str, **query: Any) -> set[int]:
        answer = await rig.call("GET", "/api/v1/experiments", by=by, query=query)
        return {experiment["id"] for experiment in answer.json["experiments"]}

    assert await seen("alice") == {alices.experiment.id}
    assert await seen("bob") == {bobs.experiment.id}
    assert await seen("admin") == {alices.experiment.id, bobs.experiment.id}
    assert await seen("alice", users="bob") == set()
    assert await seen("alice", userIds=BOB) == set()
    assert await seen("alice", userIds=[ALICE, BOB]) == {alices.experiment.id}
    assert await seen("admin", users="bob") == {bobs.experiment.id}
    assert await seen("alice", **{"experimentIdFilter.incl": bobs.experiment.id}) == set()
    assert await seen("alice", sortBy="SORT_BY_RESOURCE_POOL") == {alices.experiment.id}


async def test_a_foreign_parent_is_not_there(rig: Rig) -> None:
    from master.api.rig import CONFIG

    bobs = await rig.things(BOB)
    answer = await rig.call("POST", "/api/v1/experiments", {"config": CONFIG, "parentId": bobs.experiment.id})
    assert (answer.status, answer.error) == (404, f"experiment '{bobs.experiment.id}' not found")


async def test_a_container_cannot_take_anothers_checkpoint_uuid(rig: Rig) -> None:
    own, other = await rig.things(), await rig.things()
    body, _ = named_in_body("POST", "/api/v1/checkpoints", own)
    answer = await rig.call(
        "POST", "/api/v1/checkpoints", {**body, "uuid": other.checkpoint.uuid}, container=own.token
    )
    assert answer.status == 409
    assert rig.store.checkpoints.get(other.checkpoint.uuid) == other.checkpoint


async def test_a_handler_that_forgot_to_look_gives_nothing_away(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from detlab_master.api.runs import StartRun

    async def careless(self: StartRun) -> None:
        self.reply({"secret": 1})

    monkeypatch.setattr(StartRun, "post", careless)
    answer = await rig.call("POST", "/api/v1/runs/start", {"runId": 1})
    assert answer.status == 500
    assert "secret" not in json.dumps(answer.json)
