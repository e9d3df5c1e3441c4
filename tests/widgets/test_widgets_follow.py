import itertools
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from determined.experimental import Determined, ExperimentState, client
from detlab_widgets import follow, read
from detlab_widgets.facts import Curve, ExperimentFacts
from detlab_widgets.follow import Follower, Reading, Update
from detlab_widgets.read import ExperimentSource
from harness.api_stub import PASSWORD, HangUp, Stream, failure
from support.cluster import wait_for
from widgets.conftest import Search


class Heard:
    """A listener that keeps what it was told."""

    def __init__(self) -> None:
        self.updates: list[Update[Any]] = []
        self.threads: set[threading.Thread] = set()

    def __call__(self, update: Update[Any]) -> None:
        self.updates.append(update)
        self.threads.add(threading.current_thread())

    @property
    def last(self) -> Update[Any]:
        wait_for(lambda: self.updates, "a first update", 10)
        return self.updates[-1]

    @property
    def facts(self) -> ExperimentFacts:
        facts = self.last.facts
        assert isinstance(facts, ExperimentFacts)
        return facts

    def wait(self, condition: Any, what: str) -> None:
        wait_for(lambda: self.updates and condition(self.updates[-1]), what, 10)


@pytest.fixture
def follower(monkeypatch: pytest.MonkeyPatch) -> Iterator[Follower]:
    monkeypatch.setattr(read, "INTERVAL", 0.02)
    monkeypatch.setattr(read, "PAUSED_INTERVAL", 0.02)
    made = Follower()
    yield made
    made.join(10)
    assert not made.running


def test_a_search_is_followed_to_its_end_and_the_thread_ends_with_it(
    search: Search, follower: Follower
) -> None:
    heard = Heard()
    search.reports = {12: [0.1]}
    follower.follow(ExperimentSource(3), heard)
    heard.wait(lambda u: u.facts and u.facts.trials, "the first trial")
    assert heard.facts.trials[0].curve == Curve((10,), (0.1,))
    search.reports = {12: [0.1, 0.2], 13: [0.4]}
    heard.wait(lambda u: len(u.facts.trials) == 2, "the second trial")
    assert heard.facts.trials[0].curve == Curve((10, 20), (0.1, 0.2))
    search.state = "STATE_COMPLETED"
    follower.join(10)
    assert heard.last.ended
    assert heard.facts.state is ExperimentState.COMPLETED
    assert not follower.running


def test_only_trials_with_news_are_read_again(search: Search, follower: Follower) -> None:
    heard = Heard()
    search.reports = {12: [0.1], 13: [0.2]}
    following = follower.follow(ExperimentSource(3), heard)
    heard.wait(lambda u: u.facts and len(u.facts.trials) == 2, "both trials")
    search.reports[13] = [0.2, 0.3]
    heard.wait(lambda u: u.facts.trials[1].steps == 20, "the news")
    asked = search.asked()
    wait_for(lambda: search.asked() > asked + 2, "more readings", 10)
    following.stop()
    metrics = search.master.sent("GET", "/api/v1/trials/metrics/trial_metrics")
    assert [request.query["trialIds"] for request in metrics] == [["12", "13"], ["13"]]


def test_views_of_one_experiment_share_one_thread_and_one_reading(search: Search, follower: Follower) -> None:
    one, two = Heard(), Heard()
    first = follower.follow(ExperimentSource(3), one)
    heard_before = len(one.updates)
    second = follower.follow(ExperimentSource(3), two)
    wait_for(lambda: len(two.updates) > 3 and len(one.updates) > heard_before + 3, "both are told", 10)
    assert one.threads == two.threads
    assert len(one.threads) == 1
    assert search.asked() <= len(one.updates) + 1
    first.stop()
    told = len(one.updates)
    more = len(two.updates) + 3
    wait_for(lambda: len(two.updates) > more, "the other goes on", 10)
    assert len(one.updates) <= told + 1  # a call that had begun
    assert follower.running
    second.stop()


def test_a_master_that_is_away_and_comes_back(
    search: Search, follower: Follower, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    heard = Heard()
    search.reports = {12: [0.1]}
    following = follower.follow(ExperimentSource(3), heard)
    heard.wait(lambda u: u.facts is not None, "facts")
    search.master.answer("GET", "/api/v1/experiments/3", HangUp())
    heard.wait(lambda u: u.trouble, "trouble")
    assert heard.last.trouble.startswith(
        f"no news from the cluster: cannot reach the master at {search.master.url}"
    )
    assert "\n" not in heard.last.trouble
    assert heard.facts.trials[0].best == 0.1  # what was known stays
    assert not heard.last.ended
    search.master.answer("GET", "/api/v1/experiments/3", failure(503, "Unavailable", "starting"))
    heard.wait(lambda u: "starting" in u.trouble, "the master says why")
    search.serve()
    search.reports[12].append(0.2)
    heard.wait(lambda u: not u.trouble and u.facts.trials[0].steps == 20, "news")
    following.stop()
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []
    assert capfd.readouterr() == ("", "")


def test_while_the_master_is_away_the_pauses_grow(
    search: Search, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []
    following = follower.follow(ExperimentSource(3), lambda update: times.append(time.monotonic()))
    search.master.answer("GET", "/api/v1/experiments/3", HangUp())
    wait_for(lambda: times, "an update", 10)
    del times[:]
    wait_for(lambda: len(times) >= 5, "five tries", 10)
    following.stop()
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert gaps[-1] >= 0.2
    assert gaps[-1] > gaps[0]


def test_a_master_that_hangs_is_noticed_and_left(
    search: Search, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "READ_TIMEOUT", 0.2)
    heard, release = Heard(), threading.Event()
    search.reports = {12: [0.1]}
    search.master.answer("GET", "/api/v1/trials/metrics/trial_metrics", Stream([], hold=release))
    following = follower.follow(ExperimentSource(3), heard)
    heard.wait(lambda u: u.trouble, "trouble")
    release.set()
    search.serve()
    heard.wait(lambda u: u.facts and u.facts.trials[0].curve.steps, "news")
    following.stop()


def test_a_token_that_ran_out_and_a_new_login(
    search: Search, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    del search.master.tokens["ada-token"]
    following = follower.follow(ExperimentSource(3), heard)
    heard.wait(lambda u: "invalid credentials" in u.trouble, "trouble")
    search.master.tokens["new-token"] = "ada"
    monkeypatch.setenv("DET_USER_TOKEN", "new-token")
    heard.wait(lambda u: u.facts is not None and not u.trouble, "facts")
    following.stop()


def test_nobody_is_logged_in(search: Search, follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DET_USER_TOKEN")
    monkeypatch.delenv("DET_USER")
    heard = Heard()
    following = follower.follow(ExperimentSource(3), heard)
    heard.wait(lambda u: "det user login" in u.trouble, "what to do")
    following.stop()


@pytest.mark.parametrize(("status", "reason"), [(404, "NotFound"), (403, "PermissionDenied")])
def test_what_cannot_be_had_is_said_once(
    search: Search, follower: Follower, status: int, reason: str
) -> None:
    heard = Heard()
    message = "experiment '3' is not for you"
    search.master.answer("GET", "/api/v1/experiments/3", failure(status, reason, message))
    follower.follow(ExperimentSource(3), heard)
    follower.join(10)
    assert heard.updates == [Update(None, message, ended=True)]


def test_who_wakes_it_need_not_wait(
    search: Search, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "INTERVAL", 60.0)
    heard = Heard()
    following = follower.follow(ExperimentSource(3), heard)
    heard.wait(lambda u: u.facts is not None, "facts")
    told = len(heard.updates)
    search.state = "STATE_PAUSED"
    following.wake()
    heard.wait(lambda u: u.facts.state is ExperimentState.PAUSED, "the new state")
    assert told == 1
    following.stop()


class Bad:
    """A source whose reading fails in a way that nobody foresaw."""

    key = "bad"

    def __str__(self) -> str:
        return "the bad thing"

    def read(self, client: Determined) -> Reading[int]:
        raise KeyError("metrics")


def test_one_bad_source_and_one_bad_view_do_not_stop_the_others(search: Search, follower: Follower) -> None:
    bad, good = Heard(), Heard()

    def fails(update: Update[Any]) -> None:
        raise ZeroDivisionError

    follower.follow(ExperimentSource(3), fails)
    following = follower.follow(ExperimentSource(3), good)
    follower.follow(Bad(), bad)
    bad.wait(lambda u: u.ended, "the end of the bad one")
    assert bad.last.trouble == "cannot show the bad thing: 'metrics'"
    told = len(good.updates) + 3
    wait_for(lambda: len(good.updates) > told, "the good one goes on", 10)
    following.stop()


def test_views_act_as_the_user_whom_the_program_chose(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DET_USER_TOKEN", "nonsense")
    monkeypatch.setenv("DET_MASTER", "http://127.0.0.1:1")
    monkeypatch.setattr(client, "_shared", None)
    client.login(search.master.url, "ada", PASSWORD)
    with follow.connect() as connection:
        assert connection.whoami().username == "ada"
    shared = client.current()
    assert shared is not None
    shared.close()
