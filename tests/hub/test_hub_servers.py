"""Servers of a real Hub: from the login to code in a kernel, the queue, and users kept apart."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster import wait_for
from support.hub import Hub, Person, running_hub
from support.kernels import SUBPROTOCOL, Kernel

HANG_SECONDS = 30.0  # for which the master does not answer


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with running_hub(tmp_path_factory.mktemp("hub") / "run", slots=2) as running:
        for name in ("anna", "bert"):
            running.add_user(name)
        yield running


@pytest.fixture(autouse=True)
def no_servers(hub: Hub) -> Iterator[None]:
    """Every test begins with no server."""
    yield
    for name in ("anna", "bert"):
        if hub.server(name) is not None:
            hub.api("DELETE", f"/users/{name}/server")
            hub.wait_gone(name)


def log_in(hub: Hub, name: str) -> Person:
    return Person(hub, name, hub.passwords["user"])


def start(hub: Hub, name: str) -> Person:
    """Somebody whose server is ready, with the cookies of that server."""
    person = log_in(hub, name)
    assert person.submit(f"/hub/spawn/{name}", slots="0", priority="").status_code == 302
    hub.wait_ready(name)
    assert person.page(f"/user/{name}/lab").url == f"{hub.url}/user/{name}/lab"
    return person


async def kernel_of(person: Person) -> Kernel:
    url = f"{person.hub.url}/user/{person.name}"
    return await Kernel.open(url, person.cookie_header(f"{url}/"), person.xsrf(f"/user/{person.name}/"))


async def test_from_login_to_kernel(hub: Hub) -> None:
    person = log_in(hub, "anna")
    form = person.page("/hub/spawn").text
    assert '<th scope="row">default</th><td class="detlab-free">2</td><td>2</td>' in form
    answer = person.submit("/hub/spawn/anna", slots="1", priority="")
    assert answer.headers["Location"] == "/hub/spawn-pending/anna"
    hub.wait_ready("anna")
    assert "JupyterLab" in person.page("/user/anna/lab").text
    task = hub.task(hub.task_id("anna"))
    assert (task["state"], task["slots"]) == ("RUNNING", 1)
    kernel = await kernel_of(person)
    try:
        assert kernel.socket.protocol == SUBPROTOCOL
        assert await kernel.run("1 + 1") == "2"
        # No login, address or token to type
        assert "anna" in await kernel.run("import subprocess; print(subprocess.getoutput('det user whoami'))")
        assert (
            await kernel.run("import os; print(os.path.samefile(os.getcwd(), os.environ['HOME']))")
            == "True\n"
        )
        assert "model_def.py" in await kernel.run("print(os.listdir('examples/digits'))")
    finally:
        await kernel.close()
    assert hub.api("DELETE", "/users/anna/server").status_code == 204
    ended = hub.task(task["taskId"])
    assert ended["state"] == "TERMINATED"


def test_options_are_checked_in_the_form_and_in_the_api(hub: Hub) -> None:
    person = log_in(hub, "anna")
    answer = person.submit("/hub/spawn/anna", slots="many")
    assert answer.status_code == 400
    assert "slots is &#39;many&#39;: it must be a whole number" in answer.text
    for options, message in (
        ({"slots": -1}, "slots is -1: it must be 0 or more"),
        ({"slot": 1}, "did you mean 'slots'?"),
        ({"priority": 100}, "priority is 100"),
        ({"resource_pool": "gpus"}, "there is no resource pool 'gpus'; there are: default"),
        ({"slots": 3}, "has 2 in all"),
    ):
        refused = hub.spawn("anna", options)
        assert refused.status_code == 400, refused.text
        assert message in refused.json()["message"]
    hub.up("anna")  # what was refused does not stick


def test_a_queued_server_says_what_it_waits_for_and_can_be_cancelled(hub: Hub) -> None:
    hub.up("anna", {"slots": 2})
    person = log_in(hub, "bert")
    form = person.page("/hub/spawn").text
    assert '<td class="detlab-free">0</td><td>2</td>' in form
    assert "No slot is free at the moment" in form
    assert person.submit("/hub/spawn/bert", slots="1").status_code == 302
    waiting = next(event for event in hub.progress("bert") if "queue" in event["message"])
    assert "place 1" in waiting["message"]
    assert "slot" in waiting["message"]
    task_id = wait_for(lambda: hub.task_id("bert"), "the task is known")
    assert hub.task(task_id)["state"] == "QUEUED"
    assert hub.api("DELETE", "/users/bert/server").status_code in (202, 204)
    hub.wait_gone("bert")
    assert hub.task(task_id)["state"] == "TERMINATED"


def test_a_queued_server_starts_when_there_is_room(hub: Hub) -> None:
    hub.up("anna", {"slots": 2})
    person = log_in(hub, "bert")
    person.submit("/hub/spawn/bert", slots="2")
    wait_for(lambda: hub.task(hub.task_id("bert"))["state"] == "QUEUED", "bert waits")
    hub.api("DELETE", "/users/anna/server")
    hub.wait_ready("bert")


async def test_users_are_kept_apart(hub: Hub) -> None:
    anna = start(hub, "anna")
    bert = start(hub, "bert")
    kernel = await kernel_of(anna)
    try:
        pid = int(await kernel.run("import os; os.getppid()"))
        port = int(await kernel.run("int(os.environ['JUPYTERHUB_SERVICE_URL'].split(':')[2].split('/')[0])"))
        await kernel.run("open('secret.txt', 'w').write('of anna')")
    finally:
        await kernel.close()
    assert bert.page("/user/anna/api/kernels").status_code == 403
    assert bert.status(f"{hub.url}/user/anna/api/kernels") == 403
    kernel = await kernel_of(bert)
    try:
        token = await kernel.run("import os; print(os.environ['JUPYTERHUB_API_TOKEN'])")
        directly = f"http://127.0.0.1:{port}/user/anna/api/kernels"
        assert bert.status(directly, Authorization=f"token {token.strip()}", Cookie="") == 403
        if os.geteuid() == 0:
            for path in (
                f"/proc/{pid}/environ",
                hub.data / "homes" / "anna" / "secret.txt",
                hub.data / "passwords",
            ):
                said = await kernel.run(f"import subprocess; print(subprocess.getoutput('cat {path}'))")
                assert "ermission denied" in said or "No such file" in said, said
    finally:
        await kernel.close()


def test_a_failing_server_says_why(hub: Hub) -> None:
    home = hub.data / "homes" / "anna"
    moved = home.with_name("anna-before")
    if home.exists():
        home.rename(moved)
    home.write_text("no folder")
    try:
        refused = hub.spawn("anna")
        assert refused.status_code == 400
        assert "is no folder" in refused.json()["message"]
    finally:
        home.unlink()
        if moved.exists():
            moved.rename(home)


def test_the_hub_answers_while_the_master_hangs(hub: Hub) -> None:
    person = start(hub, "anna")
    master = hub.part("master")
    master.send_signal(signal.SIGSTOP)
    try:
        pending = hub.api("POST", "/users/bert/server", json={"user_options": {}})
        assert pending.status_code == 202
        slowest = 0.0
        hung = time.monotonic()
        while time.monotonic() - hung < HANG_SECONDS:
            began = time.monotonic()
            assert person.page("/hub/home").status_code == 200
            assert person.page("/user/anna/api/status").status_code == 200
            slowest = max(slowest, time.monotonic() - began)
            time.sleep(1)  # a person does not click all the time
        assert slowest < 2
        began = time.monotonic()
        form = log_in(hub, "carl").page("/hub/spawn")
        assert "The free slots cannot be shown" in form.text
        assert time.monotonic() - began < 15
    finally:
        master.send_signal(signal.SIGCONT)
    hub.wait_ready("bert")


def test_a_spawn_cancelled_while_its_request_is_under_way_leaves_no_task(hub: Hub) -> None:
    before = tasks(hub)
    master = hub.part("master")
    master.send_signal(signal.SIGSTOP)
    try:
        assert hub.spawn("anna").status_code == 202
        cancelled = asyncio.run(cancel_soon(hub))
    finally:
        master.send_signal(signal.SIGCONT)
    assert cancelled in (202, 204)
    hub.wait_gone("anna")
    wait_for(
        lambda: not [t for t in tasks(hub) - before if hub.task(t)["state"] != "TERMINATED"],
        "no task is left",
    )


async def cancel_soon(hub: Hub) -> int:
    """Cancel, and let the master go on a second later."""
    cancelling = asyncio.create_task(asyncio.to_thread(hub.api, "DELETE", "/users/anna/server"))
    await asyncio.sleep(2)
    hub.part("master").send_signal(signal.SIGCONT)
    return (await cancelling).status_code


def tasks(hub: Hub) -> set[str]:
    """The servers' tasks that the master knows."""
    with sqlite3.connect(Path(hub.data / "master" / "master.db")) as database:
        return {str(row[0]) for row in database.execute("select id from tasks where type = 'NOTEBOOK'")}
