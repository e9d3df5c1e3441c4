"""Train, search and track models on a Detlab cluster, with the names that Determined gave these things."""

import importlib
from typing import TYPE_CHECKING, Any

from determined import errors
from determined._experiment_config import ExperimentConfig
from determined._import import import_from_path
from determined._info import ClusterInfo, RendezvousInfo, ResourcesInfo, TrialInfo, get_cluster_info
from determined.errors import InvalidHP

if TYPE_CHECKING:
    from determined import core as core
    from determined._trial_context import TrialContext

__version__ = "0.38.1"  # the Determined release whose API this package offers
__detlab_version__ = "0.1.0"

LOG_FORMAT = "%(levelname)s: [%(process)s] %(name)s: %(message)s"  # the log's level is read from this

__all__ = [
    "LOG_FORMAT",
    "ClusterInfo",
    "ExperimentConfig",
    "InvalidHP",
    "RendezvousInfo",
    "ResourcesInfo",
    "TrialContext",
    "TrialInfo",
    "__version__",
    "core",
    "errors",
    "get_cluster_info",
    "import_from_path",
]


def __getattr__(name: str) -> Any:
    # `import determined as det; det.core.init()` is how people write it, and `det --help` need not pay for it.
    if name == "core":
        return importlib.import_module("determined.core")
    if name == "TrialContext":
        return importlib.import_module("determined._trial_context").TrialContext
    raise AttributeError(f"module 'determined' has no attribute {name!r}")


# `%load_ext determined`: the notebook's part is a package of its own, and this one does not import it.


def load_ipython_extension(shell: Any) -> None:
    """Load what other packages add to IPython: %det and %%det_experiment, of detlab_magics."""
    found = _ipython_extensions()
    if not found:
        from IPython.core.error import UsageError  # shown without a traceback

        raise UsageError(
            "nothing that is installed here brings %det and %%det_experiment: pip install 'detlab[jupyter]'"
        )
    for module in found:
        module.load_ipython_extension(shell)


def unload_ipython_extension(shell: Any) -> None:
    for module in _ipython_extensions():
        module.unload_ipython_extension(shell)


def _ipython_extensions() -> list[Any]:
    """The modules that the entry points of group `detlab.ipython` name."""
    from importlib import metadata  # not cheap, and `det --help` need not pay for it

    points = metadata.entry_points(group="detlab.ipython")
    return [importlib.import_module(module) for module in sorted({point.module for point in points})]
