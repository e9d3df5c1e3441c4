"""Training code for trials that leave a record of what they did, to be compared with what the master knows.

`WITNESS` counts steps instead of training. A trial with an odd id is better than all before it, one with an even id is
worse: so a search knows what to do with each. It writes into the folder ``$SIDE``, one line ``<run> <value>`` at a time:

    <trial>.pid            its process, once it holds its trial's lock
    <trial>.violation      another process held the lock: the trial ran twice at once
    <trial>.start          the step that it began from
    <trial>.printed        lines that it has printed, as ``line <run> <value>``
    <trial>.acknowledged   steps whose report the master has acknowledged
    <trial>.saved          steps with a checkpoint that the master has acknowledged
    <trial>.preempted      the step at which it was asked to leave
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

WITNESS = """
import fcntl, os, pathlib, time
import determined as det
from determined import core

info = det.get_cluster_info()
trial, run, hparams = info.trial.trial_id, int(os.environ["DET_TRIAL_RUN_ID"]), info.trial.hparams
side = pathlib.Path(os.environ["SIDE"])

def note(what, value):
    with open(side / f"{trial}.{what}", "a") as file:
        file.write(f"{run} {value}\\n")

lock = open(side / f"{trial}.lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    note("violation", os.getpid())
    raise
note("pid", os.getpid())
quality = trial if trial % 2 else -trial
lines = 0

def say(text=""):
    global lines
    lines += 1
    print(f"line {run} {lines} {text}", flush=True)
    note("printed", lines)

with core.init() as context:
    step = 0
    if info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(info.latest_checkpoint) as path:
            step = int((path / "step").read_text())
    note("start", step)
    if hparams.get("invalid"):
        raise det.InvalidHP("these cannot work")
    while step < hparams["steps"]:
        time.sleep(hparams["seconds"])
        step += 1
        say("begins")
        if step == hparams.get("fail_at"):
            raise RuntimeError("the training has failed")
        metrics = {"accuracy": quality + step / 1000, "batches": step}
        context.train.report_validation_metrics(step, metrics)
        context.train.get_experiment_best_validation()  # comes back when all reports are acknowledged
        note("acknowledged", step)
        say("acknowledged")
        leave = context.preempt.should_preempt()
        if leave or step % 2 == 0 or step == hparams["steps"]:
            with context.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
                (path / "step").write_text(str(step))
            note("saved", step)
        if leave:
            note("preempted", step)
            break
"""


@dataclass(frozen=True)
class Record:
    """What one trial has written down."""

    side: Path
    trial_id: int

    def notes(self, what: str) -> list[tuple[int, int]]:
        """(run, value), oldest first; a line that is just being written is left out."""
        try:
            text = (self.side / f"{self.trial_id}.{what}").read_text()
        except FileNotFoundError:
            return []
        lines = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [(int(run), int(value)) for run, value in lines]

    def last(self, what: str) -> int:
        """The newest value; 0 when there is none."""
        notes = self.notes(what)
        return notes[-1][1] if notes else 0

    @property
    def runs(self) -> int:
        """How many runs have begun."""
        return len(self.notes("pid"))

    @property
    def last_run(self) -> int:
        """The number of the newest run that has begun; those that end before are not seen here."""
        return self.notes("pid")[-1][0]

    def assert_resumed_from_its_checkpoints(self) -> None:
        """Each run began from the newest checkpoint of those before it."""
        for run, start in self.notes("start"):
            saved = max((step for number, step in self.notes("saved") if number < run), default=0)
            # A run may have been killed between the master's acknowledgment and its own note of it.
            reached = max((step for number, step in self.notes("acknowledged") if number < run), default=0)
            assert saved <= start <= reached, f"run {run} of trial {self.trial_id}"

    @property
    def process(self) -> psutil.Process | None:
        """Its newest process, if that lives."""
        pid = self.last("pid")
        try:
            process = psutil.Process(pid) if pid else None
            if process is None or process.status() == psutil.STATUS_ZOMBIE:
                return None
            return process if "train.py" in " ".join(process.cmdline()) else None
        except psutil.NoSuchProcess:
            return None


def witness_config(side: Path, **changes: Any) -> dict[str, Any]:
    """The configuration of an experiment that runs `WITNESS` as train.py; ``side`` must be open to its user."""
    return script_config(side, **{"hyperparameters": hyperparameters(), **changes})


def hyperparameters(**changes: Any) -> dict[str, Any]:
    return {"steps": 6, "seconds": 0.05, **changes}


def script_config(side: Path, **changes: Any) -> dict[str, Any]:
    """The configuration of an experiment that runs train.py once."""
    config: dict[str, Any] = {
        "name": "witness",
        "entrypoint": "python3 train.py",
        "searcher": searcher("single"),
        "hyperparameters": {},
        "max_restarts": 0,
        "bind_mounts": [{"host_path": str(side), "container_path": str(side)}],
        "environment": {"environment_variables": [f"SIDE={side}"]},
    }
    return config | changes


def searcher(name: str, **more: Any) -> Mapping[str, Any]:
    return {"name": name, "metric": "accuracy", "smaller_is_better": False, **more}
