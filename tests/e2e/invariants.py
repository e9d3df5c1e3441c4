"""What must hold for a trial, whatever was done to its master, its agent and itself."""

from __future__ import annotations

import json
import re

from e2e.conftest import Place
from e2e.trials import Record

LINE = re.compile(r"line (\d+) (\d+) ")


def every_acknowledged_report_is_kept(place: Place, record: Record, *, last_killed: bool = False) -> None:
    """``last_killed``: the newest run did not end by itself."""
    acknowledged = record.notes("acknowledged")
    # Those of a killed run from after its checkpoint were superseded by the next run: kept, but not shown.
    kept = place.cluster.rows(
        "SELECT run_id, steps_completed FROM metric_reports WHERE trial_id = :id", id=record.trial_id
    )
    assert len(kept) == len(set(kept)), "a report that was sent again is kept twice"
    assert set(acknowledged) <= set(kept)
    # Of each killed run one report more can be kept, whose acknowledgment did not reach the trial any more.
    unheard = set(kept) - set(acknowledged)
    assert len(unheard) <= record.runs - 1 + last_killed
    answer = place.cluster.request(
        "GET", "/api/v1/trials/metrics/validation_metrics", params={"trialIds": record.trial_id}
    )
    shown = [report for line in answer.text.splitlines() for report in json.loads(line)["result"]["metrics"]]
    last = record.last_run
    newest = {step: run for run, step in acknowledged + [one for one in unheard if one[0] == last]}
    assert [(r["totalBatches"], r["trialRunId"]) for r in shown] == sorted(newest.items())


def every_line_is_in_the_log_once(place: Place, record: Record, *, last_killed: bool = False) -> None:
    """``last_killed``: as above."""
    log = place.cluster.logs(record.trial_id)
    logged = [(int(run), int(number)) for run, number in LINE.findall(log)]
    printed = record.notes("printed")
    for run, _ in record.notes("pid"):
        lines = [number for r, number in logged if r == run]
        assert lines == list(range(1, len(lines) + 1)), f"lines of run {run}: {lines}"
        noted = sum(r == run for r, _ in printed)
        assert len(lines) - noted in ((0, 1) if last_killed or run < record.last_run else (0,))
    assert [run for run, _ in logged] == sorted(run for run, _ in logged)
