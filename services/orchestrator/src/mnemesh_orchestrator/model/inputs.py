"""The messages that clients send."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_no_nul, require_optional_text
from mnemesh_types.messages import ContentPart, ImagePart, Role, TextPart

_MAX_MESSAGES: Final = 100
_MAX_TEXT_BYTES: Final = 1_048_576
_MAX_IMAGE_BYTES: Final = 10_485_760
_MAX_ID: Final = 512
_ROLES: Final = frozenset({Role.USER, Role.SYSTEM, Role.ASSISTANT})


@dataclass(frozen=True, slots=True)
class InputMessage:
    """A message that a client sends. It becomes a stored message when its step is committed."""

    content: tuple[ContentPart, ...]
    role: Role = Role.USER
    name: str | None = None
    otid: str | None = None
    sender_id: str | None = None
    group_id: str | None = None


def require_valid_inputs(
    messages: Sequence[InputMessage], field: str = "messages", *, min_messages: int = 0
) -> tuple[InputMessage, ...]:
    """Returns the messages that a client sends if each of their parts can be stored.

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
    for index, message in enumerate(messages):
        _require_valid_input(message, f"{field}[{index}]")
    return tuple(messages)


def _require_valid_input(message: InputMessage, field: str) -> None:
    if message.role not in _ROLES:
        raise InvalidArgument(f"{field}.role must be USER, SYSTEM or ASSISTANT.", field=f"{field}.role")
    if not message.content:
        raise InvalidArgument(f"{field}.content must have at least one part.", field=f"{field}.content")
    for index, part in enumerate(message.content):
        _require_valid_part(part, f"{field}.content[{index}]")
    for name in ("name", "otid", "sender_id", "group_id"):
        require_optional_text(getattr(message, name), f"{field}.{name}", max_chars=_MAX_ID)


def _require_valid_part(part: ContentPart, field: str) -> None:
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
