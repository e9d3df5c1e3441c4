"""Experiments from the notebook: %det and %%det_experiment, and the functions behind them.

%load_ext determined

%det                                  status()
%det experiment list                  det("experiment list")
%%det_experiment --max-trials 16 ...  submit(source, max_trials=16, ...)
                                      load_best(experiment)
"""

from typing import TYPE_CHECKING

from detlab_magics.checkout import best_checkpoint, load_best, wait_for_best
from detlab_magics.errors import NotebookError
from detlab_magics.run import ClusterStatus, det, status
from detlab_magics.submit import submit

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

__all__ = [
    "ClusterStatus",
    "NotebookError",
    "best_checkpoint",
    "det",
    "load_best",
    "load_ipython_extension",
    "status",
    "submit",
    "unload_ipython_extension",
    "wait_for_best",
]


def load_ipython_extension(shell: "InteractiveShell") -> None:
    """Add the magics. Doing so twice is no error."""
    from detlab_magics.magics import DetlabMagics

    shell.register_magics(DetlabMagics)


def unload_ipython_extension(shell: "InteractiveShell") -> None:
    """Remove the magics."""
    from detlab_magics.magics import NAMES

    for kind, names in NAMES.items():
        for name in names:
            shell.magics_manager.magics[kind].pop(name, None)
