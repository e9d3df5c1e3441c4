"""Spawn options: what is taken, what is refused and with which words, and the request that comes of them."""

from __future__ import annotations

from typing import Any

import pytest

from detlab_spawner.spec import OptionError, ServerOptions, options_from_form, request_body, validated


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ServerOptions()),
        ({"slots": 2}, ServerOptions(slots=2)),
        ({"slots": " 2 "}, ServerOptions(slots=2)),
        ({"slots": "", "resource_pool": "", "priority": ""}, ServerOptions()),
        ({"slots": None, "resource_pool": None, "priority": None}, ServerOptions()),
        ({"resource_pool": "gpus", "priority": "1"}, ServerOptions(0, "gpus", 1)),
    ],
)
def test_options_that_are_taken(given: dict[str, Any], expected: ServerOptions) -> None:
    assert validated(given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"slots": -1}, "slots is -1: it must be 0 or more"),
        ({"slots": "two"}, "slots is 'two': it must be a whole number"),
        ({"slots": 1.5}, "slots is 1.5: it must be a whole number"),
        ({"slots": True}, "slots is True: it must be a whole number"),
        ({"slots": [1]}, r"slots is \[1\]: it must be a whole number"),
        ({"priority": 0}, "priority is 0: it must be from 1"),
        ({"priority": 100}, "priority is 100: it must be from 1"),
        ({"resource_pool": 3}, "resource_pool is 3: it must be the name"),
        ({"resource_pol": "a"}, "no spawn option 'resource_pol': did you mean 'resource_pool'"),
        ({"image": "a"}, "no spawn option 'image': there are slots, resource_pool, priority"),
    ],
)
def test_options_that_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        validated(given)


def test_a_form_becomes_options_and_its_empty_fields_are_left_out() -> None:
    sent = {"slots": ["1"], "resource_pool": [""], "priority": [""], "_xsrf": ["secret"]}
    assert options_from_form(sent) == {"slots": 1}
    assert options_from_form({"resource_pool": ["gpus"], "priority": ["7"]}) == {
        "slots": 0,
        "resource_pool": "gpus",
        "priority": 7,
    }
    with pytest.raises(OptionError, match="slots was given 2 times"):
        options_from_form({"slots": ["1", "2"]})


def test_the_request_says_all_and_nothing_of_the_hubs_own_process() -> None:
    body = request_body(
        ServerOptions(2, "gpus", 7),
        task_id="5f1d",
        username="anna",
        admin=False,
        name="",
        command=["python3", "-m", "detlab_spawner.server"],
        environment={
            "JUPYTERHUB_API_TOKEN": "t",
            "PATH": "/hub/bin",
            "PYTHONPATH": "/hub",
            "JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:0/",
            "LANG": "C.UTF-8",
        },
        home="/homes/anna",
    )
    assert body == {
        "taskId": "5f1d",
        "username": "anna",
        "admin": False,
        "name": "",
        "slots": 2,
        "resourcePool": "gpus",
        "priority": 7,
        "command": ["python3", "-m", "detlab_spawner.server"],
        "environment": {"JUPYTERHUB_API_TOKEN": "t", "LANG": "C.UTF-8"},
        "home": "/homes/anna",
    }


def test_without_a_priority_the_pools_own_counts() -> None:
    body = request_body(
        ServerOptions(),
        task_id="5f1d",
        username="anna",
        admin=True,
        name="second",
        command=["x"],
        environment={},
        home=None,
    )
    assert "priority" not in body
    assert (body["slots"], body["resourcePool"], body["home"], body["name"]) == (0, "", None, "second")
