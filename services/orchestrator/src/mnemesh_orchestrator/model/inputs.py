"""The messages that clients send."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.text import require_no_nul, require_optional_text
from mnemesh_types.messages import ContentPart, ImagePart, Role, TextPart

from mnemesh_orchestrator.errors import OtidReused

_MAX_MESSAGES: Final = 100
_MAX_TEXT_BYTES: Final = 1_048_576
_MAX_IMAGE_BYTES: Final = 10_485_760
_MAX_ID: Final = 512
_ROLES: Final = frozenset({Role.USER, Role.SYSTEM, Role.ASSISTANT})
SHOWN_ROLES: Final = frozenset({Role.USER, Role.SYSTEM})
"""The roles of the input messages that are events of their run. A stream of events has the agent's words only."""


@dataclass(frozen=True, slots=True)
class InputMessage:
    """A message that a client sends. It becomes a stored message when its step is committed."""

    content: tuple[ContentPart, ...]
    role: Role = Role.USER
    name: str | None = None
    otid: str | None = None
    sender_id: str | None = None
    group_id: str | None = None


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message as its client sent it: the client's id, and hashes of the message and of the whole input."""

    otid: str | None
    message_hash: str
    input_hash: str


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """A message with an otid that a run has, with the hashes of the message and of the whole input."""

    run_id: str
    message_hash: str
    input_hash: str


def sent_messages(messages: Sequence[InputMessage]) -> tuple[SentMessage, ...]:
    """Returns an input as a repeated request is recognised by it; empty if no message has an otid."""
    if not any(message.otid for message in messages):
        return ()
    hashes = [_hash(message) for message in messages]
    whole = hashlib.sha256("".join(hashes).encode()).hexdigest()[:32]
    return tuple(SentMessage(message.otid, hash_, whole) for message, hash_ in zip(messages, hashes, strict=True))


def _hash(message: InputMessage) -> str:
    return hashlib.sha256(msgspec.json.encode(message)).hexdigest()[:32]


def repeated_run_id(sent: Sequence[SentMessage], known: Mapping[str, KnownMessage]) -> str | None:
    """Returns the id of the run that has the whole input, or None if it has none of the messages.

    Args:
        sent: The input.
        known: The messages with these otids that runs of the conversation have, by otid.

    Raises:
        OtidReused: A run has some of the messages and not the others, or has an otid with other content.
    """
    first = next((known[item.otid] for item in sent if item.otid is not None and item.otid in known), None)
    if first is None:
        return None
    for index, item in enumerate(sent):
        field, run_id = f"messages[{index}]", first.run_id
        found = known.get(item.otid) if item.otid else None
        if found is None and (item.otid or first.input_hash != item.input_hash):
            raise OtidReused(
                f"{field} is new, and another message of the request was sent before. Send the new messages alone.",
                field=field,
                run_id=run_id,
            )
        if found is not None and found.run_id != run_id:
            raise OtidReused(
                f"{field}.otid belongs to another run than the messages before it. Send each input as it was sent.",
                field=f"{field}.otid",
                run_id=found.run_id,
            )
        if found is not None and found.message_hash != item.message_hash:
            raise OtidReused(
                f"{field}.otid was used before with other content. Use a new one.",
                field=f"{field}.otid",
                run_id=run_id,
            )
    return first.run_id


def require_valid_inputs(
    messages: Sequence[InputMessage], field: str = "messages", *, min_messages: int = 0
) -> tuple[InputMessage, ...]:
    """Returns the messages that a client sends if each of their parts can be stored, without empty texts beside others.

    Args:
        messages: The messages, in order.
        field: The path of the messages in the request.
        min_messages: The least number of messages.

    Raises:
        InvalidArgument: There are too few or too many messages, or a field of one breaks its rule. Metadata: field,
            such as `messages[0].content[1]`.
    """
    if len(messages) < min_messages:
        raise InvalidArgument(f"{field} must have at least {min_messages} message.", field=field)
    if len(messages) > _MAX_MESSAGES:
        raise InvalidArgument(f"{field} must have at most {_MAX_MESSAGES} messages.", field=field)
    messages = [_require_valid_input(message, f"{field}[{index}]") for index, message in enumerate(messages)]
    otids: set[str] = set()
    for index, message in enumerate(messages):
        if message.otid and message.otid in otids:
            path = f"{field}[{index}].otid"
            raise InvalidArgument(f"{path} must differ from the otids of the other messages.", field=path)
        otids.add(message.otid or "")
    return tuple(messages)


def _require_valid_input(message: InputMessage, field: str) -> InputMessage:
    if message.role not in _ROLES:
        raise InvalidArgument(f"{field}.role must be USER, SYSTEM or ASSISTANT.", field=f"{field}.role")
    if not message.content:
        raise InvalidArgument(f"{field}.content must have at least one part.", field=f"{field}.content")
    # Front ends send an empty text before an image that has no words.
    is_empty = [isinstance(part, TextPart) and not part.text for part in message.content]
    for index, part in enumerate(message.content):
        if not is_empty[index] or all(is_empty):
            require_valid_part(part, f"{field}.content[{index}]")
    for name in ("name", "otid", "sender_id"):
        require_optional_text(getattr(message, name), f"{field}.{name}", max_chars=_MAX_ID)
    if message.group_id is not None:
        require_id(message.group_id, "group", f"{field}.group_id")
    if not any(is_empty):
        return message
    return replace(
        message, content=tuple(part for part, empty in zip(message.content, is_empty, strict=True) if not empty)
    )


def require_valid_part(part: ContentPart, field: str) -> None:
    """Refuses a part that a client cannot send. Raises InvalidArgument."""
    match part:
        case TextPart(text):
            if not text:
                raise InvalidArgument(f"{field}.text must not be empty.", field=field)
            if len(text) > _MAX_TEXT_BYTES or len(text.encode(errors="replace")) > _MAX_TEXT_BYTES:
                raise InvalidArgument(f"{field}.text must be at most 1 MB.", field=field)
            require_no_nul(text, field)
        case ImagePart(data=bytes() as data) if len(data) > _MAX_IMAGE_BYTES:
            raise InvalidArgument(f"{field}.image must be at most 10 MB.", field=field)
        case ImagePart(data=None, url=None):
            raise InvalidArgument(f"{field}.image must have data or a URL.", field=field)
        case ImagePart():
            return
        case _:
            raise InvalidArgument(f"{field} must be text or an image.", field=field)
