"""The `det` command.

A command's module adds its arguments to the parser and imports what it works with only when it runs, so that
`det --help` and a mistyped command answer at once.
"""

import argparse
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
        code = run(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        terminal.error("interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # `det ... | head`: the reader has seen enough
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as e:
        explanation = explain(e)
        if os.environ.get("DET_DEBUG") or explanation is None:
            raise
        terminal.error(explanation)
        return FAILED


def run(args: argparse.Namespace) -> int:
    """Run a command that `parser.parse` has understood; return its exit code. `explain` knows what it raises."""
    with contextlib.ExitStack() as args.at_exit:
        return int(args.handler(args) or 0)


def explain(e: Exception) -> str | None:
    """What to tell a person of an exception; None where only its traceback tells something."""
    from determined.common.api import errors

    if isinstance(e, errors.UnauthenticatedException):  # a login that ended while the command ran
        return f"{e}: type `det user login` and try again"
    return str(e) if _is_expected(e) else None


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
