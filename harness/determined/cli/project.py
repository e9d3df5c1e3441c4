"""`det project`: experiments that belong together."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from determined.cli import render, terminal
from determined.cli.parser import Subparsers, add_json, add_order, command, group, order
from determined.cli.workspace import connected, workspace_of

if TYPE_CHECKING:
    from determined.common.api import Session
    from determined.experimental import Project

HEADERS = ("ID", "Key", "Name", "Description", "# Experiments", "# Active Experiments")


def register(commands: Subparsers) -> None:
    verbs = group(commands, "project p", "keep experiments together")

    p = command(verbs, "list ls", list_projects, "list the projects of a workspace")
    p.add_argument("workspace_name")
    add_order(p)
    add_json(p)

    p = command(verbs, "create", create, "create a project")
    p.add_argument("workspace_name")
    p.add_argument("name")
    p.add_argument("--description", metavar="TEXT")
    p.add_argument("--key", metavar="KEY", help="1 to 5 letters and digits (default made of the name)")
    add_json(p)

    p = _of_one(verbs, "describe", describe, "show a project and your experiments in it")
    p.add_argument("-a", "--all", action="store_true", help="everybody's experiments, archived too")
    add_json(p)

    p = _of_one(verbs, "edit", edit, "change a project")
    p.add_argument("--new_name", metavar="NAME")
    p.add_argument("--description", metavar="TEXT")
    p.add_argument("--key", metavar="KEY", help="1 to 5 letters and digits")
    add_json(p)

    _of_one(verbs, "archive", archive, "archive a project: it takes no experiments")
    _of_one(verbs, "unarchive", unarchive, "let it take experiments again")

    p = _of_one(verbs, "delete", delete, "delete a project and its experiments")
    p.add_argument("--yes", action="store_true", help="do not ask")

    p = _of_one(verbs, "list-experiments", list_experiments, "list your experiments in a project")
    p.add_argument("-a", "--all", action="store_true", help="everybody's, archived too")
    add_order(p)
    add_json(p)


def _of_one(verbs: Subparsers, names: str, handler: Any, help: str) -> argparse.ArgumentParser:
    p = command(verbs, names, handler, help)
    p.add_argument("workspace_name")
    p.add_argument("project_name")
    return p


def list_projects(args: argparse.Namespace) -> None:
    from determined.common.api import iterate

    session, workspace = connected(args)
    path = f"/api/v1/workspaces/{workspace.id}/projects"
    found = list(iterate(session, path, "projects", order(args), offset=args.offset, limit=args.limit))
    if args.json:
        render.print_json(found)
    else:
        render.table(HEADERS, [_row(raw) for raw in found])


def create(args: argparse.Namespace) -> None:
    project = workspace_of(args).create_project(args.name, args.description, args.key)
    _show(project, args.json)


def describe(args: argparse.Namespace) -> None:
    session, project = _connected(args)
    experiments = _experiments(session, project, args.all)
    if args.json:
        render.print_json({**project.raw, "experiments": experiments})
        return
    _show(project, False)
    print()
    _show_experiments(experiments, args.all)


def edit(args: argparse.Namespace) -> None:
    if args.new_name is None and args.description is None and args.key is None:
        raise terminal.CliError("nothing to change: give --new_name, --description or --key")
    project = _project_of(args)
    project.edit(name=args.new_name, description=args.description, key=args.key)
    _show(project, args.json)


def archive(args: argparse.Namespace) -> None:
    _project_of(args).archive()
    print(f"Archived project {args.project_name}: it takes no experiments from now on")


def unarchive(args: argparse.Namespace) -> None:
    _project_of(args).unarchive()
    print(f"Unarchived project {args.project_name}")


def delete(args: argparse.Namespace) -> None:
    project = _project_of(args)
    terminal.confirm(
        f"Delete project {project.name!r} with its {project.n_experiments} experiments, their checkpoints and logs,"
        " for good?",
        args.yes,
    )
    project.delete()
    print(f"Deleted project {project.name}")


def list_experiments(args: argparse.Namespace) -> None:
    session, project = _connected(args)
    found = _experiments(session, project, args.all, order(args), offset=args.offset, limit=args.limit)
    if args.json:
        render.print_json(found)
    else:
        _show_experiments(found, args.all)


def _connected(args: argparse.Namespace) -> "tuple[Session, Project]":
    session, workspace = connected(args)
    return session, workspace.get_project(args.project_name)


def _project_of(args: argparse.Namespace) -> "Project":
    return _connected(args)[1]


def _experiments(
    session: "Session",
    project: "Project",
    everything: bool,
    order: Mapping[str, Any] | None = None,
    *,
    offset: int = 0,
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """``everything``: also those of others, as far as one sees them, and archived ones."""
    from determined.common.api import iterate
    from determined.experimental._user import whoami

    query = {**(order or {}), "projectId": project.id}
    if not everything:
        query |= {"users": whoami(session).username, "archived": False}
    return list(iterate(session, "/api/v1/experiments", "experiments", query, offset=offset, limit=limit))


def _show_experiments(experiments: list[dict[str, Any]], with_archived: bool) -> None:
    from determined.cli.experiment import table_of

    render.table(*table_of(experiments, with_place=False, with_archived=with_archived))


def _row(raw: dict[str, Any]) -> list[Any]:
    counts = [raw["numExperiments"], raw["numActiveExperiments"]]
    return [raw["id"], raw["key"], raw["name"], raw.get("description"), *counts]


def _show(project: "Project", as_json: bool) -> None:
    if as_json:
        render.print_json(project.raw)
        return
    headers = [*HEADERS, "Owner", "Archived"]
    render.table(headers, [[*_row(project.raw), project.username, str(project.archived)]])
