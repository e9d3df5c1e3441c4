"""A loopback server that answers like a master: shapes of the REST API, canned content, recorded requests."""

import http.server
import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from determined.common.api import session
from determined.common.api.authentication import hash_password

PASSWORD = "Correct-horse-1"
TIME = "2026-01-02T03:04:05.678Z"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Reply:
    """`body`: JSON content, or bytes that are sent as they are."""

    body: Any = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True)
class Stream:
    """Lines of JSON.

    `breaks` leaves the chunked body without its end, as a master that dies does; `hold` keeps it open until set.
    """

    results: list[dict[str, Any]]
    breaks: bool = False
    error: str | None = None
    hold: threading.Event | None = None


class HangUp:
    """Close the connection without an answer."""


Answer = Reply | Stream | HangUp
Handler = Callable[[Request], Answer]


class StubMaster:
    """Answers `answer(...)`-ed routes; `/info`, login and `/me` work by themselves, everything else is 404."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.passwords = {"ada": PASSWORD}
        self.tokens = {"ada-token": "ada"}
        self.version = "0.38.1"
        self._routes: dict[tuple[str, str], Handler] = {}
        stub = self

        class HTTP(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_request(self) -> None:
                stub.handle(self)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = handle_request

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), HTTP)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, method: str, path: str, answer: Answer | dict[str, Any] | bytes | Handler) -> None:
        """Answer a route from now on: with JSON, bytes, an Answer, or a function of the request."""
        if isinstance(answer, (dict, bytes)):
            answer = Reply(answer)
        if isinstance(answer, (Reply, Stream, HangUp)):
            fixed = answer
            self._routes[method, path] = lambda _: fixed
        else:
            self._routes[method, path] = answer

    def paged(self, path: str, key: str, items: list[dict[str, Any]], default_limit: int = 0) -> None:
        """Answer a paged list."""

        def page(request: Request) -> Answer:
            offset = int(request.query.get("offset", ["0"])[0])
            limit = int(request.query.get("limit", ["0"])[0]) or default_limit or len(items)
            chosen = items[offset : offset + limit]
            end = offset + len(chosen)
            pagination = {
                "offset": offset,
                "limit": limit,
                "startIndex": offset,
                "endIndex": end,
                "total": len(items),
            }
            return Reply({key: chosen, "pagination": pagination})

        self.answer("GET", path, page)

    def sent(self, method: str, path: str) -> list[Request]:
        """The requests to a route, in order."""
        return [r for r in self.requests if (r.method, r.path) == (method, path)]

    def handle(self, http: http.server.BaseHTTPRequestHandler) -> None:
        url = urllib.parse.urlsplit(http.path)
        raw = http.rfile.read(int(http.headers.get("Content-Length") or 0))
        request = Request(
            http.command,
            urllib.parse.unquote(url.path),
            urllib.parse.parse_qs(url.query, keep_blank_values=True),
            dict(http.headers),
            json.loads(raw) if raw else None,
        )
        self.requests.append(request)
        answer = self._answer(request)
        try:
            if isinstance(answer, HangUp):
                http.close_connection = True
            elif isinstance(answer, Reply):
                self._reply(http, answer)
            else:
                self._stream(http, answer)
        except ConnectionError:  # the client has gone: some tests mean it to
            http.close_connection = True

    def _answer(self, request: Request) -> Answer:
        if request.path == "/info":
            return Reply(
                {"version": self.version, "cluster_id": "c", "cluster_name": "stub", "master_id": "m"}
            )
        if request.path == "/api/v1/auth/login" and (request.method, request.path) not in self._routes:
            return self._login(request.body)
        if "Grpc-Metadata-x-allocation-token" not in request.headers:
            username = self.tokens.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
            if username is None:
                return failure(401, "Unauthenticated", "invalid credentials")
            if request.path == "/api/v1/me":
                return Reply({"user": user(username)})
        handler = self._routes.get((request.method, request.path))
        return handler(request) if handler else failure(404, "NotFound", f"no route {request.path}")

    def _login(self, body: dict[str, Any]) -> Answer:
        known = self.passwords.get(body["username"])
        if known is None or hash_password(known) != body["password"] or body["isHashed"] is not True:
            return failure(401, "Unauthenticated", "invalid credentials")
        token = f"{body['username']}-token"
        self.tokens[token] = body["username"]
        return Reply({"token": token, "user": user(body["username"])})

    @staticmethod
    def _reply(http: http.server.BaseHTTPRequestHandler, reply: Reply) -> None:
        content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
        http.send_response(reply.status)
        http.send_header("Content-Length", str(len(content)))
        http.send_header("Set-Cookie", "auth=from-the-master; Path=/")
        http.end_headers()
        http.wfile.write(content)

    @staticmethod
    def _stream(http: http.server.BaseHTTPRequestHandler, stream: Stream) -> None:
        http.send_response(200)
        http.send_header("Transfer-Encoding", "chunked")
        http.end_headers()
        lines: list[dict[str, Any]] = [{"result": result} for result in stream.results]
        if stream.error:
            lines.append({"error": {"httpCode": 500, "message": stream.error}})
        for line in lines:
            content = json.dumps(line).encode() + b"\n"
            http.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))
            http.wfile.flush()
        if stream.hold:
            stream.hold.wait(30)
        if stream.breaks:
            http.close_connection = True
        else:
            http.wfile.write(b"0\r\n\r\n")


def failure(status: int, reason: str, message: str) -> Reply:
    return Reply({"error": {"code": 0, "reason": reason, "error": message}}, status)


def user(username: str, **over: Any) -> dict[str, Any]:
    return {"id": 7, "username": username, "admin": False, "active": True, "remote": False} | over


def experiment(id: int = 3, **over: Any) -> dict[str, Any]:
    return {
        "id": id,
        "archived": False,
        "config": {
            "name": "digits",
            "searcher": {"name": "adaptive_asha", "metric": "accuracy", "smaller_is_better": False},
        },
        "jobId": "job",
        "name": "digits",
        "description": "ten of them",
        "numTrials": 2,
        "originalConfig": "name: digits",
        "projectId": 1,
        "projectOwnerId": 1,
        "projectName": "Uncategorized",
        "workspaceName": "Shared",
        "searcherType": "adaptive_asha",
        "startTime": TIME,
        "endTime": "2026-01-02T04:05:06Z",
        "state": "STATE_COMPLETED",
        "username": "ada",
        "progress": 1,
        "labels": ["b", "a"],
        "resourcePool": "default",
        "forkedFrom": None,
    } | over


def report(steps: int, **metrics: Any) -> dict[str, Any]:
    return {
        "endTime": TIME,
        "totalBatches": steps,
        "numInputs": 0,
        "metrics": {"avgMetrics": metrics, "batchMetrics": []},
    }


def trial(id: int = 12, **over: Any) -> dict[str, Any]:
    return {
        "id": id,
        "experimentId": 3,
        "hparams": {"lr": 0.1},
        "restarts": 0,
        "startTime": TIME,
        "endTime": None,
        "state": "STATE_COMPLETED",
        "totalBatchesProcessed": 100,
        "bestValidation": report(100, accuracy=0.9),
        "summaryMetrics": {"avg_metrics": {"loss": {"type": "number", "last": 0.1}}},
    } | over


UUID = "0a1b2c3d-0000-4000-8000-000000000001"


def checkpoint(uuid: str = UUID, storage: dict[str, Any] | None = None, **over: Any) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "taskId": "task",
        "allocationId": "task.1",
        "reportTime": TIME,
        "state": "STATE_COMPLETED",
        "metadata": {"steps_completed": 100},
        "resources": {"weights/": "0", "weights/w.bin": "5"},
        "storageId": 1,
        "training": {
            "trialId": 12,
            "experimentId": 3,
            "experimentConfig": {"checkpoint_storage": storage or {"type": "gcs", "bucket": "b"}},
            "hparams": {"lr": 0.1},
            "trainingMetrics": {"avgMetrics": {"loss": 0.1}},
            "validationMetrics": {"avgMetrics": {"accuracy": 0.9}},
            "searcherMetric": 0.9,
        },
    } | over


def model(id: int = 5, **over: Any) -> dict[str, Any]:
    return {
        "id": id,
        "name": "hand-written digits",
        "description": "ten of them",
        "notes": "",
        "labels": ["b", "a"],
        "metadata": {"dataset": "digits"},
        "archived": False,
        "creationTime": TIME,
        "lastUpdatedTime": "2026-01-02T04:05:06Z",
        "numVersions": 2,
        "userId": 7,
        "username": "ada",
        "workspaceId": 1,
    } | over


def model_version(version: int = 2, **over: Any) -> dict[str, Any]:
    return {
        "id": 40 + version,
        "version": version,
        "model": model(),
        "checkpoint": checkpoint(),
        "name": "",
        "comment": "why",
        "notes": "",
        "labels": [],
        "metadata": {"approved": True},
        "creationTime": TIME,
        "lastUpdatedTime": TIME,
        "userId": 7,
        "username": "ada",
    } | over


def log(id: int, text: str) -> dict[str, Any]:
    return {
        "id": str(id),
        "level": "LOG_LEVEL_INFO",
        "message": f"{text}\n",
        "log": f"{text}\n",
        "timestamp": TIME,
        "trialId": 12,
    }


@pytest.fixture
def master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StubMaster]:
    """A running stub, with the environment and a token store that point to it; nobody is logged in."""
    stub = StubMaster()
    for name in ("DET_USER", "DET_PASS", "DET_USER_TOKEN", "DET_MASTER_ADDR", "DET_MASTER_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DET_MASTER", stub.url)
    monkeypatch.setenv("DET_DEBUG_CONFIG_PATH", str(tmp_path / "config"))
    monkeypatch.setattr(session, "FIRST_PAUSE", 0.001)
    yield stub
    stub.close()
