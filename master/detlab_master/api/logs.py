"""Task logs: taking lines, and streaming them, also those that are still to come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from detlab_master.api.base import ApiHandler, Rule
from detlab_master.api.body import Fields, Query
from detlab_master.api.encode import logs as encode
from detlab_master.api.encode import wire
from detlab_master.api.paging import descending
from detlab_master.core import log_retention
from detlab_master.core.errors import Invalid
from detlab_master.core.permissions import Access, Kind
from detlab_master.core.records import LogLine
from detlab_master.store.base import LogFilter, Store
from detlab_master.store.logs import line_test

_BATCH = 1000  # lines read at once
_POLL = 1.0  # seconds after which a follower looks again, woken or not
_GATHER = 0.05  # seconds in which lines that arrive together are sent together
_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_PREFIX = "LOG_LEVEL_"


@dataclass(frozen=True)
class Asked:
    """What a query for logs asks for."""

    where: LogFilter
    limit: int | None
    newest_first: bool
    follow: bool

    @classmethod
    def of(cls, query: Query, task_id: str) -> Asked:
        limit, follow = query.integer("limit", 0), query.flag("follow")
        if limit < 0:
            raise query.refuse("limit", "it must be 0 (everything) or more")
        newest_first = descending(query)
        if follow and (limit or newest_first):
            raise Invalid(
                "follow goes on with new lines as they come: it cannot be combined with limit or ORDER_BY_DESC"
            )
        where = LogFilter(
            task_ids=[task_id],
            allocation_ids=query.texts("allocationIds") or None,
            agent_ids=query.texts("agentIds") or None,
            container_ids=query.texts("containerIds") or None,
            rank_ids=query.integers("rankIds") or None,
            levels=_levels(query) or None,
            sources=query.texts("sources") or None,
            stdtypes=query.texts("stdtypes") or None,
            search_text=query.text("searchText", "") or None,
            search_regex=query.flag("enableRegex"),
            after=query.timestamp("timestampAfter"),
            before=query.timestamp("timestampBefore"),
        )
        try:
            line_test(where)
        except ValueError as error:
            raise query.refuse("searchText", str(error)) from None
        return cls(where, limit or None, newest_first, follow)


def _levels(query: Query) -> list[str]:
    """The stored names of the wanted levels; a line that did not say its level has the name ""."""
    named = [_PREFIX + level for level in query.enums("levels", _LEVELS, _PREFIX)]
    unspecified = any(text.removeprefix(_PREFIX) in ("UNSPECIFIED", "0") for text in query.texts("levels"))
    return [*named, ""] if unspecified else named


class LogStream(ApiHandler):
    """Streams the lines of one task."""

    async def stream_lines(self, task_id: str, trial_id: int | None) -> None:
        asked = Asked.of(self.query, task_id)
        lines = self._follow(asked, trial_id) if asked.follow else self._kept(asked, trial_id)
        await self.stream(lines)

    async def _kept(self, asked: Asked, trial_id: int | None) -> AsyncGenerator[bytes, None]:
        store = self.services.store
        if asked.newest_first:
            yield (await self.read(_read_lines, store, asked, 0, asked.limit, trial_id))[0]
            return
        left, last = asked.limit, 0
        while left is None or left > 0:
            wanted = _BATCH if left is None else min(left, _BATCH)
            text, count, last = await self.read(_read_lines, store, asked, last, wanted, trial_id)
            if text:
                yield text
            if count < wanted:
                return
            left = None if left is None else left - count

    async def _follow(self, asked: Asked, trial_id: int | None) -> AsyncGenerator[bytes, None]:
        """Ends when the task has ended and all its lines went out."""
        last = 0
        task_ids = asked.where.task_ids
        while True:
            # In this order: lines that come after the look at the task belong to one that had not ended.
            ended = await self.read(_has_ended, self.services.store, task_ids[0])
            text, count, last = await self.read(
                _read_lines, self.services.store, asked, last, _BATCH, trial_id
            )
            if text:
                yield text
            if count == _BATCH:
                continue
            if ended:
                return
            await self.unless_gone(self.services.logs.changed(task_ids, _POLL))
            await asyncio.sleep(_GATHER)


def _has_ended(store: Store, task_id: str) -> bool:
    task = store.trials.task(task_id)
    return task is None or task.end_time is not None


def _read_lines(
    store: Store, asked: Asked, after_id: int, limit: int | None, trial_id: int | None
) -> tuple[bytes, int, int]:
    """The next lines as the stream's text, how many they are, and the id of the last."""
    lines = store.logs.find(asked.where, after_id=after_id, limit=limit, descending=asked.newest_first)
    text = b"".join(wire.stream_line(encode.line(line, trial_id)) for line in lines)
    return text, len(lines), lines[-1].id if lines else after_id


class TrialLogs(LogStream):
    rules: ClassVar = {"GET": Rule(Access.OWN, Kind.TRIAL)}

    async def get(self, trial_id: str) -> None:
        trial = self.found.trial
        assert trial is not None
        await self.stream_lines(trial.task_id, trial.id)


class TaskLogs(LogStream):
    rules: ClassVar = {"GET": Rule(Access.OWN, Kind.TASK)}

    async def get(self, task_id: str) -> None:
        await self.stream_lines(task_id, None)


class LogFields(ApiHandler):
    """Streams what values the fields of a log's lines have; with ``follow`` again whenever there are more."""

    async def stream_fields(self, task_id: str) -> None:
        await self.stream(self._fields(task_id, self.query.flag("follow")))

    async def _fields(self, task_id: str, follow: bool) -> AsyncGenerator[bytes, None]:
        sent = None
        while True:
            ended = await self.read(_has_ended, self.services.store, task_id)
            found = encode.fields(await self.read(self.services.store.logs.fields, task_id))
            if found != sent:
                yield wire.stream_line(found)
                sent = found
            if ended or not follow:
                return
            await self.unless_gone(self.services.logs.changed([task_id], _POLL))
            await asyncio.sleep(_POLL)  # lines come often, and new values hardly ever


class TrialLogFields(LogFields):
    rules: ClassVar = {"GET": Rule(Access.OWN, Kind.TRIAL)}

    async def get(self, trial_id: str) -> None:
        trial = self.found.trial
        assert trial is not None
        await self.stream_fields(trial.task_id)


class TaskLogFields(LogFields):
    rules: ClassVar = {"GET": Rule(Access.OWN, Kind.TASK)}

    async def get(self, task_id: str) -> None:
        await self.stream_fields(task_id)


class RetainExperimentLogs(ApiHandler):
    rules: ClassVar = {"PUT": Rule(Access.OWN, Kind.EXPERIMENT)}

    async def put(self, experiment_id: str) -> None:
        days = (await self.fields()).integer("numDays")
        await self.services.log_retention.retain(self.path_integer(Kind.EXPERIMENT), days)
        self.reply({})


class RetainTrialLogs(ApiHandler):
    rules: ClassVar = {"PUT": Rule(Access.OWN, Kind.TRIAL)}

    async def put(self, trial_id: str) -> None:
        trial, days = self.found.trial, (await self.fields()).integer("numDays")
        assert trial is not None
        await self.services.log_retention.retain(trial.experiment_id, days, trial.id)
        self.reply({})


class RemainingLogRetention(ApiHandler):
    """Days for which a trial's log is still kept; -1: for ever."""

    rules: ClassVar = {"GET": Rule(Access.OWN, Kind.TRIAL)}

    async def get(self, trial_id: str) -> None:
        trial = self.found.trial
        assert trial is not None
        days = self.services.log_retention.days(trial.log_retention_days)
        self.reply({"remainingDays": log_retention.remaining(trial.end_time, days, self.services.now())})


class AppendLogs(ApiHandler):
    """Lines that a container ships by itself."""

    rules: ClassVar = {"POST": Rule(Access.REPORT, Kind.TASK, in_body=True)}

    async def post(self) -> None:
        await self._append((await self.fields()).children("logs"))

    async def _append(self, entries: Sequence[Fields]) -> None:
        if not entries:
            raise Invalid("logs is empty: expected the lines of one task")
        task_id = entries[0].text("taskId")
        now = self.services.now()
        lines = [_line(entry, task_id, now) for entry in entries]
        found = await self.admit(Kind.TASK, task_id, Access.REPORT)
        if found is None:  # a container's own token: its lines are those of its own allocation
            own = self.principal.allocation_id or ""
            lines = [replace(line, allocation_id=own) for line in lines]
        await self.services.logs.append(lines)
        self.reply({})


class AppendDetachedLogs(AppendLogs):
    """Lines of a script that runs outside of the cluster: a list, with the rank by another name.

    Clients send their user's token along, so the lines are taken of those to whom the task belongs.
    """

    rules: ClassVar = {"POST": Rule(Access.REPORT, Kind.TASK, in_body=True)}

    async def post(self) -> None:
        items = await self.parsed()
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise Invalid("the request's body must be a JSON list of log lines, each an object")
        await self._append(
            [Fields({"rankId": item.get("rank"), **item}, f"[{index}].") for index, item in enumerate(items)]
        )


def _line(entry: Fields, task_id: str, now: float) -> LogLine:
    if entry.text("taskId") != task_id:
        raise entry.refuse(
            "taskId", f"the lines of one request belong to one task, the first says {task_id!r}"
        )
    if entry.optional_integer("id"):
        raise entry.refuse("id", "the master gives lines their ids")
    level = entry.enum("level", _LEVELS, _PREFIX)
    timestamp = entry.timestamp("timestamp")
    return LogLine(
        task_id=task_id,
        allocation_id=entry.text("allocationId", ""),
        timestamp=now if timestamp is None else timestamp,
        log=entry.text("log", ""),
        container_id=entry.text("containerId", ""),
        agent_id=entry.text("agentId", ""),
        rank_id=entry.optional_integer("rankId"),
        level=_PREFIX + level if level else "",
        stdtype=entry.text("stdtype", ""),
        source=entry.text("source", "task"),
    )
