"""Reads what trials print, for their experiments' log policies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from detlab_master.core import log_policies
from detlab_master.core.records import Allocation, LogLine, Task
from detlab_master.engine.allocations import AllocationService
from detlab_master.engine.experiment_inbox import LogsMatched
from detlab_master.engine.experiments_at_work import ExperimentsAtWork
from detlab_master.store.base import Store

logger = logging.getLogger(__name__)
_MATCHED_INLINE = 64 << 10  # characters; more are searched in a thread


class LogPolicies:
    """Shown lines that were kept, tells the experiments what they mean.

    An agent says that a container has ended once all its lines were acknowledged, and they are acknowledged once this
    is through: so a run's lines are understood before its end is judged. Lines that come twice mean the same twice.
    """

    def __init__(self, store: Store, allocations: AllocationService, experiments: ExperimentsAtWork) -> None:
        self._store = store
        self._allocations = allocations
        self._experiments = experiments

    async def read(self, lines: Sequence[LogLine]) -> None:
        groups: dict[tuple[str, str], list[LogLine]] = {}
        for line in lines:
            groups.setdefault((line.task_id, line.allocation_id), []).append(line)
        for (task_id, allocation_id), group in groups.items():
            task = await self._task(task_id, allocation_id)
            if task is None or task.experiment_id is None or task.trial_id is None:
                continue
            policies = self._experiments.log_policies(task.experiment_id)
            if policies:
                allocation = self._allocations.get(allocation_id)
                matches = await _matches(policies, [_placed(line, allocation) for line in group])
                if matches:
                    found = LogsMatched(task.trial_id, allocation_id, tuple(matches))
                    await self._experiments.logs_matched(task.experiment_id, found)

    async def _task(self, task_id: str, allocation_id: str) -> Task | None:
        known = self._allocations.task_of(allocation_id)
        if known is not None and known.id == task_id:
            return known
        return await asyncio.to_thread(self._store.trials.task, task_id)


async def _matches(
    policies: tuple[log_policies.Policy, ...], lines: Sequence[LogLine]
) -> list[log_policies.Match]:
    try:
        if sum(len(line.log) for line in lines) <= _MATCHED_INLINE:
            return log_policies.matches(policies, lines)
        return await asyncio.to_thread(log_policies.matches, policies, lines)
    except Exception:  # no line may get lost, and no trial hang, because of a pattern
        logger.exception("lines of task %s could not be matched with its log policies", lines[0].task_id)
        return []


def _placed(line: LogLine, allocation: Allocation | None) -> LogLine:
    """The line with its agent, where a container that ships its lines by itself did not say it."""
    if line.agent_id or allocation is None:
        return line
    containers = allocation.containers
    of_it = [c for c in containers if c.id == line.container_id] or (
        containers if len(containers) == 1 else []
    )
    return replace(line, agent_id=of_it[0].agent_id) if of_it else line
