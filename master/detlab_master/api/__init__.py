"""The master's HTTP and WebSocket API: parse, authorise, call the engine or read the store, encode.

`ROUTES` is the whole of it. Each handler's ``rules`` say who may call which of its methods; `registry` lists them all.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tornado.httpserver import HTTPServer
from tornado.routing import URLSpec
from tornado.web import Application, RequestHandler

from detlab_master.api import (
    agents,
    allocations,
    auth,
    checkpoints,
    cluster,
    configurations,
    experiments,
    hub,
    logs,
    master_logs,
    metrics,
    models,
    projects,
    retention,
    runs,
    tasks,
    templates,
    trial_sources,
    trials,
    users,
    workspaces,
)
from detlab_master.api.base import NoRoute, Rule
from detlab_master.api.cluster import DefaultPools
from detlab_master.api.unpacking import Unpacker
from detlab_master.core.metrics import TRAINING, VALIDATION

if TYPE_CHECKING:
    from detlab_master.engine.services import Services

logger = logging.getLogger(__name__)
V1 = "/api/v1"
# A body that is refused for its size is still taken in and dropped up to this size, so that the client, which sends
# before it listens, gets to read why.
_LARGEST_BODY = 1 << 30
_LARGEST_FRAME = 64 << 20  # bytes of an agent's message: a thousand long lines


@dataclass(frozen=True)
class Route:
    """A path, whose ``{parameters}`` do not span slashes unless they are marked ``{so:path}``, and its handler."""

    path: str
    handler: type[RequestHandler]
    arguments: Mapping[str, Any] = field(default_factory=dict)  # for the handler's initialize()

    @property
    def pattern(self) -> str:
        """The path as a regular expression; a final slash does not matter."""
        parts = re.split(r"\{(\w+(?::path)?)\}", self.path)
        texts = [re.escape(part) for part in parts[::2]]
        groups = [
            f"(?P<{name.removesuffix(':path')}>{'.+' if name.endswith(':path') else '[^/]+'})"
            for name in parts[1::2]
        ]
        return "".join(text + group for text, group in zip(texts, [*groups, ""], strict=True)) + "/?$"

    @property
    def rules(self) -> Mapping[str, Rule]:
        """Who may call which method."""
        rules: Mapping[str, Rule] = self.handler.rules  # type: ignore[attr-defined]
        return rules


_EXPERIMENT = V1 + "/experiments/{experiment_id}"
_TRIAL = V1 + "/trials/{trial_id}"
_WORKSPACE = V1 + "/workspaces/{workspace_id}"
_PROJECT = V1 + "/projects/{project_id}"
_MODEL = V1 + "/models/{model_name}"
_ALLOCATION = V1 + "/allocations/{allocation_id}"

ROUTES: tuple[Route, ...] = (
    Route("/info", cluster.Info),
    Route("/health", cluster.Health),
    Route(V1 + "/master", cluster.Master),
    Route(V1 + "/master/logs", master_logs.MasterLogs),
    Route(V1 + "/auth/login", auth.Login),
    Route(V1 + "/auth/logout", auth.Logout),
    Route(V1 + "/me", auth.Me),
    Route(V1 + "/tokens", auth.Tokens),
    Route(V1 + "/users", users.Users),
    Route(V1 + "/users/{username:path}/by-username", users.UserByName),
    Route(V1 + "/users/{user_id}", users.OneUser),
    Route(V1 + "/agents", cluster.Agents),
    Route(V1 + "/resource-pools", cluster.ResourcePools),
    Route(V1 + "/preview-hp-search", configurations.PreviewSearch),
    Route(V1 + "/experiment-config-schema", configurations.Schema),
    Route(V1 + "/experiments", experiments.Experiments),
    Route(V1 + "/experiment/labels", experiments.ExperimentLabels),
    Route(V1 + "/experiments/continue", experiments.ContinueExperiment),
    Route(V1 + "/experiments/by-external-id/{external_id:path}", experiments.ExperimentByExternalId),
    Route(_EXPERIMENT, experiments.OneExperiment),
    *(
        Route(f"{_EXPERIMENT}/{verb}", experiments.ExperimentVerb, {"verb": verb})
        for verb in experiments.VERBS
    ),
    Route(_EXPERIMENT + "/move", experiments.MoveExperiment),
    Route(_EXPERIMENT + "/labels/{label:path}", experiments.ExperimentLabel),
    Route(_EXPERIMENT + "/model_def", tasks.ModelDefinition),
    Route(_EXPERIMENT + "/retain_logs", logs.RetainExperimentLogs),
    Route(_EXPERIMENT + "/trials", trials.ExperimentTrials),
    Route(_EXPERIMENT + "/checkpoints", trials.ExperimentCheckpoints),
    Route(_EXPERIMENT + "/tensorboard-files", retention.TensorboardFiles),
    Route("/experiments/{experiment_id}/preview_gc", retention.PreviewCollection),
    Route(_EXPERIMENT + "/searcher/best_searcher_validation_metric", experiments.BestSearcherMetric),
    *(
        Route(f"{V1}/trials/metrics/{name}", metrics.StreamMetrics, {"group": group})
        for name, group in metrics.GROUPS.items()
    ),
    Route(V1 + "/trials", trials.Trials),
    Route(_TRIAL, trials.OneTrial),
    Route(_TRIAL + "/start", trials.StartTrial),
    Route(_TRIAL + "/workloads", trials.TrialWorkloads),
    Route(_TRIAL + "/checkpoints", trials.TrialCheckpoints),
    Route(_TRIAL + "/kill", trials.KillTrial),
    Route(_TRIAL + "/logs", logs.TrialLogs),
    Route(_TRIAL + "/logs/fields", logs.TrialLogFields),
    Route(_TRIAL + "/retain_logs", logs.RetainTrialLogs),
    Route(_TRIAL + "/remaining_log_retention_days", logs.RemainingLogRetention),
    Route(_TRIAL + "/metrics", metrics.ReportMetrics),
    Route(_TRIAL + "/training_metrics", metrics.ReportMetrics, {"group": TRAINING}),
    Route(_TRIAL + "/validation_metrics", metrics.ReportMetrics, {"group": VALIDATION}),
    Route(_TRIAL + "/progress", trials.Progress),
    Route(_TRIAL + "/early_exit", trials.EarlyExit),
    Route(_TRIAL + "/runner/metadata", trials.RunnerMetadata),
    Route(V1 + "/runs/start", runs.StartRun),
    Route(V1 + "/runs/{trial_id}/metadata", runs.RunMetadata),
    Route(V1 + "/webhooks/custom", runs.Alert),
    Route(V1 + "/checkpoints", checkpoints.Checkpoints),
    Route(V1 + "/checkpoints/rm", checkpoints.RemoveFiles),
    Route(V1 + "/checkpoints/{checkpoint_uuid}", checkpoints.OneCheckpoint),
    Route(V1 + "/checkpoints/{checkpoint_uuid}/metadata", checkpoints.CheckpointMetadata),
    Route(V1 + "/checkpoints/{checkpoint_uuid}/metrics", trial_sources.CheckpointMetrics),
    Route(V1 + "/trial-source-info", trial_sources.TrialSourceInfo),
    Route("/checkpoints/{checkpoint_uuid}", checkpoints.CheckpointArchive),
    Route(V1 + "/workspaces", workspaces.Workspaces),
    Route(_WORKSPACE, workspaces.OneWorkspace),
    Route(_WORKSPACE + "/archive", workspaces.ArchiveWorkspace, {"archived": True}),
    Route(_WORKSPACE + "/unarchive", workspaces.ArchiveWorkspace, {"archived": False}),
    Route(_WORKSPACE + "/projects", projects.WorkspaceProjects),
    Route(_WORKSPACE + "/available-resource-pools", workspaces.WorkspacePools),
    Route(_PROJECT, projects.OneProject),
    Route(_PROJECT + "/archive", projects.ArchiveProject, {"archived": True}),
    Route(_PROJECT + "/unarchive", projects.ArchiveProject, {"archived": False}),
    Route(_PROJECT + "/notes", projects.ProjectNotes),
    Route(V1 + "/templates", templates.Templates),
    Route(V1 + "/templates/{template_name}", templates.OneTemplate),
    Route(V1 + "/models", models.Models),
    Route(V1 + "/model/labels", models.ModelLabels),
    Route(_MODEL, models.OneModel),
    Route(_MODEL + "/archive", models.ArchiveModel, {"archived": True}),
    Route(_MODEL + "/unarchive", models.ArchiveModel, {"archived": False}),
    Route(_MODEL + "/versions", models.ModelVersions),
    Route(_MODEL + "/versions/{version}", models.OneModelVersion),
    Route(_MODEL + "/versions/{version}/metrics", trial_sources.ModelVersionMetrics),
    Route(V1 + "/task/logs", logs.AppendLogs),
    Route("/task-logs", logs.AppendDetachedLogs),
    Route(V1 + "/tasks/{task_id}/logs", logs.TaskLogs),
    Route(V1 + "/tasks/{task_id}/logs/fields", logs.TaskLogFields),
    Route(V1 + "/cleanup_logs", master_logs.CleanupLogs),
    Route(V1 + "/tasks/{task_id}/context_directory", tasks.ContextDirectory),
    Route(_ALLOCATION + "/signals/preemption", allocations.Preemption),
    Route(_ALLOCATION + "/signals/ack_preemption", allocations.AckPreemption),
    Route(_ALLOCATION + "/ready", allocations.Ready),
    Route(_ALLOCATION + "/proxy_address", allocations.ProxyAddress),
    Route(_ALLOCATION + "/acceleratorData", allocations.AcceleratorData),
    Route(_ALLOCATION + "/resources/{resources_id}/rendezvous", allocations.Rendezvous),
    Route(_ALLOCATION + "/resources/{resources_id}/daemon", allocations.Daemon),
    Route(V1 + "/hub/users/{username}", hub.HubUser),
    Route(V1 + "/hub/users/{username}/token", hub.HubUserToken),
    Route(V1 + "/hub/servers", hub.HubServers),
    Route(V1 + "/hub/servers/{task_id}", hub.HubServer),
    Route(V1 + "/hub/servers/{task_id}/kill", hub.KillHubServer),
    Route("/agents", agents.AgentSocket),
)


def registry() -> Iterator[tuple[str, Route, Rule]]:
    """(method, route, rule) of all that can be called: what a test of permissions walks."""
    for route in ROUTES:
        for method, rule in route.rules.items():
            yield method, route, rule


def routes(services: Services, default_pools: DefaultPools | None = None) -> list[URLSpec]:
    """The URL specs of the whole API.

    Args:
        default_pools: the pools of experiments that name none.
    """
    shared: dict[type[RequestHandler], dict[str, Any]] = {
        experiments.Experiments: {"unpacker": Unpacker(services.contexts.folder)},
        cluster.ResourcePools: {"default_pools": default_pools or DefaultPools()},
    }
    return [
        URLSpec(
            route.pattern,
            route.handler,
            {"services": services, **shared.get(route.handler, {}), **route.arguments},
        )
        for route in ROUTES
    ]


def application(services: Services, default_pools: DefaultPools | None = None) -> Application:
    """The API as a Tornado application."""
    return Application(
        routes(services, default_pools),
        default_handler_class=NoRoute,
        default_handler_args={"services": services},
        log_function=_log,
        websocket_ping_interval=10.0,
        websocket_ping_timeout=10.0,
        websocket_max_message_size=_LARGEST_FRAME,
    )


def server(app: Application) -> HTTPServer:
    """An HTTP server for the application, not listening yet."""
    return HTTPServer(app, max_body_size=_LARGEST_BODY, xheaders=False)


def _log(handler: RequestHandler) -> None:
    """One line a request, for debugging; what goes wrong inside the master is logged where it is answered."""
    logger.debug(
        "%d %s %s %.1f ms",
        handler.get_status(),
        handler.request.method,
        handler.request.path,
        1000 * handler.request.request_time(),
    )
