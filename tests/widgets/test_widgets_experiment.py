"""The experiment's view as an object: no kernel, no page. What a page sends is handed in as its messages."""

import gzip
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest

from determined.common.api import errors
from determined.experimental import ExperimentState
from detlab_widgets import ExperimentView, follow, read, show, spec
from harness.api_stub import HangUp, failure
from support.cluster import wait_for
from widgets.conftest import Search


@pytest.fixture
def view(search: Search, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExperimentView]:
    monkeypatch.setattr(read, "INTERVAL", 0.05)
    search.reports = {12: [0.1, 0.3], 13: [0.2]}
    made = ExperimentView(3)
    wait_for(lambda: made.head.get("state"), "the first reading", 10)
    yield made
    made.close()


def press(view: ExperimentView, verb: str) -> None:
    view._handle_custom_msg({"kind": "verb", "verb": verb}, [])


def test_the_widget_shows_what_the_master_says(view: ExperimentView, search: Search) -> None:
    assert view.head == {
        "title": "Experiment 3: digits",
        "state": "RUNNING",
        "progress": 0.25,
        "summary": "adaptive_asha · 2 trials (2 running) · best accuracy 0.3 in trial 12",
        "verbs": ["pause", "kill"],
    }
    assert [trace["name"] for trace in view.figure["data"]] == ["trial 13", "trial 12"]
    assert view.table["columns"][:3] == ["trial", "state", "best accuracy"]
    assert [row["cells"][0] for row in view.table["rows"]] == ["12", "13"]
    search.reports[13].append(0.9)
    wait_for(lambda: view.table["rows"][0]["id"] == 13, "the new best", 10)
    assert view.figure["data"][-1]["y"] == [0.2, 0.9]


def test_buttons_have_effect(view: ExperimentView, search: Search) -> None:
    press(view, "pause")
    wait_for(lambda: view.head["state"] == "PAUSED", "paused", 10)
    assert view.head["verbs"] == ["activate", "kill"]
    press(view, "activate")
    wait_for(lambda: view.head["state"] == "RUNNING", "active", 10)
    press(view, "kill")
    assert view.wait(10) is ExperimentState.CANCELED
    assert (view.pending, view.refusal) == ("", "")


def test_a_refusal_is_said_in_one_line(view: ExperimentView, search: Search) -> None:
    search.master.answer(
        "POST", "/api/v1/experiments/3/pause", failure(403, "PermissionDenied", "it is\nbob's, not yours")
    )
    press(view, "pause")
    assert view.refusal == "pause: it is bob's, not yours"
    assert view.pending == ""
    search.serve()
    press(view, "pause")
    assert view.refusal == ""
    search.master.answer("POST", "/api/v1/experiments/3/kill", HangUp())
    press(view, "kill")
    assert view.refusal.startswith("kill: cannot reach the master at")


def test_a_program_gets_the_sdks_exceptions(view: ExperimentView, search: Search) -> None:
    search.master.answer("POST", "/api/v1/experiments/3/kill", failure(403, "PermissionDenied", "not yours"))
    with pytest.raises(errors.ForbiddenException, match="not yours"):
        view.kill()
    view.pause()
    assert search.state == "STATE_PAUSED"


def test_a_message_with_another_verb_does_nothing(view: ExperimentView, search: Search) -> None:
    press(view, "delete")
    assert not [r for r in search.master.requests if r.method != "GET"]


def test_the_page_gets_plotly_from_the_kernel(view: ExperimentView, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[Any, list[bytes]]] = []
    monkeypatch.setattr(
        ExperimentView, "send", lambda self, content, buffers=None: sent.append((content, buffers))
    )
    view._handle_custom_msg({"kind": "library"}, [])
    [(content, [packed])] = sent
    assert content == {"kind": "library"}
    library = resources.files("plotly").joinpath("package_data", "plotly.min.js").read_bytes()
    assert gzip.decompress(packed) == library


def test_nothing_is_fetched_from_a_network() -> None:
    for name in ("experiment.js", "experiment.css"):
        assert "://" not in resources.files("detlab_widgets").joinpath(name).read_text()


def test_a_view_that_nobody_looks_at_rests(view: ExperimentView, search: Search) -> None:
    for kind in ("shown", "shown", "hidden"):
        view._handle_custom_msg({"kind": kind}, [])
    asked = search.asked()
    wait_for(lambda: search.asked() > asked + 1, "one page still shows it", 10)
    view._handle_custom_msg({"kind": "hidden"}, [])
    follow.shared.join(10)
    assert not follow.shared.running
    search.reports[12].append(0.7)
    view._handle_custom_msg({"kind": "shown"}, [])
    wait_for(lambda: view.table["rows"][0]["cells"][2] == "0.7", "it catches up", 10)


def test_the_end(view: ExperimentView, search: Search) -> None:
    with pytest.raises(TimeoutError, match="experiment 3 has not ended within"):
        view.wait(0.01)
    search.state = "STATE_COMPLETED"
    assert view.wait(10) is ExperimentState.COMPLETED
    assert view.head["progress"] == 1.0
    assert view.head["verbs"] == []


def test_an_experiment_that_is_not_there(search: Search) -> None:
    message = "experiment '4' not found"
    search.master.answer("GET", "/api/v1/experiments/4", failure(404, "NotFound", message))
    view = ExperimentView(4)
    assert view.wait(10) is None
    data, _ = view._repr_mimebundle_()
    assert message.replace("'", "&#x27;") in data["text/html"]
    assert view.trouble == message
    view.close()


def test_outside_a_notebook_it_is_printed_once(search: Search, capsys: pytest.CaptureFixture[str]) -> None:
    search.reports = {12: [0.1, 0.3]}
    show(3)
    printed = capsys.readouterr().out
    assert printed == (
        "Experiment 3: digits RUNNING, 25%\nadaptive_asha · 1 trial (1 running) · best accuracy 0.3 in trial 12\n"
    )


def test_who_waits_for_a_view_that_fails_waits_no_longer(
    view: ExperimentView, search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(facts: object) -> None:
        raise ZeroDivisionError("in the chart")

    monkeypatch.setattr(spec, "experiment", fails)
    search.reports[12].append(0.4)
    assert view.wait(10) is ExperimentState.RUNNING
    assert view.trouble == "this view has failed: ZeroDivisionError('in the chart')"


def test_the_representation_holds_widget_and_picture(view: ExperimentView) -> None:
    data, _ = view._repr_mimebundle_()
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == view.model_id
    assert data["text/plain"] == "ExperimentView(3)"
    assert '<img src="data:image/png;base64,' in data["text/html"]
    assert "as of " in data["text/html"]
    assert "<td" in data["text/html"]
