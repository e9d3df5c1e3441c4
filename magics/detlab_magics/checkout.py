"""Taking the best of an experiment into the notebook."""

import os
from typing import TYPE_CHECKING

from determined.experimental import Checkpoint, Experiment, Trial, TrialState, client
from detlab_magics.errors import NotebookError, explained

if TYPE_CHECKING:
    from determined.pytorch import PyTorchTrial

_LAST_LINES = 5  # of a failed trial, to find one that is not empty


def wait_for_best(experiment: Experiment | int, interval: float = 1.0) -> tuple[Trial, float]:
    """Wait until the experiment has ended; its best trial, and that trial's best value of the searcher's metric.

    Looks every `interval` seconds. Raises NotebookError, which says why, when there is none.
    """
    with explained("cannot wait for the experiment"):
        found = _latest(experiment)
        try:
            found.wait(interval)
        except ValueError as e:  # it is paused
            raise NotebookError(str(e)) from e
        best = found.best_trial()
        if best is None:
            raise NotebookError(
                f"experiment {found.id} ended as {found.state.name}, and no trial reported "
                f"{found.searcher_metric!r}{_why(found)}"
            )
        return best


def best_checkpoint(experiment: Experiment | int) -> Checkpoint:
    """The checkpoint with the best validation by the searcher's metric. Raises NotebookError if there is none."""
    with explained("cannot find the best checkpoint"):
        found = _latest(experiment)
        kept = found.list_checkpoints(max_results=1)
        if kept:
            return kept[0]
        if found.state.is_terminal:
            raise NotebookError(
                f"experiment {found.id} ended as {found.state.name}, and saved no checkpoint{_why(found)}"
            )
    raise NotebookError(
        f"experiment {found.id} is {found.state.name} and has saved no checkpoint yet: wait for it, with "
        "wait_for_best(experiment) or by looking at its view"
    )


def load_best(
    experiment: Experiment | int, *, trust: bool = False, path: str | os.PathLike[str] | None = None
) -> "PyTorchTrial":
    """The trial with the weights of the best checkpoint, in this process.

    The checkpoint's files go to `path`, by default checkpoints/<uuid>. Loading runs the code that was
    submitted, so `trust=True` is needed for an experiment of another user. Raises NotebookError.
    """
    checkpoint = best_checkpoint(experiment)
    with explained("cannot load the checkpoint"):
        if not trust:
            _check_owner(checkpoint)
        from determined.pytorch import load_trial_from_checkpoint_path  # torch takes a while

        return load_trial_from_checkpoint_path(checkpoint.download(path))


def _latest(experiment: Experiment | int) -> Experiment:
    return client.get_experiment(experiment if isinstance(experiment, int) else experiment.id)


def _why(experiment: Experiment) -> str:
    """What a failed trial said last."""
    failed = next((trial for trial in experiment.iter_trials() if trial.state is TrialState.ERROR), None)
    if failed is None:
        return ""
    lines = [line.strip() for line in failed.iter_logs(tail=_LAST_LINES, stdtypes=["stderr"])]
    said = next((line.rpartition("|| ")[2] for line in reversed(lines) if not line.endswith("||")), None)
    last = f". Trial {failed.id} said: {said}" if said else ""
    return f"{last}\nIts whole log: %det trial logs {failed.id}"


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
