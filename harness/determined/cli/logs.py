"""The flags of the `logs` commands, printing what they select, and how long logs are kept."""

import argparse
import json
import sys
from typing import TYPE_CHECKING

from determined.cli.parser import Subparsers, command, not_negative

if TYPE_CHECKING:
    from determined.common.api import Session
    from determined.experimental._logs import LogQuery

LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def add_log_flags(parser: argparse.ArgumentParser, *, of_task: bool = False) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("-f", "--follow", action="store_true", help="go on until the task has ended")
    which.add_argument("--head", type=not_negative, metavar="N", help="the first N lines")
    which.add_argument("--tail", type=not_negative, metavar="N", help="the last N lines")
    parser.add_argument("--json", action="store_true", help="an object of JSON for each line")
    filters: list[tuple[str, type, str]] = [("--allocation-id", str, "of this run")] if of_task else []
    filters += [
        ("--agent-id", str, "from this agent"),
        ("--container-id", str, "from this container"),
        ("--rank-id", int, "from this rank"),
        ("--source", str, "from this source"),
        ("--stdtype", str, "stdout or stderr"),
    ]
    for flag, kind, meaning in filters:
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
        allocation_ids=getattr(args, "allocation_id", ()),
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
    print_log(session, f"/api/v1/trials/{trial_id}/logs", query, as_json)


def print_log(session: "Session", path: str, query: "LogQuery", as_json: bool = False) -> None:
    from determined.experimental._logs import iter_log

    for entry in iter_log(session, path, query):
        sys.stdout.write(f"{json.dumps(entry)}\n" if as_json else entry["message"])
        if query.follow:
            sys.stdout.flush()


def add_retention(verbs: Subparsers, kind: str) -> None:
    """`set log-retention` of a trial or an experiment; ``verbs`` are those of its `set`."""
    p = command(verbs, "log-retention", set_retention, f"change how long the log of the {kind} is kept")
    p.add_argument("id", type=int, metavar=f"{kind}_id")
    how = p.add_mutually_exclusive_group(required=True)
    how.add_argument("--days", type=not_negative, metavar="N", help="so many days after its end")
    how.add_argument("--forever", action="store_true", help="as long as there is the experiment")
    p.set_defaults(kind=kind)


def set_retention(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect

    days = -1 if args.forever else args.days
    connect(args).put(f"/api/v1/{args.kind}s/{args.id}/retain_logs", {"numDays": days})
    kept = "for ever" if args.forever else f"for {days} days after its end"
    print(f"The log of {args.kind} {args.id} is kept {kept}")
