"""What a client sends to an agent, and the configuration of its run."""

import base64
import binascii
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from mnemesh.agents.v1 import runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_letta.convert.values import json_text, named, set_present

from mnemesh_gateway.http.errors import invalid_field
from mnemesh_gateway.letta.messages import Shown


class ClientTool(msgspec.Struct, kw_only=True):
    """A tool that the client runs."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ClientSkill(msgspec.Struct, kw_only=True):
    """A skill of the client's environment, and where the client has its instructions."""

    name: str
    description: str
    location: str


class SendMessages(msgspec.Struct, kw_only=True):
    """Messages to send, and how to process and return them."""

    messages: list[dict[str, Any]] | None = None
    input: str | list[dict[str, Any]] | None = None
    max_steps: int = 50
    use_assistant_message: bool = True
    assistant_message_tool_name: str = "send_message"
    assistant_message_tool_kwarg: str = "message"
    include_return_message_types: list[str] | None = None
    client_tools: list[ClientTool] | None = None
    client_skills: list[ClientSkill] | None = None
    override_model: str | None = None
    override_system: str | None = None
    include_compaction_messages: bool = False
    streaming: bool | None = None
    stream_tokens: bool = False
    include_pings: bool = True
    background: bool = False
    callback_url: str | None = None
    agent_id: str | None = None


MESSAGE_EVENTS: Final = named(
    runs_pb2,
    "EVENT_KIND",
    *("system_message", "user_message", "assistant_message", "reasoning_message", "hidden_reasoning_message"),
    *("tool_call_message", "tool_return_message", "approval_request_message", "approval_response_message"),
    "summary_message",
) | {"event_message": runs_pb2.EVENT_KIND_COMPACTION}
"""The kinds of the events of a run, by the types of messages that show them."""
MESSAGE_EVENT_NAMES: Final = {value: name for name, value in MESSAGE_EVENTS.items()}
_ROLES: Final = {
    "user": message_pb2.ROLE_USER,
    "system": message_pb2.ROLE_SYSTEM,
    "assistant": message_pb2.ROLE_ASSISTANT,
}
SHOWN_EVENTS: Final = (
    runs_pb2.EVENT_KIND_ASSISTANT_MESSAGE,
    runs_pb2.EVENT_KIND_REASONING_MESSAGE,
    runs_pb2.EVENT_KIND_HIDDEN_REASONING_MESSAGE,
    runs_pb2.EVENT_KIND_TOOL_CALL_MESSAGE,
    runs_pb2.EVENT_KIND_TOOL_RETURN_MESSAGE,
    runs_pb2.EVENT_KIND_APPROVAL_REQUEST_MESSAGE,
)
"""The messages that streams have. Streams begin with the answer, and have summaries only if these are asked for."""
_NO_PARAMETERS: Final = '{"type":"object","properties":{}}'


def input_to_proto(message: dict[str, Any], *loc: str | int) -> runs_pb2.InputMessage:
    """Returns a message to send; `loc` is its path in the body.

    Raises:
        ValidationFailed: the role is unknown, or the content is neither text nor parts that agents take.
    """
    role = message.get("role")
    if role not in _ROLES:
        raise invalid_field("Input should be 'user', 'system' or 'assistant'", *loc, "role")
    found = runs_pb2.InputMessage(role=_ROLES[role], content=content_to_proto(message.get("content"), *loc, "content"))
    for name in ("name", "otid", "sender_id", "group_id"):
        value = message.get(name)
        if value is not None and not isinstance(value, str):
            raise invalid_field("Input should be a valid string", *loc, name)
        set_present(found, **{name: value})
    return found


def content_to_proto(content: Any, *loc: str | int) -> list[message_pb2.ContentPart]:
    """Returns the parts of a content, which is a text or a list of parts.

    Raises:
        ValidationFailed: it is neither, or a part has another type or lacks a field.
    """
    if isinstance(content, str):
        return [message_pb2.ContentPart(text=message_pb2.TextPart(text=content))]
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list):
        raise invalid_field("Input should be a valid string or list", *loc)
    return [_part(part, *loc, index) for index, part in enumerate(content)]


def _part(part: Any, *loc: str | int) -> message_pb2.ContentPart:
    kind = part.get("type", "text") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        text = message_pb2.TextPart(text=part["text"])
        set_present(text, signature=part.get("signature"))
        return message_pb2.ContentPart(text=text)
    if kind == "image" and isinstance(part.get("source"), dict):
        return message_pb2.ContentPart(image=_image(part["source"], *loc, "source"))
    raise invalid_field("Input should be a part with type 'text' or 'image'", *loc)


def _image(source: dict[str, Any], *loc: str | int) -> message_pb2.ImagePart:
    image = message_pb2.ImagePart()
    kind = source.get("type")
    data = source.get("data")
    if kind == "url" and isinstance(source.get("url"), str):
        image.url = source["url"]
    elif isinstance(data, str) and kind in {"base64", "letta"}:
        try:
            image.inline.data = base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise invalid_field("The data must be base64", *loc, "data") from error
        image.inline.media_type = str(source.get("media_type") or "image/png")
    elif kind == "letta" and isinstance(source.get("file_id"), str):
        image.file_id = source["file_id"]
    else:
        raise invalid_field("Input should be a source with type 'url', 'base64' or 'letta'", *loc)
    set_present(image, detail=source.get("detail"))
    return image


@dataclass(slots=True)
class Sent:
    """The input of a run. `blanket` decides over all calls of the pending request, as older clients do."""

    messages: list[runs_pb2.InputMessage] = field(default_factory=list)
    decisions: list[message_pb2.ApprovalDecision] = field(default_factory=list)
    blanket: dict[str, Any] | None = None
    approval_request_id: str | None = None

    @property
    def is_answer(self) -> bool:
        """Whether a pending request for approval is answered."""
        return bool(self.decisions) or self.blanket is not None


def sent_of(body: SendMessages) -> Sent:
    """Returns what a body sends.

    Raises:
        ValidationFailed: it has neither or both of `messages` and `input`, no message, or a malformed one.
    """
    if (body.input is None) == (body.messages is None):
        raise invalid_field("Exactly one of 'messages' and 'input' must be given.", "body", "messages")
    if body.input is not None:
        content = content_to_proto(body.input, "body", "input")
        return Sent([runs_pb2.InputMessage(role=message_pb2.ROLE_USER, content=content)])
    if not body.messages:
        raise invalid_field("Messages must not be empty", "body", "messages")
    sent = Sent()
    for index, message in enumerate(body.messages):
        loc = ("body", "messages", index)
        kind = message.get("type") or ("approval" if {"approvals", "approve"} & message.keys() else "message")
        match kind:
            case "message":
                sent.messages.append(input_to_proto(message, *loc))
            case "approval":
                _add_approval(sent, message, *loc)
            case "tool_return":
                returns = message.get("tool_returns")
                if not isinstance(returns, list):
                    raise invalid_field("Field required", *loc, "tool_returns")
                sent.decisions += [_decision({"type": "tool"} | item, *loc, "tool_returns") for item in returns]
            case _:
                raise invalid_field("Input should be 'message', 'approval' or 'tool_return'", *loc, "type")
    return sent


def _add_approval(sent: Sent, message: dict[str, Any], *loc: str | int) -> None:
    sent.approval_request_id = message.get("approval_request_id")
    approvals = message.get("approvals")
    if approvals:
        sent.decisions += [_decision(item, *loc, "approvals", number) for number, item in enumerate(approvals)]
    elif isinstance(message.get("approve"), bool):
        sent.blanket = message
    else:
        raise invalid_field("Field required", *loc, "approvals")


def _decision(item: Any, *loc: str | int) -> message_pb2.ApprovalDecision:
    if not isinstance(item, dict) or not isinstance(item.get("tool_call_id"), str):
        raise invalid_field("Field required", *loc, "tool_call_id")
    found = message_pb2.ApprovalDecision(tool_call_id=item["tool_call_id"])
    kind = item.get("type") or ("tool" if "tool_return" in item else "approval")
    if kind == "tool":
        failed = item.get("status") == "error"
        found.client_return.CopyFrom(
            message_pb2.ToolReturn(
                tool_call_id=item["tool_call_id"],
                status=message_pb2.TOOL_RETURN_STATUS_ERROR if failed else message_pb2.TOOL_RETURN_STATUS_SUCCESS,
                content=content_to_proto(item.get("tool_return"), *loc, "tool_return"),
                stdout=item.get("stdout") or (),
                stderr=item.get("stderr") or (),
            )
        )
    elif item.get("approve") is True:
        found.approve.SetInParent()
    elif item.get("approve") is False:
        found.deny.SetInParent()
        set_present(found.deny, reason=item.get("reason"))
    else:
        raise invalid_field("Input should be a valid boolean", *loc, "approve")
    return found


def blanket_decisions(sent: Sent, calls: Any) -> list[message_pb2.ApprovalDecision]:
    """Returns the same decision for each call of a request."""
    given = sent.blanket or {}
    fields = {"type": "approval", "approve": given.get("approve"), "reason": given.get("reason")}
    return [_decision(fields | {"tool_call_id": call.id}, "body", "messages") for call in calls]


def config_to_proto(body: SendMessages) -> runs_pb2.RunConfig:
    """Returns the configuration of a run."""
    if body.max_steps < 1:
        raise invalid_field("Input should be greater than 0", "body", "max_steps")
    types = body.include_return_message_types or ()
    for index, name in enumerate(types):
        if name not in MESSAGE_EVENTS:
            known = ", ".join(MESSAGE_EVENTS)
            raise invalid_field(f"Input should be one of {known}", "body", "include_return_message_types", index)
    config = runs_pb2.RunConfig(
        max_steps=body.max_steps,
        stream_tokens=body.stream_tokens,
        include_events=[MESSAGE_EVENTS[name] for name in types] if types else SHOWN_EVENTS,
        assistant_messages=body.use_assistant_message,
        assistant_tool_name=body.assistant_message_tool_name,
        assistant_tool_argument=body.assistant_message_tool_kwarg,
        include_compaction_events=body.include_compaction_messages,
    )
    for tool in body.client_tools or ():
        parameters = json_text(tool.parameters) or _NO_PARAMETERS
        message = runs_pb2.ClientTool(name=tool.name, parameters=parameters)
        set_present(message, description=tool.description)
        config.client_tools.append(message)
    config.client_skills.extend(
        runs_pb2.ClientSkill(name=skill.name, description=skill.description, location=skill.location)
        for skill in body.client_skills or ()
    )
    set_present(
        config,
        override_model=body.override_model,
        override_system=body.override_system,
        callback_url=body.callback_url,
    )
    return config


def shown_of(body: SendMessages) -> Shown:
    """Returns which messages an answer shows."""
    types = body.include_return_message_types
    return Shown(types=frozenset(types) if types else None)


def check_streaming(body: SendMessages, *, streams: bool) -> None:
    """Refuses options of streams in a body that asks for none. Raises ValidationFailed."""
    if body.streaming or (streams and body.streaming is None):
        return
    wrong = [
        name
        for name, is_set in (
            ("stream_tokens", body.stream_tokens),
            ("include_pings", not body.include_pings and not streams),
            ("background", body.background),
        )
        if is_set
    ]
    if wrong:
        raise invalid_field(f"{', '.join(wrong)} can only be set when streaming=true", "body", wrong[0])
