"""The log of a trial or another task: which lines are asked for, and following it through a restart of the master."""

import datetime
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from determined.common.api import Session, errors
from determined.experimental._enums import LogLevel

logger = logging.getLogger("determined.experimental")

_BROKEN_STREAMS = 30  # in a row, without a line in between, until following gives up
_PAUSE = 2.0  # seconds


@dataclass(frozen=True)
class LogQuery:
    """Which lines. At most one of `follow`, `head` and `tail`; an empty filter lets everything through."""

    follow: bool = False
    head: int | None = None
    tail: int | None = None
    allocation_ids: Sequence[str] = ()  # of a task's log only
    agent_ids: Sequence[str] = ()
    container_ids: Sequence[str] = ()
    rank_ids: Sequence[int] = ()  # -1: lines without a rank
    sources: Sequence[str] = ()
    stdtypes: Sequence[str] = ()
    min_level: LogLevel | None = None
    timestamp_after: datetime.datetime | str | None = None  # exclusive
    timestamp_before: datetime.datetime | str | None = None  # inclusive
    search_text: str | None = None

    def __post_init__(self) -> None:
        if sum((self.follow, self.head is not None, self.tail is not None)) > 1:
            raise ValueError("of follow, head and tail only one can be asked for")
        for name, count in (("head", self.head), ("tail", self.tail)):
            if count is not None and count < 0:
                raise ValueError(f"{name} is a number of lines, not {count}")

    def params(self) -> dict[str, Any]:
        """The query of the log routes."""
        limit = self.head if self.head is not None else self.tail
        return {
            "follow": True if self.follow else None,
            "limit": limit,
            "orderBy": "ORDER_BY_DESC" if self.tail is not None else None,
            "allocationIds": self.allocation_ids,
            "agentIds": self.agent_ids,
            "containerIds": self.container_ids,
            "rankIds": self.rank_ids,
            "sources": self.sources,
            "stdtypes": self.stdtypes,
            "levels": [level.value for level in self.min_level.and_above()] if self.min_level else (),
            "timestampAfter": _timestamp(self.timestamp_after),
            "timestampBefore": _timestamp(self.timestamp_before),
            "searchText": self.search_text,
        }


def iter_trial_log(session: Session, trial_id: int, query: LogQuery) -> Iterator[dict[str, Any]]:
    """The log entries of a trial; see `iter_log`."""
    return iter_log(session, f"/api/v1/trials/{trial_id}/logs", query)


def iter_log(session: Session, path: str, query: LogQuery) -> Iterator[dict[str, Any]]:
    """The entries of a log, oldest first, in the shape of the master's log route at `path`.

    A follow that breaks off (the master restarts) is taken up again: the lines that were seen already are
    passed over, since the master answers with the same lines in the same order.
    """
    params = query.params()
    if 0 in (query.head, query.tail):  # limit=0 would mean every line
        return
    if query.tail is not None:
        yield from reversed(list(session.stream(path, params)))
        return
    seen, broken = 0, 0
    while True:
        try:
            for position, entry in enumerate(session.stream(path, params)):
                if position >= seen:
                    yield entry
                    seen, broken = position + 1, 0
            return
        except errors.MasterUnreachable as e:
            broken += 1
            if not query.follow or broken > _BROKEN_STREAMS:
                raise
            logger.warning("%s; asking again for the rest of the log", e)
            time.sleep(_PAUSE)


def _timestamp(moment: datetime.datetime | str | None) -> str | None:
    if isinstance(moment, str) and moment:
        try:
            moment = datetime.datetime.fromisoformat(moment)
        except ValueError:
            raise ValueError(f"{moment!r} is not a time: write it as 2025-12-31T23:59:59Z") from None
    if not moment:
        return None
    assert isinstance(moment, datetime.datetime)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")
