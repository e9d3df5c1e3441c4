"""From what a person submits to an experiment that may start: its configuration is complete, its sources are theirs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import yaml
from coolname import generate_slug

from detlab_master.core import task_spec
from detlab_master.core.errors import Invalid, NotFound
from detlab_master.core.expconf import parse_experiment_config, resolve
from detlab_master.core.expconf.environment import DEFAULT_IMAGE, DEFAULT_ROCM_IMAGE
from detlab_master.core.expconf.merge import merge
from detlab_master.core.names import there_are
from detlab_master.core.permissions import Principal, may_see
from detlab_master.core.records import Experiment, Json, Workspace
from detlab_master.core.states import ExperimentState
from detlab_master.engine import clock
from detlab_master.engine.checkpoint_holds import STARTED_FROM, CheckpointHolds
from detlab_master.engine.destinations import UNCATEGORIZED, Destination, Destinations
from detlab_master.resources.base import ResourceManager
from detlab_master.store.base import Store

SLOTS_EXCEEDED = "LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"


@dataclass(frozen=True)
class CreateExperiment:
    """What a person submits. The context (model definition) is in the data folder already, named by its SHA-256."""

    config_text: str
    context_sha256: str = ""
    context_bytes: int = 0
    activate: bool = True
    validate_only: bool = False
    parent_id: int | None = None
    project_id: int | None = None
    template: str | None = None
    unmanaged: bool = False  # detached: nothing is started, it is what its scripts report
    external_id: str | None = None  # of an unmanaged one


@dataclass(frozen=True)
class CreatedExperiment:
    experiment: Experiment
    warnings: list[str]  # for people
    launch_warnings: list[str]  # names of the API's enum


@dataclass(frozen=True)
class ClusterDefaults:
    """What the cluster adds to every experiment's configuration."""

    config: Json  # see core.expconf.defaults.cluster_config
    reject_impossible: bool  # master.yaml's launch_error: a request that can never fit is refused


class Submissions:
    """Checks what is submitted.

    Args:
        defaults: what the cluster adds.
    """

    def __init__(
        self, store: Store, resources: ResourceManager, defaults: ClusterDefaults, holds: CheckpointHolds
    ) -> None:
        self._store = store
        self._holds = holds
        self._destinations = Destinations(store)
        self._resources = resources
        self._defaults = defaults

    async def draft(self, principal: Principal, asked: CreateExperiment) -> CreatedExperiment:
        """The experiment as it would start, without an id.

        Raises:
            ConfigErrors: the configuration is wrong; all that is wrong with it, by path.
            NotFound: its template, parent, project or warm-start source is not there for this user.
            Invalid: no pool of that name, more slots than the pool can ever give, an archived project, or a warm-start
                checkpoint that was deleted or is being deleted.
        """
        submitted = await asyncio.to_thread(parse_experiment_config, asked.config_text)  # it takes its time
        template = await self._template(asked.template)
        parent = await self._parent(principal, asked)
        destination = await self._destination(asked, parent, submitted, template or {})
        now = clock.now()
        resolved = resolve(
            submitted,
            template=template,
            defaults=self._with_workspace(destination.workspace),
            experiment_seed=int(now) & 0xFFFFFFFF,
            default_name=generate_slug(3),
            unmanaged=asked.unmanaged,
        )
        config = resolved.as_dict
        launch_warnings = [] if asked.unmanaged else self._place(config)
        environment_warnings = [] if asked.unmanaged else self._environment(config)
        await self._warm_start(principal, config)
        experiment = Experiment(
            id=0,
            job_id="",
            owner_id=principal.user_id,
            project_id=destination.project.id,
            state=ExperimentState.ACTIVE
            if asked.activate and not asked.unmanaged
            else ExperimentState.PAUSED,
            config=config,
            original_config=asked.config_text,
            context_sha256=asked.context_sha256 or (parent.context_sha256 if parent else ""),
            context_bytes=asked.context_bytes or (parent.context_bytes if parent else 0),
            start_time=now,
            name=config["name"],
            description=config.get("description") or "",
            labels=tuple(config.get("labels") or ()),
            forked_from=parent.id if parent else None,
            unmanaged=asked.unmanaged,
            external_id=asked.external_id,
        )
        warnings = [*resolved.warnings, *environment_warnings]
        if not asked.unmanaged:
            warnings += _storage(config)
        return CreatedExperiment(experiment, warnings, launch_warnings)

    async def continued(self, experiment: Experiment, override: str) -> CreatedExperiment:
        """An experiment that has ended, with the configuration with which it would go on.

        Args:
            override: YAML, merged over its configuration.

        Raises:
            Invalid: a search that cannot be continued, or not with another configuration.
            ConfigErrors: what is wrong with the merged configuration.
        """
        kind = experiment.config["searcher"]["name"]
        if kind not in ("single", "random", "grid"):
            raise Invalid(
                f"experiment {experiment.id} is a search of kind {kind}: only single, random and grid can be continued,"
                " because others have compared trials that ran on with those that were stopped. Fork it instead"
            )
        changes = (
            await asyncio.to_thread(parse_experiment_config, override) if _says_anything(override) else {}
        )
        if not changes:
            return CreatedExperiment(experiment, [], self._place(experiment.config))
        if kind != "single":
            raise Invalid(
                f"experiment {experiment.id} is a search of kind {kind}: it can only be continued as it is, without"
                " another configuration. Fork it to change something"
            )
        config, warnings = self._overridden(experiment, changes)
        original = parse_experiment_config(experiment.original_config)
        labels = changes.get("labels")
        changed = replace(
            experiment,
            config=config,
            original_config=yaml.safe_dump(merge(changes, original), sort_keys=False),
            name=changes.get("name") or experiment.name,
            description=changes.get("description") or experiment.description,
            labels=experiment.labels if labels is None else tuple(sorted(set(labels))),
        )
        return CreatedExperiment(changed, warnings, self._place(config))

    def _overridden(self, experiment: Experiment, changes: Json) -> tuple[Json, list[str]]:
        old = experiment.config
        elsewhere = [key for key in ("workspace", "project") if changes.get(key) not in (None, old.get(key))]
        if elsewhere:
            raise Invalid(
                f"{elsewhere[0]} cannot be changed when experiment {experiment.id} is continued:"
                f" move it (det experiment move {experiment.id} WORKSPACE PROJECT)"
            )
        resolved = resolve(
            changes,
            template=old,
            defaults=dict(self._defaults.config),
            experiment_seed=0,
            default_name=experiment.name,
        )
        config = resolved.as_dict
        if config["searcher"]["name"] != "single":
            raise Invalid(
                f"searcher.name cannot be changed when experiment {experiment.id} is continued: it has one trial, and"
                " goes on with that one. Fork it to search"
            )
        if _place_of(config) != _place_of(old):
            raise Invalid(
                f"checkpoint_storage cannot be changed when experiment {experiment.id} is continued: its checkpoints,"
                " from which it goes on, are where they are. Only save_* may change"
            )
        return config, list(resolved.warnings)

    def _place(self, config: Json) -> list[str]:
        """Refuse or warn where the slots do not exist."""
        resources = config["resources"]
        slots, name = resources["slots_per_trial"], resources["resource_pool"]
        pools = {pool.name: pool for pool in self._resources.pools()}
        have = pools[name].slots_total
        if slots <= have:
            return []
        if have and self._defaults.reject_impossible:
            raise Invalid(
                f"resources.slots_per_trial is {slots}, and the resource pool {name!r} has {have} slots in all:"
                " the experiment could never start. Ask for fewer slots or for another pool"
            )
        return [SLOTS_EXCEEDED]

    def _environment(self, config: Json) -> list[str]:
        """Refuse or warn where the Python that the image names cannot be had."""
        name = config["resources"]["resource_pool"]
        pool = next(pool for pool in self._resources.pools() if pool.name == name)
        image = task_spec.image(config, pool.slot_type or "cpu")
        refusal = pool.environments.get(image)
        if refusal and self._defaults.reject_impossible:
            raise Invalid(f"<config>.environment.image: is {image!r}, which no agent can run: {refusal}")
        if refusal:
            return [f"<config>.environment.image: is {image!r}, which no agent can run now: {refusal}"]
        if refusal is None and pool.agents and image not in ("", DEFAULT_IMAGE, DEFAULT_ROCM_IMAGE):
            known = ", ".join(sorted(pool.environments)) or "none"
            warning = (
                f"<config>.environment.image: has no effect: {image!r} is no Python environment of an agent of the"
                f" resource pool {name!r} (there are: {known}), so trials run with the agent's own Python."
            )
            return [warning]
        return []

    async def _template(self, name: str | None) -> Json | None:
        if not name:
            return None
        template = await asyncio.to_thread(self._store.templates.get, name)
        if template is None:
            known = [one.name for one in await asyncio.to_thread(self._store.templates.all)]
            raise NotFound(f"template {name!r} not found: {there_are(known, name, 'there is none yet')}")
        return template.config

    async def _destination(
        self, asked: CreateExperiment, parent: Experiment | None, *layers: Json
    ) -> Destination:
        """Where it goes: the project that was asked for, else the one that the configuration names, else its parent's.

        Args:
            layers: configurations, the highest first. What is wrong with the names is left to `resolve`.
        """
        if asked.project_id:
            return await self._destinations.numbered(asked.project_id)
        workspace, project = (
            next((layer[key] for layer in layers if layer.get(key) is not None), "")
            for key in ("workspace", "project")
        )
        named = isinstance(workspace, str) and isinstance(project, str) and workspace and project
        if named:
            return await self._destinations.named(workspace, project)
        return await self._destinations.numbered(parent.project_id if parent else UNCATEGORIZED)

    def _with_workspace(self, workspace: Workspace) -> dict[str, Any]:
        """The cluster's defaults, with those of the workspace before them."""
        own = {
            "workspace_checkpoint_storage": workspace.checkpoint_storage,
            "default_compute_resource_pool": workspace.default_compute_pool,
            "default_aux_resource_pool": workspace.default_aux_pool,
        }
        return {**self._defaults.config, **{key: value for key, value in own.items() if value}}

    async def _parent(self, principal: Principal, asked: CreateExperiment) -> Experiment | None:
        if not asked.parent_id:
            return None
        parent = await asyncio.to_thread(self._store.experiments.get, asked.parent_id)
        if parent is None or not may_see(principal, parent.owner_id):
            raise NotFound(f"experiment '{asked.parent_id}' not found")
        return parent

    async def _warm_start(self, principal: Principal, config: dict[str, object]) -> None:
        """Check the checkpoint that all trials start from; a source trial becomes its latest checkpoint."""
        searcher = config["searcher"]
        assert isinstance(searcher, dict)
        trial_id, uuid = searcher.get("source_trial_id"), searcher.get("source_checkpoint_uuid")
        if trial_id is None and uuid is None:
            return
        if trial_id is not None:
            checkpoint = await asyncio.to_thread(self._store.checkpoints.latest, trial_id)
            what = f"a checkpoint of trial '{trial_id}' (searcher.source_trial_id)"
        else:
            checkpoint = await asyncio.to_thread(self._store.checkpoints.get, str(uuid))
            what = f"checkpoint '{uuid}' (searcher.source_checkpoint_uuid)"
        source = (
            await asyncio.to_thread(self._store.experiments.get, checkpoint.experiment_id)
            if checkpoint
            else None
        )
        if checkpoint is None or source is None or not may_see(principal, source.owner_id):
            raise NotFound(f"{what} not found")
        await self._holds.refuse_unfit(checkpoint.uuid, STARTED_FROM)
        searcher["source_checkpoint_uuid"] = checkpoint.uuid


def _says_anything(override: str) -> bool:
    """Clients send an empty object, null or nothing where there is nothing to change."""
    return override.strip().removesuffix("...").strip() not in ("", "{}", "null")


def _storage(config: Json) -> list[str]:
    """Warn of a storage that the official package alone can write to."""
    kind = config["checkpoint_storage"]["type"]
    if kind not in ("gcs", "azure"):
        return []
    warning = (
        f"<config>.checkpoint_storage.type: {kind} is refused when a trial starts, unless environment.image names an"
        " environment with the official `determined` package; use shared_fs, directory or s3."
    )
    return [warning]


def _place_of(config: Json) -> dict[str, object]:
    """Where its checkpoints are."""
    return {key: value for key, value in config["checkpoint_storage"].items() if not key.startswith("save_")}
