"""What goes wrong in a notebook, for the person in front of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from determined.common.api import errors
from determined.common.context import ContextError
from determined.errors import DeterminedError
from determined.experimental._checkpoint import CheckpointNotAvailable


class NotebookError(Exception):
    """Something that a person can mend. The text says what is wrong and what to do.

    IPython shows the text alone: where in our code it was raised helps nobody.
    """

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class CaptureError(NotebookError):
    """Code that cannot be sent as it is. The text names the line or the names."""


class OptionError(NotebookError):
    """Options that are missing, or that do not go together."""


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Turn what the SDK raises into a NotebookError that begins with what was being done."""
    try:
        yield
    except errors.UnauthenticatedException as e:
        raise NotebookError(f"{doing}: {e}. {_log_in_again()}") from e
    except errors.MasterUnreachable as e:
        raise NotebookError(
            f"{doing}: {e}. Is the master running there? Try again, or set DET_MASTER to its address"
        ) from e
    except (
        errors.RequestFailed,
        errors.NotLoggedIn,
        errors.TokenStoreError,
        ContextError,
        CheckpointNotAvailable,
        DeterminedError,
    ) as e:
        raise NotebookError(f"{doing}: {e}") from e


def _log_in_again() -> str:
    if os.environ.get("DET_USER_TOKEN"):
        return (
            "This server was started with a token that no longer holds: stop the server and start it again "
            "(File > Hub Control Panel)"
        )
    return "Log in again: %det user login <name>, or %det token login <token>"
