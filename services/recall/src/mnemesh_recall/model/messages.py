"""Writes and filters of messages, and the rules that a message must follow before it is stored.

The message itself is `mnemesh_types.messages.Message`. Each violation names the field that causes it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id, require_id
from mnemesh_kit.text import require_json_object, require_optional_text, require_text
from mnemesh_types.messages import (
    ApprovalDecision,
    ClientReturn,
    ContentPart,
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
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageBatch:
    """Messages to store together. If `conversation_id` is set, they are also appended to its context window."""

    agent_id: str
    conversation_id: str | None
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendResult:
    """The sequence ids of the stored messages, in order, and the new version of the window, if one was extended."""

    sequence_ids: tuple[int, ...]
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """The conditions of a list of messages. A condition that is None or empty does not apply."""

    agent_ids: tuple[str, ...] = ()
    conversation_ids: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ()
    run_id: str | None = None
    step_id: str | None = None
    group_id: str | None = None
    turn_id: str | None = None
    otid: str | None = None
    include_err: bool = False
    tool_call_id: str | None = None
    text: str | None = None
    from_time: datetime | None = None
    """Inclusive."""
    until_time: datetime | None = None
    """Inclusive."""
    after_sequence_id: int | None = None
    """Exclusive. Sequence ids are those of one agent."""
    until_sequence_id: int | None = None
    """Inclusive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentErasure:
    """The number of rows that the erasure of an agent deleted."""

    messages: int
    contexts: int
    episodes: int = 0
    facts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderErasure:
    """The number of rows that one batch of the erasure of a sender deleted, and whether there are more."""

    messages: int = 0
    episodes: int = 0
    facts: int = 0
    remaining: bool = False


def default_conversation_id(agent_id: str) -> str:
    """Returns the id of the agent's default conversation, which agent-level calls use."""
    return derive_id("conv", agent_id)


def has_same_content(stored: Message, given: Message) -> bool:
    """Returns whether a message that is stored again under its id has the content of the stored one.

    Times, sequence ids and the conversation do not count. A turn id counts only if `given` has one, because recall
    assigns the turn otherwise.
    """
    comparable = replace(
        stored,
        created_at=given.created_at,
        conversation_id=given.conversation_id,
        turn_id=stored.turn_id if given.turn_id is not None else None,
    )
    return comparable == given and stored.agent_id == given.agent_id


MAX_TEXT_BYTES: Final = 1 << 20
MAX_IMAGE_BYTES: Final = 10 << 20
MAX_OPAQUE_BYTES: Final = 10 << 20
MAX_NAME_CHARACTERS: Final = 512
MAX_MESSAGES: Final = 1000


def owned_messages(
    messages: Sequence[Message], field: str, agent_id: str, conversation_id: str | None
) -> tuple[Message, ...]:
    """Returns the messages of a write with its agent and conversation, which a message may leave out.

    Raises:
        InvalidArgument: a message names another agent, or another conversation than the write.
    """
    return tuple(
        owned_message(message, f"{field}[{index}]", agent_id, conversation_id) for index, message in enumerate(messages)
    )


def owned_message(message: Message, field: str, agent_id: str, conversation_id: str | None) -> Message:
    """Returns one message of a write with its agent and conversation. Raises as `owned_messages`."""
    if message.agent_id not in ("", agent_id):
        raise InvalidArgument(f"{field}.agent_id must be the agent of the request.", field=f"{field}.agent_id")
    if conversation_id is None:
        return message if message.agent_id else replace(message, agent_id=agent_id)
    if message.conversation_id not in (None, conversation_id):
        raise InvalidArgument(
            f"{field}.conversation_id must be the conversation of the request.", field=f"{field}.conversation_id"
        )
    if message.agent_id and message.conversation_id:
        return message
    return replace(message, agent_id=agent_id, conversation_id=conversation_id)


def require_messages(messages: Sequence[Message], field: str, *, at_least: int = 0) -> None:
    """Refuses messages that must not be stored.

    Raises:
        InvalidArgument: naming the field, such as `messages[2].content[0].text.text`.
    """
    if len(messages) < at_least:
        raise InvalidArgument(f"{field} must not be empty.", field=field)
    if len(messages) > MAX_MESSAGES:
        raise InvalidArgument(f"{field} must be at most {MAX_MESSAGES:,} messages.", field=field)
    for index, message in enumerate(messages):
        require_message(message, f"{field}[{index}]")


def require_distinct_ids(messages: Iterable[Message], field: str) -> None:
    """Refuses messages of which two have the same id."""
    seen: set[str] = set()
    for index, message in enumerate(messages):
        if message.id in seen:
            raise InvalidArgument(f"{field}[{index}].id must not repeat.", field=f"{field}[{index}].id")
        seen.add(message.id)


def require_message(message: Message, field: str) -> None:
    """Refuses a message that must not be stored, naming the field under `field`."""
    require_id(message.id, "message", f"{field}.id")
    _require_parts(message.content, f"{field}.content")
    for index, call in enumerate(message.tool_calls):
        _require_call(call, f"{field}.tool_calls[{index}]")
    for index, item in enumerate(message.tool_returns):
        _require_return(item, f"{field}.tool_returns[{index}]")
    for index, decision in enumerate(message.approval_decisions):
        _require_decision(decision, f"{field}.approval_decisions[{index}]")
    for name, prefix in (
        ("approval_request_id", "message"), ("step_id", "step"), ("run_id", "run"), ("group_id", "group"),
    ):  # fmt: skip
        if (id_ := getattr(message, name)) is not None:
            require_id(id_, prefix, f"{field}.{name}")
    require_optional_text(message.carried, f"{field}.carried", max_bytes=MAX_TEXT_BYTES)
    for name in ("name", "otid", "sender_id", "model", "turn_id"):
        if (text := getattr(message, name)) is not None:
            require_name(text, f"{field}.{name}")


def updated_message(stored: Message, changed: Message, fields: frozenset[str]) -> Message:
    """Returns a stored message with the named fields of another.

    What the provider carried with its own words is not valid beside other words.
    """
    updated = replace(stored, **{field: getattr(changed, field) for field in fields})
    is_same = updated.content == stored.content and updated.tool_calls == stored.tool_calls
    return updated if is_same else replace(updated, carried=None)


def require_content_text(text: str, field: str) -> str:
    """Returns a text if it may be stored as content."""
    return require_text(text, field, max_bytes=MAX_TEXT_BYTES)


def require_name(text: str, field: str, min_chars: int = 0) -> str:
    """Returns a name or an id that recall does not assign, if it is short enough."""
    return require_text(text, field, min_chars=min_chars, max_chars=MAX_NAME_CHARACTERS)


def _require_parts(parts: Sequence[ContentPart], field: str) -> None:
    for index, part in enumerate(parts):
        _require_part(part, f"{field}[{index}]")


def _require_part(part: ContentPart, field: str) -> None:
    match part:
        case TextPart(text, signature):
            require_content_text(text, f"{field}.text.text")
            _require_opaque(signature, f"{field}.text.signature")
        case ImagePart():
            _require_image(part, f"{field}.image")
        case ReasoningPart(text, _, signature):
            require_content_text(text, f"{field}.reasoning.text")
            _require_opaque(signature, f"{field}.reasoning.signature")
        case RedactedReasoningPart(data):
            _require_opaque(data, f"{field}.redacted_reasoning.data")
        case OmittedReasoningPart(signature):
            _require_opaque(signature, f"{field}.omitted_reasoning.signature")
        case SummarizedReasoningPart(id_, summaries, encrypted):
            require_name(id_, f"{field}.summarized_reasoning.id")
            _require_texts(summaries, f"{field}.summarized_reasoning.summaries")
            _require_opaque(encrypted, f"{field}.summarized_reasoning.encrypted_content")


def _require_image(part: ImagePart, field: str) -> None:
    if part.data is not None and len(part.data) > MAX_IMAGE_BYTES:
        raise InvalidArgument(f"{field}.inline.data must be at most 10 MB.", field=f"{field}.inline.data")
    if part.media_type is not None:
        require_name(part.media_type, f"{field}.inline.media_type")
    if part.url is not None:
        require_content_text(part.url, f"{field}.url")
    if part.file_id is not None:
        require_name(part.file_id, f"{field}.file_id")
    if part.detail is not None:
        require_name(part.detail, f"{field}.detail")


def _require_call(call: ToolCall, field: str) -> None:
    require_name(call.id, f"{field}.id", min_chars=1)
    require_name(call.name, f"{field}.name", min_chars=1)
    require_json_object(call.arguments, f"{field}.arguments", max_bytes=MAX_TEXT_BYTES)
    if call.provider_id is not None:
        require_name(call.provider_id, f"{field}.provider_id")


def _require_return(item: ToolReturn, field: str) -> None:
    require_name(item.tool_call_id, f"{field}.tool_call_id", min_chars=1)
    require_name(item.name, f"{field}.name")
    _require_parts(item.content, f"{field}.content")
    _require_texts(item.stdout, f"{field}.stdout")
    _require_texts(item.stderr, f"{field}.stderr")


def _require_decision(decision: ApprovalDecision, field: str) -> None:
    require_name(decision.tool_call_id, f"{field}.tool_call_id", min_chars=1)
    match decision:
        case ClientReturn(_, tool_return):
            _require_return(tool_return, f"{field}.client_return")
        case Deny(_, str(reason)):
            require_content_text(reason, f"{field}.deny.reason")


def _require_texts(texts: Sequence[str], field: str) -> None:
    for index, text in enumerate(texts):
        require_content_text(text, f"{field}[{index}]")


def _require_opaque(text: str | None, field: str) -> None:
    require_optional_text(text, field, max_bytes=MAX_OPAQUE_BYTES)
