"""The entry to the Python API: a connection to one master as one user."""

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from determined.common import context
from determined.common.api import Session, authentication, iterate
from determined.common.api.token_store import TokenStore
from determined.experimental import _checkpoint, _experiment, _metrics, _model, _trial, _user, _workspace
from determined.experimental._enums import ExperimentSortBy, ExperimentState, ModelSortBy, OrderBy


class Determined:
    """A connection to a master.

    Without arguments it takes the master from `DET_MASTER`, and the user from the environment or from the
    last `det user login`. Inside a notebook or a task that is all there is to do. Raises NotLoggedIn or
    MasterUnreachable (`determined.common.api.errors`), both with a text that says what to do.
    """

    def __init__(
        self,
        master: str | None = None,
        user: str | None = None,
        password: str | None = None,
        cert_path: str | None = None,
        cert_name: str | None = None,
        noverify: bool = False,
    ) -> None:
        trust = authentication.Trust(False if noverify else cert_path, cert_name)
        self._session = authentication.logged_in_session(master, user=user, password=password, trust=trust)

    @classmethod
    def with_session(cls, session: Session) -> Self:
        """A connection over a session of one's own, which closes with it."""
        made = cls.__new__(cls)
        made._session = session
        return made

    @property
    def session(self) -> Session:
        """The requests below this connection, for what has no method here. It closes with the connection."""
        return self._session

    def with_patience(self, patience: authentication.Patience) -> Self:
        """The same user on the same master, over a connection of its own."""
        return self.with_session(
            self._session.again(retries=patience.retries, read_timeout=patience.read_timeout)
        )

    def close(self) -> None:
        """Close the connections. What was got from here cannot be reloaded afterwards."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Experiments, trials, checkpoints.

    def create_experiment(
        self,
        config: str | os.PathLike[str] | dict[str, Any],
        model_dir: str | os.PathLike[str] | None = None,
        includes: Iterable[str | os.PathLike[str]] | None = None,
        project_id: int | None = None,
        template: str | None = None,
    ) -> _experiment.Experiment:
        """Submit an experiment and start it.

        `config` is a dict, the path of a YAML file, or YAML text. `model_dir` (a folder, or one file) and
        `includes` are sent with it, less what .detignore names. Raises ContextError for a folder that cannot
        be sent and APIException for a configuration that the master refuses.
        """
        text = _config_text(config)
        model = Path(model_dir) if model_dir is not None else None
        files = context.bundle(model, [Path(include) for include in includes or ()])
        experiment, launch_warnings = _experiment.create_experiment(
            self._session, text, files, project_id=project_id, template=template
        )
        for warning in launch_warnings:
            warnings.warn(f"experiment {experiment.id}: {warning}", UserWarning, stacklevel=2)
        return experiment

    def get_experiment(self, experiment_id: int) -> _experiment.Experiment:
        return _experiment.get_experiment(self._session, experiment_id)

    def list_experiments(
        self,
        sort_by: ExperimentSortBy | None = None,
        order_by: OrderBy | None = None,
        experiment_ids: Sequence[int] | None = None,
        labels: Sequence[str] | None = None,
        users: Sequence[str] | None = None,
        states: Sequence[ExperimentState] | None = None,
        name: str | None = None,
        project_id: int | None = None,
    ) -> list[_experiment.Experiment]:
        """The experiments that pass every filter that is given."""
        params = {
            "sortBy": sort_by.value if sort_by else None,
            "orderBy": order_by.value if order_by else None,
            "experimentIdFilter.incl": experiment_ids,
            "labels": labels,
            "users": users,
            "states": [state.value for state in states or ()],
            "name": name,
            "projectId": project_id,
        }
        found = iterate(self._session, "/api/v1/experiments", "experiments", params)
        return [_experiment.Experiment(self._session, raw) for raw in found]

    def get_trial(self, trial_id: int) -> _trial.Trial:
        return _trial.get_trial(self._session, trial_id)

    def get_checkpoint(self, uuid: str) -> _checkpoint.Checkpoint:
        return _checkpoint.get_checkpoint(self._session, uuid)

    def iter_trials_metrics(self, trial_ids: Sequence[int], group: str) -> Iterator[_metrics.TrialMetrics]:
        """What these trials reported in a group, by trial and steps; every group when it is empty."""
        return _metrics.iter_trials_metrics(self._session, trial_ids, group)

    def stream_trials_metrics(self, trial_ids: Sequence[int], group: str) -> Iterator[_metrics.TrialMetrics]:
        warnings.warn(
            "stream_trials_metrics() is deprecated: use iter_trials_metrics()", FutureWarning, stacklevel=2
        )
        return self.iter_trials_metrics(trial_ids, group)

    def stream_trials_training_metrics(self, trial_ids: Sequence[int]) -> Iterator[_metrics.TrialMetrics]:
        return self.stream_trials_metrics(trial_ids, "training")

    def stream_trials_validation_metrics(self, trial_ids: Sequence[int]) -> Iterator[_metrics.TrialMetrics]:
        return self.stream_trials_metrics(trial_ids, "validation")

    # The model registry.

    def create_model(
        self,
        name: str,
        description: str = "",
        metadata: Mapping[str, Any] | None = None,
        labels: Sequence[str] = (),
        workspace_name: str | None = None,
    ) -> _model.Model:
        """A model, to keep checkpoints under its name. Raises APIException (409) when there is one already."""
        return _model.create_model(
            self._session,
            name,
            description=description,
            metadata=metadata,
            labels=labels,
            workspace_name=workspace_name,
        )

    def get_model(self, identifier: str | int) -> _model.Model:
        """By name or id."""
        return _model.get_model(self._session, identifier)

    def get_model_by_id(self, model_id: int) -> _model.Model:
        warnings.warn("get_model_by_id() is deprecated: use get_model()", FutureWarning, stacklevel=2)
        return self.get_model(model_id)

    def list_models(
        self,
        sort_by: ModelSortBy = ModelSortBy.NAME,
        order_by: OrderBy = OrderBy.ASC,
        name: str | None = None,
        description: str | None = None,
        model_id: int | None = None,
        workspace_names: Sequence[str] | None = None,
        workspace_ids: Sequence[int] | None = None,
    ) -> list[_model.Model]:
        """The models that pass every filter that is given; a part of a name or description is enough."""
        return _model.list_models(
            self._session,
            sort_by,
            order_by,
            name=name,
            description=description,
            model_id=model_id,
            workspace_names=workspace_names,
            workspace_ids=workspace_ids,
        )

    def get_models(
        self,
        sort_by: ModelSortBy = ModelSortBy.NAME,
        order_by: OrderBy = OrderBy.ASC,
        name: str | None = None,
        description: str | None = None,
    ) -> list[_model.Model]:
        warnings.warn("get_models() is deprecated: use list_models()", FutureWarning, stacklevel=2)
        return self.list_models(sort_by, order_by, name, description)

    def get_model_labels(self) -> list[str]:
        """All labels that models bear."""
        return list(self._session.get_json("/api/v1/model/labels")["labels"])

    # Workspaces.

    def create_workspace(self, name: str) -> _workspace.Workspace:
        """Raises APIException with status 409 when there is one already."""
        return _workspace.create_workspace(self._session, name)

    def get_workspace(self, name: str) -> _workspace.Workspace:
        """Raises NotFoundException."""
        return _workspace.get_workspace(self._session, name)

    def list_workspaces(self) -> list[_workspace.Workspace]:
        return list(_workspace.list_workspaces(self._session))

    def delete_workspace(self, name: str) -> None:
        """Delete it with its projects and their experiments; see `Workspace.delete`."""
        self.get_workspace(name).delete()

    # Users.

    def create_user(
        self, username: str, admin: bool, password: str | None = None, remote: bool = False
    ) -> _user.User:
        """A remote user logs in elsewhere and has no password. Raises ValueError for a weak password."""
        return _user.create_user(self._session, username, admin=admin, password=password, remote=remote)

    def get_user_by_id(self, user_id: int) -> _user.User:
        return _user.User(self._session, self._session.get_json(f"/api/v1/users/{user_id}")["user"])

    def get_user_by_name(self, user_name: str) -> _user.User:
        return _user.get_user_by_name(self._session, user_name)

    def list_users(self, active: bool | None = None) -> list[_user.User]:
        found = iterate(self._session, "/api/v1/users", "users", {"active": active})
        return [_user.User(self._session, raw) for raw in found]

    def whoami(self) -> _user.User:
        return _user.whoami(self._session)

    def get_session_username(self) -> str:
        return self.whoami().username

    def logout(self) -> None:
        """End this login, here and on the master."""
        username = self.get_session_username()
        self._session.post("/api/v1/auth/logout")
        store = TokenStore(self._session.master)
        if store.token(username) == self._session.token:
            store.drop(username)


def _config_text(config: str | os.PathLike[str] | dict[str, Any]) -> str:
    if isinstance(config, dict):
        return yaml.safe_dump(config, sort_keys=False)
    if isinstance(config, str) and ("\n" in config or ": " in config) and not os.path.exists(config):
        return config
    try:
        return Path(config).read_text()
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no configuration file {str(config)!r}") from None
