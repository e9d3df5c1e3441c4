"""From the arguments of a command to a session with the master."""

import argparse

from determined.cli import terminal
from determined.common.api import (
    Session,
    authentication,
    canonical_master_url,
    errors,
    master_from_environment,
)
from determined.common.api.session import json_object

INFO_TIMEOUT = 10.0  # seconds


def master_url(args: argparse.Namespace) -> str:
    return canonical_master_url(args.master or master_from_environment())


def connect(args: argparse.Namespace) -> Session:
    """A session as the user who was asked for, closed when the command ends.

    On a terminal a missing password is asked for.
    """
    url = master_url(args)
    _warn_of_other_version(str(master_info(url)["version"]))
    session = authentication.logged_in_session(
        url, user=args.user, ask=_ask if terminal.is_interactive() else None
    )
    return args.at_exit.enter_context(session)  # type: ignore[no-any-return]


def master_info(url: str) -> dict[str, object]:
    """What the master tells without a login. Not retried: an address that is wrong should say so at once."""
    with Session(url, retries=0) as session:
        try:
            info = json_object(session.get("/info", timeout=INFO_TIMEOUT))
        except errors.APIException as e:
            if e.status_code >= 500:
                raise
            info = {}
        except errors.MasterUnreachable as e:
            raise errors.MasterUnreachable(
                f"{e}. Is it running there? Another address goes into -m or DET_MASTER"
            ) from e
    if "version" not in info:
        raise errors.NotAMaster(
            f"{url} answered, but not as a master: is the address right? Set it with -m or DET_MASTER"
        )
    return info


def _warn_of_other_version(theirs: str) -> None:
    import determined

    if theirs.split(".")[:2] != determined.__version__.split(".")[:2]:
        terminal.warn(
            f"the master is of version {theirs}, this client of {determined.__version__}: some commands may fail"
        )


def _ask(url: str, name: str | None) -> tuple[str, str]:
    terminal.note(f"Log in to the master at {url}")
    name = name or terminal.ask_line("User name: ").strip()
    return name, terminal.ask_password(f"Password for user {name!r}: ")
