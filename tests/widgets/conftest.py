"""A stub master that holds experiment 3, for the tests of this folder."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from detlab_widgets import follow
from harness import api_stub
from harness.api_stub import Answer, Reply, Request, Stream, StubMaster, master

__all__ = ["master"]


class Search:
    """Experiment 3 on a stub master, with reports that a test adds."""

    def __init__(self, master: StubMaster) -> None:
        self.master = master
        self.state = "STATE_RUNNING"
        self.progress = 0.25
        self.reports: dict[int, list[float]] = {}  # by trial: one value every 10 batches
        master.tokens["ada-token"] = "ada"
        self.serve()

    def serve(self) -> None:
        """Answer, after anything else was answered instead."""
        path = "/api/v1/experiments/3"
        self.master.answer("GET", path, lambda _: Reply({"experiment": self._experiment()}))
        self.master.answer("GET", f"{path}/trials", lambda _: Reply(self._trials()))
        self.master.answer("GET", "/api/v1/trials/metrics/trial_metrics", self._metrics)
        self.master.answer("POST", f"{path}/pause", lambda _: self._become("PAUSED"))
        self.master.answer("POST", f"{path}/activate", lambda _: self._become("RUNNING"))
        self.master.answer("POST", f"{path}/kill", lambda _: self._become("CANCELED"))

    def asked(self, path: str = "/api/v1/experiments/3") -> int:
        return len(self.master.sent("GET", path))

    def _become(self, state: str) -> Answer:
        self.state = f"STATE_{state}"
        return Reply({})

    def _experiment(self) -> dict[str, Any]:
        return api_stub.experiment(3, state=self.state, progress=self.progress)

    def _trials(self) -> dict[str, Any]:
        trials = []
        for id, values in self.reports.items():
            latest = api_stub.report(10 * len(values), accuracy=values[-1])
            best = api_stub.report(10 * len(values), accuracy=max(values))
            found = api_stub.trial(id, state="STATE_RUNNING", latestValidation=latest, bestValidation=best)
            trials.append(found | {"hparams": {"lr": id / 10}, "totalBatchesProcessed": 10 * len(values)})
        return {"trials": trials, "pagination": {"endIndex": len(trials), "total": len(trials)}}

    def _metrics(self, request: Request) -> Answer:
        assert request.query["group"] == ["validation"]
        reports = [
            {
                "trialId": id,
                "trialRunId": 1,
                "totalBatches": 10 * (i + 1),
                "endTime": api_stub.TIME,
                "group": "validation",
                "metrics": {"avg_metrics": {"accuracy": value}},
            }
            for id in map(int, request.query["trialIds"])
            for i, value in enumerate(self.reports[id])
        ]
        return Stream([{"metrics": reports}])


@pytest.fixture
def search(master: StubMaster, monkeypatch: pytest.MonkeyPatch) -> Search:
    monkeypatch.setenv("DET_USER", "ada")
    monkeypatch.setenv("DET_USER_TOKEN", "ada-token")
    monkeypatch.setattr(follow, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(follow, "LONGEST_PAUSE", 0.2)
    return Search(master)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    follow.shared.join(10)
    assert "detlab-follow" not in {thread.name for thread in threading.enumerate()}
