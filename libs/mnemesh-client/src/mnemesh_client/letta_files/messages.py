"""Messages of Letta as messages of the contracts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from mnemesh.types.v1 import message_pb2
from mnemesh.types.v1.message_pb2 import ApprovalDecision, ContentPart, Message, ToolCall, ToolReturn
from mnemesh_kit.unicode import well_formed

from mnemesh_client.letta_files.parts import content_parts, is_event
from mnemesh_client.letta_files.values import Row, id_of, optional_text, timestamp

ROLES: Final = {
    "system": message_pb2.ROLE_SYSTEM,
    "user": message_pb2.ROLE_USER,
    "assistant": message_pb2.ROLE_ASSISTANT,
    "tool": message_pb2.ROLE_TOOL,
    "function": message_pb2.ROLE_TOOL,
    "approval": message_pb2.ROLE_APPROVAL,
    "summary": message_pb2.ROLE_SUMMARY,
}
_ANSWERS: Final = (message_pb2.ROLE_ASSISTANT, message_pb2.ROLE_APPROVAL)
_SPEAKS_IN_TEXT: Final = "letta_v1_agent"
"""Agents of this type speak in the text of an answer. Others speak by tools: text beside a call is a thought."""


class MessageReader:
    """Converts the messages of one agent, which must come in their order.

    It remembers the tool calls that it has seen: Letta's returns name no tool, and its approvals no request.
    """

    def __init__(self, agent_id: str, provider: str | None = None, *, agent_type: str | None = None) -> None:
        self._agent_id = agent_id
        self._provider = provider
        self._thinks_in_text = agent_type not in (None, _SPEAKS_IN_TEXT)
        self._names: dict[str, str] = {}
        self._requests: dict[str, str] = {}
        self._calls_of_request: dict[str, list[str]] = {}

    def read(self, row: Row, *, model: str | None = None, conversation_id: str | None = None) -> Message:
        """Returns a message.

        Args:
            row: a row of `messages`, or a message of an agent file.
            model: the handle of the model that wrote it, where that is known from its step.
            conversation_id: the conversation in which it was written.

        Raises:
            ValueError: its role, a part of its content, or a time is not known.
        """
        role = ROLES.get(str(row["role"]))
        if role is None:
            raise ValueError(f"the role {row['role']!r} is not known")
        message = Message(
            id=id_of(row["id"], "message", namespace=self._agent_id),
            agent_id=self._agent_id,
            role=role,
            name=optional_text(row, "name") if role != message_pb2.ROLE_TOOL else None,
            otid=optional_text(row, "otid"),
            sender_id=optional_text(row, "sender_id"),
            group_id=optional_text(row, "group_id"),
            model=model or self._model(row.get("model")),
            step_id=optional_text(row, "step_id"),
            run_id=optional_text(row, "run_id"),
            is_err=row.get("is_err"),
            conversation_id=conversation_id,
            create_time=timestamp(row.get("created_at")),
            update_time=timestamp(row.get("updated_at")),
        )
        parts = row.get("content") or ([{"type": "text", "text": row["text"]}] if row.get("text") else [])
        if isinstance(parts, str):
            parts = [{"type": "text", "text": parts}]
        calls = _calls(row.get("tool_calls") or (), parts)
        if role == message_pb2.ROLE_TOOL:
            message.tool_returns.extend(self._returns(row, parts))
        else:
            if calls and self._thinks_in_text and role in _ANSWERS:
                parts = [_thought(part) for part in parts]
            message.content.extend(content_parts(parts, unpack=role == message_pb2.ROLE_USER))
            if role == message_pb2.ROLE_USER and is_event(parts):
                message.is_event = True
        message.tool_calls.extend(calls)
        self._remember(message)
        if role == message_pb2.ROLE_APPROVAL and not calls:
            self._decide(message, row)
        return message

    def _model(self, name: str | None) -> str | None:
        if not name:
            return None
        return f"{self._provider}/{name}" if self._provider else name

    def _remember(self, message: Message) -> None:
        for call in message.tool_calls:
            self._names[call.id] = call.name
            if message.role == message_pb2.ROLE_APPROVAL:
                self._requests[call.id] = message.id
                self._calls_of_request.setdefault(message.id, []).append(call.id)

    def _returns(self, row: Row, parts: Sequence[dict[str, Any]]) -> Iterable[ToolReturn]:
        returns = [dict(item) for item in row.get("tool_returns") or ()]
        known = {item.get("tool_call_id") for item in returns}
        for part in parts:
            if part.get("type") == "tool_return" and part["tool_call_id"] not in known:
                status = "error" if part.get("is_error") else "success"
                text = part.get("content") or ""
                returns.append({"tool_call_id": part["tool_call_id"], "status": status, "func_response": text})
        if not returns:
            text = "".join(part.get("text", "") for part in parts)
            returns.append({"tool_call_id": row.get("tool_call_id"), "status": None, "func_response": text})
        for item in returns:
            yield self._tool_return(item, row)

    def _tool_return(self, item: dict[str, Any], row: Row) -> ToolReturn:
        call_id = item.get("tool_call_id") or row.get("tool_call_id") or ""
        response = item.get("func_response", item.get("tool_return"))
        content, packaged_status = _unpacked_return(response)
        failed = (item.get("status") or packaged_status) == "error"
        return ToolReturn(
            tool_call_id=call_id,
            name=self._names.get(call_id) or row.get("name") or "",
            status=message_pb2.TOOL_RETURN_STATUS_ERROR if failed else message_pb2.TOOL_RETURN_STATUS_SUCCESS,
            content=content,
            stdout=[well_formed(line) for line in item.get("stdout") or ()],
            stderr=[well_formed(line) for line in item.get("stderr") or ()],
        )

    def _decide(self, message: Message, row: Row) -> None:
        request = optional_text(row, "approval_request_id")
        decisions = row.get("approvals") or ()
        if not decisions and row.get("approve") is not None and request:
            decisions = [
                {"tool_call_id": call, "approve": row["approve"], "reason": row.get("denial_reason")}
                for call in self._calls_of_request.get(request, ())
            ]
        for item in decisions:
            message.approval_decisions.append(self._decision(item, row))
            request = request or self._requests.get(item["tool_call_id"])
        if request:
            message.approval_request_id = request

    def _decision(self, item: dict[str, Any], row: Row) -> ApprovalDecision:
        call_id = item["tool_call_id"]
        if "approve" not in item:
            return ApprovalDecision(tool_call_id=call_id, client_return=self._tool_return(item, {**row, "name": None}))
        if item["approve"]:
            return ApprovalDecision(tool_call_id=call_id, approve=message_pb2.Approve())
        return ApprovalDecision(tool_call_id=call_id, deny=message_pb2.Deny(reason=item.get("reason")))


def _thought(part: dict[str, Any]) -> dict[str, Any]:
    """A part of an answer whose text is a thought."""
    return {"type": "reasoning", "reasoning": part.get("text")} if part.get("type") == "text" else part


def _calls(calls: Iterable[dict[str, Any]], parts: Iterable[dict[str, Any]]) -> list[ToolCall]:
    """The calls of a message. Letta keeps them beside the content, or as parts of it, or both."""
    found = {
        call["id"]: ToolCall(
            id=call["id"],
            name=call["function"]["name"],
            arguments=well_formed(call["function"].get("arguments") or "{}"),
        )
        for call in calls
    }
    for part in parts:
        if part.get("type") == "tool_call" and part["id"] not in found:
            arguments = json.dumps(part.get("input") or {}, ensure_ascii=False)
            found[part["id"]] = ToolCall(id=part["id"], name=part["name"], arguments=well_formed(arguments))
    return list(found.values())


def _unpacked_return(response: object) -> tuple[list[ContentPart], str | None]:
    """The content of a return without Letta's envelope, and the status that the envelope has."""
    if isinstance(response, list):
        return content_parts(response), None
    text = "" if response is None else str(response)
    try:
        envelope = json.loads(text)
    except (ValueError, RecursionError):
        envelope = None
    status = None
    if isinstance(envelope, dict) and {"status", "message", "time"} <= envelope.keys():
        status = "success" if envelope["status"] == "OK" else "error"
        inner = envelope["message"]
        text = inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False)
    return content_parts([{"type": "text", "text": text}]), status
