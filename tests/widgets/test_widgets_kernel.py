"""Views in real kernels: what stays in the saved notebook, and what its HTML shows without a script."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbclient
import nbconvert
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from nbformat import v4

from harness.api_stub import HangUp
from support.cluster import Cluster, cluster, wait_for
from widgets.conftest import Search

Notebook = Any  # nbformat's, whose attributes are its keys
REPO = Path(__file__).resolve().parents[2]
WIDGET = "application/vnd.jupyter.widget-view+json"
PLOTLY = "application/vnd.plotly.v1+json"
SHOW = "import detlab_widgets\nview = detlab_widgets.ExperimentView({id})\nview"
THREADS = """
import threading
from detlab_widgets import follow
follow.shared.join(10)
print([t.name for t in threading.enumerate() if t.name.startswith("detlab")])
"""


@pytest.fixture(autouse=True)
def kernel_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{REPO / 'harness'}:{REPO / 'widgets'}")
    monkeypatch.setenv("PYTHONWARNINGS", "default")
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


def run(folder: Path, *cells: str, at: dict[int, Any] | None = None) -> Notebook:
    """Execute cells in a kernel; `at` has what to do in this process before a cell runs, by its index."""
    notebook = v4.new_notebook(  # type: ignore[no-untyped-call]
        cells=[v4.new_code_cell(cell) for cell in cells],  # type: ignore[no-untyped-call]
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )

    def before(cell: Any, cell_index: int) -> None:
        (at or {}).get(cell_index, lambda: None)()

    executing = nbclient.NotebookClient(
        notebook, timeout=60, resources={"metadata": {"path": str(folder)}}, on_cell_start=before
    )
    executing.execute()
    return notebook


def bundles(cell: Any) -> list[dict[str, Any]]:
    assert all(output.output_type == "display_data" for output in cell.outputs), cell.outputs
    return [output.data for output in cell.outputs]


class Seen(HTMLParser):
    """What of a page shows without scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures: list[str] = []
        self.text = ""
        self._within: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._within.append(tag)
        if tag == "img":
            self.pictures.append(dict(attrs)["src"] or "")

    def handle_endtag(self, tag: str) -> None:
        while self._within and self._within.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._within):
            self.text += data


def exported(notebook: Notebook) -> Seen:
    exporter = nbconvert.HTMLExporter()  # type: ignore[no-untyped-call]
    html, _ = exporter.from_notebook_node(notebook)
    seen = Seen()
    seen.feed(html)
    return seen


def test_the_saved_cell_ends_with_the_final_chart(search: Search, tmp_path: Path) -> None:
    search.reports = {12: [0.1, 0.3], 13: [0.2]}

    def finish() -> None:
        search.reports[13] += [0.5, 0.8]
        search.state = "STATE_COMPLETED"

    notebook = run(tmp_path, SHOW.format(id=3), "print(view.wait(20))", THREADS, at={1: finish})
    first, second = bundles(notebook.cells[0])
    assert WIDGET not in first
    assert [trace["name"] for trace in first[PLOTLY]["data"]] == ["trial 12", "trial 13"]
    assert first[PLOTLY]["data"][1]["y"] == [0.2, 0.5, 0.8]
    assert "data:image/png;base64," in first["text/html"]
    assert "COMPLETED, 100%" in second["text/html"]
    assert "as of" not in second["text/html"]
    assert len(str(first)) + len(str(second)) < 300_000
    assert notebook.cells[1].outputs[0].text == "ExperimentState.COMPLETED\n"
    assert notebook.cells[2].outputs[0].text == "[]\n"
    page = exported(notebook)
    assert len(page.pictures) == 1
    assert "best accuracy 0.8 in trial 13" in page.text
    assert re.search(r"13\s*running\s*0\.8\s*30", page.text)  # a row of the table


def test_a_notebook_saved_while_it_runs_shows_a_picture(search: Search, tmp_path: Path) -> None:
    search.reports = {12: [0.1, 0.3]}
    notebook = run(tmp_path, SHOW.format(id=3), "print('free')")
    live, still = bundles(notebook.cells[0])
    assert live[WIDGET]["model_id"] in still["text/html"]  # the class by which the page hides it
    assert "text/html" not in live
    assert "as of" in still["text/html"]
    state = notebook.metadata.pop("widgets")["application/vnd.jupyter.widget-state+json"]
    page = exported(notebook)  # as Lab saves it, which keeps no widget state
    assert len(page.pictures) == 1
    assert "best accuracy 0.3 in trial 12" in page.text
    assert [output.text for output in notebook.cells[1].outputs] == ["free\n"]
    assert len(str(state)) < 100_000  # no library in it


def test_an_experiment_that_has_ended_is_shown_at_once(search: Search, tmp_path: Path) -> None:
    search.reports = {12: [0.1]}
    search.state = "STATE_COMPLETED"
    notebook = run(tmp_path, "import detlab_widgets\ndetlab_widgets.show(3)", THREADS)
    first, second = bundles(notebook.cells[0])
    assert PLOTLY in first
    assert WIDGET not in first
    assert "best accuracy 0.1" in second["text/html"]
    assert notebook.cells[1].outputs[0].text == "[]\n"


def test_without_a_master_the_view_says_so_and_nothing_is_printed(search: Search, tmp_path: Path) -> None:
    search.master.answer("GET", "/api/v1/experiments/3", HangUp())
    notebook = run(tmp_path, SHOW.format(id=3), "import time; time.sleep(1.5)", "view.close()", THREADS)
    _, still = bundles(notebook.cells[0])
    assert "cannot reach the master" in still["text/html"]
    assert notebook.cells[1].outputs == []
    assert notebook.cells[2].outputs == []
    assert notebook.cells[3].outputs[0].text == "[]\n"


@contextmanager
def kernel() -> Iterator[BlockingKernelClient]:
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    connected = manager.blocking_client()
    connected.start_channels()
    try:
        connected.wait_for_ready(30)
        yield connected
    finally:
        connected.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


class Page:
    """What Lab does, over a kernel's channels: runs cells, and hears and sends a widget's messages beside them."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self.client = client
        self.heard: list[dict[str, Any]] = []

    def start(self, code: str, cell: str = "a") -> str:
        """Run a cell and do not wait for it; the request's id."""
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}}
        content |= {"allow_stdin": False, "stop_on_error": True}
        message = self.client.session.msg("execute_request", content, metadata={"cellId": cell})
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def wait(self, request: str, **wanted: Any) -> dict[str, Any]:
        """Hear on until a message with this content came of a request."""
        while True:
            self.heard.append(self.client.get_iopub_msg(timeout=30))
            content = self.heard[-1]["content"]
            if self.heard[-1]["parent_header"].get("msg_id") == request and wanted.items() <= content.items():
                return self.heard[-1]

    def run(self, code: str, cell: str = "a") -> str:
        """Run a cell to its end; what it printed."""
        request = self.start(code, cell)
        self.wait(request, execution_state="idle")
        mine = [m for m in self.heard if m["parent_header"].get("msg_id") == request]
        return "".join(m["content"]["text"] for m in mine if m["msg_type"] == "stream")

    def subshell(self) -> str:
        message = self.client.session.msg("create_subshell_request", {})
        self.client.control_channel.send(message)
        reply = self.client.control_channel.get_msg(timeout=10)
        return str(reply["content"]["subshell_id"])

    def send(self, comm_id: str, content: dict[str, Any], subshell: str) -> None:
        data = {"method": "custom", "content": content}
        message = self.client.session.msg("comm_msg", {"comm_id": comm_id, "data": data})
        message["header"]["subshell_id"] = subshell
        self.client.shell_channel.send(message)


def test_a_cell_that_runs_again_ends_the_view_of_the_run_before(search: Search) -> None:
    search.reports = {12: [0.1]}
    show = "import detlab_widgets\nviews = globals().get('views', []) + [detlab_widgets.ExperimentView(3)]\n"
    show += "display(views[-1])"
    with kernel() as client:
        page = Page(client)
        page.run(show, "a")
        page.run(show, "b")
        page.run(show, "a")
        followed = page.run("print([view._following is not None for view in views])", "c")
    assert followed == "[False, True, True]\n"


def test_buttons_work_while_a_cell_runs(search: Search) -> None:
    search.reports = {12: [0.1]}
    with kernel() as client:
        page = Page(client)
        page.run(SHOW.format(id=3))
        [comm] = [
            m
            for m in page.heard
            if m["msg_type"] == "comm_open" and "figure" in m["content"]["data"]["state"]
        ]
        subshell = page.subshell()
        busy = page.start(
            "import time\nprint('on')\nwhile view.head['state'] != 'PAUSED':\n    time.sleep(0.05)\n"
            "print('paused while I ran')",
            "b",
        )
        page.wait(busy, text="on\n")
        page.send(comm["content"]["comm_id"], {"kind": "verb", "verb": "pause"}, subshell)
        page.wait(busy, text="paused while I ran\n")
    assert search.state == "STATE_PAUSED"


TRAIN = """
import time
import determined
from determined import core
with core.init() as context:
    rate = determined.get_cluster_info().trial.hparams["rate"]
    for step in range(1, 9):
        time.sleep(0.5)
        context.train.report_validation_metrics(step * 10, {"accuracy": rate * step})
"""


def started(real: Cluster) -> int:
    config = {
        "name": "view",
        "entrypoint": "python3 train.py",
        "searcher": {
            "name": "random",
            "metric": "accuracy",
            "smaller_is_better": False,
            "max_trials": 2,
            "max_length": {"batches": 80},
        },
        "hyperparameters": {"rate": {"type": "double", "minval": 0.01, "maxval": 0.1}},
        "resources": {"slots_per_trial": 1},
        "max_restarts": 0,
    }
    return real.create(config, {"train.py": TRAIN})


def test_a_real_search_over_a_killed_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster(tmp_path, slots=2) as real:
        monkeypatch.setenv("DET_MASTER", real.url)
        monkeypatch.setenv("DET_USER", "determined")
        monkeypatch.setenv("DET_USER_TOKEN", real.token())
        id = started(real)

        def reported() -> bool:
            return all(t["latestValidation"] for t in real.trials(id)) and len(real.trials(id)) == 2

        wait_for(reported, "both trials have reported")
        back = threading.Thread(target=real.start_master)
        notebook = run(
            tmp_path,
            SHOW.format(id=id),
            "import time\nwhile not view.trouble:\n    time.sleep(0.05)\nprint(view.trouble)",
            "print(view.wait(60))",
            at={1: real.kill_master, 2: back.start},
        )
        back.join()
        trials = real.trials(id)
    assert "no news from the cluster: cannot reach the master" in notebook.cells[1].outputs[0].text
    assert [output.text for output in notebook.cells[2].outputs] == ["ExperimentState.COMPLETED\n"]
    first, second = bundles(notebook.cells[0])
    shown = {trace["name"]: trace for trace in first[PLOTLY]["data"]}
    for trial in trials:
        trace = shown[f"trial {trial['id']}"]
        assert trace["x"] == [10, 20, 30, 40, 50, 60, 70, 80]
        best = trial["bestValidation"]["metrics"]["avgMetrics"]["accuracy"]
        assert trace["y"][-1] == pytest.approx(best, rel=1e-5)
    assert "COMPLETED, 100%" in second["text/html"]
