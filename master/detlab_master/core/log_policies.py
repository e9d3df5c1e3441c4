"""Log policies: what a line of a trial's log means for the trial.

A pattern is a regular expression in RE2's syntax, whose time grows with the line only, and is searched for anywhere in
a line (without its line end). All patterns of an experiment are looked for in one walk over the line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import re2  # type: ignore[import-untyped]

from detlab_master.core.records import Json, LogLine

CANCEL_RETRIES = "cancel_retries"
EXCLUDE_NODE = "exclude_node"
_MEMORY = 8 << 20  # bytes that the patterns of one experiment may take together


@dataclass(frozen=True)
class Policy:
    name: str | None  # the label that a match gives; older configurations have policies without
    pattern: str
    action: str | None  # CANCEL_RETRIES, EXCLUDE_NODE, or None: the label only


@dataclass(frozen=True)
class Match:
    policy: Policy
    agent_id: str  # on which the line was printed; "" where nobody knows


def compiled(pattern: str) -> Any:
    """A regular expression in RE2's syntax.

    Raises:
        ValueError: it is none; the text is the reason.
    """
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        raise ValueError(reason.decode() if isinstance(reason, bytes) else str(reason)) from None


def effective(config: Json) -> tuple[Policy, ...]:
    """The policies of an experiment's merged configuration; those without a pattern switch inherited ones off."""
    return tuple(
        Policy(entry.get("name"), entry["pattern"], entry.get("action"))
        for entry in config.get("log_policies") or ()
        if entry.get("pattern")
    )


def matches(policies: tuple[Policy, ...], lines: Iterable[LogLine]) -> list[Match]:
    """What the lines match, in their order, each policy once for each agent.

    The master's own lines count for nothing: they quote patterns. A prefix such as ``ERROR:``, which has become the
    line's level, is matched too.
    """
    if not policies:
        return []
    patterns = _together(tuple(policy.pattern for policy in policies))
    found: dict[Match, None] = {}
    for line in lines:
        if line.source == "master":
            continue
        text = line.log.rstrip("\r\n")
        hits = set(patterns.Match(_utf8(text)) or ())
        if line.level:
            hits.update(patterns.Match(_utf8(f"{line.level.removeprefix('LOG_LEVEL_')}: {text}")) or ())
        for hit in sorted(hits):
            if f'"pattern": {json.dumps(policies[hit].pattern)}' in text:
                continue  # the official harness prints the configuration, policies included
            found[Match(policies[hit], line.agent_id)] = None
    return list(found)


def told(match: Match) -> str:
    """A match in words for the trial's log."""
    policy = match.policy
    which = "A log policy" if policy.name is None else f"Log policy {policy.name!r}"
    if policy.action == CANCEL_RETRIES:
        meaning = "if this trial fails, it is not tried again"
    elif policy.action == EXCLUDE_NODE:
        meaning = (
            f"this trial will not run on agent {match.agent_id} again"
            if match.agent_id
            else "no agent is known"
        )
    else:
        meaning = "the trial is labelled with it"
    return f"{which} matched (pattern {policy.pattern}): {meaning}"


def _utf8(text: str) -> bytes:
    """Lone surrogates, which tasks can print, are no letters to RE2."""
    return text.encode(errors="replace")


@lru_cache(maxsize=64)
def _together(patterns: tuple[str, ...]) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    together = re2.Set.SearchSet(options)
    for pattern in patterns:
        together.Add(pattern)
    together.Compile()
    return together
