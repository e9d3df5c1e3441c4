"""The three tables of `det experiment describe`: experiments, their trials, and what those reported."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from determined.cli import render

if TYPE_CHECKING:
    from determined.common.api import Session

WORKLOAD_PAGE = 500

EXPERIMENT_HEADERS = (
    "Experiment ID",
    "State",
    "Progress",
    "Started",
    "Ended",
    "Name",
    "Description",
    "Archived",
    "Resource Pool",
    "Labels",
)
TRIAL_HEADERS = ("Trial ID", "Experiment ID", "State", "Started", "Ended", "H-Params")


@dataclass
class Steps:
    """What a trial reported at one number of steps. Each part is the master's object, or None."""

    total_batches: int
    training: dict[str, Any] | None = None
    validation: dict[str, Any] | None = None
    checkpoint: dict[str, Any] | None = None


@dataclass(frozen=True)
class Described:
    """One experiment with its trials, each with its reports by steps."""

    experiment: dict[str, Any]
    trials: list[tuple[dict[str, Any], list[Steps]]]

    def as_json(self) -> dict[str, Any]:
        return {
            **self.experiment,
            "trials": [{**trial, "workloads": [vars(s) for s in steps]} for trial, steps in self.trials],
        }


def collect(session: "Session", experiment_id: int) -> Described:
    """Ask the master for everything that the tables show."""
    from determined.common.api import iterate

    path = f"/api/v1/experiments/{experiment_id}"
    experiment = session.get_json(path)["experiment"]
    trials = list(iterate(session, f"{path}/trials", "trials", {"sortBy": "SORT_BY_ID"}))
    return Described(experiment, [(trial, workloads(session, trial["id"])) for trial in trials])


def workloads(
    session: "Session",
    trial_id: int,
    *,
    page_size: int = WORKLOAD_PAGE,
    offset: int = 0,
    limit: int | None = None,
) -> list[Steps]:
    """A trial's reports, those at the same steps together, by steps."""
    from determined.common.api import iterate

    by_steps: dict[int, Steps] = {}
    rows = iterate(
        session,
        f"/api/v1/trials/{trial_id}/workloads",
        "workloads",
        page_size=page_size,
        offset=offset,
        limit=limit,
    )
    for row in rows:
        for kind in ("training", "validation", "checkpoint"):
            part = row.get(kind)
            if part:
                steps = by_steps.setdefault(part["totalBatches"], Steps(part["totalBatches"]))
                setattr(steps, kind, part)
    return [by_steps[total] for total in sorted(by_steps)]


def show(described: Sequence[Described], metrics: bool, as_csv: bool) -> None:
    """Print the three tables."""
    for position, (title, headers, rows) in enumerate(_tables(described, metrics)):
        if position:
            print()
        if not as_csv:
            print(f"{title}:")
        render.table_or_csv(headers, rows, as_csv)
    sys.stdout.flush()


def write_files(described: Sequence[Described], outdir: str, metrics: bool) -> Iterator[Path]:
    """Write the three tables as CSV files; yields each path once it is written."""
    folder = Path(outdir)
    folder.mkdir(parents=True, exist_ok=True)
    for title, headers, rows in _tables(described, metrics):
        path = folder / f"{title.lower()}s.csv"
        with open(path, "w", newline="") as file:
            render.write_csv(file, headers, rows)
        yield path


def _tables(
    described: Sequence[Described], metrics: bool
) -> Iterator[tuple[str, Sequence[str], list[list[Any]]]]:
    yield "Experiment", EXPERIMENT_HEADERS, [_experiment_row(d.experiment) for d in described]
    yield "Trial", TRIAL_HEADERS, [_trial_row(trial) for d in described for trial, _ in d.trials]
    reports = [(trial, steps) for d in described for trial, all_steps in d.trials for steps in all_steps]
    training = _names(steps.training for _, steps in reports) if metrics else []
    validation = _names(steps.validation for _, steps in reports) if metrics else []
    headers = [
        "Trial ID",
        "# of Batches",
        "State",
        "Report Time",
        *(f"Training Metric: {name}" for name in training),
        "Checkpoint State",
        "Checkpoint Report Time",
        "Validation State",
        "Validation Report Time",
        *(f"Validation Metric: {name}" for name in validation),
    ]
    yield "Workload", headers, [_workload_row(trial, s, training, validation) for trial, s in reports]


def _experiment_row(e: dict[str, Any]) -> list[Any]:
    return [
        e["id"],
        render.state(e["state"]),
        render.percent(e.get("progress")),
        render.time(e["startTime"]),
        render.time(e.get("endTime")),
        e["name"],
        e.get("description"),
        str(e["archived"]),
        e.get("resourcePool"),
        ", ".join(sorted(e.get("labels") or [])),
    ]


def _trial_row(t: dict[str, Any]) -> list[Any]:
    return [
        t["id"],
        t["experimentId"],
        render.state(t["state"]),
        render.time(t["startTime"]),
        render.time(t.get("endTime")),
        render.compact(t["hparams"]),
    ]


def _workload_row(
    trial: dict[str, Any], steps: Steps, training: Sequence[str], validation: Sequence[str]
) -> list[Any]:
    trained, validated = averages(steps.training), averages(steps.validation)
    checkpoint = steps.checkpoint or {}
    return [
        trial["id"],
        steps.total_batches,
        "COMPLETED" if steps.training else "",
        render.time((steps.training or {}).get("endTime")),
        *(trained.get(name) for name in training),
        render.state(checkpoint.get("state", "")),
        render.time(checkpoint.get("endTime")),
        "COMPLETED" if steps.validation else "",
        render.time((steps.validation or {}).get("endTime")),
        *(validated.get(name) for name in validation),
    ]


def averages(report: dict[str, Any] | None) -> dict[str, Any]:
    """The averaged metrics of a report, `{}` where there is none."""
    return ((report or {}).get("metrics") or {}).get("avgMetrics") or {}


def _names(reports: Iterator[dict[str, Any] | None]) -> list[str]:
    return sorted({name for report in reports for name in averages(report)})
