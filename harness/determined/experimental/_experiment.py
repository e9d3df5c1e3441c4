"""An experiment: a configuration, a model folder, and the trials that were made of them."""

import base64
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from determined.common.api import Session, iterate
from determined.experimental import _wire
from determined.experimental._checkpoint import Checkpoint, checkpoint_order
from determined.experimental._enums import (
    CheckpointSortBy,
    CheckpointState,
    ExperimentState,
    OrderBy,
    TrialSortBy,
)
from determined.experimental._trial import Trial


class Experiment:
    """An experiment as of the last `reload`.

    `config` is the whole configuration, with the cluster's defaults filled in; `progress` is between 0 and 1,
    or None where the search has none to tell; `raw` is the object as the master sent it.
    """

    def __init__(self, session: Session, raw: dict[str, Any]) -> None:
        self._session = session
        self._load(raw)

    def _load(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.id: int = raw["id"]
        self.config: dict[str, Any] = raw["config"] or {}
        self.state = ExperimentState(raw["state"])
        self.archived: bool = raw["archived"]
        self.name: str = raw["name"]
        self.progress: float | None = raw.get("progress")
        self.description: str = raw.get("description") or ""
        self.notes: str = raw.get("notes") or ""
        self.labels: set[str] = set(raw.get("labels") or [])
        self.project_id: int = raw["projectId"]
        self.workspace_id: int | None = raw.get("workspaceId")
        self.username: str = raw["username"]
        self.resource_pool: str = raw.get("resourcePool") or ""
        self.num_trials: int = raw["numTrials"]
        # Detached: its script runs outside of the cluster, which cannot pause or kill it; see core_v2.
        self.unmanaged: bool = bool(raw.get("unmanaged"))
        self.start_time = _wire.time(raw["startTime"])
        self.end_time = _wire.time(raw.get("endTime"))
        self.error: str = raw.get("error") or ""  # why it is ERROR, where its search has failed

    def __repr__(self) -> str:
        return f"Experiment(id={self.id}, name={self.name!r}, state={self.state.name})"

    @property
    def searcher_metric(self) -> str | None:
        """The validation metric that the search looks at."""
        return (self.config.get("searcher") or {}).get("metric")

    @property
    def smaller_is_better(self) -> bool:
        return bool((self.config.get("searcher") or {}).get("smaller_is_better", True))

    def reload(self) -> None:
        self._load(self._session.get_json(self._path())["experiment"])

    # What it is called.

    def set_name(self, name: str) -> None:
        self._patch(name=name)

    def set_description(self, description: str) -> None:
        self._patch(description=description)

    def set_notes(self, notes: str) -> None:
        self._patch(notes=notes)

    def add_label(self, label: str) -> None:
        """Adding a label that is there already is no error."""
        self.labels = set(self._session.put(self._label(label)).json()["labels"])

    def remove_label(self, label: str) -> None:
        """Removing a label that is not there is no error."""
        self.labels = set(self._session.delete(self._label(label)).json()["labels"])

    def set_labels(self, labels: set[str]) -> None:
        """Replace all labels."""
        self._patch(labels=sorted(labels))

    # What it may use.

    def set_priority(self, priority: int) -> None:
        """Place in the queue: 1 is served first, 99 last."""
        self._patch(resources={"priority": priority})

    def set_weight(self, weight: float) -> None:
        self._patch(resources={"weight": weight})

    def set_max_slots(self, max_slots: int | None) -> None:
        """How many slots all trials together may hold; None lifts the limit."""
        self._patch(resources={"maxSlots": max_slots})

    def set_gc_policy(
        self, *, save_experiment_best: int, save_trial_best: int, save_trial_latest: int
    ) -> None:
        """How many checkpoints are kept. The others are deleted now."""
        self._patch(
            checkpointStorage={
                "saveExperimentBest": save_experiment_best,
                "saveTrialBest": save_trial_best,
                "saveTrialLatest": save_trial_latest,
            }
        )

    # Whether it runs.

    def activate(self) -> None:
        self._do("activate")

    def pause(self) -> None:
        self._do("pause")

    def cancel(self) -> None:
        """End it after its trials have saved a checkpoint."""
        self._do("cancel")

    def kill(self) -> None:
        """End it now."""
        self._do("kill")

    def archive(self) -> None:
        self._do("archive")
        self.archived = True

    def unarchive(self) -> None:
        self._do("unarchive")
        self.archived = False

    def move_to_project(self, workspace_name: str, project_name: str) -> None:
        """Raises NotFoundException when there is no such project, APIException when it is archived."""
        from determined.experimental._workspace import get_workspace

        project = get_workspace(self._session, workspace_name).get_project(project_name)
        body = {"experimentId": self.id, "destinationProjectId": project.id}
        self._session.post(f"{self._path()}/move", body)
        self.reload()

    def delete(self) -> None:
        """Delete the experiment, its checkpoints and its logs. The master does so in the background."""
        self._session.delete(self._path())

    def delete_tensorboard_files(self) -> None:
        """Delete what its trials have written for TensorBoard. Its checkpoints stay."""
        self._session.delete(f"{self._path()}/tensorboard-files")

    def wait(self, interval: float = 5.0) -> ExperimentState:
        """Look every `interval` seconds until the experiment has ended; return its last state.

        Raises ValueError when it is paused, since it would then not end by itself.
        """
        while True:
            self.reload()
            if self.state.is_terminal:
                return self.state
            if self.state is ExperimentState.PAUSED:
                raise ValueError(f"experiment {self.id} is paused: activate it before waiting for its end")
            time.sleep(interval)

    # What it made.

    def iter_trials(
        self,
        sort_by: TrialSortBy = TrialSortBy.ID,
        order_by: OrderBy = OrderBy.ASC,
        limit: int | None = None,
    ) -> Iterator[Trial]:
        """The trials, at most `limit` of them, fetched page by page."""
        params = {"sortBy": sort_by.value, "orderBy": order_by.value}
        for raw in iterate(self._session, f"{self._path()}/trials", "trials", params, limit=limit):
            yield Trial(self._session, raw)

    def list_trials(
        self, sort_by: TrialSortBy = TrialSortBy.ID, order_by: OrderBy = OrderBy.ASC
    ) -> list[Trial]:
        return list(self.iter_trials(sort_by, order_by))

    def await_first_trial(self, interval: float = 0.1) -> Trial:
        """Look every `interval` seconds until there is a trial, and return the first.

        Raises ValueError when the experiment ends without one.
        """
        while True:
            first = next(self.iter_trials(limit=1), None)
            if first is not None:
                return first
            self.reload()
            if self.state.is_terminal:
                raise ValueError(f"experiment {self.id} ended as {self.state.name} without a trial")
            time.sleep(interval)

    def list_checkpoints(
        self,
        sort_by: CheckpointSortBy | str | None = None,
        order_by: OrderBy | None = None,
        max_results: int | None = None,
    ) -> list[Checkpoint]:
        """The checkpoints that can be downloaded, by default the best by the searcher's metric first.

        A string sorts by that validation metric. `sort_by` and `order_by` are given together or not at all.
        """
        params = {**checkpoint_order(sort_by, order_by), "states": CheckpointState.COMPLETED.value}
        found = iterate(
            self._session, f"{self._path()}/checkpoints", "checkpoints", params, limit=max_results
        )
        return [Checkpoint(self._session, raw) for raw in found]

    def best_trial(self) -> tuple[Trial, float] | None:
        """The trial with the best validation by the searcher's metric, and that value; None before the first."""
        best: tuple[Trial, float] | None = None
        for trial in self.iter_trials():
            validation = _wire.metrics_of(trial.raw.get("bestValidation"))
            value = _wire.number(validation.get(self.searcher_metric or ""))
            if value is None or math.isnan(value):
                continue
            if best is None or (value < best[1] if self.smaller_is_better else value > best[1]):
                best = trial, value
        return best

    def download_code(self, output_dir: str | None = None) -> str:
        """Save the model folder as `experiment_<id>_model_def.tgz` in `output_dir` and return its path."""
        packed = self._session.get_json(f"{self._path()}/model_def")["b64Tgz"]
        folder = Path(output_dir or ".")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"experiment_{self.id}_model_def.tgz"
        path.write_bytes(base64.b64decode(packed))
        return str(path)

    def get_pachyderm_config(self) -> dict[str, Any]:
        """The `integrations.pachyderm` of the configuration, which the master keeps and does not act on.

        Raises ValueError where there is none.
        """
        found: dict[str, Any] | None = (self.config.get("integrations") or {}).get("pachyderm")
        if found is None:
            raise ValueError(f"the configuration of experiment {self.id} has no integrations.pachyderm")
        return found

    # The names of older releases.

    def get_trials(
        self, sort_by: TrialSortBy = TrialSortBy.ID, order_by: OrderBy = OrderBy.ASC
    ) -> list[Trial]:
        warnings.warn("Experiment.get_trials() is deprecated: use list_trials()", FutureWarning, stacklevel=2)
        return self.list_trials(sort_by, order_by)

    def top_checkpoint(self, sort_by: str | None = None, smaller_is_better: bool | None = None) -> Checkpoint:
        warnings.warn(
            "Experiment.top_checkpoint() is deprecated: use list_checkpoints(max_results=1)",
            FutureWarning,
            stacklevel=2,
        )
        found = self._top(1, sort_by, smaller_is_better)
        if not found:
            raise ValueError(f"experiment {self.id} has no checkpoint that can be downloaded")
        return found[0]

    def top_n_checkpoints(
        self, limit: int, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> list[Checkpoint]:
        """The best checkpoint of each trial, the best of these first."""
        warnings.warn(
            "Experiment.top_n_checkpoints() is deprecated: use list_checkpoints(max_results=...)",
            FutureWarning,
            stacklevel=2,
        )
        return self._top(limit, sort_by, smaller_is_better)

    def _top(self, limit: int, sort_by: str | None, smaller_is_better: bool | None) -> list[Checkpoint]:
        if (sort_by is None) != (smaller_is_better is None):
            raise ValueError("sort_by and smaller_is_better are given together or not at all")
        order = None if sort_by is None else (OrderBy.ASC if smaller_is_better else OrderBy.DESC)
        best_of: dict[int | None, Checkpoint] = {}  # by trial, best first
        for checkpoint in self.list_checkpoints(sort_by, order):
            best_of.setdefault(checkpoint.training.trial_id, checkpoint)
        return list(best_of.values())[:limit]

    def _label(self, label: str) -> str:
        return f"{self._path()}/labels/{quote(label, safe='')}"

    def _path(self) -> str:
        return f"/api/v1/experiments/{self.id}"

    def _do(self, verb: str) -> None:
        self._session.post(f"{self._path()}/{verb}")

    def _patch(self, **changes: Any) -> None:
        self._session.patch(self._path(), {"id": self.id, **changes})
        self.reload()


def get_experiment(session: Session, experiment_id: int) -> Experiment:
    """Raises NotFoundException."""
    return Experiment(session, session.get_json(f"/api/v1/experiments/{experiment_id}")["experiment"])


def create_experiment(
    session: Session,
    config: str,
    files: Sequence[dict[str, Any]],
    *,
    activate: bool = True,
    project_id: int | None = None,
    template: str | None = None,
) -> tuple[Experiment, list[str]]:
    """Submit configuration text and bundled files; return the experiment and the master's warnings."""
    body = {**_submission(config, project_id, template), "modelDefinition": list(files), "activate": activate}
    return _started(session, session.post("/api/v1/experiments", body, once=True).json())


def check_config(
    session: Session, config: str, *, project_id: int | None = None, template: str | None = None
) -> list[str]:
    """The master's warnings about a configuration. Nothing is created.

    Raises APIException with all that is wrong with it.
    """
    body = {**_submission(config, project_id, template), "validateOnly": True}
    return _warnings(session.post("/api/v1/experiments", body).json())


def _submission(config: str, project_id: int | None, template: str | None) -> dict[str, Any]:
    asked = {"projectId": project_id, "template": template}
    return {"config": config} | {key: value for key, value in asked.items() if value is not None}


def continue_experiment(
    session: Session, experiment_id: int, override: str = ""
) -> tuple[Experiment, list[str]]:
    """Let an experiment that has ended go on; return it and the master's warnings.

    Args:
        override: YAML that is merged over its configuration; only for a `single` search.
    """
    body = {"id": experiment_id, "overrideConfig": override}
    return _started(session, session.post("/api/v1/experiments/continue", body, once=True).json())


def _started(session: Session, answer: Mapping[str, Any]) -> tuple[Experiment, list[str]]:
    return Experiment(session, answer["experiment"]), _warnings(answer)


def _warnings(answer: Mapping[str, Any]) -> list[str]:
    # "messages" are Detlab's own: what is said of older keys, for people.
    return [*(answer.get("messages") or []), *(answer.get("warnings") or [])]
