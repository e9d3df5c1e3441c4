"""The command tree: what can be typed, and which function answers."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import determined

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Subparsers = object

Handler = Callable[[argparse.Namespace], int | None]

_DESCRIPTION = """\
Train models on a Detlab cluster, search their hyperparameters, watch and fetch the results.

  det user login <name>                           log in
  det experiment create config.yaml folder -f     train what is in the folder, and follow it
  det experiment list                             what there is
  det experiment describe 3                       its trials and what they reported
  det trial logs -f 12                            follow a trial's log
  det checkpoint download <uuid>                  fetch what was trained
  det model register-version digits <uuid>        keep it, as a version of a model
"""
_EPILOG = """\
The master is taken from -m, else DET_MASTER, else localhost:8080. The user is taken from -u, else DET_USER with
DET_PASS or DET_USER_TOKEN, else the last `det user login`. `det <command> --help` tells more of each.
"""


def build() -> argparse.ArgumentParser:
    from determined.cli import (
        checkpoint,
        cluster,
        experiment,
        model,
        preview,
        project,
        task,
        template,
        trial,
        user,
        workspace,
    )

    parser = argparse.ArgumentParser(
        prog="det",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-u", "--user", metavar="NAME", help="act as this user")
    parser.add_argument("-m", "--master", metavar="ADDRESS", help="the master, as host:port or URL")
    parser.add_argument(
        "-v",
        "--version",
        action="version",
        version=f"det {determined.__version__} (Detlab {determined.__detlab_version__})",
    )
    commands = parser.add_subparsers(title="commands", metavar="<command>", prog="det")
    experiment.register(commands)
    preview.register(commands)
    trial.register(commands)
    checkpoint.register(commands)
    model.register(commands)
    workspace.register(commands)
    project.register(commands)
    template.register(commands)
    task.register(commands)
    user.register(commands)
    cluster.register(commands)
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    """Raises SystemExit: 2 for wrong usage, 0 after help."""
    parser = build()
    args = parser.parse_args(argv)
    default = getattr(args, "default_command", None)
    if default is not None and not hasattr(args, "handler"):
        args = parser.parse_args([*argv, default])
    if not hasattr(args, "handler"):
        getattr(args, "incomplete", parser).print_usage()
        parser.exit(2)
    return args


def group(commands: Subparsers, names: str, help: str, default: str | None = None) -> Subparsers:
    """A noun with verbs under it. `names` are the name and its aliases; `default` runs without a verb."""
    name, *aliases = names.split()
    parser = commands.add_parser(name, aliases=aliases, help=help, description=_sentence(help))
    parser.set_defaults(default_command=default, incomplete=parser)
    return parser.add_subparsers(title="commands", metavar="<command>")


def command(
    commands: Subparsers, names: str, handler: Handler, help: str, **options: Any
) -> argparse.ArgumentParser:
    """One command. `names` are the name and its aliases."""
    name, *aliases = names.split()
    parser = commands.add_parser(
        name, aliases=aliases, help=help, description=_sentence(help), allow_abbrev=False, **options
    )
    parser.set_defaults(handler=handler)
    return parser


def add_paging(parser: argparse.ArgumentParser, limit: int = 200) -> None:
    parser.add_argument("--limit", type=positive, default=limit, help="items in a page (default %(default)s)")
    parser.add_argument("--offset", type=not_negative, default=0, help="items to pass over first")
    parser.add_argument("--pages", choices=("1", "all"), default="all", help="how many (default %(default)s)")


def paging(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `api.iterate` for --limit, --offset and --pages."""
    return {
        "page_size": args.limit,
        "offset": args.offset,
        "limit": args.limit if args.pages == "1" else None,
    }


def add_download(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output-dir", metavar="FOLDER", help="where to (default checkpoints/<uuid>)")
    parser.add_argument("-q", "--quiet", action="store_true", help="print the path only")


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def not_negative(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return number


def add_order(parser: argparse.ArgumentParser) -> None:
    """For lists that the master sorts by id or name."""
    parser.add_argument("--sort-by", choices=("id", "name"), default="id", help="default %(default)s")
    parser.add_argument("--order-by", choices=("asc", "desc"), default="asc", help="default %(default)s")
    parser.add_argument("--limit", type=positive, help="at most so many (default all)")
    parser.add_argument("--offset", type=not_negative, default=0, help="items to pass over first")


def order(args: argparse.Namespace) -> dict[str, Any]:
    """The query of --sort-by and --order-by."""
    return {"sortBy": f"SORT_BY_{args.sort_by.upper()}", "orderBy": f"ORDER_BY_{args.order_by.upper()}"}


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def identifiers(text: str) -> list[int]:
    """A comma-separated list of numbers."""
    return [int(part) for part in text.split(",")]


def names(text: str) -> list[str]:
    """A comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


# argparse names the type in "invalid ... value".
positive.__name__ = not_negative.__name__ = "number"
identifiers.__name__ = "list of numbers"


def _sentence(help: str) -> str:
    return f"{help[0].upper()}{help[1:]}."
