"""What can go wrong with a request, for people: what was asked, what is wrong, what to do.

The API turns each class into its HTTP status.
"""

from __future__ import annotations


class RequestError(Exception):
    """Base of all that follow; its text is shown to the person who asked."""


class NotFound(RequestError):
    """There is no such thing, or not for this user."""


class Invalid(RequestError):
    """The request cannot be carried out as it is."""


class Conflict(RequestError):
    """Something of that name is there already."""


class Unauthenticated(RequestError):
    """Nobody we know, or not any more."""


class Inactive(RequestError):
    """The user is known, but was deactivated."""


class Forbidden(RequestError):
    """The user is known, and may not do this."""
