"""What a detached script says of itself."""

import os
import uuid
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import platformdirs
import yaml

from determined.common import storage

SEARCHER = {"name": "single", "metric": "unmanaged"}


@dataclass(frozen=True)
class Config:
    """Name and settings of the experiment that the master shows for this script; each may be left out.

    With `external_experiment_id` and `external_trial_id`, names of your own choice, the script that is started again
    finds its experiment and trial again, and goes on from the latest checkpoint (`core_v2.info.latest_checkpoint`).
    Trials with one `external_experiment_id` are shown as one experiment. `checkpoint_storage` is a folder, a URL such
    as s3://BUCKET/PREFIX, or a dict as in an experiment config; by default a folder in the user's data directory.
    `searcher` names the metric by which trials are compared: {"name": "single", "metric": "accuracy",
    "smaller_is_better": False}.
    """

    name: str | None = None
    hparams: Mapping[str, Any] | None = None
    data: Mapping[str, Any] | None = None
    description: str | None = None
    labels: Sequence[str] | None = None
    workspace: str | None = None
    project: str | None = None
    checkpoint_storage: str | os.PathLike[str] | Mapping[str, Any] | None = None
    searcher: Mapping[str, Any] | None = None
    external_experiment_id: str | None = None
    external_trial_id: str | None = None

    def __post_init__(self) -> None:
        for field in ("external_experiment_id", "external_trial_id"):
            value = getattr(self, field)
            if value is not None and (not isinstance(value, str) or not value):
                raise ValueError(
                    f"{field} is {value!r}: it must be a text of your choice, such as 'laptop-1'"
                )


@dataclass(frozen=True)
class DefaultConfig(Config):
    """Older name of `Config`, without the external ids: those are in `UnmanagedConfig`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _deprecated("DefaultConfig")


@dataclass(frozen=True)
class UnmanagedConfig(Config):
    """Older name of `Config`, for the external ids, workspace and project."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _deprecated("UnmanagedConfig")


def chosen(config: Config | None, defaults: Config | None, unmanaged: Config | None) -> Config:
    """One configuration of the arguments of `init`. Raises ValueError for a mixture of today's and the older ones."""
    if defaults is None and unmanaged is None:
        return config or Config()
    if config is not None:
        raise ValueError("config takes the place of defaults and unmanaged: give either that or these")
    warnings.warn("defaults and unmanaged are deprecated: use config", FutureWarning, stacklevel=4)
    values: dict[str, Any] = {}
    for older in (defaults, unmanaged):
        values.update({key: value for key, value in vars(older or Config()).items() if value is not None})
    return Config(**values)


def named(config: Config) -> Config:
    """With a name and ids of the script's own where it has none.

    Ids also for those who chose none: a request that is repeated because its answer got lost makes nothing twice.
    """
    fresh = uuid.uuid4().hex
    return replace(
        config,
        name=config.name or f"unmanaged-{fresh[:8]}",
        external_experiment_id=config.external_experiment_id or fresh,
        external_trial_id=config.external_trial_id or fresh,
    )


def experiment_config(config: Config) -> dict[str, Any]:
    """The experiment config that is submitted."""
    return {
        "name": config.name,
        "data": None if config.data is None else dict(config.data),
        "description": config.description,
        "labels": None if config.labels is None else list(config.labels),
        "workspace": config.workspace,
        "project": config.project,
        "checkpoint_storage": _storage(config.checkpoint_storage),
        "searcher": dict(config.searcher or SEARCHER),
    }


def as_text(config: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False)


def _storage(place: str | os.PathLike[str] | Mapping[str, Any] | None) -> dict[str, Any]:
    if isinstance(place, Mapping):
        return dict(place)
    if place is None:
        place = Path(platformdirs.user_data_dir("determined"), "checkpoints")
    text = os.fspath(place)
    if "://" in text:
        return storage.from_string(text)
    return {"type": "directory", "container_path": os.path.abspath(text)}


def _deprecated(name: str) -> None:
    warnings.warn(f"{name} is deprecated: use Config", FutureWarning, stacklevel=4)
