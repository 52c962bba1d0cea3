"""Stored messages as clients see them: one becomes several, which share its id."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from mnemesh.types.v1 import message_pb2 as pb

from mnemesh_gateway.letta.convert.parts import (
    calls_from_proto,
    content_from_proto,
    decisions_from_proto,
    otid_of,
    return_from_proto,
    returns_from_proto,
    text_of,
)
from mnemesh_gateway.letta.convert.values import moment, present


@dataclass(frozen=True, slots=True)
class Shown:
    """How messages are shown: whether the words of a tool are the assistant's, and which types are left out."""

    speaks: bool = True
    tool: str = "send_message"
    argument: str = "message"
    types: frozenset[str] | None = None

    def has(self, message_type: str) -> bool:
        """Returns whether messages of a type are shown."""
        return self.types is None or message_type in self.types


def messages_from_proto(messages: Iterable[pb.Message], shown: Shown) -> list[dict[str, Any]]:
    """Returns stored messages as those that clients see, in the order of the stored ones."""
    return [part for message in messages for part in _parts(message, shown) if shown.has(part["message_type"])]


def _parts(message: pb.Message, shown: Shown) -> list[dict[str, Any]]:
    base = _base(message)
    match message.role:
        case pb.ROLE_SYSTEM:
            return [base | {"message_type": "system_message", "content": text_of(message.content)}]
        case pb.ROLE_USER:
            return [base | {"message_type": "user_message", "content": content_from_proto(message.content)}]
        case pb.ROLE_SUMMARY:
            # Clients of Letta's read a stored summary as the user's; only streams have messages for summaries.
            return [base | {"message_type": "user_message", "content": text_of(message.content)}]
        case pb.ROLE_TOOL:
            return [base | {"message_type": "tool_return_message"} | returns_from_proto(message.tool_returns)]
        case pb.ROLE_APPROVAL if message.HasField("approval_request_id"):
            fields = decisions_from_proto(message.approval_decisions)
            return [base | {"message_type": "approval_response_message"} | fields]
        case pb.ROLE_APPROVAL:
            return [base | {"message_type": "approval_request_message"} | calls_from_proto(message.tool_calls)]
    return _answer(message, base, shown)


def _base(message: pb.Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "date": moment(message, "create_time"),
        "name": present(message, "name"),
        "otid": message.otid if message.HasField("otid") else otid_of(message.id, 0),
        "sender_id": present(message, "sender_id"),
        "step_id": present(message, "step_id"),
        "is_err": present(message, "is_err"),
        "seq_id": None,
        "run_id": present(message, "run_id"),
    }


def _answer(message: pb.Message, base: dict[str, Any], shown: Shown) -> list[dict[str, Any]]:
    """Returns the parts of an assistant's message: reasoning and words in order, then calls."""
    found: list[dict[str, Any]] = []

    def add(message_type: str, **fields: Any) -> None:
        found.append(base | {"otid": otid_of(message.id, len(found)), "message_type": message_type} | fields)

    words: list[pb.ContentPart] = []
    for part in message.content:
        kind = part.WhichOneof("part")
        if kind in {"text", "image"}:
            words.append(part)
            continue
        if words:
            add("assistant_message", content=content_from_proto(words))
            words = []
        _add_reasoning(add, part)
    if words:
        add("assistant_message", content=content_from_proto(words))
    calls: list[pb.ToolCall] = []
    for call in message.tool_calls:
        said = spoken(call, shown)
        if said is None:
            calls.append(call)
            continue
        if calls:
            add("tool_call_message", **calls_from_proto(calls))
            calls = []
        add("assistant_message", content=said)
    if calls:
        add("tool_call_message", **calls_from_proto(calls))
    return found


def _add_reasoning(add: Any, part: pb.ContentPart) -> None:
    match part.WhichOneof("part"):
        case "reasoning":
            source = "reasoner_model" if part.reasoning.is_native else "non_reasoner_model"
            signature = present(part.reasoning, "signature")
            add("reasoning_message", reasoning=part.reasoning.text, source=source, signature=signature)
        case "summarized_reasoning" if part.summarized_reasoning.summaries:
            text = "\n".join(part.summarized_reasoning.summaries)
            add("reasoning_message", reasoning=text, source="reasoner_model", signature=None)
        case "redacted_reasoning":
            data = part.redacted_reasoning.data
            add("hidden_reasoning_message", state="redacted", hidden_reasoning=data)
        case _:
            add("hidden_reasoning_message", state="omitted", hidden_reasoning=None)


def spoken(call: pb.ToolCall, shown: Shown) -> str | None:
    """Returns the words that a call says to the user; None if it says none."""
    if not shown.speaks or call.name != shown.tool:
        return None
    try:
        arguments = msgspec.json.decode(call.arguments)
    except msgspec.DecodeError:
        return None
    text = arguments.get(shown.argument) if isinstance(arguments, dict) else None
    return text if isinstance(text, str) else None


def internal_from_proto(message: pb.Message) -> dict[str, Any]:
    """Returns a message as it is stored, for steps and context windows."""
    roles = {
        pb.ROLE_SYSTEM: "system",
        pb.ROLE_USER: "user",
        pb.ROLE_ASSISTANT: "assistant",
        pb.ROLE_TOOL: "tool",
        pb.ROLE_APPROVAL: "approval",
        pb.ROLE_SUMMARY: "summary",
    }
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    content = content_from_proto(message.content)
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return {
        **_base(message),
        "created_at": moment(message, "create_time"),
        "role": roles.get(message.role, "user"),
        "agent_id": message.agent_id,
        "conversation_id": present(message, "conversation_id"),
        "model": present(message, "model"),
        "content": parts,
        "tool_calls": calls or None,
        "tool_returns": [return_from_proto(item) for item in message.tool_returns],
        "group_id": present(message, "group_id"),
    }
