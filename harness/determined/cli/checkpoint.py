"""`det checkpoint`: what trials saved."""

import argparse
from typing import TYPE_CHECKING

from determined.cli import render, terminal
from determined.cli.parser import Subparsers, add_download, command, group, names

if TYPE_CHECKING:
    from determined.experimental import Checkpoint


def register(commands: Subparsers) -> None:
    verbs = group(commands, "checkpoint c", "show, download and delete checkpoints")

    p = command(verbs, "describe", describe, "show a checkpoint")
    p.add_argument("uuid")

    p = command(verbs, "download", download, "download a checkpoint's files")
    p.add_argument("uuid")
    p.add_argument(
        "--mode",
        choices=("direct", "master", "auto"),
        default="auto",
        help="from its storage, through the master, or whatever works (default)",
    )
    add_download(p)

    p = command(verbs, "delete", delete, "delete checkpoints")
    p.add_argument("checkpoints_uuids", type=names, help="uuids, separated by commas")
    p.add_argument("--yes", action="store_true", help="do not ask")

    p = command(verbs, "rm", remove, "delete some of the files of checkpoints")
    p.add_argument("checkpoints_uuids", type=names, help="uuids, separated by commas")
    p.add_argument("--glob", action="append", default=[], metavar="PATTERN", help="which files; may repeat")
    p.add_argument("--yes", action="store_true", help="do not ask")


def show(checkpoint: "Checkpoint", path: str | None = None, quiet: bool = False) -> None:
    """A checkpoint's table, with the place where it was saved; only that place when quiet."""
    if quiet:
        print(path)
        return
    training = checkpoint.training
    headers = [
        "Experiment ID",
        "Trial ID",
        "Steps Completed",
        "Report Time",
        "Checkpoint UUID",
        "Validation Metrics",
        "Metadata",
    ]
    row = [
        training.experiment_id,
        training.trial_id,
        checkpoint.steps_completed,
        render.time(checkpoint.report_time),
        checkpoint.uuid,
        render.structure(training.validation_metrics.get("avgMetrics")),
        render.structure(checkpoint.metadata),
    ]
    render.table(headers, [["N/A" if cell in (None, "") else cell for cell in row]])
    if path is not None:
        print(f"\nSaved in {path}")


def describe(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect
    from determined.experimental._checkpoint import get_checkpoint

    show(get_checkpoint(connect(args), args.uuid))


def download(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect
    from determined.experimental import DownloadMode
    from determined.experimental._checkpoint import get_checkpoint

    checkpoint = get_checkpoint(connect(args), args.uuid)
    show(checkpoint, checkpoint.download(args.output_dir, DownloadMode(args.mode)), args.quiet)


def delete(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect

    uuids = args.checkpoints_uuids
    session = connect(args)
    terminal.confirm(f"Delete {_these(uuids)} for good?", args.yes)
    session.delete("/api/v1/checkpoints", {"checkpointUuids": uuids})
    print(f"Deleting {_these(uuids)}")


def remove(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect

    uuids, globs = args.checkpoints_uuids, args.glob
    session = connect(args)
    if globs:
        terminal.confirm(f"Delete the files {', '.join(globs)} of {_these(uuids)} for good?", args.yes)
    session.post("/api/v1/checkpoints/rm", {"checkpointUuids": uuids, "checkpointGlobs": globs})
    print(
        f"Deleting files of {_these(uuids)}" if globs else f"Looking at the files of {_these(uuids)} afresh"
    )


def _these(uuids: list[str]) -> str:
    return f"checkpoint{'s' * (len(uuids) != 1)} {', '.join(uuids)}"
