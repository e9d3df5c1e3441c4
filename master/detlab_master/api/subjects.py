"""The things that paths name: how they are found, and whose they are. Reads of the store, for a thread of its pool."""

from __future__ import annotations

from dataclasses import dataclass

from detlab_master.core.errors import Invalid
from detlab_master.core.permissions import NOBODY, Kind, Principal, Subject, may_see
from detlab_master.core.records import (
    Allocation,
    Checkpoint,
    Experiment,
    Model,
    Project,
    Task,
    Template,
    Trial,
    User,
    Workspace,
)
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
    model: Model | None = None
    workspace: Workspace | None = None
    project: Project | None = None
    template: Template | None = None


def find(store: Store, kind: Kind, thing_id: int | str, principal: Principal) -> Found | None:
    """The thing of that kind and id; None where there is none.

    Args:
        principal: who asks; models have names that mean each user's own.
    """
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
        case Kind.MODEL:
            model = _model(store, str(thing_id), principal)
            return Found(Subject(kind, model.id, model.owner_id), model=model) if model else None
        case Kind.USER:
            user = store.users.get(int(thing_id))
            return Found(Subject(kind, user.id, user.id), user=user) if user else None
        case Kind.WORKSPACE:
            workspace = store.projects.workspace(int(thing_id))
            return (
                Found(Subject(kind, workspace.id, _owner(workspace)), workspace=workspace)
                if workspace
                else None
            )
        case Kind.PROJECT:
            return _project(store, int(thing_id))
        case Kind.TEMPLATE:
            return _template(store, str(thing_id))


def _owner(place: Workspace | Project) -> int:
    """What is there from the start is nobody's, and so the administrators' to change."""
    return NOBODY if place.immutable else place.owner_id


def _project(store: Store, project_id: int) -> Found | None:
    project = store.projects.project(project_id)
    workspace = store.projects.workspace(project.workspace_id) if project else None
    if project is None or workspace is None:
        return None
    host = NOBODY if project.immutable else _owner(workspace)
    subject = Subject(Kind.PROJECT, project.id, _owner(project), host_id=host)
    return Found(subject, project=project, workspace=workspace)


def _template(store: Store, name: str) -> Found | None:
    template = store.templates.get(name)
    workspace = store.projects.workspace(template.workspace_id) if template else None
    if template is None or workspace is None:
        return None
    subject = Subject(Kind.TEMPLATE, template.name, template.owner_id, host_id=_owner(workspace))
    return Found(subject, template=template, workspace=workspace)


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


def _model(store: Store, name_or_id: str, principal: Principal) -> Model | None:
    """By id, or by a name: a model of one's own comes first, an administrator reaches those of others by it too.

    Raises:
        Invalid: several other users have a model of that name.
    """
    if name_or_id.isascii() and name_or_id.isdigit() and len(name_or_id) <= 18:
        return store.models.get(int(name_or_id))
    seen = [model for model in store.models.by_name(name_or_id) if may_see(principal, model.owner_id)]
    found = [model for model in seen if model.owner_id == principal.user_id] or seen
    if len(found) > 1:
        ids = ", ".join(str(model.id) for model in found)
        raise Invalid(f"several users have a model {name_or_id!r}: name it by its id, one of {ids}")
    return found[0] if found else None
