"""Who may do what, as tables."""

from __future__ import annotations

import pytest

from detlab_master.core.permissions import (
    NOBODY,
    Access,
    Kind,
    Principal,
    Subject,
    Verdict,
    decide,
    is_own,
    may_call,
    may_see,
    visible_owners,
)

ALICE = Principal(2, "alice", admin=False, kind="user")
BOB = Principal(3, "bob", admin=False, kind="user")
ADMIN = Principal(1, "admin", admin=True, kind="user")
HUB = Principal(0, "jupyterhub", admin=False, kind="hub")
TASK = Principal(2, "alice", False, "task", "5.t.1", 5, 9, "5.t")
CONTAINER = Principal(2, "alice", False, "allocation", "5.t.1", 5, 9, "5.t")
ADMINS_CONTAINER = Principal(1, "admin", True, "allocation", "6.u.1", 6, 10, "6.u")
NO_TRIAL = Principal(2, "alice", False, "allocation", "n.1", None, None, "n")
TRIAL = Subject(Kind.TRIAL, 9, owner_id=2)
CHECKPOINT = Subject(Kind.CHECKPOINT, "c", owner_id=2, trial_id=9)
SIBLINGS = Subject(Kind.CHECKPOINT, "d", owner_id=2, trial_id=11)
BOBS = Subject(Kind.CHECKPOINT, "e", owner_id=3, trial_id=12)
ORPHAN = Subject(Kind.CHECKPOINT, "f", owner_id=2, trial_id=None)
BOBS_IN_ALICES = Subject(Kind.PROJECT, 4, owner_id=3, host_id=2)
NOBODYS = Subject(Kind.WORKSPACE, 1, owner_id=NOBODY)
A, U, F, N = Verdict.ALLOWED, Verdict.UNAUTHENTICATED, Verdict.FORBIDDEN, Verdict.ABSENT


@pytest.mark.parametrize(
    ("access", "verdicts"),  # nobody, alice, bob, admin, hub, alice's task, her container
    [
        (Access.PUBLIC, (A, A, A, A, A, A, A)),
        (Access.AGENT, (A, A, A, A, A, A, A)),  # its token is checked where the connection is taken
        (Access.SIGNED_IN, (U, A, A, A, F, A, F)),
        (Access.LOOK, (U, A, A, A, A, A, F)),
        (Access.HUB, (U, F, F, F, A, F, F)),
        (Access.ADMIN, (U, F, F, A, F, F, F)),
        (Access.SELF, (U, A, F, A, F, A, F)),
        (Access.EDIT, (U, A, F, A, F, A, F)),
        (Access.OWN, (U, A, N, A, F, A, F)),
        (Access.READ, (U, A, N, A, F, A, A)),
        (Access.REPORT, (U, A, N, A, F, A, A)),
    ],
)
def test_roles(access: Access, verdicts: tuple[Verdict, ...]) -> None:
    kind = Subject(Kind.USER, 2, owner_id=2) if access is Access.SELF else TRIAL
    for principal, verdict in zip((None, ALICE, BOB, ADMIN, HUB, TASK, CONTAINER), verdicts, strict=True):
        assert decide(principal, access, kind) is verdict, principal


@pytest.mark.parametrize(
    ("principal", "access", "subject", "verdict"),
    [
        (ALICE, Access.OWN, None, N),
        (ALICE, Access.EDIT, None, N),
        (BOB, Access.EDIT, BOBS_IN_ALICES, A),
        (ALICE, Access.EDIT, BOBS_IN_ALICES, A),  # it lies in what is hers
        (ALICE, Access.OWN, BOBS_IN_ALICES, N),
        (ADMIN, Access.EDIT, NOBODYS, A),
        (ALICE, Access.EDIT, NOBODYS, F),
        (ADMIN, Access.OWN, None, N),
        (CONTAINER, Access.READ, None, F),  # nor does a container learn what is there
        (CONTAINER, Access.READ, CHECKPOINT, A),
        (CONTAINER, Access.READ, SIBLINGS, A),  # it may start from it
        (CONTAINER, Access.REPORT, CHECKPOINT, A),
        (CONTAINER, Access.REPORT, SIBLINGS, F),
        (CONTAINER, Access.READ, BOBS, F),
        (ADMINS_CONTAINER, Access.READ, BOBS, A),
        (ADMINS_CONTAINER, Access.REPORT, BOBS, F),
        (ADMINS_CONTAINER, Access.READ, TRIAL, F),
        (NO_TRIAL, Access.REPORT, ORPHAN, F),
        (CONTAINER, Access.READ, Subject(Kind.EXPERIMENT, 5, owner_id=2), A),
        (CONTAINER, Access.READ, Subject(Kind.EXPERIMENT, 6, owner_id=2), F),
        (CONTAINER, Access.READ, Subject(Kind.USER, 2, owner_id=2), F),
    ],
)
def test_things(principal: Principal, access: Access, subject: Subject | None, verdict: Verdict) -> None:
    assert decide(principal, access, subject) is verdict


def test_a_container_belongs_to_one_of_each() -> None:
    assert is_own(CONTAINER, Kind.ALLOCATION, "5.t.1")
    assert not is_own(CONTAINER, Kind.ALLOCATION, "5.t.2")
    assert is_own(CONTAINER, Kind.TASK, "5.t")
    assert is_own(CONTAINER, Kind.TRIAL, 9)
    assert not is_own(TASK, Kind.TRIAL, 9)  # acts as its owner, not as a container
    assert not is_own(NO_TRIAL, Kind.TRIAL, 9)


def test_what_lists_show() -> None:
    assert visible_owners(ADMIN) is None
    assert visible_owners(ALICE) == [2]
    assert may_see(ADMIN, 3)
    assert may_see(ALICE, 2)
    assert not may_see(ALICE, 3)


def test_the_verdict_before_the_thing_is_known_never_refuses_what_would_be_allowed() -> None:
    for access in Access:
        for principal in (None, ALICE, BOB, ADMIN, HUB, TASK, CONTAINER):
            if decide(principal, access, TRIAL) is Verdict.ALLOWED:
                assert may_call(principal, access) is Verdict.ALLOWED
