"""`det model`: the model registry."""

import argparse
from typing import TYPE_CHECKING

from determined.cli import render
from determined.cli.parser import Subparsers, command, group, names

if TYPE_CHECKING:
    from determined.experimental import Model, ModelVersion

MODEL_HEADERS = ("ID", "Name", "Workspace ID", "Creation Time", "Last Updated Time", "Metadata")
VERSION_HEADERS = (
    "Version #",
    "Trial ID",
    "Batch #",
    "Checkpoint UUID",
    "Validation Metrics",
    "Metadata",
)


def register(commands: Subparsers) -> None:
    verbs = group(commands, "model m", "keep checkpoints under a name, as versions of a model")

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

    p = command(verbs, "describe", describe, "show a model")
    p.add_argument("name", help="or its id")
    p.add_argument("--version", type=int, metavar="NUMBER", help="show this version too")
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
        render.print_json(model.raw)
    else:
        _show_models([model])


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
        render.print_json([model.raw for model in found])
    else:
        _show_models(found)


def describe(args: argparse.Namespace) -> None:
    model = _model_of(args)
    version = None if args.version is None else model.get_version(args.version)
    if args.json:
        render.print_json(model.raw if version is None else version.raw)
        return
    _show_models([model])
    if version is not None:
        print()
        _show_versions([version])


def list_versions(args: argparse.Namespace) -> None:
    model = _model_of(args)
    versions = model.list_versions()
    if args.json:
        render.print_json({"model": model.raw, "modelVersions": [version.raw for version in versions]})
        return
    _show_models([model])
    print()
    _show_versions(versions)


def register_version(args: argparse.Namespace) -> None:
    version = _model_of(args).register_version(args.uuid)
    if args.json:
        render.print_json(version.raw)
        return
    print(f"Registered checkpoint {args.uuid} as version {version.model_version} of {version.model_name}")
    print()
    _show_versions([version])


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


def _show_models(models: "list[Model]") -> None:
    rows = [
        [
            model.model_id,
            model.name,
            model.workspace_id,
            render.time(model.creation_time),
            render.time(model.last_updated_time),
            render.compact(model.metadata),
        ]
        for model in models
    ]
    render.table(MODEL_HEADERS, rows)


def _show_versions(versions: "list[ModelVersion]") -> None:
    rows = [
        [
            version.model_version,
            version.checkpoint.training.trial_id,
            version.checkpoint.steps_completed,
            version.checkpoint.uuid,
            render.structure(version.checkpoint.training.validation_metrics.get("avgMetrics")),
            render.structure(version.metadata),
        ]
        for version in versions
    ]
    render.table(VERSION_HEADERS, rows)
