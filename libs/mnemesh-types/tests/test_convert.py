"""Messages survive the conversion to protobuf and back, and refused values name their field."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_types.convert import message_from_proto, message_to_proto, parts_from_proto
from mnemesh_types.messages import (
    Approve,
    ClientReturn,
    Deny,
    ImagePart,
    Message,
    OmittedReasoningPart,
    ReasoningPart,
    RedactedReasoningPart,
    Role,
    SummarizedReasoningPart,
    TextPart,
    ToolCall,
    ToolReturn,
    ToolStatus,
)
from mnemesh_types.usage import Usage

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MAYBE = st.none() | TEXT
IMAGES = (
    st.builds(ImagePart, data=st.binary(max_size=8), media_type=TEXT, detail=MAYBE)
    | st.builds(ImagePart, url=TEXT, detail=MAYBE)
    | st.builds(ImagePart, file_id=TEXT, detail=MAYBE)
)
PARTS = st.lists(
    st.builds(TextPart, TEXT, MAYBE)
    | IMAGES
    | st.builds(ReasoningPart, TEXT, st.booleans(), MAYBE)
    | st.builds(RedactedReasoningPart, TEXT)
    | st.builds(OmittedReasoningPart, MAYBE)
    | st.builds(SummarizedReasoningPart, TEXT, st.lists(TEXT, max_size=2).map(tuple), MAYBE),
    max_size=3,
).map(tuple)
LINES = st.lists(TEXT, max_size=2).map(tuple)
RETURNS = st.builds(ToolReturn, TEXT, TEXT, st.sampled_from(ToolStatus), PARTS, LINES, LINES)
DECISIONS = st.builds(Approve, TEXT) | st.builds(Deny, TEXT, MAYBE) | st.builds(ClientReturn, TEXT, RETURNS)
MESSAGES = st.builds(
    Message,
    id=TEXT,
    role=st.sampled_from(Role),
    created_at=st.datetimes(timezones=st.just(UTC)),
    content=PARTS,
    tool_calls=st.lists(st.builds(ToolCall, TEXT, TEXT, TEXT, MAYBE), max_size=2).map(tuple),
    tool_returns=st.lists(RETURNS, max_size=2).map(tuple),
    approval_decisions=st.lists(DECISIONS, max_size=2).map(tuple),
    is_err=st.none() | st.booleans(),
    is_event=st.none() | st.booleans(),
    carried=MAYBE,
    **dict.fromkeys(
        ("approval_request_id", "name", "otid", "sender_id", "group_id", "model", "step_id", "run_id", "turn_id"), MAYBE
    ),
    conversation_id=MAYBE,
    agent_id=TEXT,
    updated_at=st.none() | st.datetimes(timezones=st.just(UTC)),
    sequence_id=st.integers(0, 2**62),
)


@given(MESSAGES)
def test_message_survives_the_round_trip(message: Message) -> None:
    for field in (None, "message"):
        converted = message_from_proto(pb.Message.FromString(message_to_proto(message).SerializeToString()), field)
        assert converted == message
        assert (converted.agent_id, converted.updated_at, converted.sequence_id) == (
            message.agent_id,
            message.updated_at,
            message.sequence_id,
        )


def test_image_in_a_tool_return_survives() -> None:
    image = ImagePart(data=b"\x89PNG", media_type="image/png")
    returned = ToolReturn("call-1", "draw", ToolStatus.SUCCESS, (TextPart("done"), image))
    message = Message("message-1", Role.TOOL, datetime(2026, 1, 1, tzinfo=UTC), tool_returns=(returned,))
    (converted,) = message_from_proto(message_to_proto(message)).tool_returns
    assert converted == returned
    assert converted.text == "done"
    assert converted.with_text("cut").content == (TextPart("cut"), image)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.Message(), "message.role"),
        (pb.Message(role=99), "message.role"),  # type: ignore[arg-type]
        (pb.Message(role=pb.ROLE_USER, content=[pb.ContentPart()]), "message.content[0].part"),
        (
            pb.Message(role=pb.ROLE_USER, content=[pb.ContentPart(image=pb.ImagePart())]),
            "message.content[0].image.source",
        ),
        (
            pb.Message(role=pb.ROLE_TOOL, tool_returns=[pb.ToolReturn(status=7)]),  # type: ignore[arg-type]
            "message.tool_returns[0].status",
        ),
        (
            pb.Message(role=pb.ROLE_APPROVAL, approval_decisions=[pb.ApprovalDecision(tool_call_id="call-1")]),
            "message.approval_decisions[0].decision",
        ),
    ],
)
def test_value_without_a_kind_is_refused_under_its_path(message: pb.Message, field: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        message_from_proto(message, "message")
    assert error.value.metadata["field"] == field


def test_time_out_of_range_is_refused() -> None:
    message = pb.Message(role=pb.ROLE_USER)
    message.create_time.seconds = 2**60
    with pytest.raises(InvalidArgument) as error:
        message_from_proto(message, "message")
    assert error.value.metadata["field"] == "message.create_time"


def test_part_of_an_unknown_kind_from_another_service_is_left_out() -> None:
    assert parts_from_proto([pb.ContentPart(), pb.ContentPart(text=pb.TextPart(text="a"))]) == (TextPart("a"),)


def test_creation_time_defaults_to_now() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert message_from_proto(pb.Message(role=pb.ROLE_USER), "message", now).created_at == now


def test_unset_and_zero_usage_are_distinct() -> None:
    usage = Usage(prompt_tokens=0, total_tokens=3)
    assert Usage.from_proto(usage.to_proto()) == usage
    assert usage + Usage(completion_tokens=2, total_tokens=4) == Usage(0, 2, 7)
