"""Reads of the in-memory store: users, places, experiments and models. What a trial leaves is in `memory_trials`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from detlab_master.core.states import ExperimentState
from detlab_master.store import records
from detlab_master.store.base import (
    ExperimentFilter,
    ExperimentTotals,
    ModelFilter,
    Page,
    ProjectCounts,
)
from detlab_master.store.experiments import KEPT_CHECKPOINTS, by_use
from detlab_master.store.memory_data import Reads, among, paged


class MemoryUsers(Reads):
    def get(self, user_id: int) -> records.User | None:
        return self._data.users.get(user_id)

    def by_name(self, username: str) -> records.User | None:
        with self._lock:
            user_id = self._data.usernames.get(username)
            return None if user_id is None else self._data.users[user_id]

    def all(self) -> list[records.User]:
        with self._lock:
            return sorted(self._data.users.values(), key=lambda user: user.id)

    def session(self, token_hash: str) -> records.Session | None:
        return self._data.sessions.get(token_hash)


class MemoryProjects(Reads):
    def project(self, project_id: int) -> records.Project | None:
        return self._data.projects.get(project_id)

    def workspace(self, workspace_id: int) -> records.Workspace | None:
        return self._data.workspaces.get(workspace_id)

    def workspace_by_name(self, name: str) -> records.Workspace | None:
        return next((one for one in self._data.workspaces.values() if one.name == name), None)

    def find(self, workspace_name: str, project_name: str) -> records.Project | None:
        for project in self._data.projects.values():
            if (self._data.workspaces[project.workspace_id].name, project.name) == (
                workspace_name,
                project_name,
            ):
                return project
        return None

    def projects(self, workspace_id: int | None = None) -> list[records.Project]:
        with self._lock:
            found = [one for one in self._data.projects.values() if workspace_id in (None, one.workspace_id)]
        return sorted(found, key=attrgetter("id"))

    def workspaces(self) -> list[records.Workspace]:
        with self._lock:
            return sorted(self._data.workspaces.values(), key=attrgetter("id"))

    def counts(self, owner_ids: Sequence[int] | None = None) -> dict[int, ProjectCounts]:
        of: dict[int, list[records.Experiment]] = {}
        with self._lock:
            for one in self._data.experiments.values():
                if among(one.owner_id, owner_ids):
                    of.setdefault(one.project_id, []).append(one)
            trials = {id: len(its) for id, its in self._data.trials_of.items()}
        return {
            project_id: ProjectCounts(
                len(its),
                sum(not one.state.terminal for one in its),
                sum(trials.get(one.id, 0) for one in its),
                max(one.start_time for one in its),
            )
            for project_id, its in of.items()
        }


class MemoryTemplates(Reads):
    def get(self, name: str) -> records.Template | None:
        return self._data.templates.get(name)

    def all(self) -> list[records.Template]:
        with self._lock:
            return sorted(self._data.templates.values(), key=attrgetter("name"))


class MemoryExperiments(Reads):
    def get(self, experiment_id: int) -> records.Experiment | None:
        return self._data.experiments.get(experiment_id)

    def find(self, where: ExperimentFilter, page: Page) -> tuple[list[records.Experiment], int]:
        plain = [
            "id",
            "name",
            "description",
            "start_time",
            "end_time",
            "state",
            "progress",
            "owner_id",
            "project_id",
            "forked_from",
        ]
        with self._lock:
            orders: dict[str, Callable[[records.Experiment], Any]] = {
                name: attrgetter(name) for name in plain
            }
            orders["num_trials"] = lambda experiment: len(self._data.trials_of.get(experiment.id, ()))
            orders["checkpoint_count"] = lambda experiment: self._totals(experiment.id).checkpoint_count
            orders["checkpoint_bytes"] = lambda experiment: self._totals(experiment.id).checkpoint_bytes
            found = (one for one in self._data.experiments.values() if _matches(one, where))
            return paged(found, page, orders)

    def unfinished(self) -> list[records.Experiment]:
        states = [state for state in ExperimentState if not state.terminal]
        return self.find(ExperimentFilter(states=states), Page())[0]

    def collections_due(self) -> list[int]:
        with self._lock:
            due = [(one.gc_due, one.id) for one in self._data.experiments.values() if one.gc_due is not None]
        return [id for _, id in sorted(due)]

    def labels(self, where: ExperimentFilter) -> list[str]:
        found, _ = self.find(where, Page())
        return by_use(label for one in found for label in one.labels)

    def contexts(self) -> set[str]:
        with self._lock:
            return {one.context_sha256 for one in self._data.experiments.values()}

    def totals(self, experiment_ids: Sequence[int]) -> dict[int, ExperimentTotals]:
        with self._lock:
            return {id: self._totals(id) for id in experiment_ids if id in self._data.experiments}

    def searcher_events(self, experiment_id: int) -> list[records.SearcherEvent]:
        with self._lock:
            events = self._data.events.get(experiment_id, {})
            return [events[seq] for seq in sorted(events)]

    def _totals(self, experiment_id: int) -> ExperimentTotals:
        trial_ids = sorted(self._data.trials_of.get(experiment_id, ()))
        kept = [
            one
            for one in self._data.checkpoints.values()
            if one.experiment_id == experiment_id and one.state in KEPT_CHECKPOINTS
        ]
        return ExperimentTotals(
            experiment_id, len(trial_ids), tuple(trial_ids), len(kept), sum(one.size for one in kept)
        )


def _matches(experiment: records.Experiment, where: ExperimentFilter) -> bool:
    return (
        among(experiment.owner_id, where.owner_ids)
        and among(experiment.state, where.states)
        and (where.archived is None or experiment.archived == where.archived)
        and (where.project_id is None or experiment.project_id == where.project_id)
        and among(experiment.id, where.ids)
        and (where.external_id is None or experiment.external_id == where.external_id)
        and (where.above_id is None or experiment.id > where.above_id)
        and (where.below_id is None or experiment.id < where.below_id)
        and experiment.id not in where.without_ids
        and (where.name is None or where.name.casefold() in experiment.name.casefold())
        and (where.description is None or where.description.casefold() in experiment.description.casefold())
        and (where.labels is None or set(where.labels) <= set(experiment.labels))
    )


class MemoryModels(Reads):
    def get(self, model_id: int) -> records.Model | None:
        return self._data.models.get(model_id)

    def by_name(self, name: str) -> list[records.Model]:
        with self._lock:
            found = [model for model in self._data.models.values() if model.name == name]
        return sorted(found, key=lambda model: model.id)

    def find(self, where: ModelFilter, page: Page) -> tuple[list[records.Model], int]:
        plain = ["id", "name", "description", "created_at", "updated_at", "workspace_id"]
        with self._lock:
            orders: dict[str, Callable[[records.Model], Any]] = {name: attrgetter(name) for name in plain}
            orders["num_versions"] = lambda model: self.version_counts([model.id]).get(model.id, 0)
            found = (model for model in self._data.models.values() if _model_matches(model, where))
            return paged(found, page, orders)

    def version_counts(self, model_ids: Sequence[int]) -> dict[int, int]:
        with self._lock:
            return dict(Counter(model_id for model_id, _ in self._data.versions if model_id in model_ids))

    def version(self, model_id: int, version: int) -> records.ModelVersion | None:
        return self._data.versions.get((model_id, version))

    def versions(self, model_id: int, page: Page) -> tuple[list[records.ModelVersion], int]:
        with self._lock:
            found = [version for version in self._data.versions.values() if version.model_id == model_id]
        return paged(found, page, {name: attrgetter(name) for name in ("id", "version", "created_at")})

    def registered(
        self, *, checkpoint_uuids: Sequence[str] | None = None, experiment_id: int | None = None
    ) -> list[records.ModelVersion]:
        with self._lock:
            found = [
                version
                for version in self._data.versions.values()
                if among(version.checkpoint_uuid, checkpoint_uuids)
                and experiment_id in (None, self._data.checkpoints[version.checkpoint_uuid].experiment_id)
            ]
        return sorted(found, key=lambda version: version.id)


def _model_matches(model: records.Model, where: ModelFilter) -> bool:
    return (
        among(model.owner_id, where.owner_ids)
        and among(model.id, where.ids)
        and among(model.workspace_id, where.workspace_ids)
        and (where.archived is None or model.archived == where.archived)
        and (where.name is None or where.name.casefold() in model.name.casefold())
        and (where.description is None or where.description.casefold() in model.description.casefold())
        and (where.labels is None or set(where.labels) <= set(model.labels))
    )
