"""The records that the store keeps; the core defines them (detlab_master.core.records)."""

from detlab_master.core.records import (
    Allocation,
    Checkpoint,
    Container,
    Experiment,
    Json,
    LogLine,
    MetricReport,
    Model,
    ModelVersion,
    Project,
    SearcherEvent,
    Session,
    Task,
    Trial,
    User,
    Workspace,
)

__all__ = [
    "Allocation",
    "Checkpoint",
    "Container",
    "Experiment",
    "Json",
    "LogLine",
    "MetricReport",
    "Model",
    "ModelVersion",
    "Project",
    "SearcherEvent",
    "Session",
    "Task",
    "Trial",
    "User",
    "Workspace",
]
