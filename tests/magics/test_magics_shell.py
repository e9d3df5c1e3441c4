"""%det and %%det_experiment in an IPython shell, against a stub master."""

import importlib
from pathlib import Path
from typing import Any

import pytest

import detlab_magics
from determined.common.api import session as api_session
from determined.common.api.token_store import TokenStore
from determined.experimental import Experiment, client
from detlab_magics import NotebookError, unload_ipython_extension
from harness.api_stub import Reply, failure, user

from .conftest import API, Shell, Submissions

OPTIONS = "--metric accuracy --larger-is-better --max-length 40 --max-trials 2"
TRIAL = """\
from detlab_magics.searchspace import uniform
from determined.pytorch import PyTorchTrial

hparams = {"rate": uniform(0, 1)}


class Trial(PyTorchTrial):
    pass
"""
CELL = f"%%det_experiment {OPTIONS}\n{TRIAL}"


# %%det_experiment


def test_a_cell_becomes_an_experiment(shell: Shell, submissions: Submissions) -> None:
    ran = shell.run(CELL)
    assert ran.error is None
    assert ran.out.startswith(
        "Submitted experiment 3: adaptive_asha of 2 trials, looking for the highest accuracy.\n"
        "It runs in the cluster, and this notebook is free.\n"
    )
    [config] = submissions.configs
    mark = config.pop("data")["detlab"]
    assert len(mark["fingerprint"]) == 64
    assert config == {
        "name": "Trial",
        "entrypoint": "model_def:Trial",
        "hyperparameters": {"rate": {"type": "double", "minval": 0.0, "maxval": 1.0}},
        "searcher": {
            "name": "adaptive_asha",
            "metric": "accuracy",
            "smaller_is_better": False,
            "max_trials": 2,
            "max_length": {"batches": 40},
            "time_metric": "batches",
            "max_time": 40,
        },
        "min_validation_period": {"batches": 40},
    }
    shipped = submissions.files()
    assert list(shipped) == ["model_def.py"]
    assert shipped["model_def.py"].splitlines()[0] == "(None)"
    assert "hparams = ({'rate': {'type': 'double'" in shipped["model_def.py"]
    experiment = shell.ip.user_ns["experiment"]
    assert isinstance(experiment, Experiment)
    assert experiment.id == 3
    assert "Trial" not in shell.ip.user_ns, "the cell's code is not run here"
    assert "Experiment 3: Trial COMPLETED" in ran.out, "the view, as far as a terminal shows it"


def test_the_cell_is_noted_where_the_front_end_names_it(shell: Shell, submissions: Submissions) -> None:
    shell.ip.get_parent = lambda: {"metadata": {"cellId": "abc"}}
    assert shell.run(CELL).error is None
    assert submissions.configs[0]["data"]["detlab"]["cell_id"] == "abc"


def test_options(shell: Shell, submissions: Submissions) -> None:
    Path("base.yaml").write_text("labels: [a]\nhyperparameters: {decay: 1e-3}\n")
    Path("helpers.py").write_text("x = 1\n")
    Path("more").mkdir()
    Path("more/data.txt").write_text("data")
    ran = shell.run(
        "%%det_experiment --name 'my digits' --searcher random --max-trials {2 + 1} --metric loss --smaller-is-better "
        "--max-length 50 --slots 0 --pool default --validation-period 5 --batch-size 8 --config base.yaml "
        "--include helpers.py more --trial Other --as mine\n"
        f"import helpers\n{TRIAL}\nclass Other(Trial):\n    pass\n"
    )
    assert ran.error is None, ran
    [config] = submissions.configs
    assert config["name"] == "my digits"
    assert config["labels"] == ["a"]
    assert config["entrypoint"] == "model_def:Other"
    assert config["hyperparameters"]["decay"] == 0.001
    assert config["hyperparameters"]["global_batch_size"] == 8
    assert config["searcher"] == {
        "name": "random",
        "metric": "loss",
        "smaller_is_better": True,
        "max_trials": 3,
        "max_length": {"batches": 50},
    }
    assert config["resources"] == {"slots_per_trial": 0, "resource_pool": "default"}
    assert config["min_validation_period"] == {"batches": 5}
    assert set(submissions.files()) == {"model_def.py", "helpers.py", "more", "more/data.txt"}
    assert shell.ip.user_ns["mine"].id == 3


def test_again_submits_again_unless_the_same_is_to_be_reused(shell: Shell, submissions: Submissions) -> None:
    for _ in range(2):
        shell.run(CELL)
    assert len(submissions.configs) == 2
    reuse = CELL.replace(OPTIONS, f"{OPTIONS} --reuse")
    assert shell.run(reuse).out.startswith("Experiment 4, submitted before: adaptive_asha of 2 trials")
    assert shell.ip.user_ns["experiment"].id == 4
    assert len(submissions.configs) == 2
    for changed in (reuse + "# other code\n", reuse.replace("40", "41")):
        assert shell.run(changed).out.startswith("Submitted experiment")
    assert len(submissions.configs) == 4
    submissions.state = "STATE_ERROR"
    assert shell.run(reuse).out.startswith("Submitted experiment 7")


def test_an_included_file_that_changed_is_not_the_same(shell: Shell, submissions: Submissions) -> None:
    helpers = Path("helpers.py")
    helpers.write_text("x = 1\n")
    cell = CELL.replace(OPTIONS, f"{OPTIONS} --reuse --include helpers.py")
    for _ in range(2):
        shell.run(cell)
    assert len(submissions.configs) == 1
    helpers.write_text("x = 2\n")
    shell.run(cell)
    assert len(submissions.configs) == 2


def test_what_the_master_has_to_say_is_passed_on(shell: Shell, submissions: Submissions) -> None:
    submissions.warnings = ["LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"]
    submissions.messages = ["<config>.labels: is odd."]
    ran = shell.run(CELL)
    assert (
        "Note: it asks for more slots than the cluster has now, and waits until there are more\n" in ran.out
    )
    assert "<config>.labels: is odd.\n" in ran.out
    assert ran.err == ""


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        (f"%%det_experiment {OPTIONS} --optimizer adam\n{TRIAL}", "unrecognized arguments: --optimizer adam"),
        (
            f"%%det_experiment {OPTIONS} --searcher magic\n{TRIAL}",
            "argument --searcher: invalid choice: 'magic'",
        ),
        (f"%%det_experiment --max-trials few\n{TRIAL}", "argument --max-trials: invalid int value: 'few'"),
        (f"%%det_experiment --name 'x\n{TRIAL}", "No closing quotation"),
        (f"%%det_experiment {OPTIONS} --as 1x\n{TRIAL}", "--as 1x: this is no name for a variable"),
        (
            f"%%det_experiment {OPTIONS} --config none.yaml\n{TRIAL}",
            "cannot read the configuration file 'none.yaml'",
        ),
        (
            f"%%det_experiment {OPTIONS} --include none.py\n{TRIAL}",
            "cannot send the files: cannot read 'none.py'",
        ),
        (f"%%det_experiment --max-trials 2 --max-length 4\n{TRIAL}", "say with --metric"),
        (f"%%det_experiment {OPTIONS}\ndef f(:", "the cell has a syntax error in line 1: invalid syntax"),
        (f"{CELL}x = images", "Other cells of this notebook define it"),
        (f"{CELL}import helpers", "imports helpers, which is 'helpers.py' beside this notebook"),
    ],
)
def test_bad_input_is_one_message(shell: Shell, submissions: Submissions, cell: str, message: str) -> None:
    Path("helpers.py").write_text("x = 1\n")
    shell.run("images = 1")
    assert message in shell.fails(cell)
    assert submissions.configs == []


def test_what_the_master_refuses(shell: Shell, submissions: Submissions) -> None:
    submissions.master.answer(
        "POST", f"{API}/experiments", failure(400, "InvalidArgument", "<config>.x: no.")
    )
    assert shell.fails(CELL) == "cannot submit the experiment: <config>.x: no."


def test_a_token_that_ran_out(
    shell: Shell, submissions: Submissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.run(CELL)
    submissions.master.tokens.clear()
    assert shell.fails(CELL) == (
        "cannot submit the experiment: invalid credentials. "
        "Log in again: %det user login <name>, or %det token login <token>"
    )
    monkeypatch.setenv("DET_USER_TOKEN", "of the server")
    assert "stop the server and start it again" in shell.fails(CELL)


def test_a_master_that_is_down(
    shell: Shell, submissions: Submissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_session, "LONGEST_PAUSE", 0.01)
    monkeypatch.setenv("DET_MASTER", "127.0.0.1:9")
    monkeypatch.setenv("DET_USER", "ada")
    monkeypatch.setenv("DET_USER_TOKEN", "ada-token")
    for cell in (CELL, "%det"):
        assert "cannot reach the master at http://127.0.0.1:9 (Connection refused)" in shell.fails(cell)
    assert "DET_MASTER" in shell.fails("%det experiment list")


# The function behind it.


def test_a_class_of_another_cell_stands_for_that_cell(shell: Shell, submissions: Submissions) -> None:
    source = (
        "class PyTorchTrial: pass\nclass Trial(PyTorchTrial):\n    def train_batch(self): return 1\n"
        "class Other(PyTorchTrial): pass\n"
    )
    with_history = shell.ip.run_cell(source, store_history=True)
    assert with_history.success
    call = (
        "import detlab_magics\n"
        "made = [detlab_magics.submit(Trial, metric='loss', max_length=n, hparams={'a': [n, 2]}) for n in (3, 4)]"
    )
    ran = shell.run(call.replace("max_length=n", "max_length=n, max_trials=2"))
    assert ran.error is None, ran
    assert submissions.files()["model_def.py"] == source
    assert [config["searcher"]["max_time"] for config in submissions.configs] == [3, 4]
    assert submissions.configs[1]["entrypoint"] == "model_def:Trial"
    assert submissions.configs[1]["hyperparameters"] == {"a": {"type": "categorical", "vals": [4, 2]}}


def test_a_function_stands_for_its_file(
    submissions: Submissions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "import functools\n\n@functools.cache\ndef train():\n    pass\n\ndef evaluate(pace):\n    pass\n"
    (tmp_path / "of_the_core_api.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("of_the_core_api")
    detlab_magics.submit(module.train, metric="loss")
    [config] = submissions.configs
    assert config["entrypoint"] == ["python3", "-c", "import model_def; model_def.train()"]
    assert submissions.files() == {"model_def.py": source}
    with pytest.raises(NotebookError, match="evaluate wants the argument 'pace'"):
        detlab_magics.submit(module.evaluate, metric="loss")
    with pytest.raises(NotebookError, match="neither source code, nor a class, nor a function"):
        detlab_magics.submit(3)  # type: ignore[arg-type]
    with pytest.raises(NotebookError, match="the source of int cannot be found"):
        detlab_magics.submit(int)


# %det


def pools() -> dict[str, Any]:
    return {"resourcePools": [{"name": "<gpus>", "slotsAvailable": 4, "slotsUsed": 3}]}


def test_det_says_where_one_is(shell: Shell, submissions: Submissions) -> None:
    master = submissions.master
    master.answer("GET", f"{API}/master", {"version": "0.38.1", "clusterName": "lab"})
    master.answer("GET", f"{API}/resource-pools", pools())
    ran = shell.run("%det")
    assert repr(ran.result) == (
        f"Cluster lab at {master.url}, version 0.38.1\nYou are ada\n  <gpus>  1 of 4 slots free"
    )
    html = ran.result._repr_html_()
    assert "<td>&lt;gpus&gt;</td><td>1 of 4</td>" in html
    assert "<b>ada</b>" in html


def test_det_is_about_the_master_that_was_chosen(shell: Shell, submissions: Submissions) -> None:
    master = submissions.master
    master.answer("GET", f"{API}/master", {"version": "0.38.1", "clusterName": ""})
    master.answer("GET", f"{API}/resource-pools", {"resourcePools": []})
    master.answer("GET", f"{API}/me", {"user": user("grace", admin=True)})
    master.passwords["grace"] = "Correct-horse-2"
    client.login(master.url, "grace", "Correct-horse-2")
    assert "You are grace" in repr(shell.run("%det").result)


def test_det_runs_a_command(shell: Shell, submissions: Submissions) -> None:
    shell.run("who = 'whoami'")
    assert shell.run("%det user {who}").out == "You are logged in as user 'ada'\n"
    assert shell.run(
        "det = detlab_magics = None; import detlab_magics; detlab_magics.det(['user', 'whoami'])"
    ).out
    assert "Train models" in shell.run("%det --help").out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%det experiment describe 99", "no route /api/v1/experiments/99"),
        ("%det nonsense", "invalid choice: 'nonsense'"),
        ("%det trial", "usage: det trial"),
        ("%det user whoami 'x", "cannot read"),
        ("%det experiment wait 3", "det experiment wait 3 ended with exit code 1"),
    ],
)
def test_a_command_that_fails_is_one_message(
    shell: Shell, submissions: Submissions, line: str, message: str
) -> None:
    submissions.state = "STATE_CANCELED"
    shell.run(CELL)
    assert message in shell.fails(line)


def test_logging_in_changes_who_the_notebook_is(shell: Shell, submissions: Submissions) -> None:
    assert client.whoami().username == "ada"
    submissions.master.tokens["made"] = "grace"
    assert shell.run("%det token login made").error is None
    assert client.whoami().username == "grace"
    assert TokenStore(submissions.master.url).active_user() == "grace"


def test_a_token_is_made(shell: Shell, submissions: Submissions) -> None:
    submissions.master.answer("POST", f"{API}/tokens", Reply({"token": "letters"}))
    assert shell.run("%det token").out == "letters\n"


# Loading and unloading.


def test_unloading_takes_the_magics_away(shell: Shell) -> None:
    assert shell.ip.find_line_magic("det") is not None
    unload_ipython_extension(shell.ip)
    assert shell.ip.find_line_magic("det") is None
    assert shell.ip.find_cell_magic("det_experiment") is None
    unload_ipython_extension(shell.ip)


def test_load_ext_determined(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unload_ipython_extension(shell.ip)
    monkeypatch.setattr("sys.path", [])  # where nothing is installed
    assert "pip install 'detlab[jupyter]'" in shell.fails("%load_ext determined")
    assert shell.ip.find_line_magic("det") is None
    installed = tmp_path / "site" / "notebook_part-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: notebook-part\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(
        "[detlab.ipython]\nmagics = detlab_magics:load_ipython_extension\n"
    )
    monkeypatch.setattr("sys.path", [str(tmp_path / "site")])
    assert shell.run("%load_ext determined").error is None
    assert shell.ip.find_cell_magic("det_experiment") is not None
    assert shell.run("%unload_ext determined").error is None
    assert shell.ip.find_line_magic("det") is None


def test_help_names_every_option(shell: Shell) -> None:
    text = shell.ip.find_cell_magic("det_experiment").__doc__
    for option in ("--max-trials", "--larger-is-better", "--reuse", "--as", "--include"):
        assert option in text
