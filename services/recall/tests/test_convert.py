"""Messages keep all fields through protobuf, the domain and the rows."""

from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import timestamp_to_proto
from mnemesh_recall.store.message_rows import COLUMNS, message_from_row, message_to_row
from mnemesh_types.convert import message_from_proto, message_to_proto
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

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
maybe = st.none() | text

parts = st.one_of(
    st.builds(lambda t, s: pb.ContentPart(text=pb.TextPart(text=t, signature=s)), text, maybe),
    st.builds(
        lambda d, m, x: pb.ContentPart(image=pb.ImagePart(inline=pb.InlineImage(data=d, media_type=m), detail=x)),
        st.binary(max_size=30),
        text,
        maybe,
    ),
    st.builds(lambda u: pb.ContentPart(image=pb.ImagePart(url=u)), text),
    st.builds(lambda u: pb.ContentPart(image=pb.ImagePart(file_id=u)), text),
    st.builds(
        lambda t, n, s: pb.ContentPart(reasoning=pb.ReasoningPart(text=t, is_native=n, signature=s)),
        text,
        st.booleans(),
        maybe,
    ),
    st.builds(lambda d: pb.ContentPart(redacted_reasoning=pb.RedactedReasoningPart(data=d)), text),
    st.builds(lambda s: pb.ContentPart(omitted_reasoning=pb.OmittedReasoningPart(signature=s)), maybe),
    st.builds(
        lambda i, s, e: pb.ContentPart(
            summarized_reasoning=pb.SummarizedReasoningPart(id=i, summaries=s, encrypted_content=e)
        ),
        text,
        st.lists(text, max_size=3),
        maybe,
    ),
)
calls = st.builds(lambda i, n, a, p: pb.ToolCall(id=i, name=n, arguments=a, provider_id=p), text, text, text, maybe)
returns = st.builds(
    lambda i, n, s, c, o, e: pb.ToolReturn(tool_call_id=i, name=n, status=s, content=c, stdout=o, stderr=e),
    text,
    text,
    st.sampled_from([0, 1, 2]),
    st.lists(parts, max_size=2),
    st.lists(text, max_size=2),
    st.lists(text, max_size=2),
)
decisions = st.one_of(
    st.builds(lambda i: pb.ApprovalDecision(tool_call_id=i, approve=pb.Approve()), text),
    st.builds(lambda i, r: pb.ApprovalDecision(tool_call_id=i, deny=pb.Deny(reason=r)), text, maybe),
    st.builds(lambda i, r: pb.ApprovalDecision(tool_call_id=i, client_return=r), text, returns),
)
moments = st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30), timezones=st.just(UTC))  # noqa: DTZ001


@st.composite
def messages(draw: st.DrawFn) -> pb.Message:
    optional: dict[str, Any] = {
        name: draw(maybe)
        for name in (
            "approval_request_id", "name", "otid", "sender_id", "group_id", "model", "step_id", "run_id", "turn_id",
            "conversation_id",
        )
    }  # fmt: skip
    return pb.Message(
        id=draw(text),
        agent_id=draw(text),
        role=draw(st.sampled_from([pb.Role.ValueType(number) for number in range(1, 7)])),
        content=draw(st.lists(parts, max_size=3)),
        tool_calls=draw(st.lists(calls, max_size=2)),
        tool_returns=draw(st.lists(returns, max_size=2)),
        approval_decisions=draw(st.lists(decisions, max_size=2)),
        is_err=draw(st.none() | st.booleans()),
        create_time=timestamp_to_proto(draw(moments)),
        **optional,
    )


def through_a_row(message: Message) -> Message:
    row = message_to_row(message, "org")

    class Selected(tuple[Any, ...]):
        __slots__ = ()

    return message_from_row(Selected(row[column.name] for column in COLUMNS))  # type: ignore[arg-type]


@given(messages())
def test_message_round_trips_through_protobuf_and_rows(message: pb.Message) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    domain = message_from_proto(message, "message", now)
    stored = through_a_row(domain)
    assert (stored, stored.agent_id) == (domain, domain.agent_id)
    assert message_to_proto(domain) == message


def test_message_without_a_time_gets_the_current_time() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert message_from_proto(pb.Message(role=pb.ROLE_USER), "message", now).created_at == now


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.Message(), "m.role"),
        (pb.Message(role=17), "m.role"),  # type: ignore[arg-type]
        (pb.Message(role=pb.ROLE_USER, content=[pb.ContentPart()]), "m.content[0].part"),
        (pb.Message(role=pb.ROLE_USER, content=[pb.ContentPart(image=pb.ImagePart())]), "m.content[0].image.source"),
        (
            pb.Message(role=pb.ROLE_APPROVAL, approval_decisions=[pb.ApprovalDecision()]),
            "m.approval_decisions[0].decision",
        ),
        (pb.Message(role=pb.ROLE_USER, create_time=Timestamp(seconds=1 << 60)), "m.create_time"),
    ],
)
def test_incomplete_message_is_refused_by_field(message: pb.Message, field: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        message_from_proto(message, "m", datetime(2026, 1, 1, tzinfo=UTC))
    assert refused.value.field == field


CONTENT_OF_AN_EARLIER_RELEASE = """[
    {"type":"text","text":"t","signature":"s"}, {"type":"text","text":"t"},
    {"type":"image","detail":"low","data":"AQI=","media_type":""}, {"type":"image","url":"u"},
    {"type":"image","file_id":"f"}, {"type":"reasoning","text":"r","is_native":false},
    {"type":"redacted","data":"d"}, {"type":"omitted"}, {"type":"summarized","id":"i","summaries":["a","b"]}]"""
DECISIONS_OF_AN_EARLIER_RELEASE = """[
    {"tool_call_id":"1","type":"approve"}, {"tool_call_id":"2","type":"deny","reason":"no"},
    {"tool_call_id":"3","type":"deny"}, {"tool_call_id":"4","type":"return","return":
    {"tool_call_id":"4","name":"n","status":"","content":[{"type":"text","text":"x"}],"stdout":[],"stderr":["e"]}}]"""


def test_rows_of_an_earlier_release_are_read() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    row = message_to_row(Message(id="m", agent_id="a", role=Role.ASSISTANT, created_at=now), "org") | {
        "content": CONTENT_OF_AN_EARLIER_RELEASE,
        "approval_decisions": DECISIONS_OF_AN_EARLIER_RELEASE,
        "tool_calls": '[{"id":"c","name":"n","arguments":"{}"}]',
    }
    message = message_from_row(tuple(row[column.name] for column in COLUMNS))  # type: ignore[arg-type]
    assert message.content == (
        TextPart("t", "s"),
        TextPart("t"),
        ImagePart(data=b"\x01\x02", media_type="", detail="low"),
        ImagePart(url="u"),
        ImagePart(file_id="f"),
        ReasoningPart("r"),
        RedactedReasoningPart("d"),
        OmittedReasoningPart(),
        SummarizedReasoningPart("i", ("a", "b")),
    )
    tool_return = ToolReturn("4", "n", ToolStatus.UNSPECIFIED, (TextPart("x"),), stderr=("e",))
    assert message.approval_decisions == (Approve("1"), Deny("2", "no"), Deny("3"), ClientReturn("4", tool_return))
    assert message.tool_calls == (ToolCall("c", "n", "{}"),)
