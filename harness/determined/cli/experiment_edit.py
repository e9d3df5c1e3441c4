"""`det experiment set` and `det experiment label`: what may be changed of an experiment that exists."""

import argparse
from collections.abc import Callable
from typing import Any

from determined.cli import render, terminal
from determined.cli.logs import add_retention
from determined.cli.parser import Subparsers, command, group, not_negative


def register(verbs: Subparsers) -> None:
    properties = group(verbs, "set", "change a property")
    for name, kind, help in (
        ("name", str, "change its name"),
        ("description", str, "change its description"),
        ("priority", _priority, "change its place in the queue: 1 is served first, 99 last"),
        ("weight", float, "change its share, where the scheduler shares by weight"),
        ("max-slots", _max_slots, "change how many slots it may hold; `none` lifts the limit"),
    ):
        p = command(properties, name, set_property, help)
        p.add_argument("experiment_id", type=int)
        p.add_argument("value", type=kind, metavar=name.replace("-", "_"))
        p.set_defaults(property=name)

    p = command(properties, "gc-policy", set_gc_policy, "change how many checkpoints are kept")
    p.add_argument("experiment_id", type=int)
    for name, meaning in (
        ("--save-experiment-best", "of the best of all trials"),
        ("--save-trial-best", "of the best of each trial"),
        ("--save-trial-latest", "of the latest of each trial"),
    ):
        p.add_argument(name, type=not_negative, required=True, metavar="N", help=f"how many {meaning}")
    p.add_argument("--yes", action="store_true", help="do not ask")

    add_retention(properties, "experiment")

    labels = group(verbs, "label", "add or remove a label")
    for verb in ("add", "remove"):
        p = command(labels, verb, change_label, f"{verb} a label")
        p.add_argument("experiment_id", type=int)
        p.add_argument("label")
        p.set_defaults(verb=verb)


def set_property(args: argparse.Namespace) -> None:
    from determined.cli.experiment import connected

    _, experiment = connected(args)
    changes: dict[str, Callable[[Any], None]] = {
        "name": experiment.set_name,
        "description": experiment.set_description,
        "priority": experiment.set_priority,
        "weight": experiment.set_weight,
        "max-slots": experiment.set_max_slots,
    }
    changes[args.property](args.value)
    print(f"Set {args.property} of experiment {experiment.id} to {_shown(args.value)}")


def _shown(value: object) -> str:
    return "none" if value is None else repr(value)


def set_gc_policy(args: argparse.Namespace) -> None:
    from determined.cli.experiment import connected

    session, experiment = connected(args)
    policy = {
        "save_experiment_best": args.save_experiment_best,
        "save_trial_best": args.save_trial_best,
        "save_trial_latest": args.save_trial_latest,
    }
    if not args.yes:
        preview = session.get_json(f"/experiments/{experiment.id}/preview_gc", policy)
        metric = preview.get("metric_name") or experiment.searcher_metric or ""
        rows = [
            [
                c["TrialID"],
                c["StepsCompleted"],
                c["State"],
                (c.get("ValidationMetrics") or {}).get(metric),
                c["UUID"],
                "\n".join(sorted(c.get("Resources") or {})),
            ]
            for c in preview.get("checkpoints") or []
        ]
        print(
            f"Checkpoints that will be deleted: {len(rows)}" if rows else "No checkpoint will be deleted now."
        )
        if rows:
            render.table(
                ["Trial ID", "# of Batches", "State", "Validation Metric", "UUID", "Resources"], rows
            )
        terminal.confirm(f"Change the policy of experiment {experiment.id} and delete them for good?", False)
    experiment.set_gc_policy(**policy)
    print(f"Set the checkpoint policy of experiment {experiment.id}")


def change_label(args: argparse.Namespace) -> None:
    from determined.cli.experiment import connected

    _, experiment = connected(args)
    if args.verb == "add":
        experiment.add_label(args.label)
        print(f"Added label {args.label!r} to experiment {experiment.id}")
    else:
        experiment.remove_label(args.label)
        print(f"Removed label {args.label!r} from experiment {experiment.id}")


def _priority(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 99:
        raise argparse.ArgumentTypeError(f"a priority is between 1 and 99, not {text}")
    return number


def _max_slots(text: str) -> int | None:
    return None if text.lower() == "none" else not_negative(text)


_priority.__name__ = _max_slots.__name__ = "number"
