"""`det template`: parts of configurations that experiments start from."""

import argparse
import urllib.parse
from typing import Any

from determined.cli import render
from determined.cli.parser import Subparsers, command, group


def register(commands: Subparsers) -> None:
    verbs = group(
        commands, "template tpl", "keep parts of configurations to start experiments from", default="list"
    )

    p = command(verbs, "list ls", list_templates, "list templates")
    p.add_argument("-d", "--details", action="store_true", help="with their configurations")

    p = _of_one(verbs, "create", create, "create a template")
    p.add_argument("template_file", help="the part of a configuration, a YAML file")
    p.add_argument("-w", "--workspace-name", metavar="NAME", help="where it belongs")

    _of_one(verbs, "describe", describe, "print a template as YAML")

    p = _of_one(verbs, "set", set_template, "create a template, or change it where it is there already")
    p.add_argument("template_file", help="the part of a configuration, a YAML file")

    values = group(verbs, "set-value", "change a property")
    p = _of_one(values, "config", set_config, "put another configuration in place of the old")
    p.add_argument("template_file", help="the part of a configuration, a YAML file")

    _of_one(
        verbs, "remove rm", remove, "remove a template; experiments that started from it stay as they are"
    )


def _of_one(verbs: Subparsers, names: str, handler: Any, help: str) -> argparse.ArgumentParser:
    p = command(verbs, names, handler, help)
    p.add_argument("template_name")
    return p


def list_templates(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect
    from determined.common.api import iterate
    from determined.experimental._workspace import list_workspaces

    session = connect(args)
    names = {workspace.id: workspace.name for workspace in list_workspaces(session)}
    rows = [
        [one["name"], names.get(one["workspaceId"]), *([_yaml(one["config"])] if args.details else [])]
        for one in iterate(session, "/api/v1/templates", "templates")
    ]
    render.table(["Name", "Workspace", *(["Config"] if args.details else [])], rows)


def create(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect
    from determined.cli.overrides import read_object
    from determined.experimental._workspace import get_workspace

    session = connect(args)
    body: dict[str, Any] = {"name": args.template_name, "config": read_object(args.template_file)}
    if args.workspace_name is not None:
        body["workspaceId"] = get_workspace(session, args.workspace_name).id
    session.post(_path(args), body, once=True)
    print(f"Created template {args.template_name}")


def describe(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect

    render.print_yaml(connect(args).get_json(_path(args))["template"]["config"])


def set_template(args: argparse.Namespace) -> None:
    from determined.common.api import errors

    try:
        set_config(args)
    except errors.NotFoundException:
        args.workspace_name = None
        create(args)


def set_config(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect
    from determined.cli.overrides import read_object

    connect(args).patch(_path(args), read_object(args.template_file))
    print(f"Set the configuration of template {args.template_name}")


def remove(args: argparse.Namespace) -> None:
    from determined.cli.connect import connect

    connect(args).delete(_path(args))
    print(f"Removed template {args.template_name}")


def _path(args: argparse.Namespace) -> str:
    return f"/api/v1/templates/{urllib.parse.quote(args.template_name, safe='')}"


def _yaml(config: dict[str, Any]) -> str:
    import yaml

    text: str = yaml.safe_dump(config, sort_keys=False, default_flow_style=False)
    return text.rstrip()
