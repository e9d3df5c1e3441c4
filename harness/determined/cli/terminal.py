"""What the commands say to a person, and what they ask."""

import getpass
import os
import sys


class CliError(Exception):
    """A command cannot go on. The text says why and what to do."""


def error(message: str) -> None:
    """One message on stderr, red on a terminal."""
    _say(message, "31")


def note(message: str) -> None:
    """A remark beside the command's output: on stderr, so that the output can be piped."""
    _say(message, None)


def warn(message: str) -> None:
    _say(f"Warning: {message}", "33")


def _say(message: str, colour: str | None) -> None:
    if colour and sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        message = f"\033[{colour}m{message}\033[0m"
    print(message, file=sys.stderr, flush=True)


def is_interactive() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def ask_line(prompt: str) -> str:
    """A line from the terminal, or from a pipe, which gets no prompt."""
    if is_interactive():
        print(prompt, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise CliError(f"no answer on standard input to: {prompt.strip()}")
    return line.rstrip("\n")


def ask_password(prompt: str) -> str:
    """A line that is not shown while it is typed; from a pipe it is read as it is."""
    return getpass.getpass(prompt) if is_interactive() else ask_line(prompt)


def ask_new_password(username: str) -> str:
    """Asked twice on a terminal, refused when it is too weak."""
    from determined.common.api.authentication import password_problem

    password = ask_password(f"New password for user {username!r}: ")
    problem = password_problem(password)
    if problem:
        raise CliError(problem)
    if is_interactive() and getpass.getpass("The same again: ") != password:
        raise CliError("the two passwords differ")
    return password


def confirm(question: str, yes: bool) -> None:
    """Raise unless the person agrees, here or with --yes."""
    if yes:
        return
    if not is_interactive():
        raise CliError(f"{question} There is no terminal to ask on: pass --yes to agree")
    if ask_line(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise CliError("nothing was changed")
