"""The Python API to a cluster: `from determined.experimental import client`, or a `Determined` of one's own."""

from determined.experimental._checkpoint import Checkpoint, CheckpointTrainingMetadata
from determined.experimental._determined import Determined
from determined.experimental._enums import (
    CheckpointSortBy,
    CheckpointState,
    DownloadMode,
    ExperimentSortBy,
    ExperimentState,
    LogLevel,
    ModelSortBy,
    OrderBy,
    TrialSortBy,
    TrialState,
)
from determined.experimental._experiment import Experiment
from determined.experimental._metrics import TrialMetrics
from determined.experimental._model import Model, ModelVersion
from determined.experimental._project import Project
from determined.experimental._trial import Trial
from determined.experimental._user import User
from determined.experimental._workspace import Workspace

__all__ = [
    "Checkpoint",
    "CheckpointSortBy",
    "CheckpointState",
    "CheckpointTrainingMetadata",
    "Determined",
    "DownloadMode",
    "Experiment",
    "ExperimentSortBy",
    "ExperimentState",
    "LogLevel",
    "Model",
    "ModelSortBy",
    "ModelVersion",
    "OrderBy",
    "Project",
    "Trial",
    "TrialMetrics",
    "TrialSortBy",
    "TrialState",
    "User",
    "Workspace",
]
