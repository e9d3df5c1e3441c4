import threading
from pathlib import Path

import pytest

from determined.common.api import Session, canonical_master_url, errors, iterate
from harness.api_stub import Answer, Handler, HangUp, Reply, Request, Stream, StubMaster, failure


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("lab", "http://lab:8080"),
        ("lab:9000", "http://lab:9000"),
        ("http://lab", "http://lab:80"),
        ("https://lab", "https://lab:443"),
        ("https://lab:8443/det/", "https://lab:8443/det"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_canonical_master_url(address: str, url: str) -> None:
    assert canonical_master_url(address) == url
    assert canonical_master_url(url) == url


@pytest.mark.parametrize("address", ["ftp://lab", "http://", "lab:port", ""])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="the master's address"):
        canonical_master_url(address)


def test_the_path_prefix_of_the_master_is_kept(master: StubMaster) -> None:
    master.answer("GET", "/det/api/v1/x", {"ok": 1})
    with Session(f"{master.url}/det/", token="ada-token") as session:
        assert session.get("/api/v1/x").json() == {"ok": 1}


def test_tokens_travel_in_their_headers_and_a_netrc_does_not_replace_them(
    master: StubMaster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password else\n")
    monkeypatch.setenv("NETRC", str(netrc))
    master.answer("GET", "/x", {})
    with Session(master.url, token="ada-token") as session:
        session.get("/x")
        session.get("/x")
    with Session(master.url, allocation_token="alloc") as session:
        session.get("/x")
    first, second, third = (request.headers for request in master.sent("GET", "/x"))
    assert first["Authorization"] == second["Authorization"] == "Bearer ada-token"
    assert third["Grpc-Metadata-x-allocation-token"] == "Bearer alloc"
    assert "Authorization" not in third
    assert "Cookie" not in second  # the stub sets one on every answer


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.APIException),
        (401, errors.UnauthenticatedException),
        (403, errors.ForbiddenException),
        (404, errors.NotFoundException),
        (500, errors.APIException),
    ],
)
def test_statuses_become_exceptions_with_the_masters_words(
    master: StubMaster, status: int, kind: type[errors.APIException]
) -> None:
    master.answer("GET", "/x", failure(status, "Reason", "experiment '12' not found"))
    with Session(master.url, token="ada-token") as session, pytest.raises(kind) as raised:
        session.get("/x")
    assert str(raised.value) == "experiment '12' not found"
    assert raised.value.status_code == status
    assert len(master.requests) == 1  # none of these is tried again


def test_plain_message_and_no_message(master: StubMaster) -> None:
    master.answer("GET", "/message", Reply({"message": "gone fishing"}, 409))
    master.answer("GET", "/html", Reply(b"<html>", 500))
    with Session(master.url, token="ada-token") as session:
        with pytest.raises(errors.APIException, match=r"^gone fishing$"):
            session.get("/message")
        with pytest.raises(errors.APIException, match="GET /html: the master answered 500"):
            session.get("/html")


def _fails(times: int, answer: Answer) -> tuple[list[int], Handler]:
    calls: list[int] = []

    def handler(request: Request) -> Answer:
        calls.append(1)
        return answer if len(calls) <= times else Reply({"ok": True})

    return calls, handler


@pytest.mark.parametrize("method", ["get", "post", "patch", "put", "delete"])
@pytest.mark.parametrize("trouble", [failure(503, "Unavailable", "busy"), HangUp()])
def test_passing_trouble_is_tried_again_for_every_method(
    master: StubMaster, method: str, trouble: Answer
) -> None:
    calls, handler = _fails(3, trouble)
    master.answer(method.upper(), "/x", handler)
    with Session(master.url, token="ada-token", retries=3) as session:
        assert getattr(session, method)("/x").json() == {"ok": True}
    assert len(calls) == 4


def test_trouble_that_stays_is_told_in_the_end(master: StubMaster) -> None:
    master.answer("GET", "/x", failure(503, "Unavailable", "the database is away"))
    with (
        Session(master.url, token="ada-token", retries=2) as session,
        pytest.raises(errors.APIException, match="the database is away") as raised,
    ):
        session.get("/x")
    assert raised.value.status_code == 503
    assert len(master.requests) == 3


@pytest.mark.parametrize(
    "trouble",
    [HangUp(), failure(502, "Unavailable", "bad gateway"), failure(504, "Unavailable", "no answer in time")],
)
def test_what_must_not_be_made_twice_is_not_sent_twice(master: StubMaster, trouble: Answer) -> None:
    calls, handler = _fails(1, trouble)
    master.answer("POST", "/x", handler)
    with (
        Session(master.url, token="ada-token") as session,
        pytest.raises(errors.MasterUnreachable, match="may or may not have been done"),
    ):
        session.post("/x", {"a": 1}, once=True)
    assert len(calls) == 1


def test_what_was_not_done_is_sent_again(master: StubMaster) -> None:
    calls, handler = _fails(1, failure(503, "Unavailable", "the database is away"))
    master.answer("POST", "/x", handler)
    with Session(master.url, token="ada-token") as session:
        assert session.post("/x", {"a": 1}, once=True).json() == {"ok": True}
    assert len(calls) == 2


def test_nobody_there() -> None:
    with (
        Session("http://127.0.0.1:9", retries=0) as session,
        pytest.raises(
            errors.MasterUnreachable,
            match=r"^cannot reach the master at http://127.0.0.1:9 \(Connection refused\)$",
        ),
    ):
        session.get("/info")


def test_close_ends_the_waiting_of_another_thread() -> None:
    session = Session("http://127.0.0.1:9", retries=1000)
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            session.get("/x")
        except errors.MasterUnreachable as e:
            raised.append(e)

    thread = threading.Thread(target=ask)
    thread.start()
    session.close()
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert raised


def test_a_slow_answer_is_told_with_the_time_that_was_given(master: StubMaster) -> None:
    release = threading.Event()

    def slow(request: Request) -> Answer:
        release.wait(20)
        return Reply()

    master.answer("GET", "/x", slow)
    with (
        Session(master.url, token="ada-token") as session,
        pytest.raises(errors.MasterUnreachable, match=r"did not answer GET /x within 0\.1 s"),
    ):
        session.get("/x", timeout=0.1)
    release.set()


def test_many_threads_share_a_session(master: StubMaster) -> None:
    master.answer("POST", "/x", lambda request: Reply({"echo": request.body}))
    wrong: list[object] = []
    with Session(master.url, token="ada-token") as session:

        def ask(number: int) -> None:
            for i in range(20):
                if session.post("/x", {"n": number, "i": i}).json() != {"echo": {"n": number, "i": i}}:
                    wrong.append((number, i))

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert len(master.requests) == 160


def test_query_values(master: StubMaster) -> None:
    master.answer("GET", "/x", {})
    with Session(master.url, token="ada-token") as session:
        session.get("/x", {"users": ["a", "b"], "archived": False, "none": None, "empty": [], "n": 3})
    assert master.requests[0].query == {"users": ["a", "b"], "archived": ["false"], "n": ["3"]}


def test_stream_yields_results_as_they_come(master: StubMaster) -> None:
    master.answer("GET", "/s", Stream([{"a": 1}, {"a": 2}]))
    with Session(master.url, token="ada-token") as session:
        assert list(session.stream("/s")) == [{"a": 1}, {"a": 2}]


def test_stream_that_fails_or_breaks_off(master: StubMaster) -> None:
    master.answer("GET", "/fails", Stream([{"a": 1}], error="the log is gone"))
    master.answer("GET", "/breaks", Stream([{"a": 1}], breaks=True))
    with Session(master.url, token="ada-token") as session:
        failing = session.stream("/fails")
        assert next(failing) == {"a": 1}
        with pytest.raises(errors.APIException, match=r"^the log is gone$"):
            next(failing)
        breaking = session.stream("/breaks")
        assert next(breaking) == {"a": 1}
        with pytest.raises(errors.MasterUnreachable, match="broke off"):
            next(breaking)


def test_iterate_walks_all_pages_and_stops_at_the_limit(master: StubMaster) -> None:
    master.paged("/items", "items", [{"id": i} for i in range(7)])
    with Session(master.url, token="ada-token") as session:
        assert [i["id"] for i in iterate(session, "/items", "items", page_size=3)] == list(range(7))
        assert len(master.requests) == 3
        assert [i["id"] for i in iterate(session, "/items", "items", page_size=3, limit=4)] == [0, 1, 2, 3]
        assert [i["id"] for i in iterate(session, "/items", "items", page_size=3, offset=5)] == [5, 6]
        assert list(iterate(session, "/items", "items", limit=0)) == []


def test_iterate_does_not_ask_for_ever(master: StubMaster) -> None:
    stuck = {"items": [{"id": 1}], "pagination": {"endIndex": 0, "total": 9}}
    master.answer("GET", "/items", stuck)
    with Session(master.url, token="ada-token") as session:
        assert len(list(iterate(session, "/items", "items"))) == 1


def test_something_else_at_the_address(master: StubMaster) -> None:
    master.answer("GET", "/x", Reply(b"<html>hello</html>"))
    with (
        Session(master.url, token="ada-token") as session,
        pytest.raises(errors.NotAMaster, match="is this the address of a master"),
    ):
        session.get_json("/x")
