"""Errors as the API answers them: one table from what the engine raises to status, code and body (rest-api.md 1.4)."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Any, Final

from tornado.web import HTTPError

from detlab_master.core.errors import (
    Conflict,
    Forbidden,
    Inactive,
    Invalid,
    NotFound,
    RequestError,
    Unauthenticated,
)
from detlab_master.core.expconf import ConfigErrors
from detlab_master.core.transitions import IllegalMove
from detlab_master.store.base import StoreConflict, StoreUnavailable


class TooLarge(RequestError):
    """The request's body is larger than its route takes."""


class Unsupported(RequestError):
    """The client wants the answer in a form that we do not make."""


@dataclass(frozen=True)
class Kind:
    status: int  # HTTP
    code: int  # gRPC
    reason: str


INTERNAL: Final = Kind(500, 13, "Internal")
UNAVAILABLE: Final = Kind(503, 14, "Unavailable")
_KINDS: Final[list[tuple[type[Exception], Kind]]] = [
    (NotFound, Kind(404, 5, "NotFound")),
    (Invalid, Kind(400, 3, "InvalidArgument")),
    (ConfigErrors, Kind(400, 3, "InvalidArgument")),
    (IllegalMove, Kind(400, 9, "FailedPrecondition")),
    (Conflict, Kind(409, 6, "AlreadyExists")),
    (StoreConflict, Kind(409, 10, "Aborted")),
    (Unauthenticated, Kind(401, 16, "Unauthenticated")),
    (Forbidden, Kind(403, 7, "PermissionDenied")),
    (Inactive, Kind(403, 7, "PermissionDenied")),
    (TooLarge, Kind(413, 8, "ResourceExhausted")),
    (Unsupported, Kind(415, 3, "InvalidArgument")),
    (StoreUnavailable, UNAVAILABLE),
]
_BY_STATUS: Final = {
    400: Kind(400, 3, "InvalidArgument"),
    404: Kind(404, 5, "NotFound"),
    405: Kind(405, 12, "Unimplemented"),
}


def kind_of(error: BaseException) -> Kind:
    """How an exception is answered; `INTERNAL` for what nobody foresaw."""
    if isinstance(error, HTTPError):
        return _BY_STATUS.get(error.status_code, INTERNAL)
    if is_full_disk(error):
        return UNAVAILABLE
    return next((kind for cls, kind in _KINDS if isinstance(error, cls)), INTERNAL)


def is_full_disk(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def body(kind: Kind, text: str, *, gateway: bool) -> dict[str, Any]:
    """The JSON of an error.

    Args:
        gateway: for a route under /api/v1; the others have a simpler shape.
    """
    if gateway:
        return {"error": {"code": kind.code, "reason": kind.reason, "error": text}}
    return {"message": text}


def stream_item(kind: Kind, text: str) -> dict[str, Any]:
    """The last line of a stream that fails after it began (rest-api.md 2.2)."""
    return {
        "error": {
            "grpcCode": kind.code,
            "httpCode": kind.status,
            "message": text,
            "httpStatus": kind.reason,
            "details": [],
        }
    }
