"""Parts of messages: contents, tool calls, tool returns, decisions."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from mnemesh.types.v1 import message_pb2 as pb

from mnemesh_gateway.letta.convert.values import present

_PARTS: Final = 127


def otid_of(message_id: str, index: int) -> str:
    """Returns the client's id of a part: the message's UUID with its low 7 bits replaced by the part's index."""
    value = UUID(message_id.partition("-")[2]).int
    return str(UUID(int=(value & ~_PARTS) | min(index, _PARTS)))


def content_from_proto(parts: Sequence[pb.ContentPart]) -> str | list[dict[str, Any]]:
    """Returns a content: a text if it is one, otherwise a list of parts."""
    if all(part.HasField("text") for part in parts):
        return "".join(part.text.text for part in parts)
    return [_part(part) for part in parts if part.WhichOneof("part") in {"text", "image"}]


def text_of(parts: Iterable[pb.ContentPart]) -> str:
    """Returns the text of a content."""
    return "".join(part.text.text for part in parts if part.HasField("text"))


def _part(part: pb.ContentPart) -> dict[str, Any]:
    if part.HasField("text"):
        return {"type": "text", "text": part.text.text}
    image = part.image
    match image.WhichOneof("source"):
        case "url":
            source: dict[str, Any] = {"type": "url", "url": image.url}
        case "inline":
            data = base64.b64encode(image.inline.data).decode()
            source = {"type": "base64", "media_type": image.inline.media_type, "data": data}
        case _:
            source = {"type": "letta", "file_id": image.file_id}
    return {"type": "image", "source": source | {"detail": present(image, "detail")}}


def calls_from_proto(calls: Iterable[pb.ToolCall]) -> dict[str, Any]:
    """Returns the fields of a message with tool calls. The first stands in the field of older clients, too."""
    found = [{"name": call.name, "arguments": call.arguments, "tool_call_id": call.id} for call in calls]
    return {"tool_call": found[0] if found else None, "tool_calls": found}


def returns_from_proto(returns: Sequence[pb.ToolReturn]) -> dict[str, Any]:
    """Returns the fields of a message with tool returns. The first stands in the fields of older clients, too."""
    found = [return_from_proto(item) for item in returns]
    first = found[0] if found else {}
    name = returns[0].name if returns else ""
    text = first.get("tool_return")
    return {
        "tool_return": text if isinstance(text, str) else "".join(p.get("text", "") for p in text or ()),
        "status": first.get("status", "success"),
        "tool_call_id": first.get("tool_call_id", ""),
        "stdout": first.get("stdout"),
        "stderr": first.get("stderr"),
        "tool_returns": found,
    } | ({"name": name} if name else {})


def return_from_proto(item: pb.ToolReturn) -> dict[str, Any]:
    """Returns a tool return."""
    return {
        "type": "tool",
        "tool_return": content_from_proto(item.content),
        "status": "error" if item.status == pb.TOOL_RETURN_STATUS_ERROR else "success",
        "tool_call_id": item.tool_call_id,
        "stdout": output_of(item.stdout),
        "stderr": output_of(item.stderr),
    }


def output_of(lines: Iterable[str]) -> list[str] | None:
    """Returns what a tool printed as one text; None if it printed nothing."""
    text = "\n".join(lines)
    return [text] if text else None


def decisions_from_proto(decisions: Sequence[pb.ApprovalDecision]) -> dict[str, Any]:
    """Returns the fields of an answer to a request for approval. The first decision of a person is in those of older
    clients, too, where the id of its call is `approval_request_id`."""
    found: list[dict[str, Any]] = []
    for decision in decisions:
        kind = decision.WhichOneof("decision")
        if kind == "client_return":
            returned = return_from_proto(decision.client_return)
            found.append(returned | {"tool_call_id": decision.tool_call_id})
        else:
            reason = present(decision.deny, "reason") if kind == "deny" else None
            found.append(
                {
                    "type": "approval",
                    "tool_call_id": decision.tool_call_id,
                    "approve": kind == "approve",
                    "reason": reason,
                }
            )
    first = next((item for item in found if item["type"] == "approval"), {})
    return {
        "approvals": found,
        "approve": first.get("approve"),
        "approval_request_id": first.get("tool_call_id"),
        "reason": first.get("reason"),
    }
