"""`det experiment`, `det trial` and `det checkpoint`."""

import csv
import io
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from determined.cli import follow
from harness.api_stub import (
    UUID,
    Answer,
    Reply,
    Request,
    Stream,
    StubMaster,
    checkpoint,
    experiment,
    failure,
    log,
    report,
    trial,
)

from .conftest import Det

API = "/api/v1"


def cells(out: str) -> list[list[str]]:
    """The cells of a table by row, headers first."""
    lines = [line for line in out.splitlines() if "|" in line]
    return [[cell.strip() for cell in line.split("|")] for line in lines]


@pytest.fixture
def digits(master: StubMaster) -> StubMaster:
    """A master with experiment 3: trials 12 and 13, a checkpoint, a log."""
    master.answer("GET", f"{API}/experiments/3", {"experiment": experiment()})
    worse = trial(13, state="STATE_ERROR", bestValidation=report(50, accuracy=0.5))
    master.paged(f"{API}/experiments/3/trials", "trials", [trial(12), worse])
    master.paged(f"{API}/experiments/3/checkpoints", "checkpoints", [checkpoint()])
    master.paged(f"{API}/trials/12/checkpoints", "checkpoints", [checkpoint()])
    master.answer("GET", f"{API}/trials/12", {"trial": trial(12)})
    master.answer("GET", f"{API}/trials/12/logs", Stream([log(1, "epoch 1"), log(2, "epoch 2")]))
    master.answer("GET", f"{API}/checkpoints/{UUID}", {"checkpoint": checkpoint()})
    saved = {"uuid": UUID, "totalBatches": 100, "endTime": "2026-01-02T03:04:06Z", "state": "STATE_COMPLETED"}
    rows: list[dict[str, Any]] = [
        {"training": report(50, loss=0.5), "validation": None, "checkpoint": None},
        {"training": report(100, loss=0.25)},
        {"validation": report(100, accuracy=0.9)},
        {"checkpoint": saved | {"metadata": {"steps_completed": 100}}},
    ]
    master.paged(f"{API}/trials/12/workloads", "workloads", rows)
    master.paged(f"{API}/trials/13/workloads", "workloads", [])
    return master


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "train.py").write_text("x")
    (tmp_path / "config.yaml").write_text("name: digits  # a remark\nhyperparameters: {lr: 0.1}\n")
    return tmp_path


def created(master: StubMaster, *warnings: str) -> None:
    answer = {"experiment": experiment(), "config": {}, "warnings": list(warnings)}
    master.answer("POST", f"{API}/experiments", answer)


def test_create_sends_the_text_as_it_is(master: StubMaster, det: Det, folder: Path) -> None:
    created(master, "LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED")
    ran = det("e", "create", "config.yaml", "model")
    assert (ran.code, ran.out) == (0, "Created experiment 3\n")
    assert "Warning: it asks for more slots than the cluster has now" in ran.err
    (request,) = master.sent("POST", f"{API}/experiments")
    assert request.body["config"] == (folder / "config.yaml").read_text()
    assert request.body["activate"] is True
    assert [f["path"] for f in request.body["modelDefinition"]] == ["train.py"]
    assert "projectId" not in request.body


def tried(master: StubMaster, state: str) -> None:
    """A master on which a test run ends in this state, after its trial has trained and validated."""
    created(master)
    master.answer("GET", f"{API}/experiments/3", {"experiment": experiment(state=state)})
    master.answer("POST", f"{API}/experiments/3/archive", {})
    master.paged(f"{API}/experiments/3/trials", "trials", [trial(12)])
    rows = [{"training": report(1, loss=0.5)}, {"validation": report(1, accuracy=0.9)}]
    master.paged(f"{API}/trials/12/workloads", "workloads", rows)
    master.answer("GET", f"{API}/trials/12/logs", Stream([log(1, "it broke")]))


def test_create_in_test_mode(master: StubMaster, det: Det, folder: Path) -> None:
    tried(master, "STATE_COMPLETED")
    searcher = {"name": "adaptive_asha", "max_trials": 9, "metric": "acc", "smaller_is_better": False}
    (folder / "config.yaml").write_text(yaml.safe_dump({"name": "digits", "searcher": searcher}))
    ran = det("e", "create", "config.yaml", "model", "--test-mode", "--template", "quick")
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "The configuration is valid",
        "Created test experiment 3",
        "  it trains",
        "  it validates",
        "The test run has come to its end",
    ]
    assert "nothing shows that it saves checkpoints" in ran.err
    checked, request = master.sent("POST", f"{API}/experiments")
    assert checked.body["validateOnly"] is True and "modelDefinition" not in checked.body
    assert checked.body["config"] == (folder / "config.yaml").read_text()
    assert checked.body["template"] == request.body["template"] == "quick"
    short = yaml.safe_load(request.body["config"])
    assert short["description"] == "[test-mode] digits"
    assert short["searcher"] == {
        "name": "random",
        "max_trials": 1,
        "max_length": {"batches": 1},
        "metric": "acc",
        "smaller_is_better": False,
    }
    assert (short["max_restarts"], short["checkpoint_storage"]["save_trial_latest"]) == (0, 0)
    assert master.sent("POST", f"{API}/experiments/3/archive")


def test_a_test_run_that_fails(master: StubMaster, det: Det, folder: Path) -> None:
    tried(master, "STATE_ERROR")
    ran = det("e", "create", "config.yaml", "model", "-t")
    assert ran.code == 1
    assert "it broke" in ran.out and "The test run has come" not in ran.out
    assert "experiment 3, has ended as ERROR" in ran.err
    assert not master.sent("POST", f"{API}/experiments/3/archive")


def test_describe_says_what_went_wrong(digits: StubMaster, det: Det) -> None:
    why = "it could not be deleted: the storage is away"
    failed = experiment(state="STATE_DELETE_FAILED", error=why)
    digits.answer("GET", f"{API}/experiments/3", {"experiment": failed})
    ran = det("e", "describe", "3")
    assert "DELETE_FAILED" in ran.out
    assert f"Experiment 3: {why}" in ran.err


def test_create_with_every_option(master: StubMaster, det: Det, folder: Path) -> None:
    created(master)
    (folder / "lib").mkdir()
    overrides = ("--config", "hyperparameters.lr=1e-3", "--config", "resources.slots_per_trial=2")
    options = ("--paused", "--template", "small", "--project_id", "4", "-i", "lib", *overrides)
    assert det("experiment", "create", *options, "config.yaml", "model").code == 0
    body = master.sent("POST", f"{API}/experiments")[0].body
    assert yaml.safe_load(body["config"]) == {
        "name": "digits",
        "hyperparameters": {"lr": 0.001},
        "resources": {"slots_per_trial": 2},
    }
    assert (body["activate"], body["template"], body["projectId"]) == (False, "small", 4)
    assert [f["path"] for f in body["modelDefinition"]] == ["train.py", "lib"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("a: [1\n", "is not YAML"),
        ("just text", "holds no keys"),
        (None, "cannot read the configuration file 'config.yaml': No such file"),
    ],
)
def test_create_from_a_bad_file(
    master: StubMaster, det: Det, folder: Path, content: str | None, complaint: str
) -> None:
    if content is None:
        (folder / "config.yaml").unlink()
    else:
        (folder / "config.yaml").write_text(content)
    ran = det("e", "create", "config.yaml", "model")
    assert ran.code == 1
    assert complaint in ran.err
    assert master.requests == []


def test_create_that_the_master_refuses(master: StubMaster, det: Det, folder: Path) -> None:
    refusal = "invalid experiment configuration: <config>.searcher.metrik: unknown key"
    master.answer("POST", f"{API}/experiments", failure(400, "InvalidArgument", refusal))
    ran = det("e", "create", "config.yaml", "model")
    assert (ran.code, ran.err) == (1, f"{refusal}\n")


def test_follow_ends_with_the_result(digits: StubMaster, det: Det, folder: Path) -> None:
    created(digits)
    ran = det("e", "create", "config.yaml", "model", "-f")
    assert ran.code == 0
    assert ran.out == (
        "Created experiment 3\n"
        "epoch 1\n"
        "epoch 2\n"
        "Experiment 3 COMPLETED after 1:01:00, 2 trials\n"
        "Best validation: accuracy = 0.9 (trial 12)\n"
        f"Best checkpoint: {UUID} (trial 12, 100 batches)\n"
        f"  det checkpoint download {UUID}\n"
        "Failed: trial 13\n"
        "  det trial logs --tail 50 13\n"
    )
    assert digits.sent("GET", f"{API}/trials/12/logs")[0].query["follow"] == ["true"]


def test_follow_tells_of_the_rest_of_the_search(
    digits: StubMaster, det: Det, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "POLL", 0.001)
    created(digits)
    states = [("STATE_RUNNING", 0.5), ("STATE_RUNNING", 0.5), ("STATE_PAUSED", 0.5), ("STATE_COMPLETED", 1)]

    def answer(_: Request) -> Answer:
        state, progress = states.pop(0) if len(states) > 1 else states[0]
        return Reply({"experiment": experiment(state=state, progress=progress)})

    digits.answer("GET", f"{API}/experiments/3", answer)
    ran = det("-m", digits.url, "e", "create", "config.yaml", "model", "-f")
    assert ran.code == 0
    assert ran.err.count("Experiment 3 is RUNNING, 50% done\n") == 1
    assert ran.err.count("Experiment 3 is PAUSED, 50% done\n") == 1
    assert f"  det -m {digits.url} checkpoint download {UUID}\n" in ran.out


def test_follow_of_an_experiment_that_ends_without_a_trial(
    master: StubMaster, det: Det, folder: Path
) -> None:
    created(master)
    failed = experiment(state="STATE_ERROR", numTrials=0, error="the search found no point")
    master.answer("GET", f"{API}/experiments/3", {"experiment": failed})
    master.paged(f"{API}/experiments/3/trials", "trials", [])
    master.paged(f"{API}/experiments/3/checkpoints", "checkpoints", [])
    ran = det("e", "create", "config.yaml", "model", "-f")
    assert ran.code == 1, "as of `det e wait`"
    assert "experiment 3 ended as ERROR without a trial" in ran.err
    assert "Experiment 3 ERROR" in ran.out and "\nthe search found no point\n" in ran.out
    assert "No validation reported 'accuracy'\nNo checkpoint was saved\n" in ran.out


def test_interrupting_a_follow_leaves_the_experiment_alone(
    digits: StubMaster, det: Det, folder: Path
) -> None:
    """A real Ctrl-C: `det` in a process of its own, the log still open."""
    created(digits)
    over = threading.Event()
    digits.answer("GET", f"{API}/trials/12/logs", Stream([log(1, "epoch 1")], hold=over))
    det_e = [sys.executable, "-m", "determined.cli", "e", "create", "config.yaml", "model", "-f"]
    # SIGINT is ignored where a script runs the tests in the background.
    command = ["env", "--default-signal=INT", *det_e]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "Created experiment 3\n"
        assert process.stdout.readline() == "epoch 1\n"  # each line comes out when it comes in
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    over.set()
    assert process.returncode == 3
    assert "Experiment 3 goes on:" in err
    assert "det experiment kill 3" in err
    assert {r.method for r in digits.requests if r.path.startswith(f"{API}/experiments/3")} == {"GET"}


def test_list(master: StubMaster, det: Det) -> None:
    running = experiment(4, state="STATE_RUNNING", progress=0.123, endTime=None, forkedFrom=3)
    master.paged(f"{API}/experiments", "experiments", [experiment(), running])
    headers, first, second = cells(det("e").out)
    assert headers == [
        "ID",
        "Owner",
        "Name",
        "Parent ID",
        "State",
        "Progress",
        "Started",
        "Ended",
        "Resource Pool",
    ]
    times = ["2026-01-02 03:04:05+0000", "2026-01-02 04:05:06+0000"]
    assert first == ["3", "ada", "digits", "", "COMPLETED", "100.0%", *times, "default"]
    assert second[3:8] == ["3", "RUNNING", "12.3%", times[0], ""]
    query = master.requests[-1].query
    assert (query["users"], query["archived"]) == (["ada"], ["false"])
    headers, *_ = cells(det("experiment", "ls", "--all", "--show_project").out)
    assert headers[:3] + headers[-1:] == ["Workspace", "Project", "ID", "Archived"]
    assert "users" not in master.requests[-1].query


def test_list_pages(master: StubMaster, det: Det) -> None:
    master.paged(f"{API}/experiments", "experiments", [experiment(i) for i in range(1, 6)])

    def ids(*flags: str) -> list[str]:
        return [row[0] for row in csv.reader(io.StringIO(det("e", "list", "--csv", *flags).out))][1:]

    assert ids("--limit", "2") == ["1", "2", "3", "4", "5"]
    assert ids("--limit", "2", "--offset", "1", "--pages", "1") == ["2", "3"]
    assert det("e", "list", "--limit", "0").code == 2


def test_describe(digits: StubMaster, det: Det) -> None:
    out = det("e", "describe", "3", "--metrics").out
    table = cells(out)
    assert table[0][:3] == ["Experiment ID", "State", "Progress"]
    assert table[1][-1] == "a, b"
    assert table[2] == ["Trial ID", "Experiment ID", "State", "Started", "Ended", "H-Params"]
    assert [row[0] for row in table[3:5]] == ["12", "13"]
    assert table[5] == [
        "Trial ID",
        "# of Batches",
        "State",
        "Report Time",
        "Training Metric: loss",
        "Checkpoint State",
        "Checkpoint Report Time",
        "Validation State",
        "Validation Report Time",
        "Validation Metric: accuracy",
    ]
    time = "2026-01-02 03:04:05+0000"
    assert table[6] == ["12", "50", "COMPLETED", time, "0.5", "", "", "", "", ""]
    saved = ["COMPLETED", "2026-01-02 03:04:06+0000"]
    assert table[7] == ["12", "100", "COMPLETED", time, "0.25", *saved, "COMPLETED", time, "0.9"]
    assert "Metric:" not in det("e", "describe", "3").out


def test_describe_as_files_and_json(digits: StubMaster, det: Det, tmp_path: Path) -> None:
    assert det("e", "describe", "3", "--outdir", str(tmp_path / "out"), "--metrics").code == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "experiments.csv",
        "trials.csv",
        "workloads.csv",
    ]
    with open(tmp_path / "out" / "workloads.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["Training Metric: loss"] for row in rows] == ["0.5", "0.25"]
    (described,) = json.loads(det("e", "describe", "3", "--json").out)
    assert described["id"] == 3
    assert described["trials"][0]["workloads"][1]["checkpoint"]["uuid"] == UUID
    assert det("e", "describe", "3,3", "--csv").out.count("digits") == 2


def test_logs(digits: StubMaster, det: Det) -> None:
    assert det("e", "logs", "3").out == "epoch 1\nepoch 2\n"
    assert det("trial", "logs", "12", "--tail", "2").out == "epoch 2\nepoch 1\n"
    lines = det("t", "logs", "12", "--json").out.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["1", "2"]
    det("t", "logs", "-f", "12", "--level", "ERROR", "--rank-id", "0", "--rank-id", "1")
    query = digits.requests[-1].query
    assert (query["follow"], query["rankIds"]) == (["true"], ["0", "1"])
    assert query["levels"] == ["LOG_LEVEL_ERROR", "LOG_LEVEL_CRITICAL"]
    assert det("t", "logs", "12", "--head", "1", "--tail", "1").code == 2


def test_logs_before_the_first_trial(digits: StubMaster, det: Det) -> None:
    digits.paged(f"{API}/experiments/3/trials", "trials", [])
    ran = det("e", "logs", "3")
    assert ran.code == 1
    assert "has no trial yet" in ran.err


def test_list_trials(digits: StubMaster, det: Det) -> None:
    headers, first, _ = cells(det("e", "list-trials", "3").out)
    assert headers == ["Trial ID", "State", "H-Params", "Started", "Ended", "# of Batches"]
    assert first == ["12", "COMPLETED", '{"lr": 0.1}', "2026-01-02 03:04:05+0000", "", "100"]


def test_list_checkpoints(digits: StubMaster, det: Det) -> None:
    headers, *rows = cells(det("e", "lc", "3", "--best", "1").out)
    assert headers == ["Trial ID", "# of Batches", "State", "Validation Metric", "UUID", "Resources", "Size"]
    assert rows[0] == ["12", "100", "COMPLETED", "0.9", UUID, "weights/", "5 B"]
    assert digits.requests[-1].query["sortByAttr"] == ["SORT_BY_SEARCHER_METRIC"]
    assert det("e", "list-checkpoints", "3", "--csv").out.splitlines()[1].endswith("weights/;weights/w.bin,5")


@pytest.mark.parametrize(("state", "code"), [("COMPLETED", 0), ("ERROR", 1), ("CANCELED", 1), ("PAUSED", 1)])
def test_wait(master: StubMaster, det: Det, state: str, code: int) -> None:
    master.answer("GET", f"{API}/experiments/3", {"experiment": experiment(state=f"STATE_{state}")})
    ran = det("e", "wait", "3", "--polling-interval", "0.01")
    assert (ran.code, ran.out) == (code, "")


@pytest.mark.parametrize(
    ("verb", "route"),
    [
        ("pause", "pause"),
        ("activate", "activate"),
        ("unpause", "activate"),
        ("cancel", "cancel"),
        ("kill", "kill"),
        ("archive", "archive"),
        ("unarchive", "unarchive"),
    ],
)
def test_steering(master: StubMaster, det: Det, verb: str, route: str) -> None:
    master.answer("POST", f"{API}/experiments/3/{route}", {})
    ran = det("e", verb, "3")
    assert ran.code == 0
    assert "experiment 3" in ran.out
    assert len(master.sent("POST", f"{API}/experiments/3/{route}")) == 1


def test_delete_asks(digits: StubMaster, det: Det) -> None:
    digits.answer("DELETE", f"{API}/experiments/3", {})
    ran = det("e", "delete", "3")
    assert ran.code == 1
    assert "pass --yes" in ran.err
    assert det("e", "delete", "3", "--yes").code == 0
    assert len(digits.sent("DELETE", f"{API}/experiments/3")) == 1


def test_set_and_label(digits: StubMaster, det: Det) -> None:
    digits.answer("PATCH", f"{API}/experiments/3", {})
    for argv in (
        ("set", "name", "3", "new"),
        ("set", "description", "3", "words"),
        ("set", "priority", "3", "10"),
        ("set", "weight", "3", "2.5"),
        ("set", "max-slots", "3", "4"),
        ("set", "max-slots", "3", "none"),
    ):
        assert det("e", *argv).code == 0
    assert [
        {k: v for k, v in r.body.items() if k != "id"} for r in digits.sent("PATCH", f"{API}/experiments/3")
    ] == [
        {"name": "new"},
        {"description": "words"},
        {"resources": {"priority": 10}},
        {"resources": {"weight": 2.5}},
        {"resources": {"maxSlots": 4}},
        {"resources": {"maxSlots": None}},
    ]
    assert det("e", "set", "priority", "3", "100").code == 2
    digits.answer("PUT", f"{API}/experiments/3/labels/c", {"labels": ["a", "b", "c"]})
    digits.answer("DELETE", f"{API}/experiments/3/labels/a", {"labels": ["b"]})
    assert "Added label 'c'" in det("e", "label", "add", "3", "c").out
    assert "Removed label 'a'" in det("e", "label", "remove", "3", "a").out


@pytest.mark.parametrize(
    ("argv", "override"),
    [
        ((), None),
        (
            ("--config", "max_restarts=2", "--config", "hyperparameters.lr=1e-3"),
            {"max_restarts": 2, "hyperparameters": {"lr": 0.001}},
        ),
        (("--config-file", "more.yaml"), {"name": "more"}),
        (("--config-file", "more.yaml", "--config", "max_restarts=0"), {"name": "more", "max_restarts": 0}),
    ],
)
def test_continue(
    digits: StubMaster, det: Det, tmp_path: Path, argv: tuple[str, ...], override: dict[str, Any] | None
) -> None:
    (tmp_path / "more.yaml").write_text("name: more\n")
    digits.answer(
        "POST",
        f"{API}/experiments/continue",
        {"experiment": experiment(), "warnings": [], "messages": ["old key"]},
    )
    ran = det("e", "continue", "3", *(str(tmp_path / a) if a.endswith(".yaml") else a for a in argv))
    assert (ran.code, ran.out) == (0, "Continued experiment 3\n")
    assert "old key" in ran.err
    (sent,) = digits.sent("POST", f"{API}/experiments/continue")
    assert sent.body["id"] == 3
    assert yaml.safe_load(sent.body["overrideConfig"]) == override


def test_gc_policy_shows_what_goes(digits: StubMaster, det: Det) -> None:
    digits.answer("PATCH", f"{API}/experiments/3", {})
    doomed = {
        "TrialID": 12,
        "StepsCompleted": 100,
        "State": "COMPLETED",
        "ValidationMetrics": {"accuracy": 0.9},
        "UUID": UUID,
        "Resources": {"w": 1},
    }
    preview = {"checkpoints": [doomed], "metric_name": "accuracy"}
    digits.answer("GET", "/experiments/3/preview_gc", preview)
    keep = ("--save-experiment-best", "1", "--save-trial-best", "0", "--save-trial-latest", "0")
    ran = det("e", "set", "gc-policy", "3", *keep)
    assert ran.code == 1
    assert cells(ran.out)[1] == ["12", "100", "COMPLETED", "0.9", UUID, "w"]
    assert digits.sent("PATCH", f"{API}/experiments/3") == []
    assert det("e", "set", "gc-policy", "3", *keep, "--yes").code == 0
    assert len(digits.sent("PATCH", f"{API}/experiments/3")) == 1


def test_config_and_model_definition(digits: StubMaster, det: Det, tmp_path: Path) -> None:
    assert yaml.safe_load(det("e", "config", "3").out) == experiment()["config"]
    digits.answer("GET", f"{API}/experiments/3/model_def", {"b64Tgz": "dGd6"})
    path = det("e", "download-model-def", "3", "--output-dir", str(tmp_path)).out.strip()
    assert Path(path).name == "experiment_3_model_def.tgz"
    assert Path(path).read_bytes() == b"tgz"


@pytest.fixture
def storage(digits: StubMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint's files, in storage that can be reached from here."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "storage" / UUID / "weights"
    folder.mkdir(parents=True)
    (folder / "w.bin").write_bytes(b"12345")
    stored = checkpoint(storage={"type": "directory", "container_path": str(tmp_path / "storage")})
    digits.answer("GET", f"{API}/checkpoints/{UUID}", {"checkpoint": stored})
    digits.paged(f"{API}/experiments/3/checkpoints", "checkpoints", [stored])
    digits.paged(f"{API}/trials/12/checkpoints", "checkpoints", [stored])


@pytest.mark.usefixtures("storage")
def test_checkpoint_download(det: Det) -> None:
    ran = det("checkpoint", "download", UUID)
    assert ran.code == 0
    assert (Path("checkpoints") / UUID / "weights" / "w.bin").read_bytes() == b"12345"
    assert cells(ran.out)[0][:3] == ["Experiment ID", "Trial ID", "Steps Completed"]
    assert f"Saved in checkpoints/{UUID}" in ran.out
    ran = det("c", "download", UUID, "-o", "here", "-q", "--mode", "direct")
    assert ran.out == "here\n"
    assert (Path("here") / "weights" / "w.bin").exists()


@pytest.mark.usefixtures("storage")
def test_download_of_the_best(det: Det) -> None:
    assert det("e", "download", "3", "-q", "-o", "best").out == f"best/{UUID}\n"
    assert (Path("best") / UUID / "weights" / "w.bin").exists()
    assert det("e", "download", "3", "--sort-by", "loss").code == 1
    assert det("t", "download", "12", "--best", "-q").out == f"checkpoints/{UUID}\n"
    assert det("t", "download", "12", "--uuid", UUID, "-q").code == 0
    assert det("t", "download", "12", "--latest", "--best").code == 2
    assert det("t", "download", "12").code == 2


def test_checkpoint_describe(digits: StubMaster, det: Det) -> None:
    headers, row, *_ = cells(det("c", "describe", UUID).out)
    assert headers == [
        "Experiment ID",
        "Trial ID",
        "Steps Completed",
        "Report Time",
        "Checkpoint UUID",
        "Validation Metrics",
        "Metadata",
    ]
    assert row[:5] == ["3", "12", "100", "2026-01-02 03:04:05+0000", UUID]


def test_checkpoint_delete_and_rm(digits: StubMaster, det: Det) -> None:
    digits.answer("DELETE", f"{API}/checkpoints", {})
    digits.answer("POST", f"{API}/checkpoints/rm", {})
    assert det("c", "delete", f"{UUID},b").code == 1
    assert det("c", "delete", f"{UUID},b", "--yes").code == 0
    assert digits.sent("DELETE", f"{API}/checkpoints")[0].body == {"checkpointUuids": [UUID, "b"]}
    assert det("c", "rm", UUID, "--glob", "*.bin", "--glob", "opt/**", "--yes").code == 0
    assert digits.sent("POST", f"{API}/checkpoints/rm")[0].body == {
        "checkpointUuids": [UUID],
        "checkpointGlobs": ["*.bin", "opt/**"],
    }
    assert det("c", "rm", UUID).code == 0  # without a pattern nothing is deleted, so nothing is asked


def test_trial_describe_and_kill(digits: StubMaster, det: Det) -> None:
    out = det("t", "describe", "12", "--metrics", "--metrics-summary").out
    assert '"avg_metrics"' in out
    headers = next(row for row in cells(out) if row[0] == "# of Batches")
    assert headers == [
        "# of Batches",
        "Report Time",
        "Checkpoint",
        "Checkpoint UUID",
        "Checkpoint Metadata",
        "Validation Metrics",
        "Workload Metrics",
    ]
    assert next(row for row in cells(out) if row[0] == "100")[3] == UUID
    assert digits.requests[-1].query["limit"] == ["1000"]
    described = json.loads(det("t", "describe", "12", "--json").out)
    assert [w["total_batches"] for w in described["workloads"]] == [50, 100]
    digits.answer("POST", f"{API}/trials/12/kill", {})
    assert det("t", "kill", "12").out == "Killed trial 12\n"
