"""What every store keeps to: filters, orders and pages of lists, against plain list comprehensions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
import re2  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.store_examples import checkpoint, commit, experiment, log, report, trial
from detlab_master.core.states import CheckpointState, ExperimentState, TrialState
from detlab_master.store import records
from detlab_master.store.base import ExperimentFilter, LogFilter, Page, Store, Workload, WorkloadFilter
from detlab_master.store.writes import (
    AppendLogs,
    ArchiveReports,
    InsertReport,
    SaveCheckpoint,
    SaveExperiment,
    SaveTrial,
)

T = TypeVar("T")
# The store holds the same records in every example, so it may be shared among them.
SETTINGS = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

NAMES = [
    "",
    "alpha",
    "Alpha beta",
    "ÉTÉ",
    "été",
    "straße",
    "50% off_",
    "a_c",
    "abc",
    "Ünï",
    "\\d+",
    "z'quote\"",
]
LABELS = ["x", "y", "x y", "é", '"quoted"', "%"]


def some(values: Sequence[T]) -> st.SearchStrategy[list[T] | None]:
    return st.none() | st.lists(st.sampled_from(values), max_size=3)


def pages(orders: Sequence[str]) -> st.SearchStrategy[Page]:
    return st.builds(
        Page,
        offset=st.integers(-50, 50),
        limit=st.none() | st.integers(0, 50),
        order_by=st.sampled_from(orders),
        descending=st.booleans(),
    )


def expected_page(found: list[T], page: Page, value: Callable[[T], Any]) -> tuple[list[T], int]:
    """``found`` is by id."""
    have = sorted((one for one in found if value(one) is not None), key=value, reverse=page.descending)
    ordered = have + [one for one in found if value(one) is None]
    first = page.offset if page.offset >= 0 else max(0, len(ordered) + page.offset)
    last = len(ordered) if page.limit is None else first + page.limit
    return ordered[first:last], len(ordered)


# ---- experiments -------------------------------------------------------------------------------------------------


def _experiments() -> list[records.Experiment]:
    pick = random.Random(5)
    return [
        experiment(
            id,
            name=pick.choice(NAMES),
            description=pick.choice(NAMES),
            owner_id=pick.randint(1, 3),
            state=pick.choice(list(ExperimentState)),
            archived=pick.random() < 0.5,
            labels=tuple(pick.sample(LABELS, pick.randint(0, 3))),
            start_time=float(pick.randint(0, 5)),
            end_time=pick.choice([None, 1.5, 2.5]),
            progress=pick.choice([0.0, 0.5, 1.0]),
            external_id=pick.choice([None, "a", "A", "a%"]),
            forked_from=pick.choice([None, 1, 2]),
        )
        for id in range(1, 41)
    ]


EXPERIMENTS = _experiments()
TRIALS = [
    trial(
        id,
        experiment_id=pick.randint(1, 20),
        state=pick.choice(list(TrialState)),
        start_time=float(pick.randint(0, 5)),
        end_time=pick.choice([None, 1.5, 2.5]),
        searcher_metric=pick.choice([None, -1.5, 0.0, float("inf"), 1e-300]),
        total_batches=pick.randint(0, 5),
        restarts=pick.randint(0, 2),
    )
    for pick in [random.Random(6)]
    for id in range(1, 61)
]
CHECKPOINTS = [
    checkpoint(
        f"uuid-{number}",
        trial_id=owner.id,
        experiment_id=owner.experiment_id,
        state=pick.choice(list(CheckpointState)),
        resources={"a": pick.choice([1, 10, 1 << 35]), "b/": 0},
    )
    for pick in [random.Random(7)]
    for number in range(40)
    for owner in [pick.choice(TRIALS)]
]


def _kept(one: records.Experiment) -> list[records.Checkpoint]:
    states = (CheckpointState.COMPLETED, CheckpointState.PARTIALLY_DELETED)
    return [c for c in CHECKPOINTS if c.experiment_id == one.id and c.state in states]


EXPERIMENT_ORDERS: dict[str, Callable[[records.Experiment], Any]] = {
    "id": lambda one: one.id,
    "name": lambda one: one.name,
    "description": lambda one: one.description,
    "start_time": lambda one: one.start_time,
    "end_time": lambda one: one.end_time,
    "state": lambda one: one.state.value,
    "progress": lambda one: one.progress,
    "owner_id": lambda one: one.owner_id,
    "project_id": lambda one: one.project_id,
    "forked_from": lambda one: one.forked_from,
    "num_trials": lambda one: sum(t.experiment_id == one.id for t in TRIALS),
    "checkpoint_count": lambda one: len(_kept(one)),
    "checkpoint_bytes": lambda one: sum(c.size for c in _kept(one)),
}
EXPERIMENT_FILTERS = st.builds(
    ExperimentFilter,
    owner_ids=some([1, 2, 3, 9]),
    states=some(list(ExperimentState)),
    archived=st.none() | st.booleans(),
    project_id=st.sampled_from([None, 1, 2]),
    external_id=st.sampled_from([None, None, "a", "A"]),
    ids=st.none() | st.lists(st.integers(1, 45), max_size=30),
    above_id=st.none() | st.integers(-1, 45),
    below_id=st.none() | st.integers(-1, 45),
    without_ids=st.lists(st.integers(1, 45), max_size=10),
    name=st.none() | st.sampled_from([*NAMES, "A", "%", "_", "É", "SS", "\\", "'"]) | st.text(max_size=2),
    description=st.none() | st.sampled_from([*NAMES, "ta", "é"]),
    labels=some(LABELS),
)


@pytest.fixture
def full_store(store: Store) -> Store:
    commit(store, *(SaveExperiment(one) for one in EXPERIMENTS))
    commit(store, *(SaveTrial(one) for one in TRIALS), *(SaveCheckpoint(one) for one in CHECKPOINTS))
    return store


@SETTINGS
@given(where=EXPERIMENT_FILTERS, page=pages(list(EXPERIMENT_ORDERS)))
def test_experiments_are_found_as_a_list_comprehension_finds_them(
    full_store: Store, where: ExperimentFilter, page: Page
) -> None:
    if "\0" in (where.name or ""):
        return  # PostgreSQL cannot be asked for it
    found = [
        one
        for one in EXPERIMENTS
        if (where.owner_ids is None or one.owner_id in where.owner_ids)
        and (where.states is None or one.state in where.states)
        and (where.archived is None or one.archived is where.archived)
        and (where.project_id is None or one.project_id == where.project_id)
        and (where.external_id is None or one.external_id == where.external_id)
        and (where.ids is None or one.id in where.ids)
        and (where.above_id is None or one.id > where.above_id)
        and (where.below_id is None or one.id < where.below_id)
        and one.id not in where.without_ids
        and (where.name is None or where.name.casefold() in one.name.casefold())
        and (where.description is None or where.description.casefold() in one.description.casefold())
        and (where.labels is None or all(label in one.labels for label in where.labels))
    ]
    assert full_store.experiments.find(where, page) == expected_page(
        found, page, EXPERIMENT_ORDERS[page.order_by]
    )


def test_labels_the_most_used_first(store: Store) -> None:
    for id, labels in enumerate([("b", "a"), ("b",), ("c", "a"), ()], start=1):
        commit(store, SaveExperiment(experiment(id, labels=labels, owner_id=1 if id < 3 else 2)))
    assert store.experiments.labels(ExperimentFilter()) == ["a", "b", "c"]
    assert store.experiments.labels(ExperimentFilter(owner_ids=[1])) == ["b", "a"]
    assert store.experiments.labels(ExperimentFilter(owner_ids=[3])) == []


@pytest.mark.parametrize("order_by", EXPERIMENT_ORDERS)
@pytest.mark.parametrize("descending", [False, True])
def test_experiments_in_every_order(full_store: Store, order_by: str, descending: bool) -> None:
    page = Page(order_by=order_by, descending=descending)
    assert full_store.experiments.find(ExperimentFilter(), page) == expected_page(
        EXPERIMENTS, page, EXPERIMENT_ORDERS[order_by]
    )


@pytest.mark.parametrize(("text", "count"), [("STRASSE", 2), ("été", 1), ("%", 0), ("_", 0), ("", 3)])
def test_names_are_searched_without_regard_to_case_in_any_alphabet(
    store: Store, text: str, count: int
) -> None:
    names = ["Hauptstraße", "Hauptstrasse", "ÉTÉ"]
    commit(store, *(SaveExperiment(experiment(id, name=name)) for id, name in enumerate(names, start=1)))
    assert store.experiments.find(ExperimentFilter(name=text), Page())[1] == count


def test_an_unknown_order_names_those_that_there_are(store: Store) -> None:
    with pytest.raises(ValueError, match="cannot order by 'colour': it is one of id, name"):
        store.experiments.find(ExperimentFilter(), Page(order_by="colour"))
    with pytest.raises(ValueError, match="cannot order by 'name': it is one of id, start_time"):
        store.trials.find(1, None, Page(order_by="name"))


# ---- trials ------------------------------------------------------------------------------------------------------

TRIAL_ORDERS: dict[str, Callable[[records.Trial], Any]] = {
    "id": lambda one: one.id,
    "start_time": lambda one: one.start_time,
    "end_time": lambda one: one.end_time,
    "state": lambda one: one.state.value,
    "searcher_metric": lambda one: one.searcher_metric,
    "total_batches": lambda one: one.total_batches,
    "restarts": lambda one: one.restarts,
}


@SETTINGS
@given(experiment_id=st.integers(1, 4), states=some(list(TrialState)), page=pages(list(TRIAL_ORDERS)))
def test_trials_are_found_as_a_list_comprehension_finds_them(
    full_store: Store, experiment_id: int, states: list[TrialState] | None, page: Page
) -> None:
    found = [
        one
        for one in TRIALS
        if one.experiment_id == experiment_id and (states is None or one.state in states)
    ]
    assert full_store.trials.find(experiment_id, states, page) == expected_page(
        found, page, TRIAL_ORDERS[page.order_by]
    )


# ---- workloads ---------------------------------------------------------------------------------------------------

REPORTS = [
    report(pick.randint(1, 3), group, trial_id=number % 2 + 1, reported_at=float(pick.randint(0, 3)))
    for pick in [random.Random(9)]
    for number, group in enumerate([*["gpu"] * 4, *["training"] * 4, *["validation"] * 4, *["other"] * 4])
]
WORKLOAD_CHECKPOINTS = [
    checkpoint(
        f"uuid-{number}",
        trial_id=number % 2 + 1,
        state=pick.choice(list(CheckpointState)),
        steps_completed=pick.randint(1, 3),
        reported_at=float(pick.randint(0, 3)),
    )
    for pick in [random.Random(10)]
    for number in range(12)
]


@pytest.fixture
def trials_with_workloads(store: Store) -> Store:
    commit(store, SaveExperiment(experiment(1)), SaveTrial(trial(1)), SaveTrial(trial(2)))
    unique = {(one.trial_id, one.group, one.steps_completed): one for one in REPORTS}
    commit(store, *(InsertReport(one) for one in unique.values()))
    commit(store, *(SaveCheckpoint(one) for one in WORKLOAD_CHECKPOINTS))
    commit(store, ArchiveReports(2, run_id=9, group="training", steps_completed=3))
    return store


@SETTINGS
@given(
    groups=some(["training", "validation", "other", "gpu", "unknown"]),
    states=some(list(CheckpointState)),
    page=pages(["steps_completed", "reported_at"]),
    trial_id=st.integers(1, 3),
)
def test_workloads_are_found_as_a_sort_of_all_rows_finds_them(
    trials_with_workloads: Store,
    groups: list[str] | None,
    states: list[CheckpointState] | None,
    page: Page,
    trial_id: int,
) -> None:
    store = trials_with_workloads
    rows: list[Workload] = [
        one
        for one in store.metrics.reports([trial_id])
        if (one.group != "gpu" if groups is None else one.group in groups)
    ]
    rows += store.checkpoints.find(trial_id=trial_id, states=states)

    def key(row: Workload) -> tuple[Any, ...]:
        kind = 2 if isinstance(row, records.Checkpoint) else int(row.group == "validation")
        last = (0, row.uuid) if isinstance(row, records.Checkpoint) else (row.id, "")
        if page.order_by == "reported_at":
            return row.reported_at, row.steps_completed, kind, *last
        return row.steps_completed, kind, row.reported_at, *last

    rows.sort(key=key, reverse=page.descending)
    first = page.offset if page.offset >= 0 else max(0, len(rows) + page.offset)
    last = len(rows) if page.limit is None else first + page.limit
    where = WorkloadFilter(groups, states)
    assert store.workloads.find(trial_id, where, page) == (rows[first:last], len(rows))


def test_workloads_have_two_orders(store: Store) -> None:
    with pytest.raises(ValueError, match="cannot be ordered by 'loss': it is one of steps_completed, rep"):
        store.workloads.find(1, WorkloadFilter(), Page(order_by="loss"))


# ---- logs --------------------------------------------------------------------------------------------------------

TEXTS = ["epoch 1 loss 0.5\n", "Epoch 2\n", "100%_done\n", "(a+b)*c\n", "é\n", "\n", "x" * 50 + "\n"]
LINES = [
    log(
        pick.choice(TEXTS),
        task_id=pick.choice(["t1", "t2", "t3"]),
        allocation_id=pick.choice(["a1", "a2"]),
        agent_id=pick.choice(["g1", "g2"]),
        container_id=pick.choice(["c1", "c2"]),
        rank_id=pick.choice([None, 0, 1]),
        level=pick.choice(["", "LOG_LEVEL_INFO", "LOG_LEVEL_ERROR"]),
        source=pick.choice(["task", "master"]),
        stdtype=pick.choice(["", "stdout", "stderr"]),
        timestamp=float(pick.randint(0, 9)),
    )
    for pick in [random.Random(8)]
    for _ in range(120)
]
LOG_FILTERS = st.builds(
    LogFilter,
    task_ids=st.lists(st.sampled_from(["t1", "t2", "t3", "t4"]), max_size=3),
    allocation_ids=some(["a1", "a2"]),
    agent_ids=some(["g1", "g2", "g3"]),
    container_ids=some(["c1", "c2"]),
    rank_ids=some([-1, 0, 1]),
    levels=some(["", "LOG_LEVEL_INFO", "LOG_LEVEL_ERROR"]),
    sources=some(["task", "master"]),
    stdtypes=some(["", "stdout", "stderr"]),
    search_text=st.sampled_from([None, "", "epoch", "Epoch", "%_", "x+", "[12]", "é", "^e.*5$"]),
    search_regex=st.booleans(),
    after=st.none() | st.integers(0, 9).map(float),
    before=st.none() | st.integers(0, 9).map(float),
)


@pytest.fixture
def log_store(store: Store) -> Store:
    commit(store, AppendLogs(tuple(LINES)))
    return store


@SETTINGS
@given(
    where=LOG_FILTERS,
    limit=st.none() | st.integers(0, 30),
    descending=st.booleans(),
    skip=st.integers(0, 119),
)
def test_log_lines_are_found_as_a_list_comprehension_finds_them(
    log_store: Store, where: LogFilter, limit: int | None, descending: bool, skip: int
) -> None:
    every = log_store.logs.find(LogFilter(["t1", "t2", "t3"]))
    assert len(every) == len(LINES)

    def has_text(line: records.LogLine) -> bool:
        if where.search_text is None:
            return True
        if where.search_regex:
            return re2.search(where.search_text, line.log) is not None
        return where.search_text in line.log

    found = [
        line
        for line in every
        if line.id > every[skip].id
        and line.task_id in where.task_ids
        and (where.allocation_ids is None or line.allocation_id in where.allocation_ids)
        and (where.agent_ids is None or line.agent_id in where.agent_ids)
        and (where.container_ids is None or line.container_id in where.container_ids)
        and (where.rank_ids is None or (-1 if line.rank_id is None else line.rank_id) in where.rank_ids)
        and (where.levels is None or line.level in where.levels)
        and (where.sources is None or line.source in where.sources)
        and (where.stdtypes is None or line.stdtype in where.stdtypes)
        and (where.after is None or line.timestamp > where.after)
        and (where.before is None or line.timestamp <= where.before)
        and has_text(line)
    ]
    if descending:
        found.reverse()
    assert (
        log_store.logs.find(where, after_id=every[skip].id, limit=limit, descending=descending)
        == found[:limit]
    )


def test_a_search_by_expression_goes_through_long_logs_in_both_directions(store: Store) -> None:
    commit(store, AppendLogs(tuple(log(f"line {number}\n") for number in range(5000))))
    where = LogFilter(["1.task-1"], search_text=r"line \d*99$", search_regex=True)
    numbers = [99, *(hundred * 100 + 99 for hundred in range(1, 50))]
    expected = [f"line {number}\n" for number in numbers]
    # RE2's $ is the end of the text, and each line ends in a newline.
    where = LogFilter(["1.task-1"], search_text=r"line \d*99\n", search_regex=True)
    assert [line.log for line in store.logs.find(where)] == expected
    assert [line.log for line in store.logs.find(where, descending=True)] == expected[::-1]
    assert [line.log for line in store.logs.find(where, limit=40)] == expected[:40]
    assert [line.log for line in store.logs.find(where, limit=40, descending=True)] == expected[:-41:-1]


def test_a_bad_expression_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match=r"'\(a' is no regular expression in RE2's syntax: missing \)"):
        store.logs.find(LogFilter(["t"], search_text="(a", search_regex=True))
