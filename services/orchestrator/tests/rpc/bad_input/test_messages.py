"""Invalid messages and configurations of runs are refused with their field."""

from typing import Any

import pytest
from mnemesh.agents.v1 import runs_pb2, runs_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.ids import derive_id

from ..conftest import Wire
from .calls import AGENT, configured, said, sending

pytestmark = pytest.mark.asyncio(loop_scope="module")


def part(**fields: Any) -> runs_pb2.InputMessage:
    return said(content=[message_pb2.ContentPart(**fields)])


BAD_MESSAGES: list[tuple[Any, str]] = [
    (runs_service_pb2.SendMessageRequest(messages=[said()]), "agent_id"),
    (sending(agent_id="agent-1"), "agent_id"),
    (sending(conversation_id="conv-1"), "conversation_id"),
    (runs_service_pb2.SendMessageRequest(agent_id=AGENT), "messages"),
    (sending(*[said()] * 101), "messages"),
    (sending(said(), said(role=message_pb2.ROLE_TOOL)), "messages[1].role"),
    (sending(said(content=[])), "messages[0].content"),
    (sending(part(text={"text": ""})), "messages[0].content[0]"),
    (sending(part(text={"text": "a\0b"})), "messages[0].content[0]"),
    (sending(part(text={"text": "ä" * 600_000})), "messages[0].content[0]"),
    (sending(part(image={"inline": {"data": b"x" * 10_485_761, "media_type": "image/png"}})), "messages[0].content[0]"),
    (sending(part(image={})), "messages[0].content[0]"),
    (sending(part(reasoning={"text": "hm"})), "messages[0].content[0]"),
    (sending(said(otid="x" * 513)), "messages[0].otid"),
    (sending(said(name="a\0")), "messages[0].name"),
    (sending(said(group_id="team")), "messages[0].group_id"),
    (configured(max_steps=0), "config.max_steps"),
    (configured(max_steps=1_001), "config.max_steps"),
    (configured(override_system="a\0"), "config.override_system"),
    (configured(override_system="x" * 1_000_001), "config.override_system"),
    (
        configured(response_format={"json_schema": {"name": "n", "schema": '{"type": "nothing"}'}}),
        "config.response_format.json_schema.schema",
    ),
    (configured(keepalive_seconds=0), "config.keepalive_seconds"),
    (configured(include_events=[99]), "config.include_events"),
    (configured(on_busy=9), "config.on_busy"),
    (configured(metadata="no"), "config.metadata"),
    (configured(metadata='{"a": "\\ud800"}'), "config.metadata"),
    (
        configured(client_tools=[{"name": "t", "parameters": '{"title": "\\ud800"}'}]),
        "config.client_tools[0].parameters",
    ),
]


@pytest.mark.parametrize(("request_", "field"), BAD_MESSAGES, ids=lambda value: value if isinstance(value, str) else "")
async def test_invalid_message_is_refused_with_its_field(wire: Wire, request_: Any, field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        async for _ in wire.runs.SendMessage(request_):
            pass
    assert raised.value.field == field
    started = runs_service_pb2.StartRunRequest(
        agent_id=request_.agent_id,
        conversation_id=request_.conversation_id if request_.HasField("conversation_id") else None,
        messages=request_.messages,
        config=request_.config,
    )
    with pytest.raises(InvalidArgument) as raised:
        await wire.runs.StartRun(started)
    assert raised.value.field == field


@pytest.mark.parametrize(
    "url", ["", "ftp://example.org", "https://", "https://a:b@example.org", "https://x.org/" + "a" * 2000]
)
async def test_a_callback_has_a_url_that_can_be_called(wire: Wire, url: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        async for _ in wire.runs.SendMessage(configured(callback_url=url)):
            pass
    assert raised.value.field == "config.callback_url"


@pytest.mark.parametrize(
    ("requests", "field"),
    [
        ([], "requests"),
        ([runs_service_pb2.BatchRequest(agent_id="agent-1", messages=[said()])], "requests[0].agent_id"),
        ([runs_service_pb2.BatchRequest(agent_id=AGENT)], "requests[0].messages"),
        ([runs_service_pb2.BatchRequest(agent_id=AGENT, conversation_id="x", messages=[said()])], "conversation_id"),
    ],
)
async def test_a_malformed_batch_is_refused(
    wire: Wire, requests: list[runs_service_pb2.BatchRequest], field: str
) -> None:
    with pytest.raises(InvalidArgument) as raised:
        await wire.runs.StartBatch(runs_service_pb2.StartBatchRequest(requests=requests))
    assert raised.value.field == field
    for method, request in (
        (wire.runs.GetBatch, runs_service_pb2.GetBatchRequest(batch_id="batch-1")),
        (wire.runs.CancelBatch, runs_service_pb2.CancelBatchRequest(batch_id="batch-1")),
    ):
        with pytest.raises(InvalidArgument) as raised:
            await method(request)
        assert raised.value.field == "batch_id"


@pytest.mark.parametrize("field", ["agent_id", "conversation_id"])
async def test_message_to_a_group_names_no_agent_and_no_conversation(wire: Wire, field: str) -> None:
    group_id = derive_id("group", "a test")
    with pytest.raises(InvalidArgument) as raised:
        async for _ in wire.runs.SendMessage(
            runs_service_pb2.SendMessageRequest(group_id=group_id, messages=[said()], **{field: AGENT})
        ):
            pass
    assert raised.value.field == field
    with pytest.raises(NotFound) as missing:
        await wire.runs.StartRun(runs_service_pb2.StartRunRequest(group_id=group_id, messages=[said()]))
    assert missing.value.metadata["resource_id"] == group_id
