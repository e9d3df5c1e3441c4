"""What the master itself has logged lately, kept in memory for administrators."""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from dataclasses import dataclass
from itertools import islice

KEPT = 10_000  # entries
_LONGEST = 16_384  # characters of one entry
# Passwords in URLs, tokens in headers and queries.
_SECRETS = (
    (re.compile(r"(://[^:/@\s]*:)[^@/\s]+@"), r"\1***@"),
    (
        re.compile(r"(?i)\b(bearer\s+|(?:token|password|passwd|secret)[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;]+"),
        r"\1***",
    ),
)


@dataclass(frozen=True)
class Entry:
    id: int  # 1, 2, 3... since the master was started
    level: str  # as logging calls it: DEBUG, INFO, WARNING, ERROR, CRITICAL
    message: str
    timestamp: float  # Unix seconds


class MasterLogs(logging.Handler):
    """The newest entries of the logger that it is added to. For any thread."""

    def __init__(self, kept: int = KEPT) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        self._entries: deque[Entry] = deque(maxlen=kept)
        self._last_id = 0
        self._own_lock = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = without_secrets(self.format(record))
        except Exception:  # noqa: BLE001 - what is logged must not break who logs
            self.handleError(record)
            return
        if len(text) > _LONGEST:
            text = text[:_LONGEST] + " ... (cut)"
        with self._own_lock:
            self._last_id += 1
            self._entries.append(Entry(self._last_id, record.levelname, text, record.created))

    @property
    def count(self) -> int:
        """Entries since the start, those that are not kept any more included."""
        return self._last_id

    def after(self, last_id: int, limit: int | None = None) -> list[Entry]:
        """Kept entries with a higher id, the oldest first."""
        with self._own_lock:
            if not self._entries:
                return []
            skipped = max(0, last_id - self._entries[0].id + 1)
            stop = None if limit is None else skipped + limit
            return list(islice(self._entries, skipped, stop))


def without_secrets(text: str) -> str:
    """The text with what looks like a password or a token left out: a last line of defence."""
    for pattern, kept in _SECRETS:
        text = pattern.sub(kept, text)
    return text
