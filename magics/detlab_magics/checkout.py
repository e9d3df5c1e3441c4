"""Taking the best of an experiment into the notebook."""

import os
from typing import TYPE_CHECKING

from determined.experimental import Checkpoint, Experiment, client
from detlab_magics.errors import NotebookError, explained

if TYPE_CHECKING:
    from determined.pytorch import PyTorchTrial


def best_checkpoint(experiment: Experiment | int) -> Checkpoint:
    """The checkpoint with the best validation by the searcher's metric. Raises NotebookError if there is none."""
    with explained("cannot find the best checkpoint"):
        found = client.get_experiment(experiment if isinstance(experiment, int) else experiment.id)
        kept = found.list_checkpoints(max_results=1)
    if kept:
        return kept[0]
    if not found.state.is_terminal:
        raise NotebookError(
            f"experiment {found.id} is {found.state.name} and has saved no checkpoint yet: wait for it with "
            "experiment.wait()"
        )
    with explained("cannot look at the trials"):
        failed = next((t for t in found.iter_trials() if t.state.name == "ERROR"), None)
    reason = f": the log of trial {failed.id} says why (%det trial logs {failed.id})" if failed else ""
    raise NotebookError(f"experiment {found.id} ended as {found.state.name} and saved no checkpoint{reason}")


def load_best(
    experiment: Experiment | int, *, trust: bool = False, path: str | os.PathLike[str] | None = None
) -> "PyTorchTrial":
    """The trial with the weights of the best checkpoint, in this process; its files go to `path`.

    This runs the code that was submitted, so `trust=True` is needed for an experiment of another user.
    Raises NotebookError.
    """
    from determined.pytorch import load_trial_from_checkpoint_path  # after the check: torch takes a while

    checkpoint = best_checkpoint(experiment)
    with explained("cannot load the checkpoint"):
        if not trust:
            _check_owner(checkpoint)
        return load_trial_from_checkpoint_path(checkpoint.download(path))


def _check_owner(checkpoint: Checkpoint) -> None:
    me = client.get_session_username()
    experiment_id = checkpoint.training.experiment_id
    if experiment_id is None:
        raise NotebookError(
            f"nobody knows which experiment saved checkpoint {checkpoint.uuid}, and loading it runs its code in "
            "your name: pass trust=True if you trust it"
        )
    owner = client.get_experiment(experiment_id).username
    if owner != me:
        raise NotebookError(
            f"experiment {experiment_id} is {owner}'s, and loading its checkpoint runs {owner}'s code in your name: "
            "pass trust=True if you trust it"
        )
