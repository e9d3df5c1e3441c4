"""Every message survives the wire; every frame that is no message is refused in words."""

import json
import typing
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detlab_agent.protocol import (
    AgentMessage,
    ContainerSpec,
    MasterMessage,
    Message,
    ProtocolError,
    StartContainer,
    decode,
    encode,
)

MESSAGE_TYPES: tuple[type[Message], ...] = typing.get_args(AgentMessage) + typing.get_args(MasterMessage)
SPEC = ContainerSpec(
    container_id="c1",
    allocation_id="1.x.1",
    task_id="1.x",
    task_type="TRIAL",
    owner="ada",
    owner_uid=70001,
    command=("python", "-V"),
    environment={"DET_SESSION_TOKEN": "hunter2"},
)


@pytest.mark.parametrize("cls", MESSAGE_TYPES)
def test_every_message_survives_the_wire(cls: type[Message]) -> None:
    @given(st.from_type(cls))
    def check(message: Message) -> None:
        assert decode(encode(message)) == message

    st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
    check()


def _frame(**changes: object) -> str:
    frame = json.loads(encode(StartContainer(SPEC)))
    frame["spec"].update(changes)
    return json.dumps(frame)


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        ("{", "not JSON"),
        ("[]", "a list, expected an object"),
        ("{}", "unknown message type None"),
        ('{"type": "dance"}', "unknown message type 'dance', expected one of ack_logs"),
        ('{"type": "ack_state"}', "ack_state lacks the field 'container_id'"),
        ('{"type": "ack_state", "container_id": 3}', "ack_state.container_id is a number, expected str"),
        ('{"type": "ack_logs", "container_id": "c", "offset": true}', "offset is a boolean, expected int"),
        ('{"type": "ack_state", "container_id": "c", "colour": 1}', "unknown field 'colour'"),
        ('{"type": "kill_container", "container_id": "c", "grace_seconds": NaN}', "grace_seconds"),
        (_frame(slot_ids=[0, "1"]), "start_container.spec.slot_ids[1] is a string, expected int"),
        (_frame(environment={"A": 1}), "spec.environment.A is a number, expected str"),
        (_frame(bind_mounts=[{"host_path": "/x"}]), "bind_mounts[0] lacks the field 'container_path'"),
    ],
)
def test_a_frame_that_is_no_message_is_refused_in_words(frame: str, says: str) -> None:
    with pytest.raises(ProtocolError) as error:
        decode(frame)
    assert says in str(error.value)


def test_an_unknown_state_lists_what_is_allowed() -> None:
    frame = (
        '{"type": "container_state_changed", "container_id": "c", "allocation_id": "a", "state": "ASLEEP",'
        ' "exit_code": null, "failure": null, "at": "2026-01-01T00:00:00Z"}'
    )
    with pytest.raises(
        ProtocolError, match="'ASLEEP', expected one of PULLING, STARTING, RUNNING, TERMINATED"
    ):
        decode(frame)


def test_secrets_do_not_show_in_a_spec_that_is_printed() -> None:
    assert "hunter2" not in repr(StartContainer(replace(SPEC, task_id="1.y")))
