"""Experiments."""

from __future__ import annotations

from dataclasses import dataclass

from detlab_master.api.encode.wire import Object, timestamp
from detlab_master.core.records import Experiment, Project, Trial, User, Workspace
from detlab_master.store.base import ExperimentTotals


@dataclass(frozen=True)
class ExperimentView:
    """An experiment with what is shown beside it."""

    experiment: Experiment
    owner: User | None
    project: Project | None
    workspace: Workspace | None
    totals: ExperimentTotals
    best_trial: Trial | None = None


def experiment(view: ExperimentView, state: str, now: float) -> Object:
    """v1Experiment.

    Args:
        state: as shown, an ACTIVE one refined.
        now: Unix seconds; the end of a duration that still grows.
    """
    record, owner, project, workspace, best = (
        view.experiment,
        view.owner,
        view.project,
        view.workspace,
        view.best_trial,
    )
    searcher = record.config.get("searcher", {})
    return {
        "id": record.id,
        "jobId": record.job_id,
        "name": record.name,
        "description": record.description,
        "notes": record.notes,
        "labels": list(record.labels),
        "state": f"STATE_{state}",
        "archived": record.archived,
        "progress": record.progress,
        "error": record.error,  # ours, official clients do not look
        "startTime": timestamp(record.start_time),
        "endTime": timestamp(record.end_time),
        "duration": max(0, int((now if record.end_time is None else record.end_time) - record.start_time)),
        "username": owner.username if owner else "",
        "displayName": owner.display_name if owner else "",
        "userId": record.owner_id,
        "projectId": record.project_id,
        "projectName": project.name if project else "",
        "projectOwnerId": project.owner_id if project else 0,
        "parentArchived": bool((project and project.archived) or (workspace and workspace.archived)),
        "workspaceId": workspace.id if workspace else 0,
        "workspaceName": workspace.name if workspace else "",
        "config": record.config,
        "originalConfig": record.original_config,
        "hyperparameters": record.config.get("hyperparameters") or {},
        "searcherType": searcher.get("name", ""),
        "searcherMetric": searcher.get("metric", ""),
        "resourcePool": ""
        if record.unmanaged
        else record.config.get("resources", {}).get("resource_pool", ""),
        "forkedFrom": record.forked_from,
        "modelDefinitionSize": record.context_bytes,
        "numTrials": view.totals.trial_count,
        "trialIds": list(view.totals.trial_ids),
        "checkpointCount": view.totals.checkpoint_count,
        "checkpointSize": str(view.totals.checkpoint_bytes),
        "bestTrialId": best.id if best else None,
        "bestTrialSearcherMetric": best.searcher_metric if best else None,
        "unmanaged": record.unmanaged,
        "pachydermIntegration": None,
        **({"externalExperimentId": record.external_id} if record.external_id is not None else {}),
    }


def job_summary(record: Experiment, state: str, jobs_ahead: int) -> Object | None:
    """v1JobSummary; None when nothing of the experiment waits or runs any more.

    Args:
        state: as shown.
        jobs_ahead: that wait before it; -1 when nothing of it waits.
    """
    if record.state.terminal or record.unmanaged:
        return None
    waits = state in ("QUEUED", "PAUSED")
    return {"state": "STATE_QUEUED" if waits else "STATE_SCHEDULED", "jobsAhead": jobs_ahead if waits else 0}
