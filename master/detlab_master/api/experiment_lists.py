"""Which experiments a list shows, in what order, and what is read for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from detlab_master.api.body import Query
from detlab_master.api.encode.experiments import ExperimentView
from detlab_master.api.paging import Paging, descending, ordered
from detlab_master.core.permissions import Principal, visible_owners
from detlab_master.core.records import Experiment, Project, Trial, User, Workspace
from detlab_master.core.states import ExperimentState
from detlab_master.store.base import ExperimentFilter, ExperimentTotals, Page, Store

DEFAULT_LIMIT = 100
_BIG = 1 << 62  # beyond every id, and still a number that databases know
REFINED = ("QUEUED", "PULLING", "STARTING", "RUNNING")  # states that an ACTIVE one is shown in
_STATES = (  # in the order of their numbers
    "ACTIVE",
    "PAUSED",
    "STOPPING_COMPLETED",
    "STOPPING_CANCELED",
    "STOPPING_ERROR",
    "COMPLETED",
    "CANCELED",
    "ERROR",
    "DELETED",
    "DELETING",
    "DELETE_FAILED",
    "STOPPING_KILLED",
    *REFINED,
)
_SORTS = {  # to the store's; those of "" are not sorted by the store
    "ID": "id",
    "DESCRIPTION": "description",
    "START_TIME": "start_time",
    "END_TIME": "end_time",
    "STATE": "state",
    "NUM_TRIALS": "num_trials",
    "PROGRESS": "progress",
    "USER": "owner_id",
    "NAME": "name",
    "FORKED_FROM": "forked_from",
    "RESOURCE_POOL": "",
    "PROJECT_ID": "project_id",
    "CHECKPOINT_SIZE": "checkpoint_bytes",
    "CHECKPOINT_COUNT": "checkpoint_count",
    "SEARCHER_METRIC_VAL": "",
}


@dataclass(frozen=True)
class Listing:
    """What a query for experiments asks for."""

    where: ExperimentFilter
    users: Sequence[str]  # names; beside `where.owner_ids`
    shown: frozenset[str]  # shown states that are wanted; empty: not filtered by them
    sort: str
    paging: Paging
    best_trials: bool  # are shown too

    @classmethod
    def of(cls, query: Query, principal: Principal) -> Listing:
        """Parse the query. Who is no administrator sees only their own, whatever they filter by."""
        states = query.enums("states", _STATES, "STATE_")
        stored = {"ACTIVE" if state in REFINED else state for state in states}
        owners = visible_owners(principal)
        wanted = query.integers("userIds")
        if wanted:
            owners = wanted if owners is None else [owner for owner in owners if owner in wanted]
        number = query.integer("limit", 0)
        if number < -2:
            raise query.refuse("limit", "it must be -2 (no items), -1 (everything), 0 (the default) or more")
        limit = {0: DEFAULT_LIMIT, -1: None, -2: 0}.get(number, number)
        where = ExperimentFilter(
            owner_ids=owners,
            states=[ExperimentState(state) for state in sorted(stored)] or None,
            archived=query.optional_flag("archived"),
            project_id=query.optional_integer("projectId") or None,
            ids=query.integers("experimentIdFilter.incl") or None,
            above_id=_bound(query, "gt", "gte", -1),
            below_id=_bound(query, "lt", "lte", 1),
            without_ids=query.integers("experimentIdFilter.notIn"),
            name=query.optional_text("name") or None,
            description=query.optional_text("description") or None,
            labels=query.texts("labels") or None,
        )
        return cls(
            where=where,
            users=query.texts("users"),
            shown=frozenset(states) if set(states) & set(REFINED) else frozenset(),
            sort=query.enum("sortBy", list(_SORTS), "SORT_BY_") or "ID",
            paging=Paging(query.integer("offset", 0), limit, descending(query)),
            best_trials=query.flag("showTrialData"),
        )

    def wants(self, stored: str, shown: str) -> bool:
        """Whether an experiment of that stored and that shown state is asked for."""
        return not self.shown or stored in self.shown or shown in self.shown

    @property
    def by_store(self) -> bool:
        """True when the store alone can filter and sort."""
        return not self.shown and bool(_SORTS[self.sort])


def _bound(query: Query, name: str, inclusive: str, step: int) -> int | None:
    """The narrower of an exclusive and an inclusive bound of ids, as an exclusive one."""
    exclusive = query.optional_integer(f"experimentIdFilter.{name}")
    including = query.optional_integer(f"experimentIdFilter.{inclusive}")
    given = [b for b in (exclusive, None if including is None else including + step) if b is not None]
    bound = (max if step < 0 else min)(given, default=None)
    return None if bound is None else max(-_BIG, min(bound, _BIG))


def matching(store: Store, listing: Listing) -> tuple[list[Experiment], int | None]:
    """The page of experiments and how many match in all; or, with None, all that match in the store's eyes.

    In that case the caller filters by shown states, which the store does not know, and asks `arranged`.
    """
    where = listing.where
    if listing.users:
        known = [user.id for user in map(store.users.by_name, listing.users) if user is not None]
        both = known if where.owner_ids is None else [owner for owner in where.owner_ids if owner in known]
        where = replace(where, owner_ids=both)
    order, paging = _SORTS[listing.sort], listing.paging
    if listing.by_store:
        return store.experiments.find(where, Page(paging.offset, paging.limit, order, paging.descending))
    records, _ = store.experiments.find(where, Page(order_by=order or "id", descending=paging.descending))
    return records, None


def arranged(store: Store, listing: Listing, records: Sequence[Experiment]) -> tuple[list[Experiment], int]:
    """The page of what `matching` left to be sorted, and how many there are."""
    paging = listing.paging
    if listing.sort == "RESOURCE_POOL":
        records = ordered(
            records, lambda r: r.config.get("resources", {}).get("resource_pool"), paging.descending
        )
    if listing.sort == "SEARCHER_METRIC_VAL":
        best = {record.id: best_trial(store, record) for record in records}
        records = ordered(records, lambda r: _metric(best[r.id]), paging.descending)
    start = paging.start(len(records))
    end = None if paging.limit is None else start + paging.limit
    return list(records[start:end]), len(records)


def _metric(trial: Trial | None) -> float | None:
    return trial.searcher_metric if trial else None


def best_trial(store: Store, experiment: Experiment) -> Trial | None:
    """The trial with the best searcher metric; None when none has one."""
    smaller = experiment.config.get("searcher", {}).get("smaller_is_better", True)
    page = Page(limit=1, order_by="searcher_metric", descending=not smaller)
    found, _ = store.trials.find(experiment.id, None, page)
    return found[0] if found and found[0].searcher_metric is not None else None


def view(store: Store, experiment: Experiment) -> ExperimentView:
    """What is shown of one experiment; also of one that was only validated and is not in the store."""
    return views(store, [experiment], best_trials=True)[0]


def views(store: Store, experiments: Sequence[Experiment], best_trials: bool) -> list[ExperimentView]:
    """What is shown of experiments, each owner, project and workspace read once."""
    users: dict[Any, User | None] = {}
    projects: dict[Any, Project | None] = {}
    workspaces: dict[Any, Workspace | None] = {}
    totals = store.experiments.totals([experiment.id for experiment in experiments])
    found = []
    for experiment in experiments:
        owner = _once(users, experiment.owner_id, store.users.get)
        project = _once(projects, experiment.project_id, store.projects.project)
        workspace = _once(workspaces, project.workspace_id, store.projects.workspace) if project else None
        found.append(
            ExperimentView(
                experiment=experiment,
                owner=owner,
                project=project,
                workspace=workspace,
                totals=totals.get(experiment.id) or ExperimentTotals(experiment.id),
                best_trial=best_trial(store, experiment) if best_trials else None,
            )
        )
    return found


def _once(known: dict[Any, Any], key: int, get: Callable[[int], Any]) -> Any:
    if key not in known:
        known[key] = get(key)
    return known[key]
