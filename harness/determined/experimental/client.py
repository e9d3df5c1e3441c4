"""Functions on one connection that this process shares, made when it is first needed.

    from determined.experimental import client

    experiment = client.create_experiment("adaptive.yaml", "model/")
    experiment.wait()
    experiment.list_checkpoints(max_results=1)[0].download()

Inside a notebook or a task nothing else is to do. Elsewhere `det user login` or `client.login()` comes first.
"""

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from determined.experimental import (
    Checkpoint,
    CheckpointSortBy,
    CheckpointState,
    CheckpointTrainingMetadata,
    Determined,
    DownloadMode,
    Experiment,
    ExperimentSortBy,
    ExperimentState,
    LogLevel,
    Model,
    ModelSortBy,
    ModelVersion,
    OrderBy,
    Project,
    Trial,
    TrialMetrics,
    TrialSortBy,
    TrialState,
    User,
    Workspace,
)

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
    "create_experiment",
    "create_model",
    "create_user",
    "create_workspace",
    "current",
    "delete_workspace",
    "get_checkpoint",
    "get_experiment",
    "get_model",
    "get_model_by_id",
    "get_model_labels",
    "get_models",
    "get_session_username",
    "get_trial",
    "get_user_by_id",
    "get_user_by_name",
    "get_workspace",
    "iter_trials_metrics",
    "list_experiments",
    "list_models",
    "list_users",
    "list_workspaces",
    "login",
    "logout",
    "stream_trials_metrics",
    "stream_trials_training_metrics",
    "stream_trials_validation_metrics",
    "whoami",
]

_lock = threading.Lock()
_shared: Determined | None = None


def login(
    master: str | None = None,
    user: str | None = None,
    password: str | None = None,
    cert_path: str | None = None,
    cert_name: str | None = None,
    noverify: bool = False,
) -> None:
    """Choose the master and the user of the functions below; see `Determined`."""
    global _shared
    made = Determined(master, user, password, cert_path, cert_name, noverify)
    with _lock:
        previous, _shared = _shared, made
    if previous is not None:
        previous.close()


def current() -> Determined | None:
    """The connection that the functions below use; None before its first use."""
    with _lock:
        return _shared


def _client() -> Determined:
    global _shared
    with _lock:
        if _shared is None:
            _shared = Determined()
        return _shared


def create_experiment(
    config: str | os.PathLike[str] | dict[str, Any],
    model_dir: str | os.PathLike[str] | None = None,
    includes: Iterable[str | os.PathLike[str]] | None = None,
    project_id: int | None = None,
    template: str | None = None,
) -> Experiment:
    """Submit an experiment and start it; see `Determined.create_experiment`."""
    return _client().create_experiment(config, model_dir, includes, project_id, template)


def get_experiment(experiment_id: int) -> Experiment:
    return _client().get_experiment(experiment_id)


def list_experiments(
    sort_by: ExperimentSortBy | None = None,
    order_by: OrderBy | None = None,
    experiment_ids: Sequence[int] | None = None,
    labels: Sequence[str] | None = None,
    users: Sequence[str] | None = None,
    states: Sequence[ExperimentState] | None = None,
    name: str | None = None,
    project_id: int | None = None,
) -> list[Experiment]:
    """The experiments that pass every filter that is given."""
    return _client().list_experiments(
        sort_by, order_by, experiment_ids, labels, users, states, name, project_id
    )


def get_trial(trial_id: int) -> Trial:
    return _client().get_trial(trial_id)


def get_checkpoint(uuid: str) -> Checkpoint:
    return _client().get_checkpoint(uuid)


def iter_trials_metrics(trial_ids: Sequence[int], group: str) -> Iterator[TrialMetrics]:
    """What these trials reported in a group, by trial and steps; every group when it is empty."""
    return _client().iter_trials_metrics(trial_ids, group)


def stream_trials_metrics(trial_ids: Sequence[int], group: str) -> Iterator[TrialMetrics]:
    return _client().stream_trials_metrics(trial_ids, group)


def stream_trials_training_metrics(trial_ids: Sequence[int]) -> Iterator[TrialMetrics]:
    return _client().stream_trials_training_metrics(trial_ids)


def stream_trials_validation_metrics(trial_ids: Sequence[int]) -> Iterator[TrialMetrics]:
    return _client().stream_trials_validation_metrics(trial_ids)


def create_model(
    name: str,
    description: str = "",
    metadata: Mapping[str, Any] | None = None,
    labels: Sequence[str] = (),
    workspace_name: str | None = None,
) -> Model:
    """A model, to keep checkpoints under its name."""
    return _client().create_model(name, description, metadata, labels, workspace_name)


def get_model(identifier: str | int) -> Model:
    """By name or id."""
    return _client().get_model(identifier)


def get_model_by_id(model_id: int) -> Model:
    return _client().get_model_by_id(model_id)


def list_models(
    sort_by: ModelSortBy = ModelSortBy.NAME,
    order_by: OrderBy = OrderBy.ASC,
    name: str | None = None,
    description: str | None = None,
    model_id: int | None = None,
    workspace_names: Sequence[str] | None = None,
    workspace_ids: Sequence[int] | None = None,
) -> list[Model]:
    """The models that pass every filter that is given."""
    return _client().list_models(
        sort_by, order_by, name, description, model_id, workspace_names, workspace_ids
    )


def get_models(
    sort_by: ModelSortBy = ModelSortBy.NAME,
    order_by: OrderBy = OrderBy.ASC,
    name: str | None = None,
    description: str | None = None,
) -> list[Model]:
    return _client().get_models(sort_by, order_by, name, description)


def get_model_labels() -> list[str]:
    return _client().get_model_labels()


def create_workspace(name: str) -> Workspace:
    return _client().create_workspace(name)


def get_workspace(name: str) -> Workspace:
    return _client().get_workspace(name)


def list_workspaces() -> list[Workspace]:
    return _client().list_workspaces()


def delete_workspace(name: str) -> None:
    """Delete it with its projects and their experiments."""
    _client().delete_workspace(name)


def create_user(username: str, admin: bool, password: str | None = None, remote: bool = False) -> User:
    return _client().create_user(username, admin, password, remote)


def get_user_by_id(user_id: int) -> User:
    return _client().get_user_by_id(user_id)


def get_user_by_name(user_name: str) -> User:
    return _client().get_user_by_name(user_name)


def list_users(active: bool | None = None) -> list[User]:
    return _client().list_users(active)


def whoami() -> User:
    return _client().whoami()


def get_session_username() -> str:
    return _client().get_session_username()


def logout() -> None:
    """End the login, here and on the master."""
    global _shared
    _client().logout()
    with _lock:
        ended, _shared = _shared, None
    if ended is not None:
        ended.close()
