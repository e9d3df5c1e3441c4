"""One connection to the master: who is asking, what is retried, and how failures read."""

import http.cookiejar
import json as jsonlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Self

import requests
import requests.adapters
import requests.auth
import tenacity
import urllib3.exceptions

import determined
from determined.common.api import address, errors

JSON = Any

logger = logging.getLogger("determined.common.api")

CONNECT_TIMEOUT = 10.0  # seconds to be let in
READ_TIMEOUT = 120.0  # seconds until the first byte of an answer
FIRST_PAUSE = 0.5  # seconds before the first retry; then it grows, with chance in it
LONGEST_PAUSE = 8.0
_LINE_CHUNK = 1 << 20  # bytes; a line of a stream may be long (a batch of metrics)
_RETRIED_STATUSES = frozenset({502, 503, 504})
_UNCLEAR_STATUSES = frozenset({502, 504})  # of a gateway that had no answer; with 503 nothing was done


class _TryAgain(Exception):
    """Carries a failure that may pass by itself."""

    def __init__(self, failure: errors.RequestFailed) -> None:
        super().__init__(str(failure))
        self.failure = failure


class _Credentials(requests.auth.AuthBase):
    """Puts the token on each request.

    It is an auth object and not a header because requests would let a ~/.netrc entry replace the header.
    """

    def __init__(self, token: str | None, allocation_token: str | None) -> None:
        self.token = token
        self.allocation_token = allocation_token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self.token:
            request.headers["Authorization"] = f"Bearer {self.token}"
        if self.allocation_token:
            request.headers["Grpc-Metadata-x-allocation-token"] = f"Bearer {self.allocation_token}"
        return request


class _Adapter(requests.adapters.HTTPAdapter):
    """Connections for many threads, checking the certificate for `cert_name` where one is given."""

    def __init__(self, cert_name: str | None) -> None:
        self._tls = {"assert_hostname": cert_name, "server_hostname": cert_name} if cert_name else {}
        super().__init__(pool_connections=4, pool_maxsize=32)

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **pool: Any) -> None:
        super().init_poolmanager(connections, maxsize, block, **pool, **self._tls)


class Session:
    """Requests to one master as one user, or as one allocation. May be shared between threads.

    `master` is an address in any spelling of `canonical_master_url`. A user's `token` and a task's
    `allocation_token` travel in headers of their own. A failed connection and the statuses 502, 503 and
    504 are tried again up to `retries` times, with a growing wait, for every method: our master takes a
    repeated POST for what it is. A read that times out is not repeated: the caller chose the time.

    `read_timeout`: seconds that an answer may be silent, streams included; by default READ_TIMEOUT for what is
    asked at once, and no limit for streams.

    `cert`: a file of trusted certificates, False to trust any, True for the system's; None reads
    `DET_MASTER_CERT_FILE` (a path, or `noverify`). `cert_name` (else `DET_MASTER_CERT_NAME`) is the name
    the certificate must carry when it is not the host's.

    Every method returns a 2xx response or raises `errors.APIException` (by status: NotFoundException,
    ForbiddenException, UnauthenticatedException) or `errors.MasterUnreachable`.
    """

    def __init__(
        self,
        master: str,
        *,
        token: str | None = None,
        allocation_token: str | None = None,
        retries: int = 5,
        read_timeout: float | None = None,
        cert: str | bool | None = None,
        cert_name: str | None = None,
    ) -> None:
        self.master = address.canonical_master_url(master)
        self.token = token
        self.retries = retries
        self.read_timeout = read_timeout
        self._closed = threading.Event()
        self._http = requests.Session()
        self._http.auth = _Credentials(token, allocation_token)
        self._http.headers["User-Agent"] = f"detlab/{determined.__detlab_version__}"
        # The login route also sets a cookie for browsers. One that stayed here would outlive the token.
        self._http.cookies.set_policy(_NoCookies())
        self._allocation_token, self._cert_name = allocation_token, cert_name
        self._verify = _trust(cert)
        adapter = _Adapter(cert_name or os.environ.get("DET_MASTER_CERT_NAME"))
        for scheme in ("http://", "https://"):
            self._http.mount(scheme, adapter)
        if address.is_loopback(self.master):
            self._http.trust_env = False  # a proxy from the environment cannot reach this machine's loopback

    def get(
        self, path: str, params: Mapping[str, Any] | None = None, timeout: float | None = None
    ) -> requests.Response:
        """GET `path`. List values in `params` become repeated keys, booleans true or false, None is left out."""
        return self._request("GET", path, params=params, timeout=timeout)

    def post(
        self,
        path: str,
        json: JSON = None,
        timeout: float | None = None,
        *,
        body: bytes | None = None,
        once: bool = False,
    ) -> requests.Response:
        """POST to `path`; `body` is JSON that is encoded already. With `once`, for what must not be made twice,
        only a request that cannot have arrived, or that the master says it did not carry out, is tried again."""
        return self._request("POST", path, json=json, body=body, timeout=timeout, once=once)

    def patch(self, path: str, json: JSON = None, timeout: float | None = None) -> requests.Response:
        return self._request("PATCH", path, json=json, timeout=timeout)

    def put(self, path: str, json: JSON = None, timeout: float | None = None) -> requests.Response:
        return self._request("PUT", path, json=json, timeout=timeout)

    def delete(self, path: str, json: JSON = None, timeout: float | None = None) -> requests.Response:
        return self._request("DELETE", path, json=json, timeout=timeout)

    def get_json(self, path: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """GET `path` and return the JSON object that it answers."""
        return json_object(self.get(path, params))

    def stream(self, path: str, params: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """The `result` objects of a streaming route, each as soon as it arrives.

        Without a `read_timeout` of the session there is none: a followed log may be silent for hours. Closing
        the generator closes the connection. Raises MasterUnreachable when the stream breaks off before its end.
        """
        with self._request("GET", path, params=params, stream=True) as response:
            try:
                for line in response.iter_lines(chunk_size=_LINE_CHUNK):
                    item = jsonlib.loads(line)
                    if "error" in item:
                        failure = item["error"]
                        raise errors.for_status(
                            int(failure.get("httpCode") or 500), str(failure.get("message")), f"GET {path}"
                        )
                    yield item["result"]
            except requests.RequestException as e:
                raise errors.MasterUnreachable(
                    f"the master at {self.master} broke off its answer ({_reason(e)})"
                ) from e

    def download(self, path: str, *, accept: str, chunk_size: int = 1 << 20) -> Iterator[bytes]:
        """The bytes of a large answer, `chunk_size` at most at a time, without holding it in memory."""
        with self._request("GET", path, stream=True, headers={"Accept": accept}) as response:
            try:
                yield from response.iter_content(chunk_size)
            except requests.RequestException as e:
                raise errors.MasterUnreachable(
                    f"the master at {self.master} broke off the download of {path} ({_reason(e)})"
                ) from e

    def again(self, *, retries: int, read_timeout: float | None) -> "Session":
        """A second session with the same master as the same user, with another patience."""
        return Session(
            self.master,
            token=self.token,
            allocation_token=self._allocation_token,
            retries=retries,
            read_timeout=read_timeout,
            cert=self._verify,
            cert_name=self._cert_name,
        )

    def close(self) -> None:
        """Close the connections and end the waiting between retries in other threads."""
        self._closed.set()
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _request(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_TryAgain),
            stop=tenacity.stop_any(
                tenacity.stop_after_attempt(self.retries + 1), tenacity.stop_when_event_set(self._closed)
            ),
            # With chance on top, not instead: five retries last 15 s at least, longer than a master takes to restart.
            wait=tenacity.wait_exponential(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE, min=FIRST_PAUSE)
            + tenacity.wait_random(0.0, FIRST_PAUSE),
            sleep=tenacity.sleep_using_event(self._closed),
            before_sleep=_log_retry,
            reraise=True,
        )
        try:
            return attempts(self._request_once, method, path, **kwargs)
        except _TryAgain as e:
            raise e.failure from e.__cause__

    def _request_once(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: JSON = None,
        body: bytes | None = None,
        timeout: float | None = None,
        stream: bool = False,
        headers: dict[str, str] | None = None,
        once: bool = False,
    ) -> requests.Response:
        asked = f"{method} /{path.lstrip('/')}"
        read_timeout = timeout if timeout is not None else self.read_timeout
        if read_timeout is None and not stream:
            read_timeout = READ_TIMEOUT
        try:
            response = self._http.request(
                method,
                f"{self.master}/{path.lstrip('/')}",
                params=_query(params),
                json=json,
                data=body,
                headers=headers,
                timeout=(CONNECT_TIMEOUT, read_timeout),
                stream=stream,
                verify=self._verify,
                allow_redirects=False,
            )
        except requests.exceptions.SSLError as e:
            raise errors.MasterUnreachable(
                f"the certificate of the master at {self.master} is not trusted ({_reason(e)}): "
                "set DET_MASTER_CERT_FILE to a file with its certificate"
            ) from e
        except requests.exceptions.ReadTimeout as e:
            raise errors.MasterUnreachable(
                f"the master at {self.master} did not answer {asked} within {read_timeout:g} s"
            ) from e
        except (requests.exceptions.ConnectionError, requests.exceptions.ChunkedEncodingError) as e:
            if once and not _never_arrived(e):
                raise errors.MasterUnreachable(
                    f"the master at {self.master} broke off {asked} ({_reason(e)}): it may or may not have been done"
                ) from e
            raise _TryAgain(
                errors.MasterUnreachable(f"cannot reach the master at {self.master} ({_reason(e)})")
            ) from e
        if response.status_code < 300:
            return response
        with response:
            failure = _failure(response, asked)
        if once and response.status_code in _UNCLEAR_STATUSES:
            raise errors.MasterUnreachable(f"{failure}: it may or may not have been done")
        if response.status_code in _RETRIED_STATUSES:
            raise _TryAgain(failure)
        raise failure


def json_object(response: requests.Response) -> dict[str, Any]:
    """The JSON object in a response. Raises NotAMaster when there is something else in it."""
    try:
        answer = response.json()
    except requests.exceptions.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise errors.NotAMaster(
            f"{response.url} answered, but not with a JSON object: is this the address of a master?"
        )
    return answer


class _NoCookies(http.cookiejar.DefaultCookiePolicy):
    def set_ok(self, cookie: object, request: object) -> bool:
        return False


def _trust(cert: str | bool | None) -> str | bool:
    if cert is None:
        cert = os.environ.get("DET_MASTER_CERT_FILE") or True
    if isinstance(cert, str) and cert.lower() == "noverify":
        return False
    return cert


def _query(params: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for key, value in (params or {}).items():
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, bool):
                item = "true" if item else "false"
            if item is not None:
                pairs.append((key, str(item)))
    return pairs


def _failure(response: requests.Response, asked: str) -> errors.APIException:
    status = response.status_code
    message = ""
    try:
        body = response.json()
    except (requests.exceptions.JSONDecodeError, requests.exceptions.RequestException):
        body = None
    if isinstance(body, dict):
        inner = body.get("error")
        if isinstance(inner, dict):
            message = inner.get("error") or inner.get("message") or ""
        message = message or body.get("message") or (inner if isinstance(inner, str) else "")
    if status == 401:
        message = message or "the token is missing, unknown or expired"
    if not message and 300 <= status < 400:
        message = (
            f"{response.url} answered with a redirect to {response.headers.get('Location')}: use that address"
        )
    if not message:
        message = f"{asked}: the master answered {status} {response.reason or ''}".rstrip()
    return errors.for_status(status, str(message), asked)


def _reason(e: BaseException) -> str:
    """The innermost cause of a connection error, without the layers of objects around it."""
    seen = e
    while True:
        inner = next((a for a in seen.args if isinstance(a, BaseException)), None)
        inner = inner or getattr(seen, "reason", None)
        if not isinstance(inner, BaseException):
            break
        seen = inner
    if isinstance(seen, OSError) and seen.strerror:
        return seen.strerror
    # urllib3 writes "<object>: Failed to establish a new connection: [Errno 111] Connection refused"
    return str(seen).rsplit(": ", 1)[-1].rsplit("] ", 1)[-1].rstrip(")") or type(seen).__name__


def _never_arrived(e: BaseException) -> bool:
    cause = getattr(e.args[0], "reason", None) if e.args else None
    return isinstance(cause, (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError))


def _log_retry(state: tenacity.RetryCallState) -> None:
    failure = state.outcome.exception() if state.outcome else None
    pause = state.next_action.sleep if state.next_action else 0.0
    logger.warning("%s; trying again in %.1f s (attempt %d)", failure, pause, state.attempt_number + 1)
