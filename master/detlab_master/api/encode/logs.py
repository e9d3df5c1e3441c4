"""Lines of task logs."""

from __future__ import annotations

from collections.abc import Sequence

from detlab_master.api.encode.wire import Object, timestamp
from detlab_master.core.records import LogLine
from detlab_master.store.base import LogFields

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


def fields(found: Sequence[LogFields]) -> Object:
    """v1TaskLogsFieldsResponse, which a trial's has but for the allocations. Empty values are left out."""
    return {
        "allocationIds": sorted({one.allocation_id for one in found} - {""}),
        "agentIds": sorted({one.agent_id for one in found} - {""}),
        "containerIds": sorted({one.container_id for one in found} - {""}),
        "rankIds": sorted({one.rank_id for one in found if one.rank_id is not None}),
        "sources": sorted({one.source for one in found} - {""}),
        "stdtypes": sorted({one.stdtype for one in found} - {""}),
    }
