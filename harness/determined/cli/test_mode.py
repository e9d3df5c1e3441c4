"""`det experiment create --test-mode`: does the code train, validate and save? A short run of one trial tells."""

import time
from typing import TYPE_CHECKING, Any

from determined.cli import terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from determined.common.api import Session
    from determined.experimental import Experiment

POLL = 0.5  # seconds
_TAIL = 50  # lines of the log of a run that failed
_STAGES = ("training", "validation", "checkpoint")
_OF_METRIC = ("metric", "smaller_is_better")
_SAID = {"training": "trains", "validation": "validates", "checkpoint": "saves checkpoints"}


def shortened(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a test run: one trial with drawn hyperparameters, one batch long, that keeps nothing."""
    asked = config.get("searcher")
    kept = (
        {key: value for key, value in asked.items() if key in _OF_METRIC} if isinstance(asked, dict) else {}
    )
    storage = config.get("checkpoint_storage")
    nothing = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 0}
    name = config.get("name") or "experiment"
    return {
        **config,
        "description": f"[test-mode] {config.get('description') or name}",
        # The master draws the hyperparameters, of a template too, as it does for any search.
        "searcher": {"name": "random", "max_trials": 1, "max_length": {"batches": 1}, **kept},
        "checkpoint_storage": {**(storage if isinstance(storage, dict) else {}), **nothing},
        "min_validation_period": {"batches": 1},
        "min_checkpoint_period": {"batches": 1},
        "scheduling_unit": 1,
        "max_restarts": 0,
    }


def run(
    session: "Session",
    text: str,
    files: "Sequence[dict[str, Any]]",
    *,
    project_id: int | None,
    template: str | None,
    warn: "Callable[[Sequence[str]], None]",
    det: str,
) -> int:
    """Check the configuration, run one short trial, say how far it came.

    Args:
        det: how the person called the command, for lines to type.

    Returns the exit code: 0 when the trial has come to its end.
    """
    import yaml

    from determined.cli.overrides import parse_object
    from determined.experimental._experiment import check_config, create_experiment

    warn(check_config(session, text, project_id=project_id, template=template))
    print("The configuration is valid", flush=True)
    short = yaml.safe_dump(shortened(parse_object(text, "the configuration")), sort_keys=False)
    experiment, _ = create_experiment(session, short, files, project_id=project_id, template=template)
    print(f"Created test experiment {experiment.id}", flush=True)
    try:
        seen = _watch(session, experiment)
    except KeyboardInterrupt:
        experiment.kill()
        terminal.note(f"Killed test experiment {experiment.id}")
        raise
    if experiment.state.name == "COMPLETED":
        for stage in _STAGES:
            if stage not in seen:
                terminal.warn(f"nothing shows that it {_SAID[stage]}")
        experiment.archive()
        print("The test run has come to its end")
        return 0
    _tell_why(session, experiment, det)
    return 1


def _watch(session: "Session", experiment: "Experiment") -> set[str]:
    """Until it has ended: one line for each stage, when it is reached. Returns these."""
    from determined.cli.describe import workloads

    seen: set[str] = set()
    while True:
        experiment.reload()  # before the reports are read, so that none of its last is missed
        for trial in experiment.iter_trials(limit=1):
            reports = workloads(session, trial.id)
            for stage in _STAGES:
                if stage not in seen and any(getattr(one, stage) for one in reports):
                    seen.add(stage)
                    print(f"  it {_SAID[stage]}", flush=True)
        if experiment.state.is_terminal:
            return seen
        time.sleep(POLL)


def _tell_why(session: "Session", experiment: "Experiment", det: str) -> None:
    from determined.cli import logs
    from determined.experimental._logs import LogQuery

    trial = next(experiment.iter_trials(limit=1), None)
    if trial is not None:
        logs.print_trial_log(session, trial.id, LogQuery(tail=_TAIL))
        terminal.note(f"The whole log: {det} trial logs {trial.id}")
    terminal.error(f"the test run, experiment {experiment.id}, has ended as {experiment.state.name}")
