"""Reads of the in-memory store: trials, and the metrics, checkpoints and logs that they leave."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from detlab_master.core.metrics import PROFILING_GROUPS, VALIDATION
from detlab_master.core.states import CheckpointState, TrialState
from detlab_master.store import records
from detlab_master.store.base import (
    KeptLog,
    LogFields,
    LogFilter,
    Page,
    Workload,
    WorkloadFilter,
)
from detlab_master.store.checkpoints import storage_digest
from detlab_master.store.logs import line_test
from detlab_master.store.memory_data import Data, Reads, among, paged
from detlab_master.store.reading import first_of
from detlab_master.store.workloads import workload_order


class MemoryTrials(Reads):
    def get(self, trial_id: int) -> records.Trial | None:
        return self._data.trials.get(trial_id)

    def find(
        self, experiment_id: int, states: Sequence[TrialState] | None, page: Page
    ) -> tuple[list[records.Trial], int]:
        plain = ["id", "start_time", "end_time", "state", "searcher_metric", "total_batches", "restarts"]
        with self._lock:
            trials = (self._data.trials[id] for id in self._data.trials_of.get(experiment_id, ()))
            found = (trial for trial in trials if among(trial.state, states))
            return paged(found, page, {name: attrgetter(name) for name in plain})

    def task(self, task_id: str) -> records.Task | None:
        return self._data.tasks.get(task_id)

    def allocation(self, allocation_id: str) -> records.Allocation | None:
        return self._data.allocations.get(allocation_id)

    def allocations(self, task_id: str) -> list[records.Allocation]:
        with self._lock:
            found = [self._data.allocations[id] for id in self._data.allocations_of.get(task_id, ())]
        return sorted(found, key=lambda one: (one.run_id, one.queue_order))

    def allocations_of(self, task_ids: Sequence[str]) -> list[records.Allocation]:
        return [one for task_id in sorted(set(task_ids)) for one in self.allocations(task_id)]

    def open_allocations(self) -> list[records.Allocation]:
        with self._lock:
            found = [self._data.allocations[id] for id in self._data.open]
        return sorted(found, key=lambda one: (one.queue_order, one.id))


class MemoryMetrics(Reads):
    def report(self, trial_id: int, group: str, steps_completed: int) -> records.MetricReport | None:
        with self._lock:
            report_id = self._data.live.get((trial_id, group, steps_completed))
            return None if report_id is None else self._data.reports[trial_id][report_id]

    def reports(
        self,
        trial_ids: Sequence[int],
        group: str | None = None,
        *,
        include_archived: bool = False,
        after: tuple[int, int, int] | None = None,
        limit: int | None = None,
    ) -> list[records.MetricReport]:
        def place(report: records.MetricReport) -> tuple[int, int, int]:
            return report.trial_id, report.steps_completed, report.id

        with self._lock:
            found = [
                report
                for trial_id in set(trial_ids)
                for report in self._data.reports.get(trial_id, {}).values()
                if group in (None, report.group)
                and (include_archived or not report.archived)
                and (after is None or place(report) > after)
            ]
        return sorted(found, key=place)[:limit]


class MemoryCheckpoints(Reads):
    def get(self, uuid: str) -> records.Checkpoint | None:
        return self._data.checkpoints.get(uuid)

    def find(
        self,
        *,
        experiment_id: int | None = None,
        trial_id: int | None = None,
        trial_ids: Sequence[int] | None = None,
        states: Sequence[CheckpointState] | None = None,
    ) -> list[records.Checkpoint]:
        with self._lock:
            uuids = (
                self._data.checkpoints if trial_id is None else self._data.checkpoints_of.get(trial_id, {})
            )
            found = [self._data.checkpoints[uuid] for uuid in uuids]
        return sorted(
            (
                one
                for one in found
                if experiment_id in (None, one.experiment_id)
                and among(one.trial_id, trial_ids)
                and among(one.state, states)
            ),
            key=lambda one: (one.trial_id, one.steps_completed, one.reported_at, one.uuid),
        )

    def latest(self, trial_id: int) -> records.Checkpoint | None:
        completed = self.find(trial_id=trial_id, states=[CheckpointState.COMPLETED])
        return completed[-1] if completed else None

    def storage(self, storage_id: int, owner_id: int) -> records.Json | None:
        with self._lock:
            config = dict(self._data.storages.values()).get(storage_id)
            if config is None:
                return None
            known = self._data.storages.get(storage_digest(config, owner_id))
            return config if known is not None and known[0] == storage_id else None

    def sources(
        self, *, checkpoint_uuid: str | None = None, model_version: tuple[int, int] | None = None
    ) -> list[records.TrialSource]:
        with self._lock:
            return [
                source
                for _, source in sorted(self._data.sources.items())
                if checkpoint_uuid in (None, source.checkpoint_uuid)
                and model_version in (None, (source.model_id, source.model_version))
            ]

    def warm_starts(self, experiment_id: int) -> set[str]:
        with self._lock:
            starts = [(trial.warm_start_checkpoint, trial.id) for trial in self._data.trials.values()]
            return {
                uuid
                for uuid, trial_id in starts
                if uuid is not None
                and (one := self._data.checkpoints.get(uuid)) is not None
                and one.experiment_id == experiment_id
                and one.trial_id != trial_id
            }

    def starting_from(
        self, *, checkpoint_uuids: Sequence[str] | None = None, experiment_id: int | None = None
    ) -> list[records.Trial]:
        with self._lock:
            saved = self._data.checkpoints
            return [
                trial
                for _, trial in sorted(self._data.trials.items())
                if (uuid := trial.warm_start_checkpoint) is not None
                and not trial.state.terminal
                and among(uuid, checkpoint_uuids)
                and (experiment_id is None or (uuid in saved and saved[uuid].experiment_id == experiment_id))
            ]

    def storage_id(self, config: records.Json, owner_id: int) -> int:
        with self._lock:
            new = len(self._data.storages) + 1, config
            return self._data.storages.setdefault(storage_digest(config, owner_id), new)[0]


class MemoryWorkloads(Reads):
    def find(self, trial_id: int, where: WorkloadFilter, page: Page) -> tuple[list[Workload], int]:
        columns = workload_order(page)
        found: list[tuple[dict[str, Any], Workload]] = []
        with self._lock:
            for report in self._data.reports.get(trial_id, {}).values():
                plain = report.group not in PROFILING_GROUPS
                wanted = plain if where.groups is None else report.group in where.groups
                if wanted and not report.archived:
                    kind = int(report.group == VALIDATION)
                    found.append(({"kind": kind, "report_id": report.id, "uuid": ""}, report))
            for uuid in self._data.checkpoints_of.get(trial_id, {}):
                checkpoint = self._data.checkpoints[uuid]
                if among(checkpoint.state, where.checkpoint_states):
                    found.append(({"kind": 2, "report_id": 0, "uuid": uuid}, checkpoint))

        def place(item: tuple[dict[str, Any], Workload]) -> tuple[Any, ...]:
            values = {**item[0], "steps": item[1].steps_completed, "reported_at": item[1].reported_at}
            return tuple(values[name] for name in columns)

        found.sort(key=place, reverse=page.descending)
        first = first_of(page, len(found))
        last = len(found) if page.limit is None else first + page.limit
        return [row for _, row in found[first:last]], len(found)


class MemoryLogs(Reads):
    def of_ended_tasks(self) -> list[KeptLog]:
        with self._lock:
            found = [
                KeptLog(task.id, task.end_time, _retention_days(self._data, task))
                for task in self._data.tasks.values()
                if task.end_time is not None and self._data.logs.get(task.id)
            ]
        return sorted(found, key=lambda log: (log.ended_at, log.task_id))

    def fields(self, task_id: str) -> list[LogFields]:
        with self._lock:
            lines = list(self._data.logs.get(task_id, {}).values())
        return list(
            {
                LogFields(x.allocation_id, x.agent_id, x.container_id, x.rank_id, x.source, x.stdtype)
                for x in lines
            }
        )

    def first(self, task_id: str, count: int) -> tuple[int, int]:
        with self._lock:
            ids = sorted(self._data.logs.get(task_id, {}))[:count]
        return len(ids), ids[-1] if ids else 0

    def last_offsets(self, container_ids: Sequence[str]) -> dict[str, int]:
        with self._lock:
            shipped = sorted(self._data.shipped)  # so the last of a container's is its highest
        return {container_id: offset for container_id, offset in shipped if container_id in container_ids}

    def find(
        self, where: LogFilter, *, after_id: int = 0, limit: int | None = None, descending: bool = False
    ) -> list[records.LogLine]:
        passes = line_test(where)
        with self._lock:
            lines = [
                line
                for task_id in set(where.task_ids)
                for line in self._data.logs.get(task_id, {}).values()
                if line.id > after_id
            ]
        found = [
            line
            for line in lines
            if among(line.allocation_id, where.allocation_ids)
            and among(line.agent_id, where.agent_ids)
            and among(line.container_id, where.container_ids)
            and among(-1 if line.rank_id is None else line.rank_id, where.rank_ids)
            and among(line.level, where.levels)
            and among(line.source, where.sources)
            and among(line.stdtype, where.stdtypes)
            and (where.after is None or line.timestamp > where.after)
            and (where.before is None or line.timestamp <= where.before)
            and passes(line.log)
        ]
        return sorted(found, key=lambda line: line.id, reverse=descending)[:limit]


def _retention_days(data: Data, task: records.Task) -> int | None:
    trial = data.trials.get(task.trial_id) if task.trial_id is not None else None
    return trial.log_retention_days if trial else None
