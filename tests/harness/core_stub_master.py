"""A small master for tests of the harness: the routes of a trial, answering as rest-api.md says."""

import base64
import io
import json
import tarfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

TOKEN = "allocation-token"
DEADLINE = 20.0


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    body: Any
    authorized: bool


class StubMaster:
    """Records each request in the order of arrival, and answers it. `with StubMaster() as master:`"""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.preempt = threading.Event()
        self.best_metric: float | None = None
        self.context = b""
        self.statuses: dict[str, int] = {}  # an error to answer, by the end of a path
        self.on_request: Callable[[Request], None] = lambda request: None
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._port = 0
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen: on a free port at first, on the same one after a `stop`."""
        stub = self
        self._closing.clear()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # headers and body are written apart

            def handle_any(self) -> None:
                stub._handle(self)

            do_GET = do_POST = do_PATCH = handle_any

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        assert self._server is not None
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def sent(self, end: str) -> list[Any]:
        """The bodies of the POST and PATCH requests whose path ends so; of metrics, each report that came in one."""
        with self._changed:
            bodies = [r.body for r in self.requests if r.path.endswith(end) and r.method != "GET"]
        return [one for body in bodies for one in (body.get("reports", [body]) if body else [body])]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE), [r.path for r in self.requests]

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("Content-Length") or 0)
        text = handler.rfile.read(length)
        url = urlsplit(handler.path)
        request = Request(
            handler.command,
            url.path,
            parse_qs(url.query),
            json.loads(text) if text else None,
            handler.headers.get("Grpc-Metadata-x-allocation-token") == f"Bearer {TOKEN}",
        )
        self.on_request(request)
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        status, answer = self._answer(request)
        content = json.dumps(answer).encode()
        try:
            handler.send_response(status)
            handler.send_header("Content-Length", str(len(content)))
            handler.end_headers()
            handler.wfile.write(content)
        except OSError:
            handler.close_connection = True  # the client has left
        if self._closing.is_set():
            handler.close_connection = True

    def _answer(self, request: Request) -> tuple[int, dict[str, Any]]:
        path = request.path
        for end, status in self.statuses.items():
            if path.endswith(end):
                return status, {"error": {"code": 13, "reason": "Internal", "error": f"refused {end}"}}
        if not request.authorized:
            return 401, {"error": {"code": 16, "reason": "Unauthenticated", "error": "no token"}}
        if path.endswith("/signals/preemption"):
            return 200, {"preempt": self._wait_for_preemption(float(request.query["timeout_seconds"][0]))}
        if path.endswith("/context_directory"):
            return 200, {"b64Tgz": base64.b64encode(self.context).decode()}
        if path.endswith("/rendezvous"):
            return 200, {"rendezvousInfo": {"addresses": ["127.0.0.1"], "rank": 0, "slots": [1]}}
        if path.endswith("/runs/start"):
            return 200, {"storageId": 7}
        if path.endswith("/best_searcher_validation_metric"):
            if self.best_metric is None:
                return 404, {"error": {"code": 5, "reason": "NotFound", "error": "no validation yet"}}
            return 200, {"metric": self.best_metric}
        if "/checkpoints/" in path:
            uuid = path.rsplit("/", 1)[1]
            reported = [body["metadata"] for body in self.sent("/checkpoints") if body.get("uuid") == uuid]
            return 200, {"checkpoint": {"uuid": uuid, "metadata": [{"steps_completed": 3}, *reported][-1]}}
        if path.endswith("/metadata") and request.method == "GET":
            return 200, {"metadata": {"a": 1}}
        return 200, {}

    def _wait_for_preemption(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not self.preempt.is_set() and not self._closing.is_set() and time.monotonic() < end:
            self.preempt.wait(0.02)
        return self.preempt.is_set()


def trial_environment(master: StubMaster, folder: Path, **config: Any) -> dict[str, str]:
    """The variables of a trial's task, whose run folder and checkpoints lie in `folder`."""
    (folder / "tmp").mkdir(exist_ok=True)
    merged = {
        "entrypoint": "true",
        "checkpoint_storage": {"type": "shared_fs", "host_path": str(folder / "checkpoints")},
        "searcher": {"name": "single", "metric": "validation_loss", "smaller_is_better": True},
        "hyperparameters": {},
        "data": {"place": "here"},
        "debug": False,
        **config,
    }
    return {
        "DET_MASTER": master.url,
        "DET_CLUSTER_ID": "cluster",
        "DET_AGENT_ID": "agent",
        "DET_SLOT_IDS": "[0]",
        "DET_TASK_ID": "1.task",
        "DET_ALLOCATION_ID": "1.task.1",
        "DET_SESSION_TOKEN": TOKEN,
        "DET_TASK_TYPE": "TRIAL",
        "DET_RESOURCES_ID": "resources",
        "DET_CONTAINER_ID": "container",
        "DET_RUN_DIR": str(folder / "run"),
        "TMPDIR": str(folder / "tmp"),
        "DET_WORKDIR": str(folder / "run" / "workdir"),
        "DET_EXPERIMENT_ID": "1",
        "DET_TRIAL_ID": "2",
        "DET_TRIAL_RUN_ID": "1",
        "DET_TRIAL_SEED": "77",
        "DET_HPARAMS": json.dumps({"global_batch_size": 8}),
        "DET_STEPS_COMPLETED": "0",
        "DET_EXPERIMENT_CONFIG": json.dumps(merged),
    }


def tar_gz(files: dict[str, str], extra: tuple[tarfile.TarInfo, ...] = ()) -> bytes:
    """An archive of these files, and of members as given."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
        for member in extra:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return buffer.getvalue()
