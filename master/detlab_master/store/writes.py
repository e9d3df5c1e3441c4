"""The changes that the store can be asked for. A list of them is one transaction: all of it happens, or nothing.

``Save*`` writes replace the whole record of that id, or create it. A record's parent (the experiment of a trial, task or
searcher event, the workspace of a project, model or template, the project of an experiment, the task of an allocation, the trial of a report or checkpoint) is there
already or comes earlier in the transaction, as are the model and the checkpoint of a model version; else the transaction
fails. What is to be deleted and is not there is no
error.
"""

from __future__ import annotations

from dataclasses import dataclass

from detlab_master.store import records


@dataclass(frozen=True)
class SaveUser:
    user: records.User


@dataclass(frozen=True)
class SaveSession:
    session: records.Session


@dataclass(frozen=True)
class DeleteSession:
    token_hash: str


@dataclass(frozen=True)
class DeleteSessionsOf:
    """Every session of one allocation, when it has ended."""

    allocation_id: str


@dataclass(frozen=True)
class SaveWorkspace:
    """Fails the transaction when another workspace has that name."""

    workspace: records.Workspace


@dataclass(frozen=True)
class DeleteWorkspace:
    """Fails the transaction when there is a project, a model or a template in it."""

    workspace_id: int


@dataclass(frozen=True)
class SaveProject:
    """Fails the transaction when another project of its workspace has that name, or another one that key."""

    project: records.Project


@dataclass(frozen=True)
class DeleteProject:
    """Fails the transaction when there is an experiment in it."""

    project_id: int


@dataclass(frozen=True)
class SaveTemplate:
    template: records.Template


@dataclass(frozen=True)
class DeleteTemplate:
    name: str


@dataclass(frozen=True)
class SaveExperiment:
    experiment: records.Experiment


@dataclass(frozen=True)
class DeleteExperiment:
    """With its trials, tasks, allocations and their sessions, metrics, checkpoints' records, searcher events and logs.

    Fails the transaction when one of its checkpoints is in the model registry.
    """

    experiment_id: int


@dataclass(frozen=True)
class SetProgress:
    """Of an experiment, 0..1: comes with every report, so it does not rewrite the whole record.

    Nothing happens where there is no such experiment.
    """

    experiment_id: int
    progress: float


@dataclass(frozen=True)
class CollectionDone:
    """An experiment's checkpoints were looked through; nothing happens where its ``gc_due`` is another by now."""

    experiment_id: int
    gc_due: float


@dataclass(frozen=True)
class SaveTrial:
    trial: records.Trial


@dataclass(frozen=True)
class DeleteTrial:
    """With its task and its allocations, their sessions and logs, its metrics and its checkpoints' records.

    So a large experiment goes piece by piece, and nobody waits for all of it. Fails the transaction when one of its
    checkpoints is in the model registry.
    """

    trial_id: int


@dataclass(frozen=True)
class SaveTask:
    task: records.Task


@dataclass(frozen=True)
class SaveAllocation:
    allocation: records.Allocation


@dataclass(frozen=True)
class AppendSearcherEvent:
    """Fails the transaction when (experiment_id, seq) is there already."""

    event: records.SearcherEvent


@dataclass(frozen=True)
class InsertReport:
    """Fails the transaction when an unarchived report with this trial, group and steps_completed is there already."""

    report: records.MetricReport


@dataclass(frozen=True)
class ReplaceReport:
    """Takes the place of the unarchived report with this trial, group and steps_completed, and keeps its id.

    Fails the transaction when there is none.
    """

    report: records.MetricReport


@dataclass(frozen=True)
class ArchiveReports:
    """Roll back: reports of runs before ``run_id`` in ``group`` at >= steps, in other groups at > steps."""

    trial_id: int
    run_id: int
    group: str
    steps_completed: int


@dataclass(frozen=True)
class SaveCheckpoint:
    checkpoint: records.Checkpoint


@dataclass(frozen=True)
class SaveTrialSource:
    source: records.TrialSource


@dataclass(frozen=True)
class SaveModel:
    """Fails the transaction when its owner has another model of that name."""

    model: records.Model


@dataclass(frozen=True)
class DeleteModel:
    """With its versions; their checkpoints stay."""

    model_id: int


@dataclass(frozen=True)
class SaveModelVersion:
    """Replaces the version of that number in that model, or creates it."""

    version: records.ModelVersion


@dataclass(frozen=True)
class DeleteModelVersion:
    model_id: int
    version: int


@dataclass(frozen=True)
class AppendLogs:
    """Lines whose (container_id, offset) is there already are dropped: shipping may repeat itself.

    Characters that a database cannot hold (NUL, lone surrogates) become U+FFFD.
    """

    lines: tuple[records.LogLine, ...]


@dataclass(frozen=True)
class DeleteLogs:
    """Lines of a task, the first ones up to that id."""

    task_id: str
    last_id: int


Write = (
    SaveUser
    | SaveSession
    | DeleteSession
    | DeleteSessionsOf
    | SaveWorkspace
    | DeleteWorkspace
    | SaveProject
    | DeleteProject
    | SaveTemplate
    | DeleteTemplate
    | SaveExperiment
    | DeleteExperiment
    | SetProgress
    | CollectionDone
    | SaveTrial
    | DeleteTrial
    | SaveTask
    | SaveAllocation
    | AppendSearcherEvent
    | InsertReport
    | ReplaceReport
    | ArchiveReports
    | SaveCheckpoint
    | SaveTrialSource
    | SaveModel
    | DeleteModel
    | SaveModelVersion
    | DeleteModelVersion
    | AppendLogs
    | DeleteLogs
)
