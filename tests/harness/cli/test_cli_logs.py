"""`det task`, `det master logs`, the retention of logs and the support bundle."""

import tarfile
from pathlib import Path

import pytest

from harness.api_stub import Request, Stream, StubMaster, experiment, failure, log, trial

from .conftest import Det

API = "/api/v1"


def test_the_log_of_any_task(det: Det, master: StubMaster) -> None:
    master.answer("GET", f"{API}/tasks/a task/logs", Stream([log(1, "one"), log(2, "two")]))
    ran = det("task", "logs", "a task", "--allocation-id", "x.1", "--head", "5", "--level", "ERROR")
    assert (ran.code, ran.out) == (0, "one\ntwo\n"), ran.err
    (request,) = master.sent("GET", f"{API}/tasks/a task/logs")
    assert request.query["allocationIds"] == ["x.1"]
    assert request.query["limit"] == ["5"]
    assert request.query["levels"] == ["LOG_LEVEL_ERROR", "LOG_LEVEL_CRITICAL"]
    assert det("trial", "logs", "12", "--allocation-id", "x.1").code == 2  # of tasks only


def test_cleaning_up(det: Det, master: StubMaster) -> None:
    master.answer("POST", f"{API}/cleanup_logs", {"removedCount": "120"})
    assert det("task", "cleanup-logs").out == "Removed 120 log lines\n"


@pytest.mark.parametrize(
    ("flags", "days", "said"),
    [(["--days", "7"], 7, "for 7 days after its end"), (["--forever"], -1, "for ever")],
)
@pytest.mark.parametrize("kind", ["trial", "experiment"])
def test_how_long_a_log_is_kept(
    det: Det, master: StubMaster, kind: str, flags: list[str], days: int, said: str
) -> None:
    path = f"{API}/{kind}s/12/retain_logs"
    master.answer("PUT", path, {})
    assert det(kind, "set", "log-retention", "12", *flags).out == f"The log of {kind} 12 is kept {said}\n"
    (request,) = master.sent("PUT", path)
    assert request.body == {"numDays": days}


@pytest.mark.parametrize("flags", [[], ["--days", "-3"], ["--days", "3", "--forever"]])
def test_how_long_must_be_said(det: Det, flags: list[str]) -> None:
    assert det("trial", "set", "log-retention", "12", *flags).code == 2


def entry(number: int, message: str) -> dict[str, object]:
    time = f"2026-01-02T03:04:0{number}Z"
    return {"logEntry": {"id": number, "level": "LOG_LEVEL_INFO", "message": message, "timestamp": time}}


def test_the_masters_log(det: Det, master: StubMaster) -> None:
    master.answer("GET", f"{API}/master/logs", Stream([entry(1, "ready"), entry(2, "busy")]))
    ran = det("master", "logs", "--tail", "2", "-f")
    assert ran.out == "2026-01-02T03:04:01Z [INFO]: ready\n2026-01-02T03:04:02Z [INFO]: busy\n"
    (request,) = master.sent("GET", f"{API}/master/logs")
    assert (request.query["offset"], request.query["follow"]) == (["-2"], ["true"])


def bundled(det: Det, folder: Path) -> tuple[dict[str, str], str]:
    """The files of a support bundle of trial 12, and what was said beside it."""
    ran = det("trial", "support-bundle", "12", "-o", str(folder))
    assert ran.code == 0, ran.err
    (path,) = folder.iterdir()
    assert ran.out == f"Wrote {path}\n"
    files = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member)
            assert content is not None
            files[Path(member.name).name] = content.read().decode()
    return files, ran.err


def test_a_support_bundle_has_the_logs_and_what_the_api_says(
    det: Det, master: StubMaster, tmp_path: Path
) -> None:
    _cluster(master)
    master.answer("GET", f"{API}/master/logs", Stream([entry(1, "ready")]))
    files, _ = bundled(det, tmp_path / "new")
    assert files["trial_logs.txt"] == "it broke\n"
    assert files["master_logs.txt"] == "2026-01-02T03:04:01Z [INFO]: ready\n"
    assert '"experimentId": 3' in files["api_trial.json"]
    assert {name for name in files if name.startswith("api_")} > {"api_experiment.json", "api_agents.json"}


def test_without_being_an_administrator_the_masters_log_is_left_out(
    det: Det, master: StubMaster, tmp_path: Path
) -> None:
    _cluster(master)

    def refused(request: Request) -> object:
        return failure(403, "PermissionDenied", "it is for administrators")

    master.answer("GET", f"{API}/master/logs", refused)  # type: ignore[arg-type]
    files, said = bundled(det, tmp_path / "new")
    assert "for administrators" in said
    assert files["master_logs.txt"].startswith("left out")


def test_a_bundle_that_fails_leaves_nothing_behind(det: Det, master: StubMaster, tmp_path: Path) -> None:
    assert det("trial", "support-bundle", "12", "-o", str(tmp_path / "new")).code == 1
    master.answer("GET", f"{API}/trials/12", {"trial": trial(12)})
    assert det("trial", "support-bundle", "12", "-o", str(tmp_path / "new")).code == 1
    assert list((tmp_path / "new").iterdir()) == []


def _cluster(master: StubMaster) -> None:
    master.answer("GET", f"{API}/trials/12", {"trial": trial(12)})
    master.answer("GET", f"{API}/trials/12/logs", Stream([log(1, "it broke")]))
    master.answer("GET", f"{API}/experiments/3", {"experiment": experiment()})
    for path in (
        "experiments/3/trials",
        "trials/12/workloads",
        "trials/12/checkpoints",
        "master",
        "agents",
        "resource-pools",
    ):
        master.answer("GET", f"{API}/{path}", {})
