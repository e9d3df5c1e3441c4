"""`det experiment`: submit, look, steer. (What changes an experiment's properties is in experiment_edit.)"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from determined.cli import experiment_edit, render, terminal
from determined.cli.logs import add_log_flags, print_trial_log, query
from determined.cli.parser import (
    Subparsers,
    add_download,
    add_paging,
    boolean,
    command,
    group,
    identifiers,
    paging,
    positive,
)

if TYPE_CHECKING:
    from determined.common.api import Session
    from determined.experimental import Experiment

_SLOTS_EXCEEDED = "LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"


def register(commands: Subparsers) -> None:
    verbs = group(commands, "experiment e", "submit, watch and steer experiments", default="list")

    p = command(verbs, "create", create, "submit an experiment")
    p.add_argument("config_file", help="the configuration, a YAML file")
    p.add_argument("model_def", nargs="?", help="the folder (or file) with the training code")
    p.add_argument("-i", "--include", action="append", default=[], metavar="PATH", help="send this too")
    p.add_argument("--config", action="append", default=[], metavar="KEY=VALUE", help="override; may repeat")
    p.add_argument("--template", metavar="NAME", help="start from this template")
    p.add_argument("--project_id", type=int, metavar="ID", help="put it into this project")
    whether = p.add_mutually_exclusive_group()
    whether.add_argument(
        "-f",
        "--follow-first-trial",
        action="store_true",
        help="follow it to its end, with its first trial's log; exit code 1 unless it is COMPLETED",
    )
    whether.add_argument("--paused", action="store_true", help="do not start it yet")
    whether.add_argument(
        "-t",
        "--test-mode",
        action="store_true",
        help="try the code: one trial of one batch, whose checkpoints are not kept",
    )

    p = _of_one(verbs, "continue", continue_, "let one that has ended go on, from its latest checkpoints")
    p.add_argument("--config-file", metavar="FILE", help="merge this over its configuration")
    p.add_argument("--config", action="append", default=[], metavar="KEY=VALUE", help="override; may repeat")
    p.add_argument(
        "-f",
        "--follow-first-trial",
        action="store_true",
        help="follow it to its end, with its first trial's log; exit code 1 unless it is COMPLETED",
    )

    p = command(verbs, "list ls", list_experiments, "list experiments: your own that are not archived")
    p.add_argument("-a", "--all", action="store_true", help="everybody's, archived too")
    p.add_argument("--show_project", action="store_true", help="with workspace and project")
    p.add_argument("--csv", action="store_true", help="as CSV")
    add_paging(p)

    p = command(verbs, "describe", describe, "show experiments, their trials and what those reported")
    p.add_argument("experiment_ids", type=identifiers, help="ids, separated by commas")
    p.add_argument("--metrics", action="store_true", help="with a column for each metric")
    how = p.add_mutually_exclusive_group()
    how.add_argument("--csv", action="store_true", help="as CSV")
    how.add_argument("--json", action="store_true", help="as JSON")
    how.add_argument(
        "--outdir", metavar="FOLDER", help="write experiments.csv, trials.csv, workloads.csv there"
    )

    p = _of_one(verbs, "logs", logs, "show the log of its first trial")
    add_log_flags(p)

    p = _of_one(verbs, "list-trials lt", list_trials, "list its trials")
    p.add_argument("--csv", action="store_true", help="as CSV")
    add_paging(p)

    p = _of_one(verbs, "list-checkpoints lc", list_checkpoints, "list its checkpoints")
    p.add_argument("--best", type=positive, metavar="N", help="the N best by the searcher's metric")
    p.add_argument("--csv", action="store_true", help="as CSV")

    p = _of_one(verbs, "wait", wait, "wait for its end; exit code 1 unless it is COMPLETED")
    p.add_argument(
        "--polling-interval", type=float, default=5.0, metavar="SECONDS", help="default %(default)s"
    )

    for name, help in (
        ("pause", "stop it for now: its trials save a checkpoint and leave their slots"),
        ("activate unpause", "let it go on"),
        ("cancel", "end it after its trials have saved a checkpoint"),
        ("kill", "end it now"),
        ("archive", "hide it from lists"),
        ("unarchive", "show it in lists again"),
    ):
        _of_one(verbs, name, _steer(name.split()[0]), help)

    p = _of_one(verbs, "move", move, "put it into another project")
    p.add_argument("workspace_name")
    p.add_argument("project_name")

    p = _of_one(verbs, "delete", delete, "delete it, its checkpoints and its logs")
    p.add_argument("--yes", action="store_true", help="do not ask")

    _of_one(verbs, "delete-tb-files", delete_tensorboard_files, "delete what it has written for TensorBoard")

    _of_one(verbs, "config", config, "print its whole configuration as YAML")

    p = _of_one(verbs, "download-model-def", download_model_def, "save its training code as a .tgz")
    p.add_argument("--output-dir", metavar="FOLDER", help="where to (default here)")

    p = _of_one(verbs, "download", download, "download its best checkpoints")
    p.add_argument("--top-n", type=positive, default=1, metavar="N", help="how many (default %(default)s)")
    p.add_argument("--sort-by", metavar="METRIC", help="the best by this validation metric")
    p.add_argument("--smaller-is-better", type=boolean, metavar="true|false", help="goes with --sort-by")
    add_download(p)

    experiment_edit.register(verbs)


def _of_one(
    verbs: Subparsers, names: str, handler: Callable[[argparse.Namespace], int | None], help: str
) -> argparse.ArgumentParser:
    p = command(verbs, names, handler, help)
    p.add_argument("experiment_id", type=int)
    return p


def connected(args: argparse.Namespace) -> "tuple[Session, Experiment]":
    """A session, and the experiment that the command names."""
    from determined.cli.connect import connect
    from determined.experimental._experiment import get_experiment

    session = connect(args)
    return session, get_experiment(session, args.experiment_id)


def create(args: argparse.Namespace) -> int:
    from determined.cli import test_mode
    from determined.cli.connect import connect
    from determined.cli.follow import follow
    from determined.cli.overrides import read_config
    from determined.common import context
    from determined.experimental._experiment import create_experiment

    text = read_config(args.config_file, args.config)
    files = context.bundle(args.model_def, args.include)
    session = connect(args)
    place: dict[str, Any] = {"project_id": args.project_id, "template": args.template}
    if args.test_mode:
        return test_mode.run(session, text, files, **place, warn=_warn, det=_det(args))
    experiment, warnings = create_experiment(session, text, files, activate=not args.paused, **place)
    print(f"Created experiment {experiment.id}", flush=True)
    _warn(warnings)
    if args.follow_first_trial:
        return follow(session, experiment, _det(args))
    return 0


def continue_(args: argparse.Namespace) -> int:
    from determined.cli.connect import connect
    from determined.cli.follow import follow
    from determined.cli.overrides import read_config
    from determined.experimental._experiment import continue_experiment

    override = read_config(args.config_file, args.config) if args.config_file or args.config else ""
    session = connect(args)
    experiment, warnings = continue_experiment(session, args.experiment_id, override)
    print(f"Continued experiment {experiment.id}", flush=True)
    _warn(warnings)
    if args.follow_first_trial:
        return follow(session, experiment, _det(args))
    return 0


def _det(args: argparse.Namespace) -> str:
    """How the person called the command, for lines to type."""
    return f"det -m {args.master}" if args.master else "det"


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        terminal.warn(
            "it asks for more slots than the cluster has now, and waits until there are more"
            if warning == _SLOTS_EXCEEDED
            else warning
        )


def list_experiments(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect
    from determined.common.api import iterate
    from determined.experimental._user import whoami

    session = connect(args)
    only_mine = {} if args.all else {"users": whoami(session).username, "archived": False}
    found = iterate(session, "/api/v1/experiments", "experiments", only_mine, **paging(args))
    headers, rows = table_of(found, with_place=args.show_project, with_archived=args.all)
    render.table_or_csv(headers, rows, args.csv)


def table_of(
    experiments: Iterable[dict[str, Any]], *, with_place: bool, with_archived: bool
) -> tuple[list[str], list[list[Any]]]:
    """Headers and rows of a list of experiments."""
    headers = ["ID", "Owner", "Name", "Parent ID", "State", "Progress", "Started", "Ended", "Resource Pool"]
    if with_place:
        headers = ["Workspace", "Project", *headers]
    if with_archived:
        headers.append("Archived")
    rows = []
    for e in experiments:
        row = [
            e["id"],
            e["username"],
            e["name"],
            e.get("forkedFrom"),
            render.state(e["state"]),
            render.percent(e.get("progress")),
            render.time(e["startTime"]),
            render.time(e.get("endTime")),
            e.get("resourcePool"),
        ]
        if with_place:
            row = [e.get("workspaceName"), e.get("projectName"), *row]
        if with_archived:
            row.append(str(e["archived"]))
        rows.append(row)
    return headers, rows


def describe(args: argparse.Namespace) -> None:
    from determined.cli import describe as tables
    from determined.cli.connect import connect

    session = connect(args)
    described = [tables.collect(session, i) for i in args.experiment_ids]
    if args.json:
        render.print_json([d.as_json() for d in described])
    elif args.outdir:
        for path in tables.write_files(described, args.outdir, args.metrics):
            terminal.note(f"Wrote {path}")
    else:
        tables.show(described, args.metrics, args.csv)
    for one in described:
        if one.experiment.get("error"):
            terminal.note(f"Experiment {one.experiment['id']}: {one.experiment['error']}")


def logs(args: argparse.Namespace) -> None:
    wanted = query(args)
    session, experiment = connected(args)
    trial = next(experiment.iter_trials(limit=1), None)
    if trial is None and args.follow:
        trial = experiment.await_first_trial()
    if trial is None:
        raise terminal.CliError(
            f"experiment {experiment.id} is {experiment.state.name} and has no trial yet: with -f its log is waited for"
        )
    print_trial_log(session, trial.id, wanted, args.json)


def list_trials(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect
    from determined.common.api import iterate

    session = connect(args)
    path = f"/api/v1/experiments/{args.experiment_id}/trials"
    rows = [
        [
            t["id"],
            render.state(t["state"]),
            render.compact(t["hparams"]),
            render.time(t["startTime"]),
            render.time(t.get("endTime")),
            t["totalBatchesProcessed"],
        ]
        for t in iterate(session, path, "trials", {"sortBy": "SORT_BY_ID"}, **paging(args))
    ]
    render.table_or_csv(["Trial ID", "State", "H-Params", "Started", "Ended", "# of Batches"], rows, args.csv)


def list_checkpoints(args: argparse.Namespace) -> None:
    from determined.common.api import iterate
    from determined.experimental import Checkpoint

    session, experiment = connected(args)
    if args.best:
        found = experiment.list_checkpoints(max_results=args.best)
    else:
        raw = iterate(
            session,
            f"/api/v1/experiments/{experiment.id}/checkpoints",
            "checkpoints",
            {"sortByAttr": "SORT_BY_END_TIME", "orderBy": "ORDER_BY_ASC"},
        )
        found = [Checkpoint(session, c) for c in raw]
    rows: list[list[Any]] = [
        [
            c.training.trial_id,
            c.steps_completed,
            c.state.name,
            c.training.searcher_metric,
            c.uuid,
            (";" if args.csv else "\n").join(sorted(c.resources)),
            c.size if args.csv else render.size(c.size),
        ]
        for c in found
    ]
    headers = ["Trial ID", "# of Batches", "State", "Validation Metric", "UUID", "Resources", "Size"]
    render.table_or_csv(headers, rows, args.csv)


def wait(args: argparse.Namespace) -> int:
    from determined.experimental import ExperimentState

    _, experiment = connected(args)
    return 0 if experiment.wait(args.polling_interval) is ExperimentState.COMPLETED else 1


_DONE = {
    "pause": "Paused experiment {}",
    "activate": "Activated experiment {}",
    "cancel": "Canceled experiment {}: it ends when its trials have saved a checkpoint; `kill` does not wait",
    "kill": "Killed experiment {}",
    "archive": "Archived experiment {}",
    "unarchive": "Unarchived experiment {}",
}


def _steer(verb: str) -> Callable[[argparse.Namespace], None]:
    def handler(args: argparse.Namespace) -> None:
        from determined.cli.connect import connect

        connect(args).post(f"/api/v1/experiments/{args.experiment_id}/{verb}")
        print(_DONE[verb].format(args.experiment_id))

    return handler


def move(args: argparse.Namespace) -> None:
    _, experiment = connected(args)
    experiment.move_to_project(args.workspace_name, args.project_name)
    print(
        f"Moved experiment {experiment.id} to project {args.project_name!r} in workspace {args.workspace_name!r}"
    )


def delete(args: argparse.Namespace) -> None:
    _, experiment = connected(args)
    terminal.confirm(
        f"Delete experiment {experiment.id} ({experiment.name}) with all its checkpoints and logs, for good?",
        args.yes,
    )
    experiment.delete()
    print(f"Deleting experiment {experiment.id}: the master does so in the background")


def delete_tensorboard_files(args: argparse.Namespace) -> None:
    _, experiment = connected(args)
    experiment.delete_tensorboard_files()
    print(f"Deleted the TensorBoard files of experiment {experiment.id}")


def config(args: argparse.Namespace) -> None:
    _, experiment = connected(args)
    render.print_yaml(experiment.config)


def download_model_def(args: argparse.Namespace) -> None:
    _, experiment = connected(args)
    print(experiment.download_code(args.output_dir))


def download(args: argparse.Namespace) -> None:
    import os

    from determined.cli.checkpoint import show
    from determined.experimental import OrderBy

    if (args.sort_by is None) != (args.smaller_is_better is None):
        raise terminal.CliError("--sort-by and --smaller-is-better go together")
    order = None if args.sort_by is None else (OrderBy.ASC if args.smaller_is_better else OrderBy.DESC)
    _, experiment = connected(args)
    found = experiment.list_checkpoints(args.sort_by, order, max_results=args.top_n)
    if not found:
        raise terminal.CliError(f"experiment {experiment.id} has no checkpoint that can be downloaded")
    for checkpoint in found:
        path = checkpoint.download(os.path.join(args.output_dir or "checkpoints", checkpoint.uuid))
        show(checkpoint, path, args.quiet)
