"""From the click on Start to JupyterLab's first answer, beside JupyterHub's SimpleLocalProcessSpawner.

Two Hubs run side by side with the same configuration, proxy and single-user server; only the spawner differs. A person is
logged in at each, and starts a server in turns here and there. What is found is printed and added to RESULTS.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import requests

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from metric_reports import commit, processor

from support.hub import Hub, Person, free_ports, running_hub

NAME = "ada"
LOOK_SECONDS = 0.05  # between two looks, as short as a page that reloads itself could be
GIVE_UP_SECONDS = 120.0
SIMPLE = """
import sys
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = {homes!r} + "/{{username}}"
c.Spawner.cmd = [sys.executable, "-m", "jupyterhub.singleuser"]
c.Spawner.args = ["--allow-root"]
c.Spawner.default_url = "/lab"
"""


def time_to_lab(person: Person) -> float:
    """Seconds from the click to JupyterLab's page, which is asked for until it comes."""
    lab = f"/user/{NAME}/lab"
    clicked = time.perf_counter()
    answer = person.submit(f"/hub/spawn/{NAME}", slots="0", resource_pool="default")
    assert answer.status_code == 302, f"the click was answered with {answer.status_code}: {answer.text[:500]}"
    while time.perf_counter() - clicked < GIVE_UP_SECONDS:
        try:
            page = person.page(lab)
        except requests.ConnectionError:
            continue
        if page.status_code == 200 and urlsplit(page.url).path.rstrip("/") == lab:
            return time.perf_counter() - clicked
        time.sleep(LOOK_SECONDS)
    raise AssertionError(f"no JupyterLab within {GIVE_UP_SECONDS:g} s:\n{person.hub.log('hub')[-2000:]}")


def stop(hub: Hub) -> None:
    hub.api("DELETE", f"/users/{NAME}/server")
    hub.wait_gone(NAME)


def measure(people: dict[str, Person], rounds: int) -> dict[str, list[float]]:
    """Seconds by spawner; the first round of each is not counted, as it makes homes and caches."""
    found: dict[str, list[float]] = {name: [] for name in people}
    for turn in range(rounds + 1):
        order = list(people.items())
        for name, person in order if turn % 2 else reversed(order):
            seconds = time_to_lab(person)
            print(f"  {name}: {seconds:.2f} s{' (not counted)' if turn == 0 else ''}", flush=True)
            if turn:
                found[name].append(seconds)
            stop(person.hub)
    return found


def as_markdown(found: dict[str, list[float]], load: float) -> str:
    """A section of RESULTS.md; `load` is the machine's before the benchmark."""
    base = statistics.median(list(found.values())[-1])
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [
        f"\n## {when}: from Start to JupyterLab's first answer",
        "",
        (
            f"Commit {commit('master', 'spawner', 'hub_extension')}. {os.cpu_count()} cores ({processor()}), load average before {load:.1f},"
            f" Python {platform.python_version()}, JupyterHub {version('jupyterhub')},"
            f" JupyterLab {version('jupyterlab')}, jupyter_server {version('jupyter_server')}; {len(next(iter(found.values())))} starts each, in turns."
        ),
        "",
        "| spawner | median s | lowest | highest | times SimpleLocalProcessSpawner |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, seconds in found.items():
        median = statistics.median(seconds)
        lines.append(
            f"| {name} | {median:.2f} | {min(seconds):.2f} | {max(seconds):.2f} | {median / base:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--keep-nothing", action="store_true", help="print only")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="detlab-spawn-")))
        folder.chmod(0o755)
        ours = stack.enter_context(running_hub(folder / "detlab"))
        homes = str(folder / "simple-homes")
        theirs = stack.enter_context(
            running_hub(folder / "simple", more=SIMPLE.format(homes=homes), port=free_ports())
        )
        people = {
            "DetlabSpawner": Person(ours, NAME, ours.passwords["user"]),
            "SimpleLocalProcessSpawner": Person(theirs, NAME, theirs.passwords["user"]),
        }
        section = as_markdown(measure(people, options.rounds), load)
    print(section)
    if not options.keep_nothing:
        with (HERE / "RESULTS.md").open("a") as file:
            file.write(section)


if __name__ == "__main__":
    main()
