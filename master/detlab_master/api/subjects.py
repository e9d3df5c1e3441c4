"""The things that paths name: how they are found, and whose they are. Reads of the store, for a thread of its pool."""

from __future__ import annotations

from dataclasses import dataclass

from detlab_master.core.permissions import Kind, Subject
from detlab_master.core.records import Allocation, Checkpoint, Experiment, Task, Trial, User
from detlab_master.store.base import Store


@dataclass(frozen=True)
class Found:
    """A thing, with the records above it that say whose it is."""

    subject: Subject
    experiment: Experiment | None = None
    trial: Trial | None = None
    checkpoint: Checkpoint | None = None
    task: Task | None = None
    allocation: Allocation | None = None
    user: User | None = None


def find(store: Store, kind: Kind, thing_id: int | str) -> Found | None:
    """The thing of that kind and id; None where there is none."""
    match kind:
        case Kind.EXPERIMENT:
            return _experiment(store, int(thing_id))
        case Kind.TRIAL:
            return _trial(store, int(thing_id))
        case Kind.CHECKPOINT:
            return _checkpoint(store, str(thing_id))
        case Kind.TASK:
            task = store.trials.task(str(thing_id))
            return Found(Subject(kind, task.id, task.owner_id), task=task) if task else None
        case Kind.ALLOCATION:
            allocation = store.trials.allocation(str(thing_id))
            return (
                Found(Subject(kind, allocation.id, allocation.owner_id), allocation=allocation)
                if allocation
                else None
            )
        case Kind.USER:
            user = store.users.get(int(thing_id))
            return Found(Subject(kind, user.id, user.id), user=user) if user else None


def _experiment(store: Store, experiment_id: int) -> Found | None:
    experiment = store.experiments.get(experiment_id)
    if experiment is None:
        return None
    return Found(Subject(Kind.EXPERIMENT, experiment.id, experiment.owner_id), experiment=experiment)


def _trial(store: Store, trial_id: int) -> Found | None:
    trial = store.trials.get(trial_id)
    experiment = store.experiments.get(trial.experiment_id) if trial else None
    if trial is None or experiment is None:
        return None
    return Found(Subject(Kind.TRIAL, trial.id, experiment.owner_id), experiment=experiment, trial=trial)


def _checkpoint(store: Store, uuid: str) -> Found | None:
    checkpoint = store.checkpoints.get(uuid)
    experiment = store.experiments.get(checkpoint.experiment_id) if checkpoint else None
    if checkpoint is None or experiment is None:
        return None
    subject = Subject(Kind.CHECKPOINT, checkpoint.uuid, experiment.owner_id, checkpoint.trial_id)
    return Found(
        subject, experiment=experiment, checkpoint=checkpoint, trial=store.trials.get(checkpoint.trial_id)
    )
