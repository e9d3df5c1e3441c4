"""How results look: tables, CSV, JSON, YAML, times and sizes."""

import csv
import datetime
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    import tabulate

    content = [["" if cell is None else cell for cell in row] for row in rows]
    # A column with text in it is text: tabulate would read a name such as 1e5 as a number.
    text = [i for i in range(len(headers)) if any(isinstance(row[i], str) and row[i] for row in content)]
    print(tabulate.tabulate(content, headers=headers, tablefmt="presto", disable_numparse=text))


def table_or_csv(headers: Sequence[str], rows: Iterable[Sequence[Any]], as_csv: bool) -> None:
    if as_csv:
        write_csv(sys.stdout, headers, rows)
    else:
        table(headers, rows)


def write_csv(file: TextIO, headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(headers)
    writer.writerows(rows)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def print_yaml(value: Any) -> None:
    import yaml

    print(yaml.safe_dump(value, sort_keys=False, default_flow_style=False), end="")


def time(moment: datetime.datetime | str | None) -> str:
    """`YYYY-MM-DD HH:MM:SS+0000`, in UTC; empty where there is none."""
    if isinstance(moment, str):
        moment = datetime.datetime.fromisoformat(moment) if moment else None
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S%z") if moment else ""


def percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{fraction * 100:.1f}%"


def state(wire: str) -> str:
    return wire.removeprefix("STATE_")


def compact(value: Any) -> str:
    """A structure in one cell."""
    return json.dumps(value) if value not in (None, {}, []) else ""


def structure(value: Any) -> str:
    """A structure in one cell, a line for each part."""
    return json.dumps(value, indent=2) if value not in (None, {}, []) else ""


def size(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    amount = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1024
        if amount < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:.1f} TiB"


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
