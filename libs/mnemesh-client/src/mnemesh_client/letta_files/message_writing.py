"""Messages of the contracts as messages of Letta's agent files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

from mnemesh.types.v1 import message_pb2
from mnemesh.types.v1.message_pb2 import ApprovalDecision, ContentPart, Message, ToolReturn

from mnemesh_client.letta_files.messages import ROLES
from mnemesh_client.letta_files.parts import letta_parts, wrapped_words
from mnemesh_client.letta_files.values import iso_time

_ROLE_NAMES = {value: name for name, value in ROLES.items() if name != "function"}


def letta_message(
    message: Message, id_: str, ids: Mapping[str, str], time_zone: str, *, thinks_in_text: bool = False
) -> dict[str, Any]:
    """Returns a message of an agent file.

    Args:
        message: the message.
        id_: its id in the file.
        ids: those of the messages before it, by our ids.
        time_zone: of the agent; Letta's envelope of tool returns has the local time.
        thinks_in_text: whether text beside a call is a thought, as `MessageReader` reads it.
    """
    returns = [_return(item, message, time_zone) for item in message.tool_returns]
    content = letta_parts(message.content)
    if message.role == message_pb2.ROLE_USER and not message.is_event:
        content = [wrapped_words(part) for part in content]
    if thinks_in_text and message.tool_calls:
        content = [_thought(part) for part in content]
    if message.role == message_pb2.ROLE_TOOL and returns:
        content = [{"type": "text", "text": returns[0]["func_response"], "signature": None}]
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    request = ids.get(message.approval_request_id) if message.HasField("approval_request_id") else None
    return {
        "type": "message",
        "id": id_,
        "agent_id": ids.get(message.agent_id),
        "role": _ROLE_NAMES.get(message.role, "user"),
        "content": content,
        "name": message.name if message.HasField("name") else (_tool_name(message) or None),
        "otid": message.otid if message.HasField("otid") else None,
        "sender_id": None,
        "group_id": None,
        "model": message.model.partition("/")[2] if message.HasField("model") else None,
        "tool_calls": calls or None,
        "tool_call_id": message.tool_returns[0].tool_call_id if returns else (calls[0]["id"] if calls else None),
        "tool_returns": returns,
        "approvals": [_decision(item, message, time_zone) for item in message.approval_decisions],
        "approval_request_id": request,
        "approve": None,
        "denial_reason": None,
        "created_at": iso_time(message.create_time),
    }


def _thought(part: dict[str, Any]) -> dict[str, Any]:
    """A part of an answer in which thoughts are text, except for those that a provider returned as such."""
    if part["type"] != "reasoning" or part["is_native"]:
        return part
    return {"type": "text", "text": part["reasoning"], "signature": None}


def _tool_name(message: Message) -> str:
    return message.tool_returns[0].name if message.tool_returns else ""


def _return(item: ToolReturn, message: Message, time_zone: str) -> dict[str, Any]:
    failed = item.status == message_pb2.TOOL_RETURN_STATUS_ERROR
    local = message.create_time.ToDatetime(UTC).astimezone(_zone(time_zone))
    envelope = {
        "status": "Failed" if failed else "OK",
        "message": _text(item),
        "time": local.strftime("%Y-%m-%d %I:%M:%S %p %Z%z"),
    }
    return {
        "tool_call_id": item.tool_call_id,
        "status": "error" if failed else "success",
        "stdout": list(item.stdout) or None,
        "stderr": list(item.stderr) or None,
        "func_response": json.dumps(envelope, ensure_ascii=False),
    }


def _decision(item: ApprovalDecision, message: Message, time_zone: str) -> dict[str, Any]:
    if item.WhichOneof("decision") == "client_return":
        returned = _return(item.client_return, message, time_zone)
        return {**returned, "type": "tool", "tool_call_id": item.tool_call_id}
    is_denied = item.WhichOneof("decision") == "deny"
    reason = item.deny.reason if is_denied and item.deny.HasField("reason") else None
    return {"type": "approval", "tool_call_id": item.tool_call_id, "approve": not is_denied, "reason": reason}


def _text(item: ToolReturn) -> str:
    return "".join(_part_text(part) for part in item.content)


def _part_text(part: ContentPart) -> str:
    return part.text.text if part.WhichOneof("part") == "text" else ""


def _zone(name: str) -> Any:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return UTC
