"""Which lines match which policies, and what is said of it."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detlab_master.core import log_policies as core
from detlab_master.core.log_policies import Match, Policy
from detlab_master.core.records import LogLine


def line(log: str, agent: str = "a", **more: str) -> LogLine:
    return LogLine("1.t", "1.t.1", 0.0, log, agent_id=agent, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "log", "level", "matched"),
    [
        (".*CUDA out of memory.*", "RuntimeError: CUDA out of memory. Tried\n", "", True),
        ("out of memory", "CUDA out of memory", "", True),  # anywhere in the line
        ("memory$", "out of memory\r\n", "", True),  # the line's end is no part of it
        ("^out", "CUDA out of memory", "", False),
        ("(?i)cuda", "Cuda is gone\n", "", True),
        ("^ERROR: boom", "boom\n", "LOG_LEVEL_ERROR", True),  # as it was printed
        ("^boom", "boom\n", "LOG_LEVEL_ERROR", True),  # as it is stored
        ("ERROR", "boom\n", "", False),
        ("größer", "ist größer\n", "", True),
        ("x", "\ud800x\0\n", "", True),
        ("x", "", "", False),
    ],
)
def test_what_a_line_matches(pattern: str, log: str, level: str, matched: bool) -> None:
    policy = Policy("p", pattern, None)
    assert core.matches((policy,), [line(log, level=level)]) == ([Match(policy, "a")] if matched else [])


def test_each_policy_matches_once_for_each_agent_in_the_order_of_the_lines() -> None:
    oom, ecc = Policy("oom", "memory", "cancel_retries"), Policy("ecc", "ECC", "exclude_node")
    lines = [line("ECC"), line("memory"), line("ECC"), line("memory and ECC", "b"), line("ok")]
    assert core.matches((oom, ecc), lines) == [
        Match(ecc, "a"),
        Match(oom, "a"),
        Match(oom, "b"),
        Match(ecc, "b"),
    ]


def test_the_masters_own_lines_match_nothing() -> None:
    policy = Policy("p", "memory", None)
    said = core.told(Match(policy, "a"))
    assert "memory" in said
    assert core.matches((policy,), [line(said, source="master")]) == []


def test_a_configuration_that_a_harness_prints_matches_nothing() -> None:
    policies = (Policy("oom", 'of "memory"', "cancel_retries"), Policy("name", "other", None))
    shown = json.dumps({"log_policies": [{"name": "oom", "pattern": 'of "memory"'}], "data": "other"})
    assert core.matches(policies, [line(f"New trial runner: {shown}")]) == [Match(policies[1], "a")]
    assert core.matches(policies, [line('out of "memory"')]) == [Match(policies[0], "a")]


def test_a_policy_without_a_pattern_is_off() -> None:
    config = {
        "log_policies": [
            {"name": "CUDA OOM", "pattern": None, "action": None},
            {"name": None, "pattern": "x", "action": "exclude_node"},
        ]
    }
    assert core.effective(config) == (Policy(None, "x", "exclude_node"),)
    assert core.effective({}) == ()
    assert core.matches((), [line("x")]) == []


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (
            Policy("bad", "x+", "cancel_retries"),
            "Log policy 'bad' matched (pattern x+): if this trial fails, it",
        ),
        (Policy("bad", "x+", "exclude_node"), "this trial will not run on agent a again"),
        (Policy("bad", "x+", None), "the trial is labelled with it"),
        (Policy(None, "x+", "exclude_node"), "A log policy matched (pattern x+)"),
    ],
)
def test_what_is_said_of_a_match(policy: Policy, said: str) -> None:
    assert said in core.told(Match(policy, "a"))


@given(
    st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=5),
    st.lists(st.text("abc\n", max_size=8), max_size=6),
)
def test_all_patterns_at_once_find_what_each_alone_finds(patterns: list[str], logs: list[str]) -> None:
    policies = tuple(Policy(str(i), pattern, None) for i, pattern in enumerate(patterns))
    together = {match.policy for match in core.matches(policies, map(line, logs))}
    alone = {p for p in policies if any(re.search(p.pattern, log.rstrip("\n")) for log in logs)}
    assert together == alone


@pytest.mark.parametrize("pattern", ["[", "(?=ahead)", "(?P<a>x)\\1"])
def test_what_re2_does_not_know_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        core.compiled(pattern)
