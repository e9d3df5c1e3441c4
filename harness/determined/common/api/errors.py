"""What can go wrong between a client and the master.

RequestFailed
├── APIException            the master answered with an error
│   ├── NotFoundException        404
│   ├── ForbiddenException       403
│   └── UnauthenticatedException 401
├── MasterUnreachable       no answer, or it broke off
└── NotAMaster              something answered, but not in the master's language
NotLoggedIn                 there is nobody to log in as, or the password was refused
TokenStoreError             the file that keeps the tokens cannot be read or written
"""

from http import HTTPStatus


class RequestFailed(Exception):
    """A request to the master did not succeed. The text is meant for people."""


class APIException(RequestFailed):
    """The master answered, and the answer is an error.

    `status_code` is the HTTP status, `message` the master's own words, `request` the method and path.
    """

    def __init__(self, status_code: int, message: str, request: str = "") -> None:
        super().__init__(message)
        self.status_code = status_code
        self.message = message
        self.request = request


class NotFoundException(APIException):
    """404: there is no such thing, or no such route."""


class ForbiddenException(APIException):
    """403: the user is known, and may not do this."""


class UnauthenticatedException(APIException):
    """401: the token is missing, expired or unknown, or the password was wrong."""


class MasterUnreachable(RequestFailed):
    """The master gave no answer: refused, timed out, or the connection broke."""


class NotAMaster(RequestFailed):
    """The server at this address does not answer like a master."""


class NotLoggedIn(Exception):
    """Nobody is logged in, or the login was refused. The text says what to do."""


class TokenStoreError(Exception):
    """The file with the login tokens cannot be used. The text names it."""


_BY_STATUS: dict[int, type[APIException]] = {
    HTTPStatus.NOT_FOUND: NotFoundException,
    HTTPStatus.FORBIDDEN: ForbiddenException,
    HTTPStatus.UNAUTHORIZED: UnauthenticatedException,
}


def for_status(status_code: int, message: str, request: str) -> APIException:
    """The exception that fits an HTTP status."""
    return _BY_STATUS.get(status_code, APIException)(status_code, message, request)
