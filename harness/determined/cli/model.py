"""`det model`: the model registry."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from determined.cli import render
from determined.cli.parser import Subparsers, command, group, names

if TYPE_CHECKING:
    from determined.experimental import Model, ModelVersion

LIST_HEADERS = ("ID", "Name", "Workspace ID", "Creation Time", "Last Updated Time", "Metadata")
VERSION_HEADERS = (
    "Version #",
    "Trial ID",
    "Batch #",
    "Checkpoint UUID",
    "Validation Metrics",
    "Metadata",
)


def register(commands: Subparsers) -> None:
    verbs = group(
        commands, "model m", "keep checkpoints under a name, as versions of a model", default="list"
    )

    p = command(verbs, "create", create, "create a model")
    p.add_argument("name")
    p.add_argument("-w", "--workspace-name", metavar="NAME", help="where it belongs")
    p.add_argument("--description", default="", metavar="TEXT")
    _add_json(p)

    p = command(verbs, "list ls", list_models, "list models")
    p.add_argument("-w", "--workspace-names", type=names, metavar="NAMES", help="separated by commas")
    p.add_argument(
        "--sort-by",
        choices=("name", "description", "creation_time", "last_updated_time"),
        default="last_updated_time",
        help="default %(default)s",
    )
    p.add_argument("--order-by", choices=("asc", "desc"), default="asc", help="default %(default)s")
    _add_json(p)

    p = command(verbs, "describe", describe, "show a model and its latest version")
    p.add_argument("name", help="or its id")
    p.add_argument("--version", type=int, metavar="NUMBER", help="with this version instead of the latest")
    _add_json(p)

    p = command(verbs, "list-versions", list_versions, "list the versions of a model")
    p.add_argument("name", help="or its id")
    _add_json(p)

    p = command(verbs, "register-version", register_version, "make a checkpoint the next version of a model")
    p.add_argument("name", help="or its id")
    p.add_argument("uuid", help="of the checkpoint")
    _add_json(p)

    p = command(verbs, "move", move, "move a model to another workspace")
    p.add_argument("name", help="or its id")
    p.add_argument("-w", "--workspace-name", metavar="NAME", required=True)

    p = command(verbs, "delete", delete, "delete a model with its versions; their checkpoints stay")
    p.add_argument("name", help="or its id")


def create(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect
    from determined.experimental._model import create_model

    model = create_model(
        connect(args), args.name, description=args.description, workspace_name=args.workspace_name
    )
    if args.json:
        render.print_json(_as_json(model))
    else:
        _show_model(model, [])


def list_models(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect
    from determined.experimental import ModelSortBy, OrderBy, _model

    found = _model.list_models(
        connect(args),
        ModelSortBy[args.sort_by.upper()],
        OrderBy[args.order_by.upper()],
        workspace_names=args.workspace_names,
    )
    if args.json:
        render.print_json([_as_json(model) for model in found])
        return
    render.table(LIST_HEADERS, [[model.model_id, model.name, *_cells(model)] for model in found])


def describe(args: argparse.Namespace) -> None:
    from determined.experimental._model import LATEST

    model = _model_of(args)
    version = model.get_version(LATEST if args.version is None else args.version)
    if args.json:
        shown = {} if args.version is None or version is None else {"modelVersion": version.raw}
        render.print_json({**_as_json(model), **shown})
    else:
        _show_model(model, [] if version is None else [version])


def list_versions(args: argparse.Namespace) -> None:
    model = _model_of(args)
    versions = model.list_versions()
    if args.json:
        render.print_json({"model": model.raw, "modelVersions": [version.raw for version in versions]})
    else:
        _show_model(model, versions)


def register_version(args: argparse.Namespace) -> None:
    model = _model_of(args)
    version = model.register_version(args.uuid)
    if args.json:
        render.print_json({"modelVersion": version.raw})
    else:
        model.reload()
        _show_model(model, [version])


def move(args: argparse.Namespace) -> None:
    model = _model_of(args)
    model.move_to_workspace(args.workspace_name)
    print(f"Moved model {model.name} to workspace {args.workspace_name}")


def delete(args: argparse.Namespace) -> None:
    model = _model_of(args)
    model.delete()
    print(f"Deleted model {model.name} with its {model.num_versions} versions; their checkpoints stay")


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def _model_of(args: argparse.Namespace) -> "Model":
    from determined.cli.connect import connect
    from determined.experimental._model import get_model

    return get_model(connect(args), args.name)


def _as_json(model: "Model") -> dict[str, Any]:
    """The keys that scripts for the official client read, and what else there is to know."""
    raw = model.raw
    return {
        "id": model.model_id,
        "name": model.name,
        "description": model.description,
        "metadata": model.metadata,
        "archived": model.archived,
        "creation_time": raw["creationTime"],
        "last_updated_time": raw["lastUpdatedTime"],
        "labels": model.labels,
        "notes": model.notes,
        "num_versions": model.num_versions,
        "username": model.username,
        "workspace_id": model.workspace_id,
    }


def _cells(model: "Model") -> list[Any]:
    times = [render.time(model.creation_time), render.time(model.last_updated_time)]
    return [model.workspace_id, *times, render.compact(model.metadata)]


def _show_model(model: "Model", versions: "Sequence[ModelVersion]") -> None:
    """The model's table, and that of versions where there are any."""
    headers = [*LIST_HEADERS[:2], "Description", *LIST_HEADERS[2:]]
    render.table(headers, [[model.model_id, model.name, model.description, *_cells(model)]])
    if not versions:
        return
    print()
    rows = []
    for version in versions:
        checkpoint = version.checkpoint
        rows.append(
            [
                version.model_version,
                checkpoint.training.trial_id,
                checkpoint.steps_completed,
                checkpoint.uuid,
                render.structure(checkpoint.training.validation_metrics.get("avgMetrics")),
                render.structure(checkpoint.metadata),
            ]
        )
    render.table(VERSION_HEADERS, rows)
