"""Messages of Letta and their parts, in both directions."""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC
from typing import Any, Final
from zoneinfo import ZoneInfo

from mnemesh.types.v1 import message_pb2
from mnemesh.types.v1.message_pb2 import (
    ApprovalDecision,
    ContentPart,
    ImagePart,
    InlineImage,
    Message,
    OmittedReasoningPart,
    ReasoningPart,
    RedactedReasoningPart,
    SummarizedReasoningPart,
    TextPart,
    ToolCall,
    ToolReturn,
)
from mnemesh_kit.unicode import well_formed

from mnemesh_letta.convert.values import ROLE_NAMES, ROLES, Row, id_of, iso_time, optional_text, present, timestamp

_EVENT_FIELDS: Final = {
    "heartbeat": frozenset({"type", "reason", "time"}),
    "login": frozenset({"type", "last_login", "time"}),
    "system_alert": frozenset({"type", "message", "time"}),
}


def content_parts(parts: Iterable[dict[str, Any]], *, unpack: bool = False) -> list[ContentPart]:
    """Returns the parts of a content. Calls and returns are left out, as messages hold them elsewhere.

    Args:
        parts: Letta's parts.
        unpack: takes the words of a user out of the envelope that Letta puts around them. mnemesh stores the words.

    Raises:
        ValueError: a part is of an unknown type, or an image has no data.
    """
    return [_part(part, unpack=unpack) for part in parts if part["type"] not in ("tool_call", "tool_return")]


def is_event(parts: Sequence[dict[str, Any]]) -> bool:
    """Returns whether the content of a user message is one of Letta's events, which only its envelope marks there.

    The fields must be exactly those of the envelope, so that JSON that a user pasted stays the user's.
    """
    return len(parts) == 1 and _is_envelope_of_event(parts[0].get("text") or "")


def _is_envelope_of_event(text: str) -> bool:
    if not text.startswith("{"):
        return False
    try:
        envelope = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(envelope, dict) and envelope.keys() == _EVENT_FIELDS.get(str(envelope.get("type")))


def wrapped_words(part: dict[str, Any]) -> dict[str, Any]:
    """Returns a part of a user's content in Letta's form. Words that a reader would take for an envelope are in one."""
    text = part.get("text") or ""
    if part["type"] != "text" or not (_words(text) != text or _is_envelope_of_event(text)):
        return part
    return {**part, "text": json.dumps({"type": "user_message", "message": text}, ensure_ascii=False)}


def letta_parts(parts: Iterable[ContentPart]) -> list[dict[str, Any]]:
    """Returns the parts of a content in Letta's form."""
    return [_letta_part(part) for part in parts]


def _part(part: dict[str, Any], *, unpack: bool) -> ContentPart:
    signature = part.get("signature")
    match part["type"]:
        case "text":
            text = well_formed(part.get("text") or "")
            return ContentPart(text=TextPart(text=_words(text) if unpack else text, signature=signature))
        case "image":
            return ContentPart(image=_image(part["source"]))
        case "reasoning":
            text = well_formed(part.get("reasoning") or "")
            return ContentPart(
                reasoning=ReasoningPart(text=text, is_native=bool(part.get("is_native")), signature=signature)
            )
        case "redacted_reasoning":
            return ContentPart(redacted_reasoning=RedactedReasoningPart(data=part["data"]))
        case "omitted_reasoning":
            return ContentPart(omitted_reasoning=OmittedReasoningPart(signature=signature))
        case "summarized_reasoning":
            summaries = [well_formed(item["text"]) for item in part.get("summary") or ()]
            encrypted = part.get("encrypted_content")
            return ContentPart(
                summarized_reasoning=SummarizedReasoningPart(
                    id=part.get("id") or "", summaries=summaries, encrypted_content=encrypted
                )
            )
        case other:
            raise ValueError(f"a part of its content has the unknown type {other!r}")


def _words(text: str) -> str:
    """The words in a packaged user message; any other text as it is."""
    if not text.startswith("{"):
        return text
    try:
        envelope = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(envelope, dict) and envelope.get("type") == "user_message" and "message" in envelope:
        words = envelope["message"]
        return words if isinstance(words, str) else text
    return text


def _image(source: dict[str, Any]) -> ImagePart:
    detail = source.get("detail")
    if source.get("data"):
        try:
            data = base64.b64decode(source["data"], validate=True)
        except binascii.Error as error:
            raise ValueError("the data of an image is not base64") from error
        return ImagePart(
            inline=InlineImage(data=data, media_type=source.get("media_type") or "image/png"), detail=detail
        )
    if source.get("url"):
        return ImagePart(url=source["url"], detail=detail)
    raise ValueError("an image has neither data nor a URL")


def _letta_part(part: ContentPart) -> dict[str, Any]:
    match part.WhichOneof("part"):
        case "text":
            return {"type": "text", "text": part.text.text, "signature": present(part.text, "signature")}
        case "image":
            detail = {"detail": present(part.image, "detail")} if part.image.HasField("inline") else {}
            return {"type": "image", "source": letta_image(part.image) | detail}
        case "reasoning":
            reasoning = part.reasoning
            return {
                "type": "reasoning",
                "is_native": reasoning.is_native,
                "reasoning": reasoning.text,
                "signature": present(reasoning, "signature"),
            }
        case "redacted_reasoning":
            return {"type": "redacted_reasoning", "data": part.redacted_reasoning.data}
        case "summarized_reasoning":
            summarized = part.summarized_reasoning
            summary = [{"index": index, "text": text} for index, text in enumerate(summarized.summaries)]
            return {
                "type": "summarized_reasoning",
                "id": summarized.id,
                "summary": summary,
                "encrypted_content": summarized.encrypted_content,
            }
        case _:
            return {"type": "omitted_reasoning", "signature": present(part.omitted_reasoning, "signature")}


def letta_image(image: ImagePart) -> dict[str, Any]:
    """Returns the source of an image in Letta's form, without its detail."""
    match image.WhichOneof("source"):
        case "url":
            return {"type": "url", "url": image.url}
        case "inline":
            data = base64.b64encode(image.inline.data).decode()
            return {"type": "base64", "media_type": image.inline.media_type, "data": data}
    return {"type": "letta", "file_id": image.file_id}


def letta_calls(calls: Iterable[ToolCall]) -> list[dict[str, Any]]:
    """Returns tool calls in the form of Letta's stored messages."""
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in calls
    ]


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
        role = (ROLES | {"function": message_pb2.ROLE_TOOL}).get(str(row["role"]))
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
                parts = [_as_thought(part) for part in parts]
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


def _as_thought(part: dict[str, Any]) -> dict[str, Any]:
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
    name = message.tool_returns[0].name if returns else None
    content = letta_parts(message.content)
    if message.role == message_pb2.ROLE_USER and not message.is_event:
        content = [wrapped_words(part) for part in content]
    if thinks_in_text and message.tool_calls:
        content = [_as_text(part) for part in content]
    if message.role == message_pb2.ROLE_TOOL and returns:
        content = [{"type": "text", "text": returns[0]["func_response"], "signature": None}]
    calls = letta_calls(message.tool_calls)
    request = ids.get(message.approval_request_id) if message.HasField("approval_request_id") else None
    return {
        "type": "message",
        "id": id_,
        "agent_id": ids.get(message.agent_id),
        "role": ROLE_NAMES.get(message.role, "user"),
        "content": content,
        "name": present(message, "name") or name or None,
        "otid": present(message, "otid"),
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


def _as_text(part: dict[str, Any]) -> dict[str, Any]:
    """A part of an answer in which thoughts are text, except for those that a provider returned as such."""
    if part["type"] != "reasoning" or part["is_native"]:
        return part
    return {"type": "text", "text": part["reasoning"], "signature": None}


def _return(item: ToolReturn, message: Message, time_zone: str) -> dict[str, Any]:
    failed = item.status == message_pb2.TOOL_RETURN_STATUS_ERROR
    local = message.create_time.ToDatetime(UTC).astimezone(_zone(time_zone))
    envelope = {
        "status": "Failed" if failed else "OK",
        "message": "".join(part.text.text for part in item.content),
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


def _zone(name: str) -> Any:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return UTC
