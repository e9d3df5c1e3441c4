"""From a login to a registered model, in a browser; what the page shows is compared with what the API says."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbconvert
import nbformat
import pytest
import requests
from playwright.sync_api import Browser, Locator, Route, expect

from browser.lab import Lab, keep_picture
from support.cluster import wait_for
from support.hub import Hub

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("no_request_leaves")]

TRIALS = 16
VIEW_BYTES = 300_000  # that a view may add to the exported notebook


@dataclass
class Api:
    """The master's API, as anna."""

    hub: Hub
    token: str

    @classmethod
    def of(cls, hub: Hub, name: str) -> Api:
        service = (hub.data / "master" / "hub-token").read_text().strip()
        answer = requests.post(
            f"{hub.master_url}/api/v1/hub/users/{name}/token",
            headers={"Authorization": f"Bearer {service}"},
            timeout=30,
        )
        assert answer.status_code == 200, answer.text
        return cls(hub, answer.json()["token"])

    def get(self, path: str) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = requests.get(self.hub.master_url + path, headers=headers, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def pools(self) -> list[tuple[str, int, int]]:
        """Name, free slots and all slots of every resource pool."""
        found = self.get("/api/v1/resource-pools")["resourcePools"]
        return [
            (pool["name"], pool["slotsAvailable"] - pool["slotsUsed"], pool["slotsAvailable"])
            for pool in found
        ]

    def experiments(self) -> list[int]:
        return [e["id"] for e in self.get("/api/v1/experiments?limit=100")["experiments"]]

    def state(self, experiment: int) -> str:
        found = self.get(f"/api/v1/experiments/{experiment}")["experiment"]["state"]
        return str(found).removeprefix("STATE_")

    def progress(self, experiment: int) -> float:
        return float(self.get(f"/api/v1/experiments/{experiment}")["experiment"]["progress"])

    def trials(self, experiment: int) -> list[dict[str, Any]]:
        found = self.get(f"/api/v1/experiments/{experiment}/trials?limit=100")["trials"]
        assert isinstance(found, list)
        return found

    def rows(self, experiment: int) -> set[tuple[str, str, str]]:
        """Id, state and best accuracy of every trial, as a table shows them."""
        return {
            (str(trial["id"]), trial["state"].removeprefix("STATE_").lower(), _shown(_accuracy(trial)))
            for trial in self.trials(experiment)
        }

    def reported(self, experiment: int) -> int:
        """How many trials have validated."""
        return sum(_accuracy(trial) is not None for trial in self.trials(experiment))


def _accuracy(trial: dict[str, Any]) -> float | None:
    best = trial.get("bestValidation")
    return float(best["metrics"]["avgMetrics"]["accuracy"]) if best else None


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


class View:
    """The live view of an experiment, or what is left of it, under a cell."""

    def __init__(self, cell: Locator) -> None:
        self.cell = cell
        self.live = cell.locator(".detlab-experiment")

    @property
    def percent(self) -> int:
        return int(self.live.locator(".detlab-percent").inner_text().removesuffix("%"))

    @property
    def curves(self) -> int:
        return self.cell.locator(".js-plotly-plot .scatterlayer .trace").count()

    def rows(self) -> set[tuple[str, str, str]]:
        """Id, state and best metric of every row of the table that can be seen."""
        table = self.cell.locator("table:visible").last
        found: list[list[str]] = table.evaluate(
            "t => [...t.tBodies[0].rows].map(r => [...r.cells].slice(0, 3).map(c => c.textContent))"
        )
        return {(id, state, best) for id, state, best in found}

    def button(self, name: str) -> Locator:
        return self.live.get_by_role("button", name=name, exact=True)


@pytest.fixture(scope="module")
def started(lab: Lab) -> Lab:
    """JupyterLab of a server that was started from the spawn page."""
    lab.log_in()
    form = lab.page.locator("#detlab-pools tbody tr")
    shown = [row.split("\t") for row in form.all_inner_texts()]
    free = [(name, int(free), int(total)) for name, free, total, _kind in shown]
    assert free == Api.of(lab.hub, lab.name).pools() == [("default", 2, 2)]
    expect(lab.page.get_by_label("Slots")).to_have_value("0")
    lab.picture("spawn")
    lab.start_server()
    return lab


def test_from_a_login_to_a_registered_model(
    started: Lab, browser: Browser, errors: list[str], tmp_path: Path
) -> None:
    lab, api = started, Api.of(started.hub, started.name)
    lab.open("examples", "digits.ipynb")
    lab.wait_for_kernel()
    says_which_cluster(lab, api)
    view = submits_a_search(lab, api)
    follows_the_search(lab, api, view)
    pauses_and_goes_on(lab, api, view)
    predicts_and_registers(lab, api)
    shows_the_end(lab, api, view)
    shows_it_again_without_a_kernel(lab, api)
    exported_shows_it_without_scripts(lab, api, browser, tmp_path)
    assert errors == []


def says_which_cluster(lab: Lab, api: Api) -> None:
    cell = lab.cell("%load_ext determined")
    lab.run(cell)
    said = lab.output(cell)
    master = api.get("/api/v1/master")
    assert lab.hub.master_url in said
    assert master["version"] in said
    assert "You are anna" in said
    for name, free, total in api.pools():
        assert f"{name}\t{free} of {total}" in said
    lab.picture("cluster")


def submits_a_search(lab: Lab, api: Api) -> View:
    cell = lab.cell("%%det_experiment")
    lab.run(cell, timeout=20)
    assert "Submitted experiment 1: adaptive_asha of 16 trials" in lab.output(cell)
    assert api.experiments() == [1]
    other = lab.add_cell(cell, "print('free', 6 * 7)")
    lab.run(other, timeout=10)
    assert lab.output(other).strip() == "free 42"
    assert api.state(1) in ("ACTIVE", "RUNNING", "QUEUED")
    return View(cell)


def follows_the_search(lab: Lab, api: Api, view: View) -> None:
    expect(view.live.locator(".js-plotly-plot")).to_be_visible(timeout=60_000)
    seen = {view.percent}
    grows = [view.percent]

    def gets_on() -> bool:
        seen.add(view.percent)
        grows.append(view.percent)
        return len(seen) >= 3 and view.curves >= 3

    wait_for(gets_on, "the view shows progress and curves")
    assert grows == sorted(grows)
    assert view.percent <= round(100 * api.progress(1)) + 1


def pauses_and_goes_on(lab: Lab, api: Api, view: View) -> None:
    view.button("Pause").click()
    expect(view.live.locator(".detlab-state")).to_have_text("PAUSED")
    assert api.state(1) == "PAUSED"
    expect(view.button("Pause")).to_be_disabled()
    # What still runs ends in its own time; then page and API stand still and must agree.
    wait_for(
        lambda: not any(row[1] in ("running", "stopping") for row in api.rows(1)), "all trials have stopped"
    )
    wait_for(lambda: view.rows() == api.rows(1), "the table says what the API says", 20)
    wait_for(
        lambda: view.curves == api.reported(1), "there are as many curves as trials that have reported", 20
    )
    view.button("Activate").click()
    expect(view.live.locator(".detlab-state")).to_have_text(re.compile("ACTIVE|RUNNING"))
    assert api.state(1) in ("ACTIVE", "RUNNING", "QUEUED")
    if lab.keep_images:
        wait_for(lambda: view.curves >= TRIALS // 2, "there are enough curves for a picture")
        lab.scroll_to(view.live)
        lab.picture("search")


def predicts_and_registers(lab: Lab, api: Api) -> None:
    wait = lab.cell("Trial {best.id} is the best")
    lab.run(wait, timeout=200)
    assert api.state(1) == "COMPLETED"
    trials = {trial["id"]: _accuracy(trial) for trial in api.trials(1)}
    best = max(value for value in trials.values() if value is not None)
    said = re.match(r"Trial (\d+) is the best, with ([\d.]+)% of", lab.output(wait))
    assert said is not None
    assert trials[int(said[1])] == best
    assert said[2] == f"{best:.1%}".removesuffix("%")
    predict = lab.cell("load_best(experiment)")
    lab.run(predict)
    right = re.search(r"([\d.]+)% of 360 unseen digits are right", lab.output(predict))
    assert right is not None
    assert float(right[1]) > 90
    picture = predict.locator(".jp-RenderedImage img")
    expect(picture).to_be_visible()
    lab.scroll_to(predict)
    lab.picture("predict")
    register = lab.cell("register_version")
    lab.run(register)
    assert "This is version 1 of the model 'digits'" in lab.output(register)
    (version,) = api.get("/api/v1/models/digits/versions")["modelVersions"]
    assert version["checkpoint"]["training"]["searcherMetric"] == best


def shows_the_end(lab: Lab, api: Api, view: View) -> None:
    expect(view.live).to_have_count(0)  # what is left needs no kernel
    agrees_with_the_api(view, api)
    lab.save()


def agrees_with_the_api(view: View, api: Api) -> None:
    """Of an experiment that has ended."""
    rows = api.rows(1)
    assert len(rows) == TRIALS
    wait_for(lambda: view.curves == api.reported(1) == TRIALS, "there is a curve for every trial")
    assert view.rows() == rows


def shows_it_again_without_a_kernel(lab: Lab, api: Api) -> None:
    lab.menu("Kernel", "Shut Down Kernel")
    wait_for(lambda: not kernels(lab), "the kernel has ended")
    lab.close("digits.ipynb")
    lab.reload()
    held: list[Route] = []
    lab.page.route(
        "**/api/sessions*",
        lambda route: held.append(route) if route.request.method == "POST" else route.continue_(),
    )
    lab.open("examples", "digits.ipynb")
    cell = lab.cell("%%det_experiment")
    view = View(cell)
    picture = cell.locator(".jp-RenderedPlotly img")  # a figure once somebody points at it
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") > 500
    lab.scroll_to(picture)
    lab.picture("reopened")
    lab.point_at(picture)
    agrees_with_the_api(view, api)
    assert kernels(lab) == []

    def asked() -> bool:
        lab.look()
        return bool(held)

    wait_for(asked, "JupyterLab asks for a kernel")
    for route in held:
        route.continue_()
    lab.page.unroute_all()
    lab.wait_for_kernel()
    lab.run(cell)
    assert "Experiment 1, submitted before" in lab.output(cell)
    agrees_with_the_api(view, api)
    assert api.experiments() == [1]
    lab.save()


def kernels(lab: Lab) -> list[Any]:
    answer = lab.page.request.get(f"{lab.hub.url}/user/{lab.name}/api/kernels")
    assert answer.ok
    found = answer.json()
    assert isinstance(found, list)
    return found


def exported_shows_it_without_scripts(lab: Lab, api: Api, browser: Browser, folder: Path) -> None:
    saved = lab.hub.data / "homes" / lab.name / "examples" / "digits.ipynb"
    notebook = nbformat.read(saved, as_version=4)  # type: ignore[no-untyped-call]
    html = export(notebook)
    search = next(cell for cell in notebook.cells if cell.source.startswith("%%det_experiment"))
    outputs, search.outputs = search.outputs, []
    assert len(html.encode()) - len(export(notebook).encode()) < VIEW_BYTES
    assert len(json.dumps(outputs)) < VIEW_BYTES

    file = folder / "digits.html"
    file.write_text(html)
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1000, "height": 900})
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    try:
        page = context.new_page()
        page.goto(file.as_uri())
        chart = page.get_by_alt_text("Experiment 1, digits: accuracy, 16 series by batches")
        expect(chart).to_be_visible()
        assert chart.evaluate("image => image.complete && image.naturalWidth > 500")
        table = page.locator("table", has_text="best accuracy")
        expect(table).to_be_visible()
        cells = [row.split("\t")[:3] for row in table.locator("tbody tr").all_inner_texts()]
        assert {tuple(row) for row in cells} == api.rows(1)
        chart.evaluate("image => scrollTo(0, scrollY + image.getBoundingClientRect().top - 70)")
        keep_picture(page, "exported", keep=lab.keep_images)
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    finally:
        context.close()


def export(notebook: Any) -> str:
    exporter = nbconvert.HTMLExporter()  # type: ignore[no-untyped-call]
    html, _ = exporter.from_notebook_node(notebook)
    return str(html)


def test_the_terminal_needs_no_login_and_a_view_kills(started: Lab, errors: list[str]) -> None:
    lab, api = started, Api.of(started.hub, started.name)
    before = api.experiments()
    lab.toggle_files()
    lab.terminal()
    lab.type_line("det experiment create examples/digits/single.yaml examples/digits")
    wait_for(lambda: "Created experiment" in lab.terminal_text(), "the terminal has created an experiment")
    (made,) = set(api.experiments()) - set(before)
    lab.type_line("clear; det experiment list")
    wait_for(
        lambda: re.search(rf"^\s*{made} .*anna", lab.terminal_text(), re.MULTILINE),
        "the terminal lists it",
        20,
    )
    lab.picture("terminal")
    lab.toggle_files()

    lab.menu("File", "New", "Notebook")
    lab.page.get_by_role("button", name="Select Kernel").click()
    lab.wait_for_kernel()
    cell = lab.page.locator(".jp-Notebook:visible .jp-CodeCell").first
    lab.page.keyboard.press("Enter")
    lab.page.keyboard.insert_text(f"import detlab_widgets; detlab_widgets.show({made})")
    lab.run(cell)
    view = View(cell)
    view.button("Kill").click()
    assert api.state(made) != "CANCELED"  # a second click is needed
    view.button("Really kill?").click()
    wait_for(lambda: api.state(made) == "CANCELED", "the experiment is killed")
    expect(cell).to_contain_text("CANCELED")
    assert errors == []
