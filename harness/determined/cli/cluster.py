"""`det version` and `det master`."""

import argparse

from determined.cli import render
from determined.cli.parser import Subparsers, command, group, positive


def register(commands: Subparsers) -> None:
    command(commands, "version", version, "print the versions of this client and of the master")

    verbs = group(commands, "master", "look at the master")
    p = command(verbs, "info", info, "print what the master tells of itself")
    how = p.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="as JSON")
    how.add_argument("--yaml", action="store_true", help="as YAML (default)")

    p = command(verbs, "logs", logs, "show the master's own log (administrators)")
    p.add_argument("-f", "--follow", action="store_true", help="go on until interrupted")
    p.add_argument("--tail", type=positive, metavar="N", help="the last N lines; with -f, from there on")


def version(args: argparse.Namespace) -> None:
    import determined
    from determined.cli.connect import master_info, master_url

    url = master_url(args)
    render.print_yaml(
        {"client": {"version": determined.__version__, "detlab": determined.__detlab_version__}}
    )
    render.print_yaml({"master": master_info(url), "master_address": url})


def logs(args: argparse.Namespace) -> None:
    from determined.cli.bundle import master_lines
    from determined.cli.connect import connect

    wanted = {"follow": args.follow or None, "offset": -args.tail if args.tail else None}
    for line in master_lines(connect(args), wanted):
        print(line, flush=args.follow)


def info(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect

    answer = connect(args).get_json("/api/v1/master")
    if args.json:
        render.print_json(answer)
    else:
        render.print_yaml(answer)
