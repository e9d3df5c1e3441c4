"""Who may do what: the one place that decides. Pure: a principal, a rule and a thing in; a verdict out.

The rules:

- What somebody created is theirs. They and administrators see and change it; for every other user it does not exist.
- An allocation's token belongs to a container. It may report what its own task does and read what its own task needs,
  and nothing else.
- A user's own token may do for a task what the task's container may, for tasks that are theirs.
- JupyterHub speaks for its users: it may say who they are and run their servers, and nothing else.
- Workspaces, projects and templates are there for everybody; who made one changes it, and who made a workspace also
  what others put up in it. Their experiments stay the owners'.
- Users are administrated by administrators; everybody may see who is there, and change a few things of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NOBODY = -1  # the owner of what no user owns
ALLOCATION_TOKEN = "allocation"
HUB_TOKEN = "hub"


@dataclass(frozen=True)
class Principal:
    """Who asks, as far as their token says."""

    user_id: int
    username: str
    admin: bool
    kind: str  # "user": logged in; "task": DET_USER_TOKEN, acts as its owner; "allocation": a container's own token; "hub": JupyterHub
    allocation_id: str | None = None  # this and what follows: of tokens that were made for an allocation
    experiment_id: int | None = None
    trial_id: int | None = None
    task_id: str | None = None

    @property
    def is_hub(self) -> bool:
        """True for JupyterHub itself, which speaks for its users and is none."""
        return self.kind == HUB_TOKEN

    @property
    def is_container(self) -> bool:
        """True when the token may speak only for one allocation."""
        return self.kind == ALLOCATION_TOKEN


class Access(Enum):
    """What a route lets one do, and so who may call it."""

    PUBLIC = "everybody, without a token"
    AGENT = "agents, by the agents' token"
    SIGNED_IN = "every user"
    LOOK = "every user, and JupyterHub"
    HUB = "JupyterHub, by its own token"
    ADMIN = "administrators"
    SELF = "administrators, and the user whose record it is"
    EDIT = "administrators, the owner, and the owner of what it lies in; every user sees it"
    OWN = "the owner and administrators"
    READ = "the owner, administrators, and the container that needs to read it"
    REPORT = "the owner, administrators, and the container that it belongs to"


class Kind(Enum):
    """The kinds of things that have an owner."""

    EXPERIMENT = "experiment"
    TRIAL = "trial"
    TASK = "task"
    ALLOCATION = "allocation"
    CHECKPOINT = "checkpoint"
    MODEL = "model"
    WORKSPACE = "workspace"
    PROJECT = "project"
    TEMPLATE = "template"
    USER = "user"


@dataclass(frozen=True)
class Subject:
    """The thing that is asked for."""

    kind: Kind
    id: int | str
    owner_id: int
    trial_id: int | None = None  # of a checkpoint
    host_id: int | None = None  # the owner of what it lies in, who may EDIT it too


class Verdict(Enum):
    ALLOWED = "allowed"
    UNAUTHENTICATED = "a valid token is needed"
    FORBIDDEN = "the principal may not do this"
    ABSENT = "for this principal there is no such thing"


# The thing itself is looked at for these; the others are decided by the principal alone.
NEEDS_SUBJECT = frozenset({Access.SELF, Access.EDIT, Access.OWN, Access.READ, Access.REPORT})


def may_see(principal: Principal, owner_id: int) -> bool:
    """Whether a thing with this owner exists for the principal."""
    return principal.admin or principal.user_id == owner_id


def visible_owners(principal: Principal) -> list[int] | None:
    """Whose things a list shows; None: everybody's."""
    return None if principal.admin else [principal.user_id]


def is_own(principal: Principal, kind: Kind, thing_id: int | str) -> bool:
    """Whether the container of this token belongs to that thing; needs nothing but the two."""
    own: dict[Kind, int | str | None] = {
        Kind.ALLOCATION: principal.allocation_id,
        Kind.TASK: principal.task_id,
        Kind.TRIAL: principal.trial_id,
        Kind.EXPERIMENT: principal.experiment_id,
    }
    return principal.is_container and own.get(kind) is not None and own[kind] == thing_id


def may_call(principal: Principal | None, access: Access) -> Verdict:
    """The verdict without a look at the thing: ALLOWED may still turn into another one by `decide`."""
    if access in (Access.PUBLIC, Access.AGENT):  # an agent's token is checked where its connection is taken
        return Verdict.ALLOWED
    if principal is None:
        return Verdict.UNAUTHENTICATED
    if principal.is_container:
        return Verdict.ALLOWED if access in (Access.READ, Access.REPORT) else Verdict.FORBIDDEN
    if principal.is_hub or access is Access.HUB:
        allowed = principal.is_hub and access in (Access.LOOK, Access.HUB)
        return Verdict.ALLOWED if allowed else Verdict.FORBIDDEN
    if access is Access.ADMIN and not principal.admin:
        return Verdict.FORBIDDEN
    return Verdict.ALLOWED


def decide(principal: Principal | None, access: Access, subject: Subject | None) -> Verdict:
    """Whether a principal may do to a thing what ``access`` says.

    Args:
        subject: the thing; None where there is none of that name.
    """
    verdict = may_call(principal, access)
    if verdict is not Verdict.ALLOWED or access not in NEEDS_SUBJECT:
        return verdict
    assert principal is not None  # may_call
    if principal.is_container:
        return (
            Verdict.ALLOWED if subject and _container_may(principal, access, subject) else Verdict.FORBIDDEN
        )
    if subject is None:
        return Verdict.ABSENT
    if may_see(principal, subject.owner_id):
        return Verdict.ALLOWED
    if access is Access.EDIT:
        return Verdict.ALLOWED if subject.host_id == principal.user_id else Verdict.FORBIDDEN
    return Verdict.FORBIDDEN if access is Access.SELF else Verdict.ABSENT


def _container_may(principal: Principal, access: Access, subject: Subject) -> bool:
    if subject.kind is not Kind.CHECKPOINT:
        return is_own(principal, subject.kind, subject.id)
    if access is Access.READ:  # it may start from any checkpoint of its owner
        return may_see(principal, subject.owner_id)
    return principal.trial_id is not None and principal.trial_id == subject.trial_id
