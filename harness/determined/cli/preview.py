"""`det preview-search`: what a search would do."""

import argparse
from typing import Any

from determined.cli.parser import Subparsers, command


def register(commands: Subparsers) -> None:
    p = command(
        commands,
        "preview-search",
        preview_search,
        "show how many trials a search would run, and for how long",
    )
    p.add_argument("config_file", help="the configuration, a YAML file")
    p.add_argument("--config", action="append", default=[], metavar="KEY=VALUE", help="override; may repeat")


def preview_search(args: argparse.Namespace) -> None:
    from determined.cli import render, terminal
    from determined.cli.connect import connect
    from determined.cli.overrides import read_config
    from determined.common.api.session import json_object

    asked = {"config": read_config(args.config_file, args.config)}
    answer = json_object(connect(args).post("/api/v1/preview-hp-search", json=asked))
    for message in answer.get("messages") or ():
        terminal.warn(message)
    summary = answer["summary"]
    print("Using search configuration:")
    render.print_yaml({key: value for key, value in summary["config"].items() if value is not None})
    print()
    render.table(
        ["Trials", "Training Time"], [(each["count"], _length(each["unit"])) for each in summary["trials"]]
    )


def _length(unit: dict[str, Any]) -> str:
    return "train to completion" if unit["maxLength"] else f"train for {unit['value']} {unit['name']}"
