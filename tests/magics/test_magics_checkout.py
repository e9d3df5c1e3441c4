"""Whose checkpoints may be loaded, and what is said when there is none. (Loading itself: test_magics_notebook.)"""

from typing import Any

import pytest

from detlab_magics import NotebookError, best_checkpoint, load_best, wait_for_best
from harness.api_stub import Stream, checkpoint, experiment, log, report, trial

from .conftest import API, Submissions


def serve(submissions: Submissions, *, trials: Any = (), checkpoints: Any = (), **over: Any) -> None:
    master = submissions.master
    master.answer("GET", f"{API}/experiments/3", {"experiment": experiment(**over)})
    master.paged(f"{API}/experiments/3/trials", "trials", list(trials))
    master.paged(f"{API}/experiments/3/checkpoints", "checkpoints", list(checkpoints))


def test_the_best_is_waited_for(submissions: Submissions) -> None:
    serve(submissions, trials=[trial(11, bestValidation=report(50, accuracy=0.5)), trial(12)])
    best, value = wait_for_best(3)
    assert (best.id, value) == (12, 0.9)


def test_an_experiment_that_only_failed_says_why(submissions: Submissions) -> None:
    failed = [trial(11, bestValidation=None), trial(12, state="STATE_ERROR", bestValidation=None)]
    serve(submissions, trials=failed, state="STATE_ERROR")
    said = [log(i, f"[time] 1be21d79 || {text}") for i, text in enumerate(["ERROR: no 'f1'", "earlier", ""])]
    submissions.master.answer("GET", f"{API}/trials/12/logs", Stream([said[2], said[0], said[1]]))
    why = "Trial 12 said: ERROR: no 'f1'\nIts whole log: %det trial logs 12"
    for ask, what in (
        (wait_for_best, "no trial reported 'accuracy'"),
        (best_checkpoint, "saved no checkpoint"),
        (load_best, "saved no checkpoint"),
    ):
        with pytest.raises(NotebookError) as caught:
            ask(3)
        assert str(caught.value) == f"experiment 3 ended as ERROR, and {what}. {why}"


def test_one_that_has_not_saved_yet(submissions: Submissions) -> None:
    serve(submissions, state="STATE_RUNNING")
    with pytest.raises(NotebookError, match="is RUNNING and has saved no checkpoint yet: wait for it"):
        load_best(3)
    serve(submissions, state="STATE_PAUSED")
    with pytest.raises(NotebookError, match="is paused: activate it"):
        wait_for_best(3)


def test_code_of_others_is_not_run_unasked(submissions: Submissions, tmp_path: Any) -> None:
    serve(submissions, checkpoints=[checkpoint()], username="grace")
    with pytest.raises(NotebookError, match=r"experiment 3 is grace's, .* runs grace's code in your name"):
        load_best(3)
    storage = {"type": "directory", "container_path": str(tmp_path / "none")}
    serve(submissions, checkpoints=[checkpoint(storage=storage)], username="grace")
    with pytest.raises(NotebookError, match="cannot load the checkpoint"):  # it tried
        load_best(3, trust=True)
    unknown = checkpoint()
    unknown["training"] = {**unknown["training"], "experimentId": None}
    serve(submissions, checkpoints=[unknown])
    with pytest.raises(NotebookError, match="nobody knows which experiment"):
        load_best(3)
