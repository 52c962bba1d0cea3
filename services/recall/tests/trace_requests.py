"""Messages, and requests of TraceService, for its tests."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.recall.v1 import traces_pb2
from mnemesh.recall.v1 import traces_service_pb2 as traces
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.ids import derive_id, new_id

AGENT, PEER = new_id("agent"), new_id("agent")
MAIN, SIDE = derive_id("conv", AGENT), new_id("conv")
PENDING, SUCCESS, ERROR, DENIED = 1, 2, 3, 4
START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(START + timedelta(seconds=seconds))
    return stamp


def part(text: str) -> pb.ContentPart:
    return pb.ContentPart(text=pb.TextPart(text=text))


def said(text: str, role: int = pb.ROLE_USER, **more: Any) -> pb.Message:
    content = [part(text)] if text else []
    return pb.Message(id=new_id("message"), role=pb.Role.ValueType(role), content=content, **more)


def calling(*ids: str, text: str = "", name: str = "dig") -> pb.Message:
    calls = [pb.ToolCall(id=id_, name=name, arguments='{"deep": true}') for id_ in ids]
    return said(text, pb.ROLE_ASSISTANT, tool_calls=calls)


def returning(id_: str, text: str, status: int = pb.TOOL_RETURN_STATUS_SUCCESS, name: str = "dig") -> pb.Message:
    answer = pb.ToolReturn(
        tool_call_id=id_, name=name, status=pb.ToolReturnStatus.ValueType(status), content=[part(text)]
    )
    return said("", pb.ROLE_TOOL, tool_returns=[answer])


async def open_window(recall: Any, agent: str = AGENT, conversation: str = MAIN) -> None:
    rows = [said("prompt", pb.ROLE_SYSTEM)]
    await recall.CreateContext(rpc.CreateContextRequest(agent_id=agent, conversation_id=conversation, messages=rows))


async def tell(recall: Any, *messages: pb.Message, conversation: str | None = MAIN, agent: str = AGENT) -> None:
    await recall.AppendMessages(
        rpc.AppendMessagesRequest(agent_id=agent, conversation_id=conversation, messages=messages)
    )


async def turns(recall: Any, agent: str = AGENT, **filters: Any) -> list[traces_pb2.Turn]:
    listed = await recall.traces.ListTurns(traces.ListTurnsRequest(agent_id=agent, **filters))
    return list(listed.turns)


async def turn_of(recall: Any, *messages: pb.Message) -> list[str]:
    found = await recall.GetMessages(rpc.GetMessagesRequest(message_ids=[message.id for message in messages]))
    return [message.turn_id for message in found.messages]


async def exported(recall: Any, agent: str = AGENT, **filters: Any) -> list[traces.TraceRecord]:
    request = traces.ExportTracesRequest(agent_id=agent, **filters)
    return [answer.record async for answer in recall.traces.ExportTraces(request)]


def parts(
    records: list[traces.TraceRecord], agent: str = PEER, request_id: str = "", **header: Any
) -> Iterator[traces.ImportTracesRequest]:
    yield traces.ImportTracesRequest(request_id=request_id, header=traces.ImportTracesHeader(agent_id=agent, **header))
    for record in records:
        yield traces.ImportTracesRequest(record=record)


async def take_in(recall: Any, records: list[traces.TraceRecord], **more: Any) -> traces.ImportTracesResponse:
    return await recall.traces.ImportTraces(parts(records, **more))  # type: ignore[no-any-return]


def bare(record: traces.TraceRecord) -> traces.TraceRecord:
    """Returns a record without the fields that depend on its agent."""
    copy = traces.TraceRecord()
    copy.CopyFrom(record)
    trace = copy.raw_trace
    if copy.WhichOneof("record") == "raw_trace":
        trace.agent_id = trace.message_id = ""
        trace.ClearField("conversation_id")
    elif copy.WhichOneof("record") == "fact":
        copy.fact.ClearField("scope")
    else:
        copy.episode.ClearField("scope")
    return copy
