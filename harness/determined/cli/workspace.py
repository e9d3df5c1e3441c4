"""`det workspace`: where projects lie, and what their experiments inherit."""

import argparse
from typing import TYPE_CHECKING, Any

from determined.cli import render, terminal
from determined.cli.parser import Subparsers, add_json, add_order, command, group, order

if TYPE_CHECKING:
    from determined.common.api import Session
    from determined.experimental import Workspace

HEADERS = ("ID", "Name", "# Projects", "Default Compute Pool", "Default Aux Pool")


def register(commands: Subparsers) -> None:
    verbs = group(
        commands, "workspace w", "keep projects together, with settings of their own", default="list"
    )

    p = command(verbs, "list ls", list_workspaces, "list workspaces")
    add_order(p)
    add_json(p)

    p = command(verbs, "create", create, "create a workspace")
    p.add_argument("name")
    _add_settings(p)
    add_json(p)

    p = _of_one(verbs, "describe", describe, "show a workspace")
    add_json(p)

    p = _of_one(verbs, "edit", edit, "change a workspace")
    p.add_argument("--name", dest="new_name", metavar="NAME", help="its new name")
    _add_settings(p)
    add_json(p)

    _of_one(verbs, "archive", archive, "archive a workspace: its projects take no experiments")
    _of_one(verbs, "unarchive", unarchive, "let its projects take experiments again")

    p = _of_one(verbs, "delete", delete, "delete a workspace, its projects and their experiments")
    p.add_argument("--yes", action="store_true", help="do not ask")

    p = _of_one(verbs, "list-projects", list_projects, "list the projects of a workspace")
    add_order(p)
    add_json(p)

    _of_one(verbs, "list-pools", list_pools, "list the resource pools that its experiments may use")


def _of_one(verbs: Subparsers, names: str, handler: Any, help: str) -> argparse.ArgumentParser:
    p = command(verbs, names, handler, help)
    p.add_argument("workspace_name")
    return p


def _add_settings(parser: argparse.ArgumentParser) -> None:
    storage = parser.add_mutually_exclusive_group()
    storage.add_argument(
        "--checkpoint-storage-config", metavar="YAML", help="where checkpoints of its experiments go"
    )
    storage.add_argument("--checkpoint-storage-config-file", metavar="FILE", help="the same in a file")
    parser.add_argument("--default-compute-pool", metavar="POOL", help="of its experiments that name none")
    parser.add_argument("--default-aux-pool", metavar="POOL", help="the same for those without slots")


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    from determined.cli.overrides import parse_object, read_object

    storage = None
    if args.checkpoint_storage_config_file is not None:
        storage = read_object(args.checkpoint_storage_config_file)
    elif args.checkpoint_storage_config is not None:
        storage = parse_object(args.checkpoint_storage_config, "--checkpoint-storage-config")
    return {
        "checkpoint_storage_config": storage,
        "default_compute_pool": args.default_compute_pool,
        "default_aux_pool": args.default_aux_pool,
    }


def list_workspaces(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect
    from determined.common.api import iterate

    path, page = "/api/v1/workspaces", {"offset": args.offset, "limit": args.limit}
    found = list(iterate(connect(args), path, "workspaces", order(args), **page))
    if args.json:
        render.print_json(found)
    else:
        render.table(HEADERS, [_row(raw) for raw in found])


def create(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect
    from determined.experimental._workspace import create_workspace

    _show(create_workspace(connect(args), args.name, **_settings(args)), args.json)


def describe(args: argparse.Namespace) -> None:
    _show(workspace_of(args), args.json)


def edit(args: argparse.Namespace) -> None:
    settings = _settings(args)
    if args.new_name is None and all(value is None for value in settings.values()):
        raise terminal.CliError(
            "nothing to change: give --name or another option (det workspace edit --help)"
        )
    workspace = workspace_of(args)
    workspace.edit(name=args.new_name, **settings)
    _show(workspace, args.json)


def archive(args: argparse.Namespace) -> None:
    workspace_of(args).archive()
    print(f"Archived workspace {args.workspace_name}: its projects take no experiments from now on")


def unarchive(args: argparse.Namespace) -> None:
    workspace_of(args).unarchive()
    print(f"Unarchived workspace {args.workspace_name}")


def delete(args: argparse.Namespace) -> None:
    workspace = workspace_of(args)
    terminal.confirm(
        f"Delete workspace {workspace.name!r} with its {workspace.num_projects} projects and all experiments in"
        " them, their checkpoints and logs, for good?",
        args.yes,
    )
    workspace.delete()
    print(f"Deleted workspace {workspace.name}")


def list_projects(args: argparse.Namespace) -> None:
    from determined.cli.project import list_projects

    list_projects(args)


def list_pools(args: argparse.Namespace) -> None:
    render.table(["Resource Pool"], [[name] for name in workspace_of(args).list_pools()])


def connected(args: argparse.Namespace) -> "tuple[Session, Workspace]":
    """A session, and the workspace that the command names."""
    from determined.cli.connect import connect
    from determined.experimental._workspace import get_workspace

    session = connect(args)
    return session, get_workspace(session, args.workspace_name)


def workspace_of(args: argparse.Namespace) -> "Workspace":
    """The workspace that the command names."""
    return connected(args)[1]


def _row(raw: dict[str, Any]) -> list[Any]:
    pools = [raw.get("defaultComputePool"), raw.get("defaultAuxPool")]
    return [raw["id"], raw["name"], raw["numProjects"], *pools]


def _show(workspace: "Workspace", as_json: bool) -> None:
    if as_json:
        render.print_json(workspace.raw)
        return
    headers = [*HEADERS, "Checkpoint Storage Config", "Owner", "Archived"]
    more = [
        render.structure(workspace.checkpoint_storage_config),
        workspace.username,
        str(workspace.archived),
    ]
    render.table(headers, [[*_row(workspace.raw), *more]])
