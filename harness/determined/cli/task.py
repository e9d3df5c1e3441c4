"""`det task`: the logs of everything that runs on the cluster."""

import argparse

from determined.cli.logs import add_log_flags, print_log, query
from determined.cli.parser import Subparsers, command, group


def register(commands: Subparsers) -> None:
    verbs = group(commands, "task", "look at the logs of any task")

    p = command(verbs, "logs", logs, "show its log")
    p.add_argument("task_id")
    add_log_flags(p, of_task=True)

    command(verbs, "cleanup-logs", cleanup_logs, "remove the logs whose time is over now (administrators)")


def logs(args: argparse.Namespace) -> None:
    from urllib.parse import quote

    from determined.cli.connect import connect

    wanted = query(args)
    print_log(connect(args), f"/api/v1/tasks/{quote(args.task_id, safe='')}/logs", wanted, args.json)


def cleanup_logs(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect

    removed = connect(args).post("/api/v1/cleanup_logs").json()["removedCount"]
    print(f"Removed {removed} log lines")
