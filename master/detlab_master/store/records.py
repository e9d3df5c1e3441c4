"""The records that the store keeps; the core defines them (detlab_master.core.records)."""

from detlab_master.core.records import (
    Json as Json,
    User as User,
    Session as Session,
    Workspace as Workspace,
    Project as Project,
    Experiment as Experiment,
    Trial as Trial,
    Task as Task,
    Container as Container,
    Allocation as Allocation,
    MetricReport as MetricReport,
    Checkpoint as Checkpoint,
    SearcherEvent as SearcherEvent,
    LogLine as LogLine,
)
