"""The flags of the `logs` commands, and printing what they select."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from determined.cli.parser import not_negative

if TYPE_CHECKING:
    from determined.common.api import Session
    from determined.experimental._logs import LogQuery

LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def add_log_flags(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("-f", "--follow", action="store_true", help="go on until the task has ended")
    which.add_argument("--head", type=not_negative, metavar="N", help="the first N lines")
    which.add_argument("--tail", type=not_negative, metavar="N", help="the last N lines")
    parser.add_argument("--json", action="store_true", help="an object of JSON for each line")
    for flag, kind, meaning in (
        ("--agent-id", str, "from this agent"),
        ("--container-id", str, "from this container"),
        ("--rank-id", int, "from this rank"),
        ("--source", str, "from this source"),
        ("--stdtype", str, "stdout or stderr"),
    ):
        parser.add_argument(
            flag,
            action="append",
            default=[],
            type=kind,
            metavar="X",
            help=f"only lines {meaning}; may repeat",
        )
    parser.add_argument("--level", choices=LEVELS, help="only lines of this level and above")
    parser.add_argument("--timestamp-after", metavar="TIME", help="only lines after this time (ISO 8601)")
    parser.add_argument("--timestamp-before", metavar="TIME", help="only lines until this time (ISO 8601)")


def query(args: argparse.Namespace) -> "LogQuery":
    from determined.experimental import LogLevel
    from determined.experimental._logs import LogQuery

    return LogQuery(
        follow=args.follow,
        head=args.head,
        tail=args.tail,
        agent_ids=args.agent_id,
        container_ids=args.container_id,
        rank_ids=args.rank_id,
        sources=args.source,
        stdtypes=args.stdtype,
        min_level=LogLevel[args.level] if args.level else None,
        timestamp_after=args.timestamp_after,
        timestamp_before=args.timestamp_before,
    )


def print_trial_log(session: "Session", trial_id: int, query: "LogQuery", as_json: bool = False) -> None:
    from determined.experimental._logs import iter_trial_log

    for entry in iter_trial_log(session, trial_id, query):
        sys.stdout.write(f"{json.dumps(entry)}\n" if as_json else entry["message"])
        if query.follow:
            sys.stdout.flush()
