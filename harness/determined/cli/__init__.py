"""The `det` command.

A command's module adds its arguments to the parser and imports what it works with only when it runs, so that
`det --help` and a mistyped command answer at once.
"""

import contextlib
import os
import sys
from collections.abc import Sequence

from determined.cli import terminal
from determined.cli.parser import parse

FAILED, USAGE, INTERRUPTED = 1, 2, 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0, 1 for a failure, 2 for wrong usage, 3 when interrupted."""
    try:
        args = parse(sys.argv[1:] if argv is None else list(argv))
    except SystemExit as e:  # argparse has printed what is wrong, or the help that was asked for
        return e.code if isinstance(e.code, int) else USAGE
    try:
        with contextlib.ExitStack() as args.at_exit:
            result = args.handler(args)
        sys.stdout.flush()
        return int(result or 0)
    except KeyboardInterrupt:
        terminal.error("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # `det ... | head`: the reader has seen enough
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as e:
        if os.environ.get("DET_DEBUG") or not _is_expected(e):
            raise
        terminal.error(_explain(e))
        return FAILED


def _explain(e: Exception) -> str:
    from determined.common.api import errors

    if isinstance(e, errors.UnauthenticatedException):  # a login that ended while the command ran
        return f"{e}: type `det user login` and try again"
    return str(e)


def _is_expected(e: Exception) -> bool:
    """Whether the text of this exception tells a person what went wrong, so that no traceback is needed."""
    from determined.common.api import errors
    from determined.common.context import ContextError
    from determined.experimental._checkpoint import CheckpointNotAvailable

    return isinstance(
        e,
        (
            terminal.CliError,
            errors.RequestFailed,
            errors.NotLoggedIn,
            errors.TokenStoreError,
            ContextError,
            CheckpointNotAvailable,
            ValueError,
            OSError,
        ),
    )
