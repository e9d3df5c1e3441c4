"""Sending a cell, a class or a function to the cluster as an experiment."""

import hashlib
import importlib
import importlib.util
import inspect
import json
import linecache
import os
import tempfile
import types
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from IPython.core.getipython import get_ipython

from determined.common import context
from determined.common.config_yaml import ConfigLoader
from determined.experimental import Experiment, ExperimentSortBy, ExperimentState, OrderBy, client
from detlab_magics import searchspace
from detlab_magics.capture import MODULE, Captured, capture
from detlab_magics.config import Options, experiment_config, summary
from detlab_magics.errors import CaptureError, NotebookError, OptionError, explained

_MARK = "detlab"  # under `data` of the configuration: which cell an experiment came from
_GONE = frozenset(
    {
        ExperimentState.ERROR,
        ExperimentState.CANCELED,
        ExperimentState.STOPPING_ERROR,
        ExperimentState.STOPPING_CANCELED,
        ExperimentState.STOPPING_KILLED,
        ExperimentState.DELETED,
        ExperimentState.DELETING,
        ExperimentState.DELETE_FAILED,
    }
)
_SLOTS_EXCEEDED = "LAUNCH_WARNING_CURRENT_SLOTS_EXCEEDED"


def submit(
    source: str | type | Callable[..., Any],
    *,
    hparams: Mapping[str, Any] | None = None,
    trial: str | None = None,
    config: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    include: Iterable[str | os.PathLike[str]] = (),
    reuse: bool = False,
    name: str | None = None,
    searcher: str | None = None,
    max_trials: int | None = None,
    metric: str | None = None,
    smaller_is_better: bool | None = None,
    max_length: int | None = None,
    slots: int | None = None,
    pool: str | None = None,
    validation_period: int | None = None,
    batch_size: int | None = None,
) -> Experiment:
    """Submit training code as an experiment and return at once; what %%det_experiment does.

    `source` is the text of a cell, or a PyTorchTrial class or a function `main`, which stands for the whole
    cell or file that defines it. `hparams` (see searchspace) replaces what the code declares of the same
    name; `config` is a configuration, or the file of one, that the options are laid over. `include` are
    files and folders that the code imports. Lengths and periods are in batches.

    With `reuse` an experiment that was submitted before from the same code with the same options is
    returned in place of a new one, unless it failed or was ended.

    Raises NotebookError.
    """
    options = Options(
        name=name,
        searcher=searcher,
        max_trials=max_trials,
        metric=metric,
        smaller_is_better=smaller_is_better,
        max_length=max_length,
        slots=slots,
        pool=pool,
        validation_period=validation_period,
        batch_size=batch_size,
    )
    includes = [Path(path) for path in include]
    captured = _captured(source, trial, hparams)
    _check_local_modules(captured.imports, includes)
    complete = experiment_config(captured, options, _base(config))
    fingerprint = _fingerprint(captured.source, complete, includes)
    with explained("cannot submit the experiment"):
        if reuse:
            found = _submitted_before(complete["name"], fingerprint)
            if found is not None:
                print(f"Experiment {found.id}, submitted before: {summary(complete)}.")
                return found
        complete["data"] = _with_mark(complete.get("data"), fingerprint)
        return _create(complete, captured.source, includes)


def _create(config: dict[str, Any], source: str, includes: list[Path]) -> Experiment:
    with (
        tempfile.TemporaryDirectory(prefix="detlab-") as folder,
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        Path(folder, f"{MODULE}.py").write_text(source, encoding="utf-8")
        made = client.create_experiment(config, folder, includes)
    print(
        f"Submitted experiment {made.id}: {summary(config)}.\nIt runs in the cluster, and this notebook is free."
    )
    for warning in said:
        text = str(warning.message)
        if text.endswith(_SLOTS_EXCEEDED):
            text = "it asks for more slots than the cluster has now, and waits until there are more"
        print(f"Note: {text}")
    return made


# The code.


def _captured(source: object, trial: str | None, hparams: Mapping[str, Any] | None) -> Captured:
    if isinstance(source, str):
        text = source
    elif isinstance(code := _undecorated(source), type | types.FunctionType):
        text, trial = _defining_source(code), trial or code.__name__
    else:
        raise CaptureError(
            f"cannot submit {source!r:.80}: it is neither source code, nor a class, nor a function"
        )
    captured = capture(text, trial=trial, elsewhere=_names_of_notebook())
    if hparams is None:
        return captured
    try:
        given = searchspace.space(hparams)
    except ValueError as e:
        raise OptionError(f"hparams: {e}") from e
    return Captured(**{**vars(captured), "hyperparameters": {**captured.hyperparameters, **given}})


def _undecorated(source: object) -> object:
    return source if isinstance(source, type) or not callable(source) else inspect.unwrap(source)


def _defining_source(thing: type | types.FunctionType) -> str:
    """The whole cell or file that defines a class or a function."""
    filename = _code_file(thing)
    lines = linecache.getlines(filename) if filename else []
    if not lines:
        raise CaptureError(
            f"the source of {thing.__name__} cannot be found: pass the source as text, or use %%det_experiment"
        )
    return "".join(lines)


def _code_file(thing: type | types.FunctionType) -> str | None:
    """A cell is a file of its own to the compiler, by which linecache knows its text."""
    if isinstance(thing, types.FunctionType):
        return thing.__code__.co_filename
    for member in vars(thing).values():
        function = inspect.unwrap(member) if callable(member) else None
        if isinstance(function, types.FunctionType) and function.__qualname__.startswith(thing.__qualname__):
            return function.__code__.co_filename
    return None


def _names_of_notebook() -> Collection[str]:
    shell = get_ipython()
    return frozenset(shell.user_ns) if shell is not None else frozenset()


def _check_local_modules(imports: Iterable[str], includes: list[Path]) -> None:
    """A module beside the notebook is there when the cell is tried, and not in the cluster: say so now."""
    here = Path.cwd()
    sent = {path.resolve() for path in includes}
    for name in sorted(imports):
        path = _beside(name, here)
        if path is not None and path.resolve() not in sent:
            raise CaptureError(
                f"the cell imports {name}, which is {path.name!r} beside this notebook and not in the cluster: "
                f"send it along with --include {path.name}"
            )


def _beside(name: str, folder: Path) -> Path | None:
    importlib.invalidate_caches()  # it may have been written a moment ago
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if found is None or not found.has_location or found.origin is None:
        return None
    origin = Path(found.origin)
    path = origin.parent if found.submodule_search_locations else origin
    return path if path.parent.resolve() == folder.resolve() else None


# The configuration.


def _base(config: str | os.PathLike[str] | Mapping[str, Any] | None) -> dict[str, Any]:
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return dict(config)
    try:
        loaded = yaml.load(Path(config).read_text(), ConfigLoader)
    except OSError as e:
        raise OptionError(f"cannot read the configuration file {str(config)!r}: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise OptionError(f"the configuration file {str(config)!r} is not text: {e}") from e
    except yaml.YAMLError as e:
        raise OptionError(f"the configuration file {str(config)!r} is not YAML:\n{e}") from e
    if not isinstance(loaded, dict):
        raise OptionError(f"the configuration file {str(config)!r} holds no keys, such as `name: digits`")
    return loaded


# Which cell an experiment came from.


def _fingerprint(source: str, config: Mapping[str, Any], includes: list[Path]) -> str:
    """Tells whether an experiment would be the same again: its code, its files and its configuration."""
    with explained("cannot send the files"):
        files = [(f["path"], f["content"]) for f in context.bundle(None, includes)]
    content = json.dumps([source, config, files], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def _with_mark(data: Any, fingerprint: str) -> dict[str, Any]:
    if data is not None and not isinstance(data, Mapping):
        raise OptionError(f"data is {data!r:.40} in the configuration file: it must hold keys")
    mark = {"fingerprint": fingerprint}
    cell = _cell_id()
    if cell is not None:
        mark["cell_id"] = cell
    return {**(data or {}), _MARK: mark}


def _cell_id() -> str | None:
    """The id of the cell that runs. Not every front end names its cells."""
    shell = get_ipython()
    if shell is None or not hasattr(shell, "get_parent"):
        return None
    cell = (shell.get_parent().get("metadata") or {}).get("cellId")
    return str(cell) if cell else None


def _submitted_before(name: str, fingerprint: str) -> Experiment | None:
    """The latest experiment of this user with this fingerprint that is still of use."""
    mine = client.list_experiments(
        users=[client.get_session_username()],
        name=name,
        sort_by=ExperimentSortBy.ID,
        order_by=OrderBy.DESC,
    )
    for experiment in mine:
        mark = (experiment.config.get("data") or {}).get(_MARK)
        same = isinstance(mark, dict) and mark.get("fingerprint") == fingerprint
        if same and experiment.state not in _GONE:
            return experiment
    return None


__all__ = ["NotebookError", "submit"]
