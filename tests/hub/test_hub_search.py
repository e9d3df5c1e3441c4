"""A server and a search run while the Hub, the master and the agent are killed, one after the other: both go on."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from support.cluster import wait_for
from support.hub import Hub, Person, running_hub
from support.kernels import Kernel

TRIALS = 3  # one more than there are slots
TRAIN = """
import os, pathlib, time
from determined import core, get_cluster_info

side, trial = pathlib.Path(os.environ["SIDE"]), get_cluster_info().trial.trial_id
with (side / f"{trial}.runs").open("a") as file:
    file.write("run\\n")
with core.init() as context:
    step = 0
    while step < 3 or not (side / "enough").exists():
        step += 1
        context.train.report_validation_metrics(step, {"loss": 1 / step, "batches": step})
        time.sleep(0.2)
"""
SUBMIT = f"""
import pathlib
from determined.experimental import client
folder = pathlib.Path("search")
folder.mkdir()
(folder / "train.py").write_text({TRAIN!r})
experiment = client.create_experiment({{
    "name": "search",
    "entrypoint": "python3 train.py",
    "searcher": {{"name": "random", "metric": "loss", "max_trials": {TRIALS}}},
    "hyperparameters": {{"width": {{"type": "int", "minval": 1, "maxval": 9}}}},
    "environment": {{"environment_variables": ["SIDE=" + side]}},
    "max_restarts": 0,
}}, folder)
experiment.id
"""


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with running_hub(tmp_path_factory.mktemp("hub") / "run", slots=2) as running:
        running.add_user("anna")
        yield running


@pytest.fixture
def side() -> Iterator[Path]:
    """A folder in which trials leave notes; pytest's own are closed to the accounts of tasks."""
    with tempfile.TemporaryDirectory(prefix="detlab-side-") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


class Search:
    """The trials of the experiment, asked for as anna."""

    def __init__(self, hub: Hub, experiment_id: int, token: str) -> None:
        self._url = f"{hub.master_url}/api/v1/experiments/{experiment_id}"
        self._headers = {"Authorization": f"Bearer {token}"}

    def trials(self) -> list[dict[str, Any]]:
        found = requests.get(f"{self._url}/trials", headers=self._headers, timeout=30).json()["trials"]
        assert isinstance(found, list)
        return found

    def state(self) -> str:
        found = requests.get(self._url, headers=self._headers, timeout=30).json()["experiment"]["state"]
        return str(found)

    def batches(self) -> int:
        """Of all trials together."""
        return sum(trial["totalBatchesProcessed"] for trial in self.trials())

    def wait_for_news(self) -> None:
        """Until the trials have got further than now."""
        before = self.batches()
        wait_for(lambda: self.batches() > before, "the search goes on")


async def test_both_outlive_every_part(hub: Hub, side: Path) -> None:
    hub.up("anna")
    person = Person(hub, "anna", hub.passwords["user"])
    person.page("/user/anna/lab")
    url = f"{hub.url}/user/anna"
    kernel = await Kernel.open(url, person.cookie_header(f"{url}/"), person.xsrf("/user/anna/"))
    try:
        experiment_id = int(await kernel.run(f"side = {str(side)!r}\n{SUBMIT}"))
        token = (await kernel.run("import os; print(os.environ['DET_USER_TOKEN'])")).strip()
        search = Search(hub, experiment_id, token)
        wait_for(lambda: len(search.trials()) == TRIALS and search.batches() > 0, "the search runs")

        hub.signal(signal.SIGKILL)
        search.wait_for_news()  # while there is no Hub
        hub.start()
        hub.wait_ready("anna")
        for part in ("master", "agent"):
            kill(hub, part)
            wait_for(lambda: answers(hub.master_url), "the master answers")
            search.wait_for_news()
            assert int(await kernel.run("experiment.id")) == experiment_id  # the same kernel

        (side / "enough").touch()
        wait_for(lambda: search.state() == "STATE_COMPLETED", "the search ends")
        assert [trial["restarts"] for trial in search.trials()] == [0] * TRIALS
        assert [note.read_text() for note in side.glob("*.runs")] == ["run\n"] * TRIALS
    finally:
        await kernel.close()


def kill(hub: Hub, part: str) -> None:
    """Kill -9, and wait until it is started again."""
    before = hub.part(part)
    before.kill()
    wait_for(lambda: hub.pid(part) != before.pid, f"the {part} is started again")


def answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/health", timeout=5).status_code == 200
    except requests.ConnectionError:
        return False
