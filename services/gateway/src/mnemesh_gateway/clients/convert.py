"""Conversion of the orchestrator's messages about runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from mnemesh.agents.v1 import agents_pb2, runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.time import timestamp_from_proto

from mnemesh_gateway.model.answers import ToolCall, Usage
from mnemesh_gateway.model.chat import Format, Image, Part, Settings, Text, ToolResult
from mnemesh_gateway.model.runs import (
    Accepted,
    Failed,
    KeptAlive,
    Piece,
    RunEvent,
    RunRecord,
    Stopped,
    Used,
    Waiting,
    Whole,
)
from mnemesh_gateway.model.sending import Input, RunOptions

KEEPALIVE_SECONDS: Final = 15
_EVENTS: Final = (
    runs_pb2.EVENT_KIND_ASSISTANT_MESSAGE,
    runs_pb2.EVENT_KIND_REASONING_MESSAGE,
    runs_pb2.EVENT_KIND_APPROVAL_REQUEST_MESSAGE,
)
_ENDED: Final = (runs_pb2.RUN_STATUS_COMPLETED, runs_pb2.RUN_STATUS_FAILED, runs_pb2.RUN_STATUS_CANCELLED)


def input_to_proto(item: Input) -> runs_pb2.InputMessage:
    """Returns the message of an input."""
    return runs_pb2.InputMessage(
        role=message_pb2.ROLE_USER,
        content=[part_to_proto(part) for part in item.content],
        name=item.name,
        otid=item.otid,
    )


def decision_to_proto(result: ToolResult) -> message_pb2.ApprovalDecision:
    """Returns the decision for a call that the client ran."""
    status = message_pb2.TOOL_RETURN_STATUS_ERROR if result.is_error else message_pb2.TOOL_RETURN_STATUS_SUCCESS
    tool_return = message_pb2.ToolReturn(
        tool_call_id=result.tool_call_id, status=status, content=[part_to_proto(Text(result.text))]
    )
    return message_pb2.ApprovalDecision(tool_call_id=result.tool_call_id, client_return=tool_return)


def part_to_proto(part: Part) -> message_pb2.ContentPart:
    """Returns the message of a part."""
    match part:
        case Text(text):
            return message_pb2.ContentPart(text=message_pb2.TextPart(text=text))
        case Image(data=bytes() as data, media_type=media_type, detail=detail):
            inline = message_pb2.InlineImage(data=data, media_type=media_type)
            return message_pb2.ContentPart(image=message_pb2.ImagePart(inline=inline, detail=detail))
        case Image(url=url, detail=detail):
            return message_pb2.ContentPart(image=message_pb2.ImagePart(url=url or "", detail=detail))


def config_to_proto(options: RunOptions) -> runs_pb2.RunConfig:
    """Returns the configuration of a run."""
    return runs_pb2.RunConfig(
        stream_tokens=options.stream_tokens,
        include_events=_EVENTS,
        client_tools=[
            runs_pb2.ClientTool(name=tool.name, description=tool.description, parameters=tool.parameters)
            for tool in options.tools
        ],
        metadata=json.dumps(options.metadata) if options.metadata else None,
        parameters=json.dumps(dict(options.parameters)) if options.parameters else None,
        forced_tool=options.choice.name,
        requires_tool=options.choice.is_required,
        keepalive_seconds=KEEPALIVE_SECONDS,
        response_format=None if options.format is None else _format_to_proto(options.format),
        model_settings=None if options.settings == Settings() else _settings_to_proto(options.settings),
    )


def _settings_to_proto(settings: Settings) -> agents_pb2.ModelSettings:
    return agents_pb2.ModelSettings(
        temperature=settings.temperature,
        top_p=settings.top_p,
        max_output_tokens=settings.max_output_tokens,
        parallel_tool_calls=settings.parallel_tool_calls,
        reasoning_effort=settings.reasoning_effort,
    )


def _format_to_proto(format_: Format) -> agents_pb2.ResponseFormat:
    match format_.kind:
        case "json_object":
            return agents_pb2.ResponseFormat(json_object=agents_pb2.JsonObjectFormat())
        case "json_schema":
            schema = agents_pb2.JsonSchemaFormat(name=format_.name, schema=format_.schema, strict=format_.strict)
            return agents_pb2.ResponseFormat(json_schema=schema)
        case _:
            return agents_pb2.ResponseFormat(text=agents_pb2.TextFormat())


def event_from_proto(event: runs_pb2.RunEvent) -> RunEvent | None:
    """Returns the event of a message; None for an event that the gateway does not use."""
    match event.WhichOneof("event"):
        case "delta":
            return _piece(event.delta)
        case "message" if event.agent_id:
            return KeptAlive()  # another agent asks for an approval, which the clients of this API cannot give
        case "message":
            return _message(event.message)
        case "accepted":
            return Accepted(event.run_id, event.accepted.replayed)
        case "error":
            error = event.error.error
            return Failed(error.reason, error.message, dict(error.metadata))
        case "stop":
            name = agents_pb2.StopReason.Name(event.stop.reason).removeprefix("STOP_REASON_").lower()
            return Stopped(name, event.stop.status == runs_pb2.RUN_STATUS_CANCELLED)
        case "usage":
            return Used(_usage(event.usage.usage))
        case _:
            return KeptAlive()


def _piece(delta: runs_pb2.Delta) -> Piece | None:
    match delta.WhichOneof("delta"):
        case "assistant_text":
            return Piece(delta.otid, delta.offset, delta.assistant_text, is_reasoning=False)
        case "reasoning_text":
            return Piece(delta.otid, delta.offset, delta.reasoning_text, is_reasoning=True)
        case _:
            return None


def _message(message: runs_pb2.MessageEvent) -> RunEvent | None:
    match message.WhichOneof("message"):
        case "assistant":
            return Whole(message.otid, _text(message.assistant.content), is_reasoning=False)
        case "reasoning":
            return Whole(message.otid, message.reasoning.text, is_reasoning=True)
        case "approval_request":
            calls = message.approval_request.tool_calls
            return Waiting(tuple(ToolCall(call.id, call.name, call.arguments) for call in calls))
        case _:
            return None


def _text(content: Sequence[message_pb2.ContentPart]) -> str:
    return "".join(part.text.text for part in content if part.HasField("text"))


def _usage(usage: message_pb2.Usage) -> Usage:
    def given(name: str) -> int | None:
        return getattr(usage, name) if usage.HasField(name) else None  # type: ignore[arg-type]

    return Usage(
        given("prompt_tokens"),
        given("completion_tokens"),
        given("total_tokens"),
        given("cached_input_tokens"),
        given("reasoning_tokens"),
    )


def record_from_proto(run: runs_pb2.Run) -> RunRecord:
    """Returns a stored run."""
    metadata: Any = json.loads(run.config.metadata) if run.config.HasField("metadata") else {}
    return RunRecord(
        id=run.id,
        is_ended=run.status in _ENDED,
        has_failed=run.status in (runs_pb2.RUN_STATUS_FAILED, runs_pb2.RUN_STATUS_CANCELLED),
        ended_at=timestamp_from_proto(run.completion_time, "completion_time")
        if run.HasField("completion_time")
        else None,
        is_waiting=run.stop_reason == agents_pb2.STOP_REASON_REQUIRES_APPROVAL,
        agent_id=run.agent_id,
        conversation_id=run.conversation_id,
        client_tools=tuple(tool.name for tool in run.config.client_tools),
        otids=tuple(item.otid for item in run.input if item.HasField("otid")),
        metadata=metadata,
    )
