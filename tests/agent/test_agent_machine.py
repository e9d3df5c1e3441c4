"""The pure machine: single steps, and random histories checked against what the protocol promises."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.fake_master import make_spec
from detlab_agent import machine
from detlab_agent.drivers.base import Ended, KillReason
from detlab_agent.machine import Container, IllegalEvent, Phase, State, step
from detlab_agent.protocol import (
    AckLogs,
    AckState,
    ContainerState,
    ContainerStateChanged,
    Failure,
    FailureKind,
    Hello,
    Isolation,
    KillContainer,
    MasterMessage,
    Refused,
    StartContainer,
    Welcome,
)

NOW = "2026-01-01T00:00:00Z"
IDENTITY = machine.Identity("agent-1", "default", "0", "boot", (), Isolation.UNIX_ACCOUNT)
SPEC = make_spec("true", container_id="c1")


def run(state: State, *events: machine.Event) -> tuple[State, list[machine.Effect]]:
    """The state after all events, and the effects of the last."""
    effects: list[machine.Effect] = []
    for event in events:
        state, effects = step(state, event, NOW)
    return state, effects


def got(message: MasterMessage) -> machine.Event:
    return machine.Received(message)


CONNECTED = (machine.Connected(()), got(Welcome("m", "c", (), {})))
START = got(StartContainer(SPEC))
RUNNING = run(State(IDENTITY), *CONNECTED, START, machine.Started("c1"))[0]


def told(effects: list[machine.Effect]) -> list[ContainerState]:
    return [
        effect.message.state
        for effect in effects
        if isinstance(effect, machine.Send) and isinstance(effect.message, ContainerStateChanged)
    ]


def test_an_end_is_told_only_when_the_logs_are_there() -> None:
    ended, effects = run(RUNNING, machine.ContainerEnded("c1", Ended(0)))
    assert effects == [] and ended.alive == 0
    delivered, effects = run(ended, machine.LogsDelivered("c1"))
    assert told(effects) == [ContainerState.TERMINATED]
    assert run(delivered, got(AckState("c1")))[1] == [machine.Forget("c1")]


def test_hello_calls_a_container_that_is_draining_running() -> None:
    _, effects = run(RUNNING, machine.ContainerEnded("c1", Ended(1)), machine.Connected(("1.2.3.4",)))
    (send,) = effects
    assert isinstance(send, machine.Send) and isinstance(send.message, Hello)
    assert send.message.containers[0].state is ContainerState.RUNNING
    assert send.message.containers[0].failure is None


def test_what_happened_between_hello_and_welcome_is_told_after_it() -> None:
    state, effects = run(
        RUNNING,
        machine.Disconnected(),
        machine.ContainerEnded("c1", Ended(0)),
        machine.Connected(()),
        machine.LogsDelivered("c1"),
    )
    assert effects == []
    _, effects = run(state, got(Welcome("m", "c", ("c1",), {"c1": 7})))
    assert effects[:2] == [machine.NoteAckedLogs("c1", 7), machine.ResumeLogs()] and told(effects) == [
        ContainerState.TERMINATED
    ]


def test_an_unwanted_container_is_killed_and_forgotten_without_a_word() -> None:
    state, effects = run(RUNNING, machine.Connected(()), got(Welcome("m", "c", (), {})))
    assert machine.Kill("c1", 0.0, KillReason.UNWANTED) in effects
    state, effects = run(state, machine.ContainerEnded("c1", Ended(137)))
    assert effects == [machine.Forget("c1")] and not state.containers


@pytest.mark.parametrize(
    ("killed_by", "ended", "kind"),
    [
        (None, Ended(0), None),
        (None, Ended(1), FailureKind.CONTAINER_FAILED),
        (None, Ended(None, "gone", FailureKind.CONTAINER_MISSING), FailureKind.CONTAINER_MISSING),
        (KillReason.MASTER, Ended(0), None),
        (KillReason.MASTER, Ended(143), FailureKind.CONTAINER_ABORTED),
        (KillReason.AGENT, Ended(0), FailureKind.AGENT_FAILED),
    ],
)
def test_why_a_container_ended(killed_by: KillReason | None, ended: Ended, kind: FailureKind | None) -> None:
    state, _ = run(State(IDENTITY), machine.Adopted(SPEC, killed_by), machine.ContainerEnded("c1", ended))
    failure = state.containers["c1"].failure
    assert (failure.kind if failure else None) is kind
    assert failure is None or failure.message


def test_an_agent_that_stops_kills_and_starts_no_more() -> None:
    state, effects = run(RUNNING, machine.StopRequested())
    assert effects == [machine.Kill("c1", machine.STOP_GRACE_SECONDS, KillReason.AGENT)]
    _, effects = run(state, got(StartContainer(make_spec("true", container_id="c2"))))
    assert told(effects) == [ContainerState.TERMINATED]
    assert not any(isinstance(effect, machine.Start) for effect in effects)


def test_without_isolation_the_first_owner_is_remembered() -> None:
    alone = State(replace(IDENTITY, isolation=Isolation.NONE))
    state, effects = run(alone, *CONNECTED, START)
    assert machine.RememberOwner("ada") in effects and state.owner == "ada"
    stranger = got(StartContainer(make_spec("true", container_id="c2", owner="bob")))
    refused, effects = run(state, stranger)
    assert told(effects) == [ContainerState.TERMINATED]
    failure = refused.containers["c2"].failure
    assert failure is not None and failure.kind is FailureKind.USER_MISMATCH
    trusting = replace(state, identity=replace(state.identity, shared_trust=True))
    assert machine.Start(stranger.message.spec) in run(trusting, stranger)[1]  # type: ignore[union-attr]


def test_refused_is_handed_on() -> None:
    assert run(State(IDENTITY), got(Refused("no", permanent=True)))[1] == [machine.Leave("no", True)]


@pytest.mark.parametrize(
    "event",
    [
        machine.Started("c1"),
        machine.StartFailed("c1", Failure(FailureKind.CONTAINER_FAILED, "no")),
        machine.LogsDelivered("c1"),
        machine.ContainerEnded("c2", Ended(0)),
    ],
)
def test_an_illegal_event_raises(event: machine.Event) -> None:
    with pytest.raises(IllegalEvent, match=r"does not know it|cannot be"):
        step(RUNNING, event, NOW)


# ---- random histories

IDS = st.sampled_from(["c1", "c2"])
FROM_MASTER: st.SearchStrategy[MasterMessage] = st.one_of(
    st.lists(IDS, unique=True).map(lambda ids: Welcome("m", "c", tuple(ids), {})),
    IDS.map(lambda i: StartContainer(make_spec("true", container_id=i))),
    st.builds(KillContainer, IDS, st.sampled_from([0.0, 5.0])),
    IDS.map(AckState),
    st.builds(AckLogs, IDS, st.integers(1, 9)),
)
EVENTS: st.SearchStrategy[machine.Event] = st.one_of(
    FROM_MASTER.map(machine.Received),
    st.just(machine.Connected(())),
    st.just(machine.Disconnected()),
    st.just(machine.StopRequested()),
    st.builds(machine.ContainerEnded, IDS, st.sampled_from([Ended(0), Ended(1)])),
    IDS.map(machine.LogsDelivered),
)
_REACHED = {Phase.RUNNING: machine.ContainerEnded, Phase.DRAINING: machine.LogsDelivered}


def _can_happen(state: State, event: machine.Event) -> bool:
    """Whether the driver and the shipper could cause this now."""
    if not isinstance(event, machine.ContainerEnded | machine.LogsDelivered):
        return True
    container = state.containers.get(event.container_id)
    return container is not None and _REACHED.get(container.phase) is type(event)


@given(st.lists(EVENTS, max_size=40))
def test_random_histories(events: list[machine.Event]) -> None:
    state = State(IDENTITY)
    alive: set[str] = set()  # what the driver runs
    last: dict[str, ContainerState] = {}
    order = list(ContainerState)
    for planned in events:
        queue = [planned] if _can_happen(state, planned) else []
        while queue:
            event = queue.pop(0)
            state, effects = step(state, event, NOW)
            if isinstance(event, machine.ContainerEnded):
                alive.discard(event.container_id)
            for effect in effects:
                match effect:
                    case machine.Start(spec):
                        assert spec.container_id not in alive, "started twice"
                        alive.add(spec.container_id)
                        queue.append(machine.Started(spec.container_id))
                    case machine.Kill(container_id):
                        assert container_id in alive
                    case machine.Forget(container_id):
                        assert container_id not in alive and container_id not in state.containers
                        last.pop(container_id, None)
                    case machine.Send(ContainerStateChanged(container_id, _, told_state)):
                        assert state.welcomed, "nothing passes before Welcome"
                        assert order.index(told_state) >= order.index(last.get(container_id, told_state))
                        last[container_id] = told_state
                    case _:
                        pass
        assert alive == {c.container_id for c in state.containers.values() if _lives(c)}
        assert state.alive == len(alive)


def _lives(container: Container) -> bool:
    return container.phase in (Phase.STARTING, Phase.RUNNING)
