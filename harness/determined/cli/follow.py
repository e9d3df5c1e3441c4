"""Following an experiment from its first trial to its end, and what there is to say then."""

import time
from typing import TYPE_CHECKING

from determined.cli import logs, render, terminal

if TYPE_CHECKING:
    from determined.common.api import Session
    from determined.experimental import Experiment

POLL = 1.0  # seconds
RETRIES = 30  # so that a restart of the master in between is waited out: some four minutes


def follow(session: "Session", experiment: "Experiment", det: str) -> int:
    """Print the log of the first trial, then the progress of the rest, then the result.

    Returns the exit code, as `det experiment wait` has it: 0 where it is COMPLETED, else 1. `det` is how the person called the command, for the lines to type. Ctrl-C leaves the experiment running.
    """
    from determined.experimental._logs import LogQuery

    session.retries = RETRIES
    try:
        try:
            trial = experiment.await_first_trial(interval=POLL / 4)
        except ValueError as e:  # it ended without one
            terminal.error(str(e))
        else:
            terminal.note(f"Following the log of trial {trial.id}")
            logs.print_trial_log(session, trial.id, LogQuery(follow=True))
            _wait(experiment)
    except KeyboardInterrupt:
        terminal.note(
            f"\nStopped following. Experiment {experiment.id} goes on:\n"
            f"  {det} experiment describe {experiment.id}    shows it\n"
            f"  {det} experiment logs -f {experiment.id}     follows its first trial\n"
            f"  {det} experiment kill {experiment.id}        ends it"
        )
        raise
    summarise(experiment, det)
    return 0 if experiment.state.name == "COMPLETED" else 1


def _wait(experiment: "Experiment") -> None:
    """Tell of changes until the experiment has ended."""
    told = ""
    while True:
        experiment.reload()
        if experiment.state.is_terminal:
            return
        news = f"Experiment {experiment.id} is {experiment.state.name}"
        if experiment.progress is not None:
            news += f", {experiment.progress * 100:.0f}% done"
        if news != told:
            terminal.note(news)
            told = news
        time.sleep(POLL)


def summarise(experiment: "Experiment", det: str) -> None:
    """The last state and why, the best validation with its trial, and how to fetch its checkpoint."""
    took = ""
    if experiment.start_time and experiment.end_time:
        took = f" after {render.duration((experiment.end_time - experiment.start_time).total_seconds())}"
    trials = experiment.num_trials
    print(f"Experiment {experiment.id} {experiment.state.name}{took}, {trials} trial{'s' * (trials != 1)}")
    if experiment.error:
        print(experiment.error)
    best = experiment.best_trial()
    if best is None:
        print(f"No validation reported {experiment.searcher_metric!r}")
    else:
        trial, value = best
        print(f"Best validation: {experiment.searcher_metric} = {value:.6g} (trial {trial.id})")
    kept = experiment.list_checkpoints(max_results=1)
    if kept:
        checkpoint = kept[0]
        at = f"trial {checkpoint.training.trial_id}, {checkpoint.steps_completed} batches"
        print(f"Best checkpoint: {checkpoint.uuid} ({at})")
        print(f"  {det} checkpoint download {checkpoint.uuid}")
    else:
        print("No checkpoint was saved")
    failed = [trial.id for trial in experiment.iter_trials() if trial.state.name == "ERROR"]
    if failed:
        print(f"Failed: trial {', '.join(map(str, failed))}\n  {det} trial logs --tail 50 {failed[0]}")
