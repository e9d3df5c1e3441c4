"""The Hub, the master and the agent end in every way while servers run and wait; nothing is lost, nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from support.cluster import wait_for
from support.hub import Hub, Person, running_hub
from support.kernels import Kernel


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with running_hub(tmp_path_factory.mktemp("hub") / "run", slots=1) as running:
        for name in ("anna", "bert"):
            running.add_user(name)
        yield running


@pytest.fixture(autouse=True)
def as_before(hub: Hub) -> Iterator[None]:
    """Every test begins with a Hub that runs, and no server."""
    assert hub.process is not None
    if hub.process.poll() is not None:
        hub.start()
    yield
    if hub.process.poll() is None:
        for name in ("anna", "bert"):
            if hub.server(name) is not None:
                hub.api("DELETE", f"/users/{name}/server")
                hub.wait_gone(name)


async def kernel_of(hub: Hub, name: str) -> Kernel:
    person = Person(hub, name, hub.passwords["user"])
    person.page(f"/user/{name}/lab")
    url = f"{hub.url}/user/{name}"
    return await Kernel.open(url, person.cookie_header(f"{url}/"), person.xsrf(f"/user/{name}/"))


async def test_a_killed_hub_finds_everything_again(hub: Hub) -> None:
    hub.up("anna")
    kernel = await kernel_of(hub, "anna")
    try:
        await kernel.run("x = 20")
        master, agent, task = hub.part("master"), hub.part("agent"), hub.task_id("anna")
        hub.signal(signal.SIGKILL)
        assert await kernel.run("x + 1") == "21"  # through the proxy, while there is no Hub
        hub.start()
        hub.wait_ready("anna")
        assert (hub.part("master"), hub.part("agent"), hub.task_id("anna")) == (master, agent, task)
        assert await kernel.run("x + 2") == "22"  # by the same connection
    finally:
        await kernel.close()
    # The keepers of the new Hub do their work: what they found is started again when it ends.
    master.kill()
    wait_for(lambda: hub.pid("master") != master.pid and answers(hub.master_url), "the master is back")
    hub.api("DELETE", "/users/anna/server")
    hub.wait_gone("anna")
    assert hub.task(task)["state"] == "TERMINATED"


async def test_a_restarted_hub_finds_servers_again(hub: Hub) -> None:
    hub.up("anna")
    kernel = await kernel_of(hub, "anna")
    await kernel.run("x = 20")
    kernel_id = kernel.id
    await kernel.close()
    hub.signal(signal.SIGTERM)
    assert "will be found again at the next start" in hub.said
    left = " ".join(" ".join(process.cmdline()) for process in hub.processes())
    assert "jupyterhub.singleuser" in left
    assert "detlab_hub" not in left and "detlab_master" not in left and "-m detlab_agent" not in left
    hub.start()
    hub.wait_ready("anna")
    kernel = await kernel_of(hub, "anna")
    try:
        await kernel.switch(kernel_id)
        assert await kernel.run("x + 1") == "21"
    finally:
        await kernel.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_queued_server_is_taken_up_again(hub: Hub, number: signal.Signals) -> None:
    hub.up("anna", {"slots": 1})
    assert hub.api("POST", "/users/bert/server", json={"user_options": {"slots": 1}}).status_code == 202
    task = hub.task_id("bert")
    wait_for(lambda: hub.task(task)["state"] == "QUEUED", "bert waits")
    hub.signal(number)
    hub.start()
    wait_for(lambda: (hub.server("anna") or {}).get("ready"), "anna's server is found again")
    waiting = next(event for event in hub.progress("bert") if "queue" in event["message"])
    assert "place 1" in waiting["message"]
    hub.api("DELETE", "/users/anna/server")
    hub.wait_ready("bert")
    assert hub.task_id("bert") == task
    person = Person(hub, "bert", hub.passwords["user"])
    assert person.page("/user/bert/lab").url == f"{hub.url}/user/bert/lab"


def test_a_queued_server_can_be_cancelled_after_a_restart(hub: Hub) -> None:
    hub.up("anna", {"slots": 1})
    assert hub.api("POST", "/users/bert/server", json={"user_options": {"slots": 1}}).status_code == 202
    task = hub.task_id("bert")
    hub.signal(signal.SIGKILL)
    hub.start()
    wait_for(lambda: (hub.server("bert") or {}).get("pending"), "bert's request is taken up")
    hub.api("DELETE", "/users/bert/server")
    hub.wait_gone("bert")
    assert hub.task(task)["state"] == "TERMINATED"


def test_a_server_that_ended_while_the_hub_was_away_is_noticed(hub: Hub) -> None:
    hub.up("anna")
    task = hub.task_id("anna")
    hub.signal(signal.SIGKILL)
    token = (hub.data / "master" / "hub-token").read_text().strip()
    requests.post(
        f"{hub.master_url}/api/v1/hub/servers/{task}/kill",
        headers={"Authorization": f"Bearer {token}"},
        json={},
        timeout=30,
    ).raise_for_status()
    hub.start()
    hub.wait_gone("anna")


@pytest.mark.parametrize("part", ["master", "agent"])
async def test_servers_outlive_master_and_agent(hub: Hub, part: str) -> None:
    hub.up("anna")
    kernel = await kernel_of(hub, "anna")
    try:
        await kernel.run("x = 20")
        before = hub.part(part)
        before.kill()
        wait_for(lambda: hub.pid(part) != before.pid, f"the {part} is started again")
        wait_for(lambda: answers(hub.master_url), "the master answers")
        assert await kernel.run("x + 1") == "21"
        assert f"The {part} ended unexpectedly" in hub.said
    finally:
        await kernel.close()
    task = hub.task_id("anna")
    hub.api("DELETE", "/users/anna/server")
    hub.wait_gone("anna")
    assert hub.task(task)["state"] == "TERMINATED"


def test_a_second_start_says_that_it_runs_already(hub: Hub) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "jupyterhub", "-f", "jupyterhub_config.py"],
        cwd=hub.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert second.returncode == 0
    assert f"Detlab runs already in {hub.data} ({hub.url}" in second.stdout
    assert "Traceback" not in second.stderr
    assert hub.api("GET", "/users").status_code == 200


def test_a_port_that_is_taken_is_named(hub: Hub, tmp_path: Path) -> None:
    other = Hub(tmp_path / "other", port=hub.port - 1)
    other.begin()
    assert other.process is not None
    assert other.process.wait(60) == 1
    assert f"Port {hub.port}, wanted for the Hub's API, cannot be had" in other.said
    assert "make up PORT=9000" in other.said
    assert "Traceback" not in other.said
    assert not other.processes()


def test_ctrl_c_ends_everything(hub: Hub) -> None:
    hub.up("anna", {"slots": 1})
    assert hub.api("POST", "/users/bert/server", json={"user_options": {"slots": 1}}).status_code == 202
    hub.signal(signal.SIGINT)
    assert "Detlab has ended" in hub.said
    wait_for(lambda: not hub.processes(), "nothing is left", 10)
    hub.start()
    for name in ("anna", "bert"):
        assert hub.server(name) is None
    shown = hub.said
    assert hub.passwords["admin"] not in shown and hub.passwords["user"] not in shown  # printed once
    assert "data/passwords" in shown


def test_ctrl_c_ends_everything_where_nothing_can_be_written(hub: Hub) -> None:
    """As in `make up | tee log`, where Ctrl-C ends `tee` first."""
    hub.signal(signal.SIGTERM)
    (hub.data / "activate").unlink()
    hub.begin(terminal=Path("/dev/full"))
    wait_for((hub.data / "activate").exists, "the Hub is up", 60)
    hub.up("anna")
    hub.signal(signal.SIGINT)
    wait_for(lambda: not hub.processes(), "nothing is left", 10)


def test_secrets_are_for_the_owner_alone(hub: Hub) -> None:
    secrets = [
        "passwords",
        "activate",
        "hub/proxy-token",
        "hub/cookie-secret",
        "hub/master.yaml",
        "master/hub-token",
    ]
    for name in secrets:
        mode = os.stat(hub.data / name).st_mode & 0o777
        assert mode == 0o600, f"{name}: {mode:o}"
    assert os.stat(hub.data / "hub").st_mode & 0o777 == 0o700


def answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/health", timeout=5).status_code == 200
    except requests.RequestException:
        return False
