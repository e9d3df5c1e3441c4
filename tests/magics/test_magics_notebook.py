"""examples/digits.ipynb and the magics in a real kernel, on a real cluster."""
# nbformat does not say its functions' types:
# mypy: disable-error-code="no-untyped-call"

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from jupyter_client.manager import start_new_kernel
from nbformat.v4 import new_code_cell, new_notebook

from support.cluster import PASSWORD, REPO, Cluster, cluster

EXAMPLE = REPO / "examples" / "digits.ipynb"
SMALL = (("--max-trials 16", "--max-trials 2"), ("--max-length 600", "--max-length 40"))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("magics")) as started:
        yield started


@pytest.fixture
def home(running: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for kernels, with the environment that a server of the Hub has."""
    for name in ("DET_PASS", "DET_MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DET_MASTER", running.url)
    monkeypatch.setenv("DET_USER", "determined")
    monkeypatch.setenv("DET_USER_TOKEN", running.token())
    monkeypatch.setenv("DET_DEBUG_CONFIG_PATH", str(tmp_path / "config"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def example(*replacements: tuple[str, str]) -> Any:
    """The notebook of the example, with other words in its cells."""
    notebook = nbformat.read(EXAMPLE, as_version=4)
    for before, after in replacements:
        assert any(before in cell.source for cell in notebook.cells), before
        for cell in notebook.cells:
            cell.source = cell.source.replace(before, after)
    return notebook


def run(notebook: Any, home: Path, **options: Any) -> Any:
    client = nbclient.NotebookClient(notebook, timeout=280, resources={"metadata": {"path": home}}, **options)
    return client.execute()


def cell(notebook: Any, id: str) -> Any:
    return next(cell for cell in notebook.cells if cell.id == id)


def text(cell: Any) -> str:
    """What a person reads under a cell."""
    parts = []
    for output in cell.outputs:
        if output.output_type == "stream":
            parts.append(output.text)
        elif output.output_type == "error":
            parts.append("\n".join(output.traceback))
        else:
            parts.append(output.data["text/plain"])
    return "\n".join(parts)


def follows_the_example(notebook: Any, running: Cluster) -> int:
    """Check the five steps against what the API says; the experiment's id."""
    assert "2 of 2 slots free" in text(cell(notebook, "cluster"))
    assert "You are determined" in text(cell(notebook, "cluster"))
    found = re.match(r"Submitted experiment (\d+): adaptive_asha", text(cell(notebook, "search")))
    assert found is not None
    id = int(found[1])
    assert running.experiment(id)["state"] == "STATE_COMPLETED"
    shown = cell(notebook, "search").outputs
    assert any("<img" in output.get("data", {}).get("text/html", "") for output in shown), (
        "no picture is left"
    )
    best = max(running.trials(id), key=lambda t: t["bestValidation"]["metrics"]["avgMetrics"]["accuracy"])
    assert f"Trial {best['id']} is the best" in text(cell(notebook, "wait"))
    assert "of 360 unseen digits are right" in text(cell(notebook, "predict"))
    assert any("image/png" in output.get("data", {}) for output in cell(notebook, "predict").outputs)
    versions = running.get("/api/v1/models/digits/versions")["modelVersions"]
    assert f"version {versions[-1]['version']} of the model 'digits'" in text(cell(notebook, "register"))
    return id


def test_the_example_as_it_is_kept() -> None:
    notebook = example()
    nbformat.validate(notebook)
    for code in (c for c in notebook.cells if c.cell_type == "code"):
        assert (code.outputs, code.execution_count) == ([], None), "kept without outputs"


def test_the_example_from_top_to_bottom(running: Cluster, home: Path) -> None:
    notebook = run(example(*SMALL), home)
    id = follows_the_example(notebook, running)
    trials = running.trials(id)
    assert len(trials) == 2
    assert set(trials[0]["hparams"]) == {"dropout", "width", "learning_rate", "global_batch_size"}

    reopened = new_notebook(cells=[cell(notebook, "cluster"), cell(notebook, "search")])
    again = run(reopened, home)
    assert f"Experiment {id}, submitted before" in text(cell(again, "search"))
    assert running.get("/api/v1/experiments")["pagination"]["total"] == 1


@pytest.mark.full
def test_the_whole_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cluster").mkdir()
    with cluster(tmp_path / "cluster") as running:
        monkeypatch.setenv("DET_MASTER", running.url)
        monkeypatch.setenv("DET_USER", "determined")
        monkeypatch.setenv("DET_PASS", PASSWORD)
        monkeypatch.delenv("DET_USER_TOKEN", raising=False)
        monkeypatch.setenv("DET_DEBUG_CONFIG_PATH", str(tmp_path / "config"))
        home = tmp_path / "home"
        home.mkdir()
        notebook = run(example(), home)
        assert len(running.trials(follows_the_example(notebook, running))) == 16
        right = re.search(r"([\d.]+)% of 360 unseen", text(cell(notebook, "predict")))
        assert right is not None
        assert float(right[1]) > 90


def test_what_goes_wrong_is_said(running: Cluster, home: Path) -> None:
    """A metric that is never reported, and a script of the Core API that fails."""
    search = cell(example(*SMALL, ("--metric accuracy", "--metric f1 --config once.yaml")), "search").source
    (home / "once.yaml").write_text("max_restarts: 0\n")
    script = (
        "%%det_experiment --metric loss --config once.yaml --as broken\n"
        "import determined as det\n\n\ndef main():\n"
        "    with det.core.init() as core:\n        raise RuntimeError('out of chalk')\n"
    )
    codes = ["%load_ext determined", search, script, "from detlab_magics import wait_for_best"]
    codes += ["wait_for_best(experiment)", "wait_for_best(broken)"]
    notebook = run(new_notebook(cells=[new_code_cell(code) for code in codes]), home, allow_errors=True)
    never, failed = (text(c) for c in notebook.cells[-2:])
    assert "no trial reported 'f1'. Trial" in never
    assert "searcher.metric is 'f1', but the validation metrics have no such number" in never
    assert "no trial reported 'loss'. Trial" in failed
    assert "RuntimeError: out of chalk\nIts whole log: %det trial logs" in failed
    assert "Traceback" not in never + failed


def test_questions_are_asked_in_the_notebook(
    running: Cluster, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DET_USER")
    monkeypatch.delenv("DET_USER_TOKEN")
    manager, kernel = start_new_kernel(cwd=str(home))
    try:
        with closing(_Conversation(kernel)) as notebook:
            notebook.run("%load_ext determined")
            said = notebook.run("%det user login", "determined", PASSWORD)
            assert f"Logged in as 'determined' at {running.url}" in said
            assert "You are determined" in notebook.run("%det")
            refused = notebook.run("%det user login admin", "wrong")
            assert "refused the login of 'admin': wrong name or password" in refused
            assert "Traceback" not in refused
    finally:
        manager.shutdown_kernel(now=True)


class _Conversation:
    """Runs code in a kernel and answers what it asks."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def run(self, code: str, *answers: str) -> str:
        said, waiting = list[str](), list(answers)

        def output(message: Any) -> None:
            content = message["content"]
            said.append(content.get("text") or content.get("data", {}).get("text/plain", ""))
            said.extend(content.get("traceback", []))

        def question(message: Any) -> None:
            said.append(message["content"]["prompt"])
            self._kernel.input(waiting.pop(0))

        self._kernel.execute_interactive(
            code, allow_stdin=True, stdin_hook=question, output_hook=output, timeout=60
        )
        assert not waiting, "it did not ask"
        return "".join(said)

    def close(self) -> None:
        self._kernel.stop_channels()
