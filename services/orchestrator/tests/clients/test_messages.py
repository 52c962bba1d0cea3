"""Messages come through the contract as they are, whatever they hold."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_orchestrator.model.messages import (
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
    Usage,
)
from mnemesh_orchestrator.rpc.convert.messages import (
    message_from_proto,
    message_to_proto,
    tool_return_from_proto,
    usage_to_proto,
)

texts = st.text(max_size=20)
maybe = st.none() | texts
several = st.lists(texts, max_size=3).map(tuple)
images = st.one_of(
    st.builds(ImagePart, data=st.binary(max_size=8), media_type=texts, detail=maybe),
    st.builds(ImagePart, url=texts, detail=maybe),
    st.builds(ImagePart, file_id=texts, detail=maybe),
)
parts = st.one_of(
    st.builds(TextPart, texts, maybe),
    images,
    st.builds(ReasoningPart, texts, st.booleans(), maybe),
    st.builds(RedactedReasoningPart, texts),
    st.builds(OmittedReasoningPart, maybe),
    st.builds(SummarizedReasoningPart, texts, several, maybe),
)
messages = st.builds(
    Message,
    id=texts,
    role=st.sampled_from(Role),
    created_at=st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9000, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    content=st.lists(parts, max_size=4).map(tuple),
    tool_calls=st.lists(st.builds(ToolCall, texts, texts, texts, maybe), max_size=3).map(tuple),
    tool_returns=st.lists(
        st.builds(ToolReturn, texts, texts, st.sampled_from(ToolStatus), texts, several, several), max_size=3
    ).map(tuple),
    name=maybe,
    otid=maybe,
    sender_id=maybe,
    group_id=maybe,
    model=maybe,
    step_id=maybe,
    run_id=maybe,
    turn_id=maybe,
    conversation_id=maybe,
    is_err=st.booleans(),
    sequence_id=st.integers(0, 2**63 - 1),
)


@given(messages)
def test_a_message_survives_the_wire(message: Message) -> None:
    wire = message_to_proto(message, "agent-1").SerializeToString()
    back = message_from_proto(pb.Message.FromString(wire))
    assert back == message
    assert back.sequence_id == message.sequence_id


def test_texts_of_a_return_are_joined_and_pictures_left_out() -> None:
    content = [
        pb.ContentPart(text=pb.TextPart(text="one")),
        pb.ContentPart(image=pb.ImagePart(url="https://example.com/a.png")),
        pb.ContentPart(text=pb.TextPart(text="two")),
    ]
    answer = tool_return_from_proto(pb.ToolReturn(tool_call_id="c", name="t", content=content))
    assert answer.text == "one\ntwo"
    assert answer.status is ToolStatus.ERROR


def test_a_part_of_an_unknown_kind_is_left_out() -> None:
    message = pb.Message(id="message-1", role=pb.ROLE_USER, content=[pb.ContentPart()])
    assert message_from_proto(message).content == ()


def test_tokens_that_were_not_reported_stay_absent() -> None:
    usage = usage_to_proto(Usage(prompt_tokens=0, total_tokens=3))
    assert usage.HasField("prompt_tokens")
    assert usage.total_tokens == 3
    assert not usage.HasField("completion_tokens")
