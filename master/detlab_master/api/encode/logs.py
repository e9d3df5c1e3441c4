"""Lines of task logs."""

from __future__ import annotations

from detlab_master.api.encode.wire import Object, timestamp
from detlab_master.core.records import LogLine

_PREFIX = "LOG_LEVEL_"


def line(record: LogLine, trial_id: int | None = None) -> Object:
    """v1TaskLogsResponse, or v1TrialLogsResponse when the trial is named."""
    shown: Object = {
        "id": str(record.id),
        "taskId": record.task_id,
        "timestamp": timestamp(record.timestamp),
        "message": message(record),
        "log": record.log,
        "level": record.level or f"{_PREFIX}UNSPECIFIED",
        "allocationId": record.allocation_id,
        "agentId": record.agent_id,
        "containerId": record.container_id,
        "source": record.source,
        "stdtype": record.stdtype,
    }
    if record.rank_id is not None:
        shown["rankId"] = record.rank_id
    if trial_id is not None:
        shown["trialId"] = trial_id
    return shown


def message(record: LogLine) -> str:
    """The line as a person reads it: when, where, which rank, how bad, what."""
    time = timestamp(record.timestamp) or ""
    seconds, _, fraction = time.rstrip("Z").partition(".")
    rank = "" if record.rank_id is None else f"[rank={record.rank_id}] "
    level = f"{record.level.removeprefix(_PREFIX)}: " if record.level else ""
    return f"[{seconds}.{fraction:0<6}Z] {record.container_id[:8]:8} {rank}|| {level}{record.log}"
