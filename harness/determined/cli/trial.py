"""`det trial`: one training run."""

import argparse
import os
from typing import Any

from determined.cli import render, terminal
from determined.cli.logs import add_log_flags, add_retention, print_trial_log, query
from determined.cli.parser import Subparsers, add_download, add_paging, boolean, command, group, paging


def register(commands: Subparsers) -> None:
    verbs = group(commands, "trial t", "look at trials, their logs and checkpoints")

    p = command(verbs, "describe", describe, "show a trial and what it reported")
    p.add_argument("trial_id", type=int)
    p.add_argument("--metrics-summary", action="store_true", help="with the summary of all its metrics")
    p.add_argument("--metrics", action="store_true", help="with the training metrics of each report")
    how = p.add_mutually_exclusive_group()
    how.add_argument("--csv", action="store_true", help="as CSV")
    how.add_argument("--json", action="store_true", help="as JSON")
    add_paging(p, limit=1000)

    p = command(verbs, "logs", logs, "show its log")
    p.add_argument("trial_id", type=int)
    add_log_flags(p)

    p = command(verbs, "kill", kill, "end it now")
    p.add_argument("trial_id", type=int)

    add_retention(group(verbs, "set", "change a property"), "trial")

    p = command(verbs, "support-bundle", support_bundle, "pack what helps to find out what went wrong")
    p.add_argument("trial_id", type=int)
    p.add_argument("-o", "--output-dir", metavar="FOLDER", default=".", help="where to (default here)")

    p = command(verbs, "download", download, "download one of its checkpoints")
    p.add_argument("trial_id", type=int)
    which = p.add_mutually_exclusive_group(required=True)
    which.add_argument("--best", action="store_true", help="the best by the searcher's metric, or --sort-by")
    which.add_argument("--latest", action="store_true", help="the latest")
    which.add_argument("--uuid", help="this one")
    p.add_argument("--sort-by", metavar="METRIC", help="with --best: by this validation metric")
    p.add_argument("--smaller-is-better", type=boolean, metavar="true|false", help="goes with --sort-by")
    add_download(p)


def describe(args: argparse.Namespace) -> None:
    from determined.cli import describe as tables
    from determined.cli.connect import connect

    session = connect(args)
    trial = session.get_json(f"/api/v1/trials/{args.trial_id}")["trial"]
    steps = tables.workloads(session, args.trial_id, **paging(args))
    if args.json:
        render.print_json({**trial, "workloads": [vars(s) for s in steps]})
        return
    head: dict[str, Any] = {
        "Experiment ID": trial["experimentId"],
        "State": render.state(trial["state"]),
        "H-Params": render.structure(trial["hparams"]),
        "Started": render.time(trial["startTime"]),
        "Ended": render.time(trial.get("endTime")),
    }
    if args.metrics_summary:
        head["Summary Metrics"] = render.structure(trial.get("summaryMetrics"))
    render.table_or_csv(list(head), [list(head.values())], args.csv)
    print("" if args.csv else "\nWorkloads:")
    headers = [
        "# of Batches",
        "Report Time",
        "Checkpoint",
        "Checkpoint UUID",
        "Checkpoint Metadata",
        "Validation Metrics",
    ]
    if args.metrics:
        headers.append("Workload Metrics")
    rows = []
    for s in steps:
        checkpoint = s.checkpoint or {}
        newest = s.validation or s.training or checkpoint
        row = [
            s.total_batches,
            render.time(newest.get("endTime")),
            render.state(checkpoint.get("state", "")),
            checkpoint.get("uuid"),
            render.structure(checkpoint.get("metadata")),
            render.structure(tables.averages(s.validation)),
        ]
        if args.metrics:
            row.append(render.structure(tables.averages(s.training)))
        rows.append(row)
    render.table_or_csv(headers, rows, args.csv)


def logs(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect

    wanted = query(args)
    print_trial_log(connect(args), args.trial_id, wanted, args.json)


def kill(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect

    connect(args).post(f"/api/v1/trials/{args.trial_id}/kill")
    print(f"Killed trial {args.trial_id}")


def support_bundle(args: argparse.Namespace) -> None:
    from determined.cli.bundle import pack
    from determined.cli.connect import connect

    print(f"Wrote {pack(connect(args), args.trial_id, args.output_dir)}")
    terminal.note(
        "It has the configuration and the log as they are: look through them before you pass it on."
    )


def download(args: argparse.Namespace) -> None:
    from determined.cli.checkpoint import show
    from determined.cli.connect import connect
    from determined.experimental._trial import get_trial

    if (args.sort_by or args.smaller_is_better is not None) and not args.best:
        raise terminal.CliError("--sort-by and --smaller-is-better go with --best")
    trial = get_trial(connect(args), args.trial_id)
    checkpoint = trial.select_checkpoint(
        latest=args.latest,
        best=args.best,
        uuid=args.uuid,
        sort_by=args.sort_by,
        smaller_is_better=args.smaller_is_better,
    )
    folder = args.output_dir or os.path.join("checkpoints", checkpoint.uuid)
    show(checkpoint, checkpoint.download(folder), args.quiet)
